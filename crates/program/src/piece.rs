//! What the operations that the runtime executes itself move, as words.
//!
//! The words are a list of *pieces*: rectangles of a written tile, each the sum of rectangles of one or more read tiles,
//! its *parts*. One part is copied. Several are 32-bit floats and are summed as a balanced tree, parts ascending, the
//! left half the largest power of two below their number: `((p0+p1)+(p2+p3))+p4`.
//!
//! ```text
//! piece  = write, parts, run, rank, extents[rank], place of the target, (read, place of the part)[parts]
//! place  = start, strides[rank]
//! ```
//! All in bytes but extents. A run is contiguous in the target and all parts; extents count runs. Writes and reads are
//! numbers of the operation's slices, but the reads of a [`FEED`](crate::FEED) are fields of the run's arguments and the
//! writes of a [`FETCH`](crate::FETCH) fields of its results.

use crate::rect::{PerDim, Place, Tile, collapse};

/// A rectangle of a written tile and where it comes from.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Bytes of an element.
    pub element: usize,
    /// Where, in global coordinates.
    pub rect: Tile<'a>,
    /// Which written slice, and the tile it holds.
    pub target: (u32, Tile<'a>),
    /// Which read slices, and the tiles they hold; several are summed.
    pub parts: &'a [(u32, Tile<'a>)],
}

/// The most parts of a sum.
pub const MAX_PARTS: usize = 1 << 15;

impl Piece<'_> {
    /// Appends the piece to an operation's words.
    pub fn encode(&self, words: &mut Vec<u64>) {
        let (write, target) = self.target;
        assert!((1..=MAX_PARTS).contains(&self.parts.len()), "a piece has 1 to {MAX_PARTS} parts");
        assert!(self.parts.len() == 1 || self.element == 4, "only 32-bit floats are summed");
        let tiles = self.parts.iter().map(|&(_, tile)| tile);
        let mut places: Vec<Place> =
            [target].into_iter().chain(tiles).map(|tile| Place::new(self.rect, tile)).collect();
        let mut extents: PerDim = self.rect.extents.iter().copied().collect();
        let run = collapse(&mut extents, &mut places);
        let bytes = |count: usize| (count * self.element) as u64;
        words.extend([u64::from(write), self.parts.len() as u64, bytes(run), extents.len() as u64]);
        words.extend(extents.iter().map(|&extent| extent as u64));
        let reads = self.parts.iter().map(|&(read, _)| Some(u64::from(read)));
        for (place, read) in places.iter().zip([None].into_iter().chain(reads)) {
            words.extend(read);
            words.push(bytes(place.start));
            words.extend(place.strides.iter().map(|&stride| bytes(stride)));
        }
    }
}
