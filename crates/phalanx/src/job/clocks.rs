//! The last run of every rank, measured by the clocks of the ranks and brought together by that of rank 0.
//!
//! Rank 0 asks each other rank what time it is there, several times. The answer is from some moment between question
//! and answer, so the clocks are known to within half of the shortest round trip: that is the bound.

use phalanx_net::{NetError, Network};

use crate::Profile;

/// How often a rank is asked; some answers are late because a core was busy.
const TRIES: usize = 32;

/// The last run of all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankSpans {
    /// By rank and position in its part: start and end, in nanoseconds since the first start of all.
    pub spans: Vec<Vec<(u64, u64)>>,
    /// By how many nanoseconds the clocks of two ranks may differ.
    pub bound: u64,
}

/// A rank's clock as rank 0 knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClockOffset {
    /// What is to be added to the rank's times.
    offset: i64,
    /// By how much that may be wrong.
    bound: u64,
}

impl RankSpans {
    /// Brings the last runs of all ranks to rank 0; the others get nothing. All ranks call it, while no run is going on.
    pub fn gather(network: &dyn Network, profile: &Profile) -> Result<RankSpans, NetError> {
        let (own, rank) = (profile.spans(), network.rank());
        let (mut spans, mut bounds) = (vec![absolute(&own, 0)], vec![0]);
        for other in (1..network.size()).filter(|other| rank == 0 || rank == *other) {
            let clock = clock_of(network, other, || profile.now())?;
            let mut count = (own.len() as u64).to_le_bytes();
            network.carry(other, 0, &mut count)?;
            let mut bytes: Vec<u8> = match rank {
                0 => vec![0; u64::from_le_bytes(count) as usize * 16],
                _ => own
                    .iter()
                    .flat_map(|(start, end)| [start.to_le_bytes(), end.to_le_bytes()].concat())
                    .collect(),
            };
            network.carry(other, 0, &mut bytes)?;
            let (words, _) = bytes.as_chunks::<8>();
            let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
            let (pairs, _) = words.as_chunks::<2>();
            let theirs: Vec<(u64, u64)> = pairs.iter().map(|&[start, end]| (start, end)).collect();
            spans.push(absolute(&theirs, clock.offset));
            bounds.push(clock.bound);
        }
        match rank {
            0 => Ok(RankSpans { spans: since_first(&spans), bound: sum_of_largest_two(bounds) }),
            _ => Ok(RankSpans::default()),
        }
    }
}

/// Times of a rank by the clock of rank 0.
fn absolute(spans: &[(u64, u64)], offset: i64) -> Vec<(i64, i64)> {
    let at = |time: u64| time.cast_signed() + offset;
    spans.iter().map(|&(start, end)| (at(start), at(end))).collect()
}

fn since_first(spans: &[Vec<(i64, i64)>]) -> Vec<Vec<(u64, u64)>> {
    let begin = spans.iter().flatten().map(|&(start, _)| start).min().unwrap_or(0);
    let since = |time: i64| time.abs_diff(begin);
    let of_rank = |spans: &Vec<(i64, i64)>| {
        spans.iter().map(|&(start, end)| (since(start), since(end.max(begin)))).collect()
    };
    spans.iter().map(of_rank).collect()
}

/// By how much two clocks may differ that are each known to within a bound.
fn sum_of_largest_two(mut bounds: Vec<u64>) -> u64 {
    bounds.sort_unstable();
    bounds.iter().rev().take(2).sum()
}

/// The clock of rank `other`, as rank 0 knows it; only these two talk.
fn clock_of(network: &dyn Network, other: u32, now: impl Fn() -> u64) -> Result<ClockOffset, NetError> {
    let mut best = ClockOffset { offset: 0, bound: u64::MAX };
    for _ in 0..TRIES {
        let asked = now();
        network.carry(0, other, &mut [0])?;
        let mut answer = now().to_le_bytes();
        network.carry(other, 0, &mut answer)?;
        let (answered, there) = (now(), u64::from_le_bytes(answer));
        let bound = (answered - asked).div_ceil(2);
        if bound < best.bound {
            best = ClockOffset { offset: (asked + bound).cast_signed() - there.cast_signed(), bound };
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use phalanx_net::local::Local;

    use super::*;

    #[test]
    fn shifted_clocks_are_found_within_the_bound() {
        const SHIFTS: [u64; 3] = [7_000_000_000, 0, 123_456_789_000];
        let begin = Instant::now();
        let clocks: Vec<Vec<ClockOffset>> = thread::scope(|scope| {
            let rank = |local: Local| {
                let now = || begin.elapsed().as_nanos() as u64 + SHIFTS[local.rank() as usize];
                let talks = |other: &u32| [0, *other].contains(&local.rank());
                (1..local.size()).filter(talks).map(|other| clock_of(&local, other, now).unwrap()).collect()
            };
            let threads: Vec<_> =
                Local::job(3).into_iter().map(|local| scope.spawn(move || rank(local))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (other, clock) in (1..).zip(&clocks[0]) {
            let shift = SHIFTS[0].cast_signed() - SHIFTS[other].cast_signed();
            assert!(
                clock.offset.abs_diff(shift) <= clock.bound,
                "rank {other}: {clock:?}, shifted by {shift}"
            );
        }
    }

    #[test]
    fn times_are_counted_from_the_first_start_of_all() {
        let spans = [absolute(&[(5, 9), (20, 30)], 0), absolute(&[(103, 107)], -100)];
        assert_eq!(since_first(&spans), [vec![(2, 6), (17, 27)], vec![(0, 4)]]);
        assert_eq!([vec![0], vec![0, 3], vec![0, 3, 9, 4]].map(sum_of_largest_two), [0, 3, 13]);
    }
}
