//! Movements, feeds and fetches: the operations that the runtime executes itself, since they reach beyond one arena.
//!
//! They move [`Piece`]s. A copy is one of `phalanx_strided`. A sum is made a chunk at a time on the stack, with one chunk
//! for each level of its tree.

use phalanx_program::{MAX_PARTS, Piece, Slice};
use phalanx_strided::walk;

use crate::Arena;

/// The slices that an operation moves bytes between.
pub(crate) struct Operands<'a> {
    reads: Slices<'a>,
    writes: Slices<'a>,
}

/// Slices, and the blocks of memory that their lanes number.
pub(crate) type Slices<'a> = (&'a [Arena], &'a [Slice]);

impl<'a> Operands<'a> {
    /// # Safety
    /// As long as the result lives, nothing writes the bytes of `reads`, nothing else touches those of `writes` that
    /// pieces name, and the two do not overlap.
    pub(crate) unsafe fn new(reads: Slices<'a>, writes: Slices<'a>) -> Self {
        Operands { reads, writes }
    }

    fn read(&self, index: u32) -> &'a [u8] {
        let (blocks, slices) = self.reads;
        let slice = slices[index as usize];
        // SAFETY: nothing writes it, by the promise of `new`.
        unsafe { blocks[slice.lane as usize].shared(slice) }
    }

    /// A run of `bytes` bytes, from byte `start` of a written slice on. No more: other lanes fetch into the rest.
    fn write(&mut self, index: u32, start: usize, bytes: usize) -> &mut [u8] {
        let (blocks, slices) = self.writes;
        let slice = slices[index as usize];
        let run = Slice { offset: slice.offset + start as u64, bytes: bytes as u64, ..slice };
        assert!(run.end() <= slice.end(), "{run} is outside {slice}");
        // SAFETY: nothing else touches it, by the promise of `new`, and `&mut self` makes this the only one of ours.
        unsafe { blocks[slice.lane as usize].part(run) }
    }
}

/// Moves pieces.
///
/// # Safety
/// They lie inside the operands' slices, and runs of a target do not overlap: the program's verifier has seen that.
pub(crate) unsafe fn execute(pieces: &[Piece], operands: &mut Operands<'_>) {
    for piece in pieces {
        match piece.reads[..] {
            // SAFETY: the caller's promise.
            [read] => unsafe { copy(piece, read, operands) },
            [left, right] => add(piece, [left, right], operands),
            _ => sum(piece, operands),
        }
    }
}

/// # Safety
/// As for [`execute`].
unsafe fn copy(piece: &Piece, read: u32, operands: &mut Operands<'_>) {
    let from = operands.read(read).as_ptr();
    let (blocks, slices) = operands.writes;
    let slice = slices[piece.write as usize];
    let to = blocks[slice.lane as usize].address(slice);
    // SAFETY: the piece lies inside both slices, by the caller's promise, and by that of `Operands::new` these do not
    // overlap and no other thread interferes.
    unsafe { phalanx_strided::copy(&piece.nest, to, from) };
}

/// A sum of two parts: the tree has one node.
fn add(piece: &Piece, reads: [u32; 2], operands: &mut Operands<'_>) {
    let [left, right] = reads.map(|read| operands.read(read));
    let (run, places) = (piece.nest.run, &piece.nest.places);
    walk(&piece.nest.extents, |index| {
        let [left, right] = [(left, &places[1]), (right, &places[2])]
            .map(|(bytes, place)| bytes[place.at(index)..][..run].as_chunks::<4>().0);
        let target = operands.write(piece.write, places[0].at(index), run);
        for ((to, left), right) in target.as_chunks_mut().0.iter_mut().zip(left).zip(right) {
            *to = (f32::from_ne_bytes(*left) + f32::from_ne_bytes(*right)).to_ne_bytes();
        }
    });
}

fn sum(piece: &Piece, operands: &mut Operands<'_>) {
    let (run, places) = (piece.nest.run, &piece.nest.places);
    let mut tree = Tree { levels: [[0.0; CHUNK]; LEVELS] };
    walk(&piece.nest.extents, |index| {
        let to = places[0].at(index);
        for start in (0..run).step_by(4 * CHUNK) {
            let bytes = (run - start).min(4 * CHUNK);
            let part = |part: usize| {
                let from = places[1 + part].at(index) + start;
                &operands.read(piece.reads[part])[from..from + bytes]
            };
            let sum = tree.sum(bytes / 4, piece.reads.len(), part);
            let target = operands.write(piece.write, to + start, bytes);
            for (bytes, value) in target.as_chunks_mut().0.iter_mut().zip(sum) {
                *bytes = value.to_ne_bytes();
            }
        }
    });
}

/// Elements summed at a time: 1 KiB for each level.
const CHUNK: usize = 256;

/// Levels of the largest tree.
const LEVELS: usize = MAX_PARTS.ilog2() as usize + 1;

/// Sums of complete subtrees on the way to the root, larger ones first.
struct Tree {
    levels: [[f32; CHUNK]; LEVELS],
}

impl Tree {
    /// The sum over all parts of their first `len` floats.
    fn sum<'a>(&mut self, len: usize, parts: usize, part: impl Fn(usize) -> &'a [u8]) -> &[f32] {
        let mut depth = 0;
        for index in 0..parts {
            let floats = part(index).as_chunks().0.iter().map(|&bytes| f32::from_ne_bytes(bytes));
            if index % 2 == 0 {
                self.levels[depth][..len].iter_mut().zip(floats).for_each(|(to, value)| *to = value);
                depth += 1;
                continue;
            }
            self.levels[depth - 1][..len].iter_mut().zip(floats).for_each(|(left, right)| *left += right);
            // The parts so far end as many subtrees as their number has factors of two; one is joined already.
            for _ in 1..(index + 1).trailing_zeros() {
                depth = self.join(depth, len);
            }
        }
        while depth > 1 {
            depth = self.join(depth, len);
        }
        &self.levels[0][..len]
    }

    /// Adds the last subtree to the one before.
    fn join(&mut self, depth: usize, len: usize) -> usize {
        let (left, right) = self.levels.split_at_mut(depth - 1);
        let pairs = left[depth - 2][..len].iter_mut().zip(&right[0][..len]);
        pairs.for_each(|(left, right)| *left += right);
        depth - 1
    }
}

#[cfg(test)]
mod tests;
