//! A problem checked and laid out for speed: units, what they wait for and which bytes they touch.
//!
//! A *unit* is what moves as one in the order: a job, or all jobs of one number. Every order of units that keeps
//! [`Instance::before`] can be run, because the jobs inside a unit are sorted here once and for all.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;

use phalanx_ir::{Id, IdVec};

use super::problem::{
    JobId, LaneId, Problem, ProblemError, SearchBuffer, SearchBufferId, SearchJob, SearchLane,
};
use crate::LaneKind;
use crate::rows::Rows;

phalanx_ir::id! {
    /// What moves as one in the order.
    pub struct UnitId("u");
}

/// All bytes together stay below this, so that sums of them do not overflow.
const MOST_BYTES: i64 = 1 << 60;

/// A problem laid out for speed.
pub(super) struct Instance<'a> {
    pub problem: &'a Problem,
    /// By unit: its jobs, each behind what it waits for.
    pub jobs: Rows<JobId>,
    /// By job: its unit.
    pub unit_of: IdVec<JobId, UnitId>,
    /// By job: the jobs that must be done before it starts.
    pub after: Rows<JobId>,
    /// By unit: the units that must come before it.
    pub before: Rows<UnitId>,
    /// By unit: the units that must come behind it.
    pub behind: Rows<UnitId>,
    /// By unit: the buffers that its jobs touch, each once.
    pub touches: Rows<SearchBufferId>,
    /// By buffer: the units that touch it, each once.
    pub touched_by: Rows<UnitId>,
    /// By lane: whether it transfers, and if so the lane that computes on its device.
    pub lanes: Vec<(bool, Option<LaneId>)>,
    /// By device: bytes there before the first job.
    pub start: Vec<i64>,
    /// By device: the most bytes it may hold.
    pub limits: Vec<i64>,
    /// The order that follows the numbers of the jobs wherever nothing else decides.
    pub listed: Vec<UnitId>,
}

impl<'a> Instance<'a> {
    pub fn new(problem: &'a Problem) -> Result<Self, ProblemError> {
        check(problem)?;
        let all = |job: &'a SearchJob| job.after.iter().chain(&job.behind).copied();
        let listed = sort(&Rows::new(problem.jobs.iter().map(|(_, job)| all(job).map(Id::index))))
            .map_err(|(job, through)| cycle(JobId::from_index(job), JobId::from_index(through)))?;
        let (jobs, unit_of) = units(problem, &listed);
        let before = Rows::new((0..jobs.len()).map(|unit| {
            let mut before: Vec<UnitId> = jobs
                .row(unit)
                .iter()
                .flat_map(|&job| all(&problem.jobs[job]))
                .map(|job| unit_of[job])
                .collect();
            before.sort_unstable();
            before.dedup();
            before.retain(|other| other.index() != unit);
            before
        }));
        let listed = sort(&Rows::new(before.iter().map(|row| row.iter().map(|unit| unit.index()))))
            .map_err(|(unit, through)| cycle(jobs.row(unit)[0], jobs.row(through)[0]))?;
        let touched_by = Rows::new(problem.buffers.iter().map(|(_, buffer)| {
            let mut units: Vec<UnitId> = buffer.touched_by.iter().map(|&job| unit_of[job]).collect();
            units.sort_unstable();
            units.dedup();
            units
        }));
        let touches = invert(&touched_by, jobs.len(), SearchBufferId::from_index);
        let n_devices = n_devices(problem);
        let limit = |device| problem.limits.get(device).copied().flatten().unwrap_or(i64::MAX);
        Ok(Instance {
            after: Rows::new(problem.jobs.iter().map(|(_, job)| job.after.iter().copied())),
            behind: invert(&before, jobs.len(), UnitId::from_index),
            before,
            touches,
            touched_by,
            lanes: lanes(problem),
            start: start_bytes(problem, n_devices),
            limits: (0..n_devices).map(limit).collect(),
            listed: listed.into_iter().map(UnitId::from_index).collect(),
            jobs,
            unit_of,
            problem,
        })
    }

    /// How many units there are.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether some device has a limit.
    pub fn is_limited(&self) -> bool {
        self.limits.iter().any(|&limit| limit != i64::MAX)
    }

