//! How early the last job can be done, whatever the order.
//!
//! The *head* of a job is a time before which it cannot start, its *tail* the time that must pass after it. Both are
//! longest paths. A lane does one job at a time, so that the best schedule of its jobs that may even interrupt them, each
//! with its head and tail, takes no longer than any real one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use phalanx_ir::Id;

use super::instance::Instance;
use super::problem::{JobId, LaneId};
use super::time::Time;
use crate::rows::Rows;

/// Up to this many jobs a job's ancestors are added up one by one.
const SMALL: usize = 1024;

/// A time before which no order is done.
pub(super) fn bound(instance: &Instance<'_>) -> f64 {
    let paths = Paths::new(instance);
    let mut jobs: Vec<Vec<JobId>> = vec![Vec::new(); instance.lanes.len()];
    for id in instance.problem.jobs.ids() {
        instance.held_by(id).for_each(|lane| jobs[lane.index()].push(id));
    }
    jobs.into_iter().map(|jobs| paths.of_lane(instance, jobs)).fold(0.0, f64::max)
}

/// Heads and tails of all jobs.
struct Paths {
    heads: Vec<f64>,
    tails: Vec<f64>,
}

impl Paths {
    fn new(instance: &Instance<'_>) -> Self {
        let order = instance.flatten(&instance.listed);
        let before = edges(instance);
        let pairs =
            (0..before.len()).flat_map(|job| before.row(job).iter().map(move |other| (other.index(), job)));
        let behind = Rows::group(before.len(), pairs.map(|(other, job)| (other, JobId::from_index(job))));
        let heads = longest(instance, order.iter(), &before);
        let tails = longest(instance, order.iter().rev(), &behind);
        Paths { heads, tails }
    }

    /// Does the jobs of one lane, always the one with the longest tail of those that may start.
    fn of_lane(&self, instance: &Instance<'_>, mut jobs: Vec<JobId>) -> f64 {
        jobs.sort_by(|a, b| self.heads[a.index()].total_cmp(&self.heads[b.index()]));
        let mut ready: BinaryHeap<(Time, Reverse<JobId>)> = BinaryHeap::new();
        let mut left: Vec<f64> = instance.problem.jobs.iter().map(|(_, job)| job.cost).collect();
        let (mut now, mut bound, mut next) = (0.0_f64, 0.0_f64, 0);
        while next < jobs.len() || !ready.is_empty() {
            if ready.is_empty() {
                now = now.max(self.heads[jobs[next].index()]);
            }
            while next < jobs.len() && self.heads[jobs[next].index()] <= now {
                ready.push((Time(self.tails[jobs[next].index()]), Reverse(jobs[next])));
                next += 1;
            }
            let Some(&(Time(tail), Reverse(job))) = ready.peek() else { continue };
            let until = jobs.get(next).map_or(f64::INFINITY, |job| self.heads[job.index()]);
            let end = (now + left[job.index()]).min(until);
            left[job.index()] -= end - now;
            if end < until || left[job.index()] <= 0.0 {
                ready.pop();
                bound = bound.max(end + tail);
            }
            now = end;
        }
        bound
    }
}

/// By job: the jobs whose end it cannot start before.
fn edges(instance: &Instance<'_>) -> Rows<JobId> {
    let jobs = &instance.problem.jobs;
    if jobs.len() > SMALL {
        return Rows::new(jobs.iter().map(|(_, job)| job.after.iter().copied()));
    }
    Rows::new(jobs.iter().map(|(id, job)| {
        let unit = instance.unit_of[id];
        let units = instance.before.row(unit.index()).iter().copied().chain([unit]);
        let earlier =
            units.flat_map(|unit| instance.jobs.row(unit.index())).take_while(move |&&other| other != id);
        let held = earlier.filter(move |&&other| holds(instance, other, id));
        held.chain(&job.after).copied()
    }))
}

/// Whether a job that comes earlier in the order must be done before `job` starts, because it holds a lane that the job
/// needs or is issued by.
fn holds(instance: &Instance<'_>, earlier: JobId, job: JobId) -> bool {
    let lane = instance.problem.jobs[job].lane;
    let issuer = instance.lanes[lane.index()].1.filter(|_| instance.problem.issued_in_order);
    instance.held_by(earlier).any(|held| held == lane || Some(held) == issuer)
}

/// The longest path to the start of each job of `order`.
fn longest<'j>(
    instance: &Instance<'_>,
    order: impl Iterator<Item = &'j JobId>,
    before: &Rows<JobId>,
) -> Vec<f64> {
    let jobs = &instance.problem.jobs;
    let mut paths = vec![0.0_f64; jobs.len()];
    let mut sets = Sets::new(if jobs.len() <= SMALL { jobs.len() } else { 0 });
    for &job in order {
        let at = job.index();
        for &other in before.row(at) {
            paths[at] = paths[at].max(paths[other.index()] + jobs[other].cost);
            sets.include(at, other.index());
        }
        let mut sums = vec![0.0_f64; instance.lanes.len()];
        let mut others: Vec<JobId> = sets.members(at).map(JobId::from_index).collect();
        others.sort_by(|a, b| paths[b.index()].total_cmp(&paths[a.index()]));
        // What comes before a job and holds one lane cannot overlap: after the first head of some of it, all of their
        // costs pass.
        for other in others {
            for lane in instance.held_by(other) {
                let sum = &mut sums[lane.index()];
                *sum += jobs[other].cost;
                paths[at] = paths[at].max(paths[other.index()] + *sum);
            }
        }
    }
    paths
}

/// A set of numbers for each number.
struct Sets {
    words: usize,
    bits: Vec<u64>,
}

impl Sets {
    fn new(count: usize) -> Self {
        let words = count.div_ceil(64);
        Sets { words, bits: vec![0; words * count] }
    }

    /// Adds `other` and its members to the set of `at`.
    fn include(&mut self, at: usize, other: usize) {
        for word in 0..self.words {
            self.bits[at * self.words + word] |= self.bits[other * self.words + word];
        }
        if self.words > 0 {
            self.bits[at * self.words + other / 64] |= 1 << (other % 64);
        }
    }

    fn members(&self, at: usize) -> impl Iterator<Item = usize> {
        let words = self.bits[at * self.words..(at + 1) * self.words].iter().enumerate();
        words.flat_map(|(word, &bits)| {
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * 64 + bit)
        })
    }
}

/// By unit: the longest time from its start to the end, over all its jobs; `cost` weighs each job.
pub(super) fn tails(instance: &Instance<'_>, cost: impl Fn(LaneId, f64) -> f64) -> Vec<f64> {
    let mut tails = vec![0.0_f64; instance.len()];
    for &unit in instance.listed.iter().rev() {
        let jobs = instance.jobs.row(unit.index()).iter().map(|&job| &instance.problem.jobs[job]);
        let own = jobs.map(|job| cost(job.lane, job.cost)).fold(0.0, f64::max);
        let behind = instance.behind.row(unit.index()).iter().map(|other| tails[other.index()]);
        tails[unit.index()] = own + behind.fold(0.0, f64::max);
    }
    tails
}
