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

use crate::{ALIGNMENT, ByteRuns, Piece};

/// Bytes that land for one group. A sum that needs more is cut if its rows allow.
pub const SEGMENT: u64 = 1 << 20;

/// Pieces that wait for the same arrival.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// What is left. The last read slice is the one where this group lands.
    pub pieces: Vec<Piece>,
    pub transits: Vec<Transit>,
    /// Where it lands in the receive's working memory.
    pub landing: Range<u64>,
}

/// Bytes of another rank's tile on their way.
#[derive(Debug)]
pub(super) struct Transit {
    /// Which slice of the receive they come from.
    pub read: u32,
    pub from: ByteRuns,
    /// Which written slice of the receive they go to, or else where the group lands.
    pub write: Option<u32>,
    pub to: ByteRuns,
}

/// Splits a receive. `local` numbers the slices that it reads on this rank, from 0, and has nothing for the others.
pub(super) fn split(pieces: &[Piece], local: &[Option<u32>]) -> Vec<Group> {
    let mut receive = Split {
        local,
        landing: local.iter().flatten().count() as u32,
        landed: 0,
        groups: vec![Group::default()],
    };
    for piece in pieces.iter().filter(|piece| piece.bytes() > 0) {
        match piece.reads.len() {
            1 => receive.copy(piece),
            _ => receive.sum(piece),
        }
    }
    receive.groups
}

/// How many bytes of other ranks land in the working memory of a receive with these pieces; `is_remote` tells which of
/// its read slices are theirs.
pub fn landing_bytes(pieces: &[Piece], is_remote: impl Fn(u32) -> bool) -> u64 {
    let sums = pieces.iter().filter(|piece| piece.reads.len() > 1);
    let landed = |piece: &Piece| {
        let remote = piece.reads.iter().filter(|&&read| is_remote(read)).count() as u64;
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
    fn copy(&mut self, piece: &Piece) {
        let (group, read) = (&mut self.groups[0], piece.reads[0]);
        match self.local[read as usize] {
            Some(local) => group.pieces.push(Piece { reads: vec![local], ..piece.clone() }),
            None => group.transits.push(Transit {
                read,
                from: piece.nest.runs(&piece.nest.places[1]),
                write: Some(piece.write),
                to: piece.nest.runs(piece.target()),
            }),
        }
    }

    fn sum(&mut self, piece: &Piece) {
        let is_remote = |&&read: &&u32| self.local[read as usize].is_none();
        let remote = piece.reads.iter().filter(is_remote).count() as u64;
        if remote == 0 {
            return self.add(0, piece.clone());
        }
        for cut in cuts(piece, SEGMENT / remote) {
            let last = self.groups.last().expect("there is a first group").landing.clone();
            let lands = remote * padded(cut.bytes());
            if !last.is_empty() && last.end - last.start + lands > SEGMENT {
                self.groups.push(Group { landing: self.landed..self.landed, ..Group::default() });
            }
            self.add(self.groups.len() - 1, cut);
        }
    }

    /// Adds a sum to a group, of which the remote parts land.
    fn add(&mut self, group: usize, mut piece: Piece) {
        let group = &mut self.groups[group];
        for part in 0..piece.reads.len() {
            let read = piece.reads[part];
            piece.reads[part] = self.local[read as usize].unwrap_or(self.landing);
            if self.local[read as usize].is_none() {
                let landed = piece.nest.dense((self.landed - group.landing.start) as usize);
                let from = std::mem::replace(&mut piece.nest.places[1 + part], landed.clone());
                let [from, to] = [from, landed].map(|place| piece.nest.runs(&place));
                group.transits.push(Transit { read, from, write: None, to });
                self.landed += padded(piece.bytes());
                group.landing.end = self.landed;
            }
        }
        group.pieces.push(piece);
    }
}

/// The pieces that a sum is cut into, so that a part has about `limit` bytes in each. Each starts on an aligned byte if
/// they lie one after the other.
fn cuts(piece: &Piece, limit: u64) -> Vec<Piece> {
    let (rows, row) = match piece.nest.extents.first() {
        Some(&rows) => (rows as u64, piece.bytes() / rows as u64),
        None => (piece.bytes(), 1),
    };
    let aligned = ALIGNMENT >> row.trailing_zeros().min(ALIGNMENT.trailing_zeros());
    let step = (limit / row.max(1) / aligned).max(1) * aligned;
    let starts = (0..rows).step_by(usize::try_from(step).unwrap_or(usize::MAX));
    starts.map(|first| cut(piece, first as usize, step.min(rows - first) as usize)).collect()
}

/// This many rows of a piece, from `first` on; bytes if it is a single run.
fn cut(piece: &Piece, first: usize, count: usize) -> Piece {
    let mut cut = piece.clone();
    match cut.nest.extents.first_mut() {
        Some(rows) => *rows = count,
        None => cut.nest.run = count,
    }
    for place in &mut cut.nest.places {
        place.start += first * place.strides.first().copied().unwrap_or(1);
    }
    cut
}

fn padded(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX)
}
