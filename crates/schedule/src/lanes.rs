//! The simulation core: when operations run on lanes, and what they release.
//!
//! A lane runs one operation at a time. An operation starts when its lane is free and not before its driver allows it;
//! its bytes then travel, and its work follows. Three drivers differ only in which operation is next:
//! [`simulate`](crate::simulate) replays lanes of a fixed order, `order` lets every lane take its best ready task, and
//! `search` appends jobs in the order that it judges, with fractions of nanoseconds and without contention.

use std::ops::Add;
use std::time::Duration;

use phalanx_link::{Part, Topology, Traffic};

/// When an operation runs, in nanoseconds from the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimSpan<T = u64> {
    /// It starts, or its bytes start to travel.
    pub start: T,
    /// Its bytes have arrived, and its work begins.
    pub arrival: T,
    /// It is complete.
    pub end: T,
}

/// When each lane is free.
pub(crate) struct LaneClocks<T> {
    free: Vec<T>,
}

impl<T: Copy + Default + PartialOrd + Add<Output = T>> LaneClocks<T> {
    pub fn new(lanes: usize) -> Self {
        LaneClocks { free: vec![T::default(); lanes] }
    }

    /// All lanes are free from the start.
    pub fn reset(&mut self) {
        self.free.fill(T::default());
    }

    pub fn free(&self, lane: usize) -> T {
        self.free[lane]
    }

    /// When all lanes are free.
    pub fn end(&self) -> T {
        self.free.iter().copied().fold(T::default(), later)
    }

    /// Keeps `lane` busy until `time`.
    pub fn hold(&mut self, lane: usize, time: T) {
        self.free[lane] = later(self.free[lane], time);
    }

    /// Runs an operation on `lane`, not before `from`; `arrival` says when its bytes arrive, given its start.
    #[inline]
    pub fn run(&mut self, lane: usize, from: T, cost: T, arrival: impl FnOnce(T) -> T) -> SimSpan<T> {
        let start = later(self.free[lane], from);
        let arrival = arrival(start);
        let end = arrival + cost;
        self.free[lane] = end;
        SimSpan { start, arrival, end }
    }
}

/// The later of two times, neither of which is NaN.
#[inline]
pub(crate) fn later<T: PartialOrd>(a: T, b: T) -> T {
    if b > a { b } else { a }
}

/// The links of all devices; without them bytes arrive at once.
pub(crate) struct Links {
    traffic: Option<Traffic>,
}

impl Links {
    pub fn new(topology: Option<&Topology>, devices: usize) -> Self {
        Links { traffic: topology.map(|topology| Traffic::new(topology.clone(), devices)) }
    }

    /// When `parts` that start to travel at `start` have arrived at device `to`.
    pub fn arrival(&mut self, start: u64, to: u32, parts: &[Part]) -> u64 {
        match &mut self.traffic {
            Some(traffic) if !parts.is_empty() => {
                traffic.transfer(Duration::from_nanos(start), to, parts).as_nanos() as u64
            }
            _ => start,
        }
    }
}

/// What each operation still waits for.
pub(crate) struct Countdown {
    owed: Vec<u32>,
    ready: Vec<u64>,
}

impl Countdown {
    /// Operations by how many ends each of them waits for.
    pub fn new(owed: Vec<u32>) -> Self {
        Countdown { ready: vec![0; owed.len()], owed }
    }

    /// Something that the operation waits for ends at `time`; when it can start, if that was the last.
    pub fn arrive(&mut self, operation: usize, time: u64) -> Option<u64> {
        let ready = &mut self.ready[operation];
        *ready = later(*ready, time);
        self.owed[operation] -= 1;
        (self.owed[operation] == 0).then_some(*ready)
    }
}
