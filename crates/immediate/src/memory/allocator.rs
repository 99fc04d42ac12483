//! The deferred allocator of one memory: which instances have which bytes, which will have them, and which wait for
//! which.
//!
//! A *placement* is a range of bytes promised to one key. It is *live* if its owner has it, or *pending* if it overlaps
//! placements that are to be released first. Requests are numbered in the order in which they come, since what is
//! released later may depend on what was allocated earlier, never the other way round. What always holds:
//!
//! 1. live placements do not overlap; `current` is exactly what they leave free;
//! 2. whatever a pending placement overlaps, live or pending with a smaller number, has a release that was accepted
//!    before the placement was asked for. So every pending placement comes about once those releases have happened, in
//!    whatever order, and no wait is circular;
//! 3. a pending placement becomes live as soon as its range is free and no pending placement before it overlaps it.
//!
//! Three states of the free bytes serve this: *current* (really free), *future* (free once the accepted releases have
//! happened; what `room` gives a new request) and a working copy (`squeeze`), in which a placement is taken at once and
//! others move out of its way; it is adopted only if all of them find another placement.
//!
//! It knows no events: the caller says when a release has happened and reports the placements made.

use std::collections::BTreeMap;
use std::ops::Range;

use super::holes::Holes;

/// Whose placement: the number of an instance while it has that number.
pub(super) type Key = u32;

/// The state of one memory.
#[derive(Clone, Debug)]
pub(super) struct Allocator {
    current: Holes,
    live: BTreeMap<Key, Placement>,
    /// Ascending in `asked`.
    pending: Vec<(Key, Placement)>,
    requests: u64,
}

#[derive(Clone, Debug)]
struct Placement {
    range: Range<u64>,
    align: u64,
    /// The number of its request.
    asked: u64,
    /// The number of the request for its release.
    released: Option<u64>,
}

impl Placement {
    fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn at(&self, start: u64) -> Placement {
        Placement { range: start..start + self.bytes(), ..self.clone() }
    }

    fn overlaps(&self, other: &Placement) -> bool {
        self.range.start < other.range.end && other.range.start < self.range.end
    }

    /// Whether a placement asked for by request `asked` may rely on this one's release.
    fn goes_before(&self, asked: u64) -> bool {
        self.released.is_some_and(|released| released < asked)
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The bytes from here on are free.
    Now(u64),
    /// They will be, once releases that have been accepted happen.
    Later,
    /// They neither are nor will be; this many are free.
    Never(u64),
}

/// What a change has brought to others.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// The keys that got a placement, and where it starts.
    pub(super) granted: Vec<(Key, u64)>,
    /// The keys that will get none.
    pub(super) failed: Vec<Key>,
}

impl Allocator {
    pub(super) fn new(capacity: u64) -> Allocator {
        Allocator { current: Holes::all(capacity), live: BTreeMap::new(), pending: Vec::new(), requests: 0 }
    }

    /// Bytes that are free.
    pub(super) fn free(&self) -> u64 {
        self.current.bytes()
    }

    /// Asks for a placement for `key`, which has none. Others that move for it may get theirs on the way.
    pub(super) fn ask(&mut self, key: Key, bytes: u64, align: u64) -> (Verdict, Changes) {
        let verdict = self.decide(key, bytes, align);
        (verdict, Changes { granted: self.settle(), failed: Vec::new() })
    }

    fn decide(&mut self, key: Key, bytes: u64, align: u64) -> Verdict {
        let placement = Placement { range: 0..bytes, align, asked: self.next_request(), released: None };
        if let Some(start) = self.unclaimed().fit(bytes, align) {
            self.make_live(key, placement.at(start));
            return Verdict::Now(start);
        }
        if let Some(start) = self.squeeze(key, &placement) {
            return Verdict::Now(start);
        }
        match self.room(&placement).fit(bytes, align) {
            Some(start) => {
                self.pending.push((key, placement.at(start)));
                Verdict::Later
            }
            None => Verdict::Never(self.free()),
        }
    }

    /// Accepts that `key` will be released. Whether it had not been accepted before.
    pub(super) fn accept_release(&mut self, key: Key) -> bool {
        let request = self.next_request();
        match self.placement_mut(key) {
            Some(placement) if placement.released.is_none() => {
                placement.released = Some(request);
                true
            }
            _ => false,
        }
    }

    /// Takes the placement of `key` away, accepted or not.
    pub(super) fn release(&mut self, key: Key) -> Changes {
        self.pending.retain(|(other, _)| *other != key);
        if let Some(placement) = self.live.remove(&key) {
            self.current.give(&placement.range);
        }
        Changes { granted: self.settle(), failed: Vec::new() }
    }