    /// Whether the unit moves bytes: its first job is on a lane that transfers.
    pub fn is_transfer(&self, unit: UnitId) -> bool {
        self.lanes[self.home(unit).index()].0
    }

    /// The lane of its first job, in whose queue the unit stands.
    pub fn home(&self, unit: UnitId) -> LaneId {
        self.problem.jobs[self.jobs.row(unit.index())[0]].lane
    }

    /// The lanes that nothing else can use while the job runs. What is not issued in order may start beside the job that
    /// its host runs, and only then block.
    pub fn held_by(&self, job: JobId) -> impl Iterator<Item = LaneId> {
        let SearchJob { lane, blocks, .. } = self.problem.jobs[job];
        let host = self.lanes[lane.index()].1.filter(|_| blocks && self.problem.issued_in_order);
        [Some(lane), host].into_iter().flatten()
    }

    /// The jobs of an order of units.
    pub fn flatten(&self, order: &[UnitId]) -> Vec<JobId> {
        order.iter().flat_map(|unit| self.jobs.row(unit.index())).copied().collect()
    }

    /// The units of an order of jobs, if it is a legal order that keeps every unit whole.
    pub fn gather(&self, order: &[JobId]) -> Option<Vec<UnitId>> {
        let mut units: Vec<UnitId> = Vec::with_capacity(self.len());
        for job in order {
            let unit = *self.unit_of.get(*job)?;
            if units.last() != Some(&unit) {
                units.push(unit);
            }
        }
        (order.len() == self.unit_of.len() && self.is_legal(&units)).then_some(units)
    }

    /// Whether every unit is there once and behind all it has to come behind.
    pub fn is_legal(&self, order: &[UnitId]) -> bool {
        let mut seen = vec![false; self.len()];
        order.len() == self.len()
            && order.iter().all(|unit| unit.index() < self.len())
            && order.iter().all(|unit| {
                let ready = self.before.row(unit.index()).iter().all(|other| seen[other.index()]);
                ready && !std::mem::replace(&mut seen[unit.index()], true)
            })
    }
}

fn check(problem: &Problem) -> Result<(), ProblemError> {
    check_lanes(problem)?;
    let lanes = problem.lanes.len();
    for (id, job) in problem.jobs.iter() {
        if job.lane.index() >= lanes {
            return Err(ProblemError::UnknownLane { job: id, lane: job.lane, lanes });
        }
        if !(job.cost.is_finite() && job.cost >= 0.0) {
            return Err(ProblemError::Cost { job: id, cost: job.cost });
        }
        check_jobs(problem, &id, &job.after)?;
        check_jobs(problem, &id, &job.behind)?;
    }
    let (devices, mut bytes) = (n_devices(problem), 0_i64);
    for (id, &SearchBuffer { device, alloc, free, ref touched_by, .. }) in problem.buffers.iter() {
        check_jobs(problem, &id, touched_by)?;
        if device >= devices {
            return Err(ProblemError::UnknownDevice { by: id.to_string(), device, devices });
        }
        bytes = bytes.saturating_add(alloc).saturating_add(free);
        if alloc < 0 || free < 0 || bytes >= MOST_BYTES {
            return Err(ProblemError::Bytes { buffer: id, alloc, free });
        }
    }
    Ok(())
}

fn check_lanes(problem: &Problem) -> Result<(), ProblemError> {
    let devices = problem.lanes.len();
    let mut computes = BTreeMap::new();
    for (id, &SearchLane { device, kind }) in problem.lanes.iter() {
        if device >= devices {
            return Err(ProblemError::UnknownDevice { by: id.to_string(), device, devices });
        }
        if kind == LaneKind::Compute
            && let Some(first) = computes.insert(device, id)
        {
            return Err(ProblemError::TwoCompute { first, second: id, device });
        }
    }
    Ok(())
}

fn check_jobs(problem: &Problem, by: &dyn fmt::Display, list: &[JobId]) -> Result<(), ProblemError> {
    let jobs = problem.jobs.len();
    match list.iter().find(|job| job.index() >= jobs) {
        Some(&job) => Err(ProblemError::UnknownJob { by: by.to_string(), job, jobs }),
        None => Ok(()),
    }
}

