//! One receive, split into what arrives from other ranks and what is left to do here.
//!
//! Every part of a piece that lies on another rank is a *transit*, one message. Part of a copy: it goes straight to the
//! piece's target, and nothing is left. Part of a sum: it *lands* in the receive's working memory, from where the sum reads
//! it in place of the other rank's tile, so sums are the same to the bit.
//!
//! Pieces are gathered in *groups*: what is left of a group starts when its own transits have arrived, while those of the
//! next are still under way. All copies are in the first group; sums are spread over as many as they need. Pieces of one
//! receive are taken to be apart, since they arrive in any order.

use std::ops::Range;

use crate::piece::{RawPiece, RawPlace};
use crate::{ALIGNMENT, Slice};

/// Bytes that land for one group. A sum that needs more is cut if its rows allow.
pub const SEGMENT: u64 = 1 << 20;

/// Pieces that wait for the same arrival.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// The words of what is left. The last read slice is the one where this group lands.
    pub words: Vec<u64>,
    pub transits: Vec<Transit>,
    /// Where it lands in the receive's working memory.
    pub landing: Range<u64>,
}

/// Bytes of another rank's tile on their way.
#[derive(Debug)]
pub(super) struct Transit {
    /// Which slice of the receive they come from.
    pub read: u32,
    pub from: Runs,
    /// Which written slice of the receive they go to, or else where the group lands.
    pub write: Option<u32>,
    pub to: Runs,
}

/// Places of bytes in a slice, as in a message end.
#[derive(Debug)]
pub(super) struct Runs {
    pub start: u64,
    pub run: u64,
    pub grid: Vec<(u64, u64)>,
}

/// Splits a receive between slices. `local` numbers those that it reads on this rank, from 0, and has nothing for the
/// others. Nothing if its words are no pieces between these slices.
pub(super) fn split(
    words: &[u64],
    local: &[Option<u32>],
    reads: &[Slice],
    writes: &[Slice],
) -> Option<Vec<Group>> {
    let mut receive = Split {
        local,
        landing: local.iter().flatten().count() as u32,
        landed: 0,
        groups: vec![Group::default()],
    };
    for piece in RawPiece::decode(words)? {
        match piece.parts.len() {
            _ if piece.bytes() == 0 => {}
            _ if !piece.fits(reads, writes) => return None,
            1 => receive.copy(piece),
            _ => receive.sum(&piece),
        }
    }
    Some(receive.groups)
}

/// How many bytes of other ranks land in the working memory of a receive with these words; `is_remote` tells which of its
/// read slices are theirs. Words that are no pieces need none.
pub fn landing_bytes(words: &[u64], is_remote: impl Fn(u32) -> bool) -> u64 {
    let pieces = RawPiece::decode(words).unwrap_or_default();
    let sums = pieces.iter().filter(|piece| piece.parts.len() > 1);
    let landed = |piece: &RawPiece| {
        let remote = piece.parts.iter().filter(|&&(read, _)| is_remote(read)).count() as u64;
        remote.saturating_mul(padded(piece.bytes()))
    };
    sums.map(landed).fold(0, u64::saturating_add)
}

struct Split<'a> {
    local: &'a [Option<u32>],
    /// The number of the slice where a group lands.
    landing: u32,
    /// Bytes of the working memory used so far.
    landed: u64,
    groups: Vec<Group>,
}

