//! When every job of an order runs, and how many bytes each device holds.
//!
//! Time: a job starts when its lane is free, what it waits for is done and its bytes are there ([`Grants`]); a transfer
//! that is issued in order also not before the lane that computes on its device has come to it. The peak follows the
//! order, not the times: a buffer is alive from the first unit that touches it to the last, and the bytes of a unit are
//! all added before any is released.

use phalanx_ir::Id;

use super::grant::Grants;
use super::instance::{Instance, UnitId};
use super::problem::{JobId, LaneId};
use crate::lanes::{LaneClocks, later};

/// How good an order is; the smaller, the better.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) struct Score {
    /// Bytes above the limits, over all devices.
    pub excess: i64,
    /// When the last job is done.
    pub makespan: f64,
    /// The peaks of all devices together.
    pub bytes: i64,
}

impl Score {
    /// Whether it is worse, the peaks left aside.
    pub fn is_worse(self, other: Score) -> bool {
        (self.excess, self.makespan) > (other.excess, other.makespan)
    }
}

/// Space for the evaluation of orders, used again and again.
pub(super) struct Simulator<'a> {
    pub instance: &'a Instance<'a>,
    grants: Option<Grants<'a>>,
    clocks: LaneClocks<f64>,
    /// By job: when it starts and is done, in the order simulated last.
    pub times: Vec<(f64, f64)>,
    /// By buffer: how many units that touch it are left.
    left: Vec<usize>,
    live: Vec<i64>,
    /// By device: the most bytes, in the order measured last.
    pub peaks: Vec<i64>,
    /// How many orders were simulated.
    pub tried: usize,
}

impl<'a> Simulator<'a> {
    pub fn new(instance: &'a Instance<'a>) -> Self {
        let mut simulator = Simulator {
            instance,
            grants: Grants::new(instance),
            clocks: LaneClocks::new(instance.lanes.len()),
            times: vec![(0.0, 0.0); instance.problem.jobs.len()],
            left: Vec::new(),
            live: Vec::new(),
            peaks: Vec::new(),
            tried: 0,
        };
        simulator.reset();
        simulator
    }

    fn reset(&mut self) {
        self.clocks.reset();
        if let Some(grants) = &mut self.grants {
            grants.reset();
        }
    }

    /// When the last job of `order` is done.
    pub fn makespan(&mut self, order: &[UnitId]) -> f64 {
        self.tried += 1;
        self.reset();
        for &unit in order {
            self.run(unit);
        }
        self.clocks.end()
    }

    /// Runs one more unit behind those run so far.
    pub fn run(&mut self, unit: UnitId) {
        if let Some(grants) = &mut self.grants {
            grants.ask(unit);
        }
        for &job in self.instance.jobs.row(unit.index()) {
            self.run_job(job, unit);
        }
        if let Some(grants) = &mut self.grants {
            grants.give_back(unit, &self.times);
        }
    }

    /// When a job of the lane could start that waits for nothing.
    pub fn free(&self, lane: LaneId) -> f64 {
        let own = self.clocks.free(lane.index());
        match self.instance.lanes[lane.index()].1 {
            Some(host) if self.instance.problem.issued_in_order => later(own, self.clocks.free(host.index())),
            _ => own,
        }
    }

    fn run_job(&mut self, id: JobId, unit: UnitId) {
        let job = &self.instance.problem.jobs[id];
        let mut from = self.free(job.lane);
        for other in self.instance.after.row(id.index()) {
            from = later(from, self.times[other.index()].1);
        }
        if let Some(grants) = &self.grants {
            from = later(from, grants.granted(unit, self.instance.problem.lanes[job.lane].device));
        }
        let span = self.clocks.run(job.lane.index(), from, job.cost, |start| start);
        if let (true, Some(host)) = (job.blocks, self.instance.lanes[job.lane.index()].1) {
            self.clocks.hold(host.index(), span.end);
        }
        self.times[id.index()] = (span.start, span.end);
    }

    /// How good `order` is.
    pub fn score(&mut self, order: &[UnitId]) -> Score {
        self.score_if(order, |_| true).expect("every order is good enough")
    }

    /// The same, but none if it is not good enough; often the time alone says so.
    pub fn score_if(&mut self, order: &[UnitId], is_good: impl Fn(Score) -> bool) -> Option<Score> {
        let makespan = self.makespan(order);
        if !is_good(Score { excess: 0, makespan, bytes: 0 }) {
            return None;
        }
        let excess = self.excess(order);
        Some(Score { excess, makespan, bytes: self.peaks.iter().sum() }).filter(|&score| is_good(score))
    }

    /// Finds the peaks of all devices, and by how many bytes they exceed the limits together.
    pub fn excess(&mut self, order: &[UnitId]) -> i64 {
        self.measure(order, |_, _, _| ());
        let over = |(&peak, &limit): (&i64, &i64)| peak.saturating_sub(limit).max(0);
        self.peaks.iter().zip(&self.instance.limits).map(over).sum()
    }

    /// Finds the peaks; `visit` sees place, device and bytes while the unit runs, for every buffer that a unit touches.
    pub fn measure(&mut self, order: &[UnitId], mut visit: impl FnMut(usize, usize, i64)) {
        let Instance { problem, touches, touched_by, start, .. } = self.instance;
        self.left.clear();
        self.left.extend(touched_by.iter().map(<[UnitId]>::len));
        self.live.clone_from(start);
        self.peaks.clone_from(start);
        for (place, unit) in order.iter().enumerate() {
            for &id in touches.row(unit.index()) {
                let buffer = &problem.buffers[id];
                if self.left[id.index()] == touched_by.row(id.index()).len() && !buffer.from_start {
                    let live = &mut self.live[buffer.device];
                    *live += buffer.alloc;
                    self.peaks[buffer.device] = self.peaks[buffer.device].max(*live);
                }
            }
            for &id in touches.row(unit.index()) {
                let device = problem.buffers[id].device;
                visit(place, device, self.live[device]);
            }
            for &id in touches.row(unit.index()) {
                let buffer = &problem.buffers[id];
                self.left[id.index()] -= 1;
                if self.left[id.index()] == 0 && !buffer.to_end {
                    self.live[buffer.device] -= buffer.free;
                }
            }
        }
    }
}