    /// The accepted release of `key` will not happen: keys that relied on it get another placement or none.
    pub(super) fn cancel_release(&mut self, key: Key) -> Changes {
        let Some(placement) = self.placement_mut(key) else { return Changes::default() };
        placement.released = None;
        let placement = placement.clone();
        let is_live = self.live.contains_key(&key);
        let relied = self.unseat(|other, pending| {
            other != key && pending.overlaps(&placement) && (is_live || pending.asked > placement.asked)
        });
        let mut failed = Vec::new();
        for (other, pending) in relied {
            if !self.reseat(other, &pending) {
                failed.push(other);
            }
        }
        Changes { granted: self.settle(), failed }
    }

    fn next_request(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    fn placement_mut(&mut self, key: Key) -> Option<&mut Placement> {
        let pending =
            self.pending.iter_mut().find(|(other, _)| *other == key).map(|(_, placement)| placement);
        pending.or_else(|| self.live.get_mut(&key))
    }

    fn make_live(&mut self, key: Key, placement: Placement) {
        self.current.take(&placement.range);
        self.live.insert(key, placement);
    }

    /// What is free and not promised.
    fn unclaimed(&self) -> Holes {
        let mut holes = self.current.clone();
        self.pending.iter().for_each(|(_, placement)| holes.take(&placement.range));
        holes
    }

    /// Where `placement` may be, as a pending one, by invariant 2.
    fn room(&self, placement: &Placement) -> Holes {
        let mut room = self.current.clone();
        let leaving = self.live.values().filter(|other| other.goes_before(placement.asked));
        leaving.for_each(|other| room.give(&other.range));
        for (_, other) in &self.pending {
            let in_turn = match other.asked < placement.asked {
                true => other.goes_before(placement.asked),
                false => placement.goes_before(other.asked),
            };
            if !in_turn {
                room.take(&other.range);
            }
        }
        room
    }

    /// Makes `placement` live where there is room now, and moves the pending placements that were to be there. Nothing
    /// changes if one of them cannot move.
    fn squeeze(&mut self, key: Key, placement: &Placement) -> Option<u64> {
        let start = self.current.fit(placement.bytes(), placement.align)?;
        let placement = placement.at(start);
        let mut trial = self.clone();
        trial.pending.retain(|(other, _)| *other != key);
        trial.make_live(key, placement.clone());
        let displaced =
            trial.unseat(|_, pending| pending.overlaps(&placement) && !placement.goes_before(pending.asked));
        if !displaced.iter().all(|(other, pending)| trial.reseat(*other, pending)) {
            return None;
        }
        *self = trial;
        Some(start)
    }

    /// Takes the pending placements out that `which` names.
    fn unseat(&mut self, which: impl Fn(Key, &Placement) -> bool) -> Vec<(Key, Placement)> {
        self.pending.extract_if(.., |(key, placement)| which(*key, placement)).collect()
    }

    /// Puts a pending placement somewhere else. Whether there is a place.
    fn reseat(&mut self, key: Key, placement: &Placement) -> bool {
        let Some(start) = self.room(placement).fit(placement.bytes(), placement.align) else { return false };
        let place = self.pending.partition_point(|(_, other)| other.asked < placement.asked);
        self.pending.insert(place, (key, placement.at(start)));
        true
    }

    /// Makes every pending placement live that can be; the keys that got one.
    fn settle(&mut self) -> Vec<(Key, u64)> {
        let mut granted = Vec::new();
        while let Some(grant) = self.settle_in_turn().or_else(|| self.settle_out_of_turn()) {
            granted.push(grant);
        }
        granted
    }

    /// Makes the first pending placement live that nothing is in the way of.
    fn settle_in_turn(&mut self) -> Option<(Key, u64)> {
        let clear = |place: &usize| {
            let placement = &self.pending[*place].1;
            let before = &self.pending[..*place];
            self.current.contains(&placement.range)
                && !before.iter().any(|(_, other)| other.overlaps(placement))
        };
        let place = (0..self.pending.len()).find(clear)?;
        let (key, placement) = self.pending.remove(place);
        let start = placement.range.start;
        self.make_live(key, placement);
        Some((key, start))
    }

    /// Gives the first pending placement for which there are free bytes elsewhere those bytes, if that harms no other
    /// key.
    fn settle_out_of_turn(&mut self) -> Option<(Key, u64)> {
        let fits = |(_, placement): &&(Key, Placement)| {
            self.current.fit(placement.bytes(), placement.align).is_some()
        };
        let (key, placement) = self.pending.iter().find(fits).cloned()?;
        self.squeeze(key, &placement).map(|start| (key, start))
    }
}

#[cfg(test)]
mod tests;