impl Split<'_> {
    fn copy(&mut self, mut piece: RawPiece) {
        let (read, place) = &mut piece.parts[0];
        let group = &mut self.groups[0];
        match self.local[*read as usize] {
            Some(local) => {
                *read = local;
                piece.encode(&mut group.words);
            }
            None => group.transits.push(Transit {
                read: *read,
                from: Runs::new(piece.run, &piece.extents, place),
                write: Some(piece.write),
                to: Runs::new(piece.run, &piece.extents, &piece.target),
            }),
        }
    }

    fn sum(&mut self, piece: &RawPiece) {
        let is_remote = |&&(read, _): &&(u32, RawPlace)| self.local[read as usize].is_none();
        let remote = piece.parts.iter().filter(is_remote).count() as u64;
        if remote == 0 {
            return self.add(0, piece);
        }
        for cut in cuts(piece, SEGMENT / remote) {
            let last = self.groups.last().expect("there is a first group").landing.clone();
            let lands = remote * padded(cut.bytes());
            if !last.is_empty() && last.end - last.start + lands > SEGMENT {
                self.groups.push(Group { landing: self.landed..self.landed, ..Group::default() });
            }
            self.add(self.groups.len() - 1, &cut);
        }
    }

    /// Adds a sum to a group, of which the remote parts land.
    fn add(&mut self, group: usize, piece: &RawPiece) {
        let group = &mut self.groups[group];
        let mut left = piece.clone();
        for (read, place) in &mut left.parts {
            match self.local[*read as usize] {
                Some(local) => *read = local,
                None => {
                    let landed = dense(piece, self.landed - group.landing.start);
                    group.transits.push(Transit {
                        read: *read,
                        from: Runs::new(piece.run, &piece.extents, place),
                        write: None,
                        to: Runs::new(piece.run, &piece.extents, &landed),
                    });
                    (*read, *place) = (self.landing, landed);
                    self.landed += padded(piece.bytes());
                    group.landing.end = self.landed;
                }
            }
        }
        left.encode(&mut group.words);
    }
}

impl Runs {
    /// The runs of a piece in one place, joined where they touch.
    fn new(run: u64, extents: &[u64], place: &RawPlace) -> Runs {
        let mut runs = Runs { start: place.start, run, grid: Vec::new() };
        let dims = extents.iter().copied().zip(place.strides.iter().copied());
        for (count, stride) in dims.rev().filter(|&(count, _)| count != 1) {
            match runs.grid.last_mut() {
                None if stride == runs.run => runs.run *= count,
                Some((inner, step)) if Some(stride) == step.checked_mul(*inner) => *inner *= count,
                _ => runs.grid.push((count, stride)),
            }
        }
        runs.grid.reverse();
        runs
    }
}

/// The pieces that a sum is cut into, so that a part has about `limit` bytes in each. Each starts on an aligned byte if
/// they lie one after the other.
fn cuts(piece: &RawPiece, limit: u64) -> Vec<RawPiece> {
    let (rows, row) = match piece.extents.first() {
        Some(&rows) => (rows, piece.bytes() / rows),
        None => (piece.run, 1),
    };
    let aligned = ALIGNMENT >> row.trailing_zeros().min(ALIGNMENT.trailing_zeros());
    let step = (limit / row.max(1) / aligned).max(1) * aligned;
    let starts = (0..rows).step_by(usize::try_from(step).unwrap_or(usize::MAX));
    starts.map(|first| cut(piece, first, step.min(rows - first))).collect()
}

/// So many rows of a piece, from `first` on; bytes if it is a single run.
fn cut(piece: &RawPiece, first: u64, count: u64) -> RawPiece {
    let mut cut = piece.clone();
    match cut.extents.first_mut() {
        Some(rows) => *rows = count,
        None => cut.run = count,
    }
    for place in [&mut cut.target].into_iter().chain(cut.parts.iter_mut().map(|(_, place)| place)) {
        let stride = place.strides.first().copied().unwrap_or(1);
        place.start += stride * first;
    }
    cut
}

/// Where the runs of a piece lie if they follow each other, from `start` on.
fn dense(piece: &RawPiece, start: u64) -> RawPlace {
    let inner = |dim: usize| piece.extents[dim + 1..].iter().product::<u64>();
    let strides = (0..piece.extents.len()).map(|dim| piece.run * inner(dim)).collect();
    RawPlace { start, strides }
}

fn padded(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX)
}
