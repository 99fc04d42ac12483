//! What the operations that the runtime executes itself move.
//!
//! A movement is a list of *pieces*: rectangles of a written tile, each the sum of rectangles of one or more read tiles,
//! its *parts*. One part is copied. Several are 32-bit floats and are summed as a balanced tree, parts ascending, the
//! left half the largest power of two below their number: `((p0+p1)+(p2+p3))+p4`.

use phalanx_strided::{Nest, Place};

use crate::Slice;
use crate::rect::{Tile, place};

/// A rectangle of a written slice and where it comes from.
///
/// Writes and reads are numbers of the operation's slices, but the reads of a [`FEED`](crate::FEED) are fields of the
/// run's arguments and the writes of a [`FETCH`](crate::FETCH) fields of its results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which written slice.
    pub write: u32,
    /// Which read slices: one for each part; several are summed.
    pub reads: Vec<u32>,
    /// Where it lies in the written slice, and then where each part lies in its read slice.
    pub nest: Nest,
}

/// The most parts of a sum.
pub const MAX_PARTS: usize = 1 << 15;

impl Piece {
    /// The rectangle `rect`, of elements of `element` bytes, of the tile in a written slice, from the tiles in read
    /// slices.
    pub fn new(element: usize, rect: Tile<'_>, target: (u32, Tile<'_>), parts: &[(u32, Tile<'_>)]) -> Piece {
        assert!((1..=MAX_PARTS).contains(&parts.len()), "a piece has 1 to {MAX_PARTS} parts");
        assert!(parts.len() == 1 || element == size_of::<f32>(), "only 32-bit floats are summed");
        let tiles = [&target].into_iter().chain(parts).map(|&(_, tile)| tile);
        let places = tiles.map(|tile| place(element, rect, tile)).collect();
        let reads = parts.iter().map(|&(read, _)| read).collect();
        Piece { write: target.0, reads, nest: Nest::new(element, rect.extents, places) }
    }

    /// Where it lies in the written slice.
    pub fn target(&self) -> &Place {
        &self.nest.places[0]
    }

    /// Its parts: which read slice, and where in it.
    pub fn parts(&self) -> impl Iterator<Item = (u32, &Place)> {
        self.reads.iter().copied().zip(&self.nest.places[1..])
    }

    /// Whether it lies inside the slices that it names, its runs are apart, and a sum is one of whole floats.
    pub(crate) fn fits(&self, reads: &[Slice], writes: &[Slice]) -> bool {
        let is_empty = self.nest.bytes() == 0;
        let is_inside = |number: u32, slices: &[Slice], place: &Place| {
            let is_end = |slice: &Slice| self.nest.end(place).is_some_and(|end| end as u64 <= slice.bytes);
            slices.get(number as usize).is_some_and(|slice| is_empty || is_end(slice))
        };
        let places = &self.nest.places;
        (1..=MAX_PARTS).contains(&self.reads.len())
            && places.len() == self.reads.len() + 1
            && places.iter().all(|place| place.strides.len() == self.nest.extents.len())
            && (self.reads.len() == 1 || self.nest.run.is_multiple_of(size_of::<f32>()))
            && is_inside(self.write, writes, self.target())
            && self.parts().all(|(read, place)| is_inside(read, reads, place))
    }

    /// Bytes of the target.
    pub fn bytes(&self) -> u64 {
        self.nest.bytes() as u64
    }
}

/// Bytes that pieces read and write.
pub fn traffic(pieces: &[Piece]) -> (u64, u64) {
    pieces.iter().fold((0, 0), |(read, written), piece| {
        let all = piece.bytes().saturating_mul(piece.reads.len() as u64);
        (u64::saturating_add(read, all), u64::saturating_add(written, piece.bytes()))
    })
}
