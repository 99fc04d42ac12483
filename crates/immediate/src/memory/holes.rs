//! The free ranges of a memory: sorted, apart, and never touching one another.

use std::ops::Range;

/// Free ranges of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holes(Vec<Range<u64>>);

impl Holes {
    /// All of `bytes` bytes.
    pub(super) fn all(bytes: u64) -> Holes {
        Holes(std::iter::once(0..bytes).filter(|all| !all.is_empty()).collect())
    }

    /// How many bytes are free.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|hole| hole.end - hole.start).sum()
    }

    /// The first place for `bytes` bytes at a multiple of `align`. No bytes fit anywhere.
    pub(super) fn fit(&self, bytes: u64, align: u64) -> Option<u64> {
        if bytes == 0 {
            return Some(0);
        }
        let place = |hole: &Range<u64>| {
            let start = hole.start.checked_next_multiple_of(align)?;
            let end = start.checked_add(bytes)?;
            (end <= hole.end).then_some(start)
        };
        self.0.iter().find_map(place)
    }

    /// Whether all of `range` is free.
    pub(super) fn contains(&self, range: &Range<u64>) -> bool {
        let next = self.0.partition_point(|hole| hole.end < range.end);
        range.is_empty() || self.0.get(next).is_some_and(|hole| hole.start <= range.start)
    }

    /// Makes what is free of `range` no longer free.
    pub(super) fn take(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (first, last) = self.touching(range.start + 1..range.end - 1);
        let Some(touched) = self.0.get(first..last).filter(|touched| !touched.is_empty()) else { return };
        let before = touched[0].start..range.start;
        let after = range.end..touched[touched.len() - 1].end;
        self.0.splice(first..last, [before, after].into_iter().filter(|rest| !rest.is_empty()));
    }

    /// Makes all of `range` free.
    pub(super) fn give(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (first, last) = self.touching(range.clone());
        let touched = &self.0[first..last];
        let start = touched.first().map_or(range.start, |hole| hole.start.min(range.start));
        let end = touched.last().map_or(range.end, |hole| hole.end.max(range.end));
        self.0.splice(first..last, std::iter::once(start..end));
    }

    /// Which holes overlap `range` or touch its ends.
    fn touching(&self, range: Range<u64>) -> (usize, usize) {
        let first = self.0.partition_point(|hole| hole.end < range.start);
        let last = self.0.partition_point(|hole| hole.start <= range.end);
        (first, last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes and gives at random agree with a table of bytes.
    #[test]
    fn holes_are_the_bytes_that_were_given_and_not_taken() {
        let mut holes = Holes::all(40);
        let mut free = [true; 40];
        let mut seed = 7_u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (start, bytes, give) = (seed >> 33 & 31, seed >> 40 & 7, seed >> 50 & 1 == 1);
            let range = start..start + bytes;
            if give {
                holes.give(&range)
            } else {
                holes.take(&range)
            }
            free[start as usize..(start + bytes) as usize].fill(give);
            let mut runs = Vec::new();
            for (at, _) in free.iter().enumerate().filter(|(_, free)| **free) {
                match runs.last_mut() {
                    Some(Range { end, .. }) if *end == at as u64 => *end += 1,
                    _ => runs.push(at as u64..at as u64 + 1),
                }
            }
            assert_eq!(holes.0, runs);
            let probe = seed >> 20 & 31..(seed >> 20 & 31) + bytes;
            let inside = probe.clone().all(|at| free[at as usize]);
            assert_eq!(holes.contains(&probe), inside, "{probe:?} of {holes:?}");
            let fit = (0..40 - bytes + 1).step_by(4).find(|at| (*at..at + bytes).all(|at| free[at as usize]));
            assert_eq!(holes.fit(bytes, 4), fit.filter(|_| bytes > 0).or((bytes == 0).then_some(0)));
        }
    }
}
