//! Movements, feeds and fetches: the operations that the runtime executes itself, since they reach beyond one arena.
//!
//! Their words are [`Piece`]s. A sum is made a chunk at a time on the stack, with one chunk for each level of its tree.
//!
//! Words cannot reach beyond the slices that the program's verifier has seen: slices are indexed and runs are cut from
//! them with checks, so wrong words make wrong values or a panic, nothing worse.

use phalanx_link::Part;
use phalanx_program::rect::PerDim;
pub use phalanx_program::{MAX_PARTS, Piece};
use phalanx_program::{MAX_RANK, Slice};

use crate::Arena;
use crate::rect::walk;

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
    /// the words name, and the two do not overlap.
    pub(crate) unsafe fn new(reads: Slices<'a>, writes: Slices<'a>) -> Self {
        Operands { reads, writes }
    }

    fn read(&self, index: usize) -> &'a [u8] {
        let (blocks, slices) = self.reads;
        let slice = slices[index];
        // SAFETY: nothing writes it, by the promise of `new`.
        unsafe { blocks[slice.lane as usize].shared(slice) }
    }

    /// A run of `bytes` bytes, from byte `start` of a written slice on. No more: other lanes fetch into the rest.
    fn write(&mut self, index: usize, start: usize, bytes: usize) -> &mut [u8] {
        let (blocks, slices) = self.writes;
        let slice = slices[index];
        let run = Slice { offset: slice.offset + start as u64, bytes: bytes as u64, ..slice };
        assert!(run.end() <= slice.end(), "{run} is outside {slice}");
        // SAFETY: nothing else touches it, by the promise of `new`, and `&mut self` makes this the only one of ours.
        unsafe { blocks[slice.lane as usize].part(run) }
    }
}

/// Moves the pieces that `words` describe.
pub(crate) fn execute(words: &[u64], operands: &mut Operands<'_>) {
    let mut rest = words;
    while let Some((piece, after)) = Frozen::take(rest) {
        match piece.parts {
            1 => piece.copy(operands),
            2 => piece.add(operands),
            _ => piece.sum(operands),
        }
        rest = after;
    }
}

/// How many bytes the pieces bring from each arena, by its lane, ascending.
pub(crate) fn parts(words: &[u64], reads: &[Slice]) -> Vec<Part> {
    let mut bytes = std::collections::BTreeMap::new();
    let mut rest = words;
    while let Some((piece, after)) = Frozen::take(rest) {
        let size = (piece.extents.iter().product::<usize>() * piece.run) as u64;
        let rank = piece.extents.len();
        for part in piece.places[rank + 1..].chunks(rank + 2) {
            *bytes.entry(reads[part[0] as usize].lane).or_default() += size;
        }
        rest = after;
    }
    bytes.into_iter().map(|(from, bytes)| Part { from, bytes }).collect()
}

/// A piece as it stands in the words.
struct Frozen<'a> {
    write: usize,
    parts: usize,
    run: usize,
    extents: PerDim,
    /// The place of the target, then the read and place of each part.
    places: &'a [u64],
}

impl<'a> Frozen<'a> {
    /// The first piece and the words after it; nothing if there are none.
    fn take(words: &'a [u64]) -> Option<(Frozen<'a>, &'a [u64])> {
        let (&head, rest) = words.split_first_chunk()?;
        let [write, parts, run, rank] = head.map(|word| word as usize);
        assert!(rank <= MAX_RANK, "the words are those of `Piece::encode`");
        let (extents, rest) = rest.split_at(rank);
        let (places, rest) = rest.split_at(rank + 1 + parts * (rank + 2));
        let extents = extents.iter().map(|&extent| extent as usize).collect();
        Some((Frozen { write, parts, run, extents, places }, rest))
    }

    /// Where the run at `index` starts in the target.
    fn target_at(&self, index: &[usize]) -> usize {
        offset(&self.places[..=index.len()], index)
    }

    /// Which slice part number `part` is read from, and where in it the run at `index` starts.
    fn part_at(&self, part: usize, index: &[usize]) -> (usize, usize) {
        let width = index.len() + 2;
        let first = index.len() + 1 + part * width;
        let part = &self.places[first..first + width];
        (part[0] as usize, offset(&part[1..], index))
    }

    fn copy(&self, operands: &mut Operands<'_>) {
        walk(&self.extents, |index| {
            let (read, from) = self.part_at(0, index);
            let source = &operands.read(read)[from..from + self.run];
            let to = self.target_at(index);
            operands.write(self.write, to, self.run).copy_from_slice(source);
        });
    }

    /// A sum of two parts: the tree has one node.
    fn add(&self, operands: &mut Operands<'_>) {
        walk(&self.extents, |index| {
            let part = |part| {
                let (read, from) = self.part_at(part, index);
                operands.read(read)[from..from + self.run].as_chunks::<4>().0
            };
            let (left, right) = (part(0), part(1));
            let target = operands.write(self.write, self.target_at(index), self.run);
            for ((to, left), right) in target.as_chunks_mut().0.iter_mut().zip(left).zip(right) {
                *to = (f32::from_ne_bytes(*left) + f32::from_ne_bytes(*right)).to_ne_bytes();
            }
        });
    }

    fn sum(&self, operands: &mut Operands<'_>) {
        let mut tree = Tree { levels: [[0.0; CHUNK]; LEVELS] };
        walk(&self.extents, |index| {
            let to = self.target_at(index);
            for start in (0..self.run).step_by(4 * CHUNK) {
                let bytes = (self.run - start).min(4 * CHUNK);
                let part = |part| {
                    let (read, from) = self.part_at(part, index);
                    &operands.read(read)[from + start..from + start + bytes]
                };
                let sum = tree.sum(bytes / 4, self.parts, part);
                let target = operands.write(self.write, to + start, bytes);
                for (bytes, value) in target.as_chunks_mut().0.iter_mut().zip(sum) {
                    *bytes = value.to_ne_bytes();
                }
            }
        });
    }
}

fn offset(place: &[u64], index: &[usize]) -> usize {
    index.iter().zip(&place[1..]).fold(place[0] as usize, |sum, (i, &stride)| sum + i * stride as usize)
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
