//! What is to be ordered: jobs on lanes, what they wait for, and the bytes they keep alive.
//!
//! A problem is data that its owner fills; whatever can be wrong with it is found when it is solved.

use phalanx_ir::IdVec;

use crate::LaneKind;

phalanx_ir::id! {
    /// A job: one thing that one lane does.
    pub struct JobId("j");
    /// A lane: it does one job at a time, in the order found.
    pub struct LaneId("lane");
    /// Bytes of one device.
    pub struct SearchBufferId("b");
}

/// A lane of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchLane {
    /// The number of its device; there are no more devices than lanes.
    pub device: usize,
    /// What it does; a device has at most one lane that computes.
    pub kind: LaneKind,
}

/// One thing that one lane does.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchJob {
    /// The lane that runs it.
    pub lane: LaneId,
    /// Nanoseconds.
    pub cost: f64,
    /// Jobs of one number, such as all parts of one movement, are issued as one: they stand side by side in the order.
    pub unit: Option<u32>,
    /// Jobs that must be done before it starts.
    pub after: Vec<JobId>,
    /// Jobs that it must only come behind in the order.
    pub behind: Vec<JobId>,
    /// Whether it holds the lane that computes on its device until it is done.
    pub blocks: bool,
}

impl SearchJob {
    /// A job that waits for nothing.
    pub fn new(lane: LaneId, cost: f64) -> Self {
        SearchJob { lane, cost, unit: None, after: Vec::new(), behind: Vec::new(), blocks: false }
    }
}

/// Bytes that are alive from the first job that touches them to the last.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SearchBuffer {
    /// The number of its device.
    pub device: usize,
    /// Bytes added with the first job that touches it.
    pub alloc: i64,
    /// Bytes released after the last job that touches it.
    pub free: i64,
    /// Whether its bytes are there before the first job.
    pub from_start: bool,
    /// Whether it is never released.
    pub to_end: bool,
    /// Jobs that write or read it.
    pub touched_by: Vec<JobId>,
}

/// Jobs to be ordered such that the last is done early and no device holds too many bytes.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Problem {
    /// The lanes.
    pub lanes: IdVec<LaneId, SearchLane>,
    /// The jobs; where nothing else decides, the order follows their numbers.
    pub jobs: IdVec<JobId, SearchJob>,
    /// The bytes.
    pub buffers: IdVec<SearchBufferId, SearchBuffer>,
    /// By device: the most bytes it may hold; none for a device that is not listed.
    pub limits: Vec<Option<i64>>,
    /// Whether a transfer starts only when the lane that computes on its device has come to it in the order. If not, it
    /// starts as soon as its own lane is free and what it waits for is done.
    pub issued_in_order: bool,
    /// How much is tried.
    pub effort: Effort,
}

/// How much a search tries, as a share of what it would at most.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Effort(f64);

/// Nanoseconds that a search with full effort takes, roughly.
const FULL_EFFORT: f64 = 7e8;

impl Effort {
    /// Enough to take no longer than `nanoseconds`, roughly.
    pub fn within(nanoseconds: f64) -> Effort {
        Effort((nanoseconds / FULL_EFFORT).clamp(0.0, 1.0))
    }

    /// This share of `most`.
    pub(super) fn of(self, most: usize) -> usize {
        (most as f64 * self.0) as usize
    }
}

impl Default for Effort {
    fn default() -> Self {
        Effort(1.0)
    }
}

/// Why a problem cannot be solved.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum ProblemError {
    /// A job names a lane that is none.
    #[error("{job} is on {lane}, but there are only {lanes} lanes; add the lane or name another")]
    UnknownLane { job: JobId, lane: LaneId, lanes: usize },
    /// A lane or a buffer is on a device that is none.
    #[error(
        "{by} is on device {device}, but the lanes make at most {devices} devices, numbered from 0; name another"
    )]
    UnknownDevice { by: String, device: usize, devices: usize },
    /// A job or a buffer names a job that is none.
    #[error("{by} names {job}, but there are only {jobs} jobs; add the job or name another")]
    UnknownJob { by: String, job: JobId, jobs: usize },
    /// Two lanes of a device compute.
    #[error("{first} and {second} both compute on device {device}; give one of them another device")]
    TwoCompute { first: LaneId, second: LaneId, device: usize },
    /// A time that is none.
    #[error("{job} takes {cost} ns; it must be a number of at least 0")]
    Cost { job: JobId, cost: f64 },
    /// Bytes that cannot be added up.
    #[error(
        "{buffer} adds {alloc} and releases {free} bytes; both must be at least 0, and all together below 2^60"
    )]
    Bytes { buffer: SearchBufferId, alloc: i64, free: i64 },
    /// Jobs that wait for each other, or units of which each has a job that waits for the other.
    #[error("{job} waits for itself through {through}; drop one of the dependencies or split the unit")]
    Cycle { job: JobId, through: JobId },
    /// A seed that is no legal order.
    #[error(
        "seed {seed} is no order of the {jobs} jobs that keeps units whole and every job behind what it waits for"
    )]
    Seed { seed: usize, jobs: usize },
}
