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

use crate::message::reach;
use crate::rect::{PerDim, Place, Tile, collapse};
use crate::{MAX_RANK, Slice};

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

/// A piece as its words say, for whoever takes it apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawPiece {
    /// Which written slice.
    pub write: u32,
    /// Bytes of a run.
    pub run: u64,
    /// How many runs along each dimension.
    pub extents: Vec<u64>,
    /// Where in the written slice.
    pub target: RawPlace,
    /// Which read slices, and where in them.
    pub parts: Vec<(u32, RawPlace)>,
}

/// Where the runs of a piece lie in a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawPlace {
    pub start: u64,
    pub strides: Vec<u64>,
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

/// Bytes that the pieces in an operation's words read and write: none if they are no pieces.
pub fn traffic(words: &[u64]) -> (u64, u64) {
    let pieces = RawPiece::decode(words).unwrap_or_default();
    pieces.iter().fold((0, 0), |(read, written), piece| {
        let bytes = piece.bytes();
        let all = bytes.saturating_mul(piece.parts.len() as u64);
        (u64::saturating_add(read, all), u64::saturating_add(written, bytes))
    })
}

impl RawPiece {
    /// All pieces of an operation's words; nothing if they are none.
    pub fn decode(words: &[u64]) -> Option<Vec<RawPiece>> {
        let (mut pieces, mut rest) = (Vec::new(), words);
        while !rest.is_empty() {
            let (&[write, parts, run, rank], after) = rest.split_first_chunk()?;
            let rank = usize::try_from(rank).ok().filter(|&rank| rank <= MAX_RANK)?;
            let parts = usize::try_from(parts).ok().filter(|parts| (1..=MAX_PARTS).contains(parts))?;
            let (extents, after) = after.split_at_checked(rank)?;
            let (target, after) = after.split_at_checked(rank + 1)?;
            let (places, after) = after.split_at_checked(parts * (rank + 2))?;
            let part = |words: &[u64]| Some((u32::try_from(words[0]).ok()?, RawPlace::new(&words[1..])));
            pieces.push(RawPiece {
                write: u32::try_from(write).ok()?,
                run,
                extents: extents.to_vec(),
                target: RawPlace::new(target),
                parts: places.chunks(rank + 2).map(part).collect::<Option<_>>()?,
            });
            rest = after;
        }
        Some(pieces)
    }

    /// Appends the piece to an operation's words.
    pub fn encode(&self, words: &mut Vec<u64>) {
        let RawPiece { write, run, extents, target, parts } = self;
        words.extend([u64::from(*write), parts.len() as u64, *run, extents.len() as u64]);
        words.extend(extents);
        target.encode(words);
        for (read, place) in parts {
            words.push(u64::from(*read));
            place.encode(words);
        }
    }

    /// Whether it lies inside the slices that it names, and its runs are apart.
    pub fn fits(&self, reads: &[Slice], writes: &[Slice]) -> bool {
        let inside = |number: u32, slices: &[Slice], place: &RawPlace| {
            let dims = self.extents.iter().copied().zip(place.strides.iter().copied());
            let slice = slices.get(number as usize);
            slice
                .is_some_and(|slice| reach(place.start, self.run, dims).is_some_and(|end| end <= slice.bytes))
        };
        inside(self.write, writes, &self.target)
            && self.parts.iter().all(|(read, place)| inside(*read, reads, place))
    }

    /// Bytes of the target.
    pub fn bytes(&self) -> u64 {
        self.extents.iter().fold(self.run, |bytes, &extent| bytes.saturating_mul(extent))
    }
}

impl RawPlace {
    fn new(words: &[u64]) -> RawPlace {
        RawPlace { start: words[0], strides: words[1..].to_vec() }
    }

    fn encode(&self, words: &mut Vec<u64>) {
        words.push(self.start);
        words.extend(&self.strides);
    }
}