fn cycle(job: JobId, through: JobId) -> ProblemError {
    ProblemError::Cycle { job, through }
}

/// The least order by number in which everything comes behind what is before it; otherwise two members of a cycle, the
/// second before the first.
fn sort(before: &Rows<usize>) -> Result<Vec<usize>, (usize, usize)> {
    let behind = Rows::group(before.len(), pairs(before));
    let mut owed: Vec<usize> = before.iter().map(<[usize]>::len).collect();
    let mut ready: BinaryHeap<_> = (0..before.len()).filter(|&at| owed[at] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(before.len());
    while let Some(Reverse(next)) = ready.pop() {
        order.push(next);
        for &other in behind.row(next) {
            owed[other] -= 1;
            if owed[other] == 0 {
                ready.push(Reverse(other));
            }
        }
    }
    let Some(mut at) = owed.iter().position(|&owed| owed > 0) else { return Ok(order) };
    // Every member left waits for another one left, so that walking back must come round.
    let mut seen = vec![false; before.len()];
    loop {
        let held = |other: &&usize| owed[**other] > 0;
        let back = *before.row(at).iter().find(held).expect("what is held back waits for another that is");
        if seen[at] {
            return Err((at, back));
        }
        seen[at] = true;
        at = back;
    }
}

/// All entries of all rows as pairs of entry and row.
fn pairs(rows: &Rows<usize>) -> impl Iterator<Item = (usize, usize)> + Clone {
    (0..rows.len()).flat_map(move |row| rows.row(row).iter().map(move |&item| (item, row)))
}

/// For each item, the rows that have it.
fn invert<T: Id, R: Copy>(rows: &Rows<T>, items: usize, id: impl Fn(usize) -> R + Copy) -> Rows<R> {
    let pairs =
        (0..rows.len()).flat_map(move |row| rows.row(row).iter().map(move |item| (item.index(), id(row))));
    Rows::group(items, pairs)
}

/// The jobs of each unit as `listed`, and the unit of each job; units are numbered by their first job.
fn units(problem: &Problem, listed: &[usize]) -> (Rows<JobId>, IdVec<JobId, UnitId>) {
    let mut numbers = BTreeMap::new();
    let mut n_units = 0;
    let mut fresh = || {
        n_units += 1;
        UnitId::from_index(n_units - 1)
    };
    let unit_of: IdVec<JobId, UnitId> = (problem.jobs.iter())
        .map(|(_, job)| match job.unit {
            Some(number) => *numbers.entry(number).or_insert_with(&mut fresh),
            None => fresh(),
        })
        .collect();
    let sorted = listed.iter().map(|&job| JobId::from_index(job)).map(|job| (unit_of[job].index(), job));
    (Rows::group(n_units, sorted), unit_of)
}

fn n_devices(problem: &Problem) -> usize {
    problem.lanes.iter().map(|(_, lane)| lane.device + 1).max().unwrap_or(0)
}

fn lanes(problem: &Problem) -> Vec<(bool, Option<LaneId>)> {
    let computes: BTreeMap<usize, LaneId> = (problem.lanes.iter())
        .filter(|(_, lane)| lane.kind == LaneKind::Compute)
        .map(|(id, lane)| (lane.device, id))
        .collect();
    let host = |kind: LaneKind, device| match kind {
        LaneKind::Transfers => (true, computes.get(&device).copied()),
        LaneKind::Compute => (false, None),
    };
    problem.lanes.iter().map(|(_, lane)| host(lane.kind, lane.device)).collect()
}

/// Bytes that no job touches are there as long as the rest only if they are there to the end.
fn start_bytes(problem: &Problem, n_devices: usize) -> Vec<i64> {
    let mut start = vec![0; n_devices];
    let counts =
        |buffer: &SearchBuffer| buffer.from_start && (buffer.to_end || !buffer.touched_by.is_empty());
    for (_, buffer) in problem.buffers.iter().filter(|(_, buffer)| counts(buffer)) {
        start[buffer.device] += buffer.alloc;
    }
    start
}
