//! What became of every transfer, and what keeps it from being hidden better: the first of these that applies.
//!
//! * *nothing left*: all of it runs beside jobs that compute on its device, or it takes no time;
//! * *bandwidth*: its lane is busy from its first job to its last, so only a faster lane helps;
//! * *data dependency*: it starts as soon as what it waits for is done;
//! * *memory*: directly behind the last unit that its own has to come behind, the bytes that its unit adds would exceed
//!   a limit; or it waited for bytes that others held;
//! * *order*: an earlier transfer held its lane until it started;
//! * *data dependency*: it could be issued earlier, but nothing would end sooner.

use phalanx_ir::Id;

use super::instance::{Instance, UnitId};
use super::problem::{JobId, SearchBufferId};
use super::simulate::Simulator;
use crate::verdict::{Limit, Verdict};

/// The verdict on one job.
pub type JobVerdict = Verdict<JobId, f64>;

/// A share that is missing through rounding.
const HIDDEN: f64 = 1e-9;

/// The verdicts of all transfers of `order`, in that order.
pub(super) fn verdicts(simulator: &mut Simulator<'_>, order: &[UnitId]) -> Vec<JobVerdict> {
    simulator.makespan(order);
    let times = simulator.times.clone();
    let instance = simulator.instance;
    let judge = Judge::new(simulator, &times, order);
    let jobs =
        order.iter().flat_map(|&unit| instance.jobs.row(unit.index()).iter().map(move |&job| (unit, job)));
    let is_transfer = |job: JobId| instance.lanes[instance.problem.jobs[job].lane.index()].0;
    jobs.filter(|&(_, job)| is_transfer(job)).map(|(unit, job)| judge.verdict(unit, job)).collect()
}

struct Judge<'j, 'a> {
    instance: &'a Instance<'a>,
    times: &'j [(f64, f64)],
    /// By unit: its place in the order, and in the order of the problem's numbers.
    places: Vec<[usize; 2]>,
    /// By lane: when its jobs run, in order.
    lanes: Vec<Vec<(f64, f64)>>,
    /// By lane: whether it never stands still from its first job to its last.
    is_busy: Vec<bool>,
    /// By device: the bytes while each unit that touches it runs, by place.
    levels: Vec<Vec<(usize, i64)>>,
}

impl<'j, 'a> Judge<'j, 'a> {
    fn new(simulator: &mut Simulator<'a>, times: &'j [(f64, f64)], order: &[UnitId]) -> Self {
        let instance = simulator.instance;
        let mut lanes = vec![Vec::new(); instance.lanes.len()];
        for &job in order.iter().flat_map(|unit| instance.jobs.row(unit.index())) {
            lanes[instance.problem.jobs[job].lane.index()].push(times[job.index()]);
        }
        let mut places = vec![[0; 2]; order.len()];
        order.iter().enumerate().for_each(|(at, unit)| places[unit.index()][0] = at);
        instance.listed.iter().enumerate().for_each(|(at, unit)| places[unit.index()][1] = at);
        let no_gaps = |times: &Vec<(f64, f64)>| times.windows(2).all(|pair| pair[0].1 == pair[1].0);
        let is_busy = lanes.iter().map(no_gaps).collect();
        let mut levels = vec![Vec::new(); instance.start.len()];
        simulator.measure(order, |place, device, bytes| levels[device].push((place, bytes)));
        Judge { instance, times, places, lanes, is_busy, levels }
    }

    fn verdict(&self, unit: UnitId, job: JobId) -> JobVerdict {
        let (start, end) = self.times[job.index()];
        let [place, listed] = self.places[unit.index()];
        let moves = listed as i64 - place as i64;
        let hidden = self.hidden(job);
        let verdict = Verdict { transfer: job, start, end, hidden, moves, limit: Limit::NothingLeft };
        match verdict.hidden_share() >= 1.0 - HIDDEN {
            true => verdict,
            false => Verdict { limit: self.limit(unit, job), ..verdict },
        }
    }

    /// How long the lane that computes on the job's device is at work while the job runs.
    fn hidden(&self, job: JobId) -> f64 {
        let (start, end) = self.times[job.index()];
        let instance = self.instance;
        let Some(host) = instance.lanes[instance.problem.jobs[job].lane.index()].1 else { return 0.0 };
        let beside = &self.lanes[host.index()];
        let first = beside.partition_point(|&(_, done)| done <= start);
        let shared = beside[first..].iter().take_while(|&&(begun, _)| begun < end);
        shared.fold(0.0, |sum, &(begun, done)| sum + done.min(end) - begun.max(start))
    }

    fn limit(&self, unit: UnitId, id: JobId) -> Limit {
        let job = &self.instance.problem.jobs[id];
        let lane = &self.lanes[job.lane.index()];
        let start = self.times[id.index()].0;
        let ready = job.after.iter().map(|other| self.times[other.index()].1).fold(0.0, f64::max);
        let before = lane[..lane.partition_point(|&(begun, _)| begun < start)].last();
        if self.is_busy[job.lane.index()] {
            Limit::Bandwidth
        } else if start <= ready {
            Limit::DataDependency
        } else if !self.fits_earlier(unit) {
            Limit::Memory
        } else if before.is_some_and(|&(_, done)| done == start) {
            Limit::Order
        } else if self.instance.problem.issued_in_order {
            Limit::DataDependency
        } else {
            Limit::Memory
        }
    }

    /// Whether the bytes that the unit adds fit directly behind the last unit that it has to come behind.
    fn fits_earlier(&self, unit: UnitId) -> bool {
        let at = self.place(unit);
        let before = self.instance.before.row(unit.index()).iter().map(|&other| self.place(other) + 1);
        let from = before.max().unwrap_or(0);
        self.instance.touches.row(unit.index()).iter().all(|&id| {
            let device = self.instance.problem.buffers[id].device;
            let levels = &self.levels[device];
            let first = levels.partition_point(|&(place, _)| place < from);
            let room = self.instance.limits[device].saturating_sub(self.added(unit, device));
            levels[first..].iter().take_while(|&&(place, _)| place < at).all(|&(_, bytes)| bytes <= room)
        })
    }

    /// The bytes of a device that the unit is the first to touch.
    fn added(&self, unit: UnitId, device: usize) -> i64 {
        let is_first = |id: &&SearchBufferId| {
            let others = self.instance.touched_by.row(id.index());
            others.iter().all(|&other| self.place(other) >= self.place(unit))
        };
        let first = self.instance.touches.row(unit.index()).iter().filter(is_first);
        let buffers = first.map(|&id| &self.instance.problem.buffers[id]);
        buffers
            .filter(|buffer| buffer.device == device && !buffer.from_start)
            .map(|buffer| buffer.alloc)
            .sum()
    }

    fn place(&self, unit: UnitId) -> usize {
        self.places[unit.index()][0]
    }
}
