//! Finds an order of jobs that ends early and keeps a limit of bytes on every device.
//!
//! The problem is abstract: jobs on lanes that compute or transfer, what each waits for, and which bytes it keeps alive
//! ([`Problem`]), such as the tasks of many devices, whose movements are issued in one sequence. Many orders by simple rules and a local search around the best are judged by one
//! simulator. The same problem gives the same order: effort is counted, not timed. An order that keeps the limits is
//! found whenever a seed, the order of the problem's numbers or an order with few bytes does; nothing found later
//! exceeds them again.
//!
//! ```
//! use phalanx_schedule::LaneKind;
//! use phalanx_schedule::search::{Problem, SearchJob, SearchLane};
//!
//! let mut problem = Problem::default();
//! let compute = problem.lanes.push(SearchLane { device: 0, kind: LaneKind::Compute });
//! let transfer = problem.lanes.push(SearchLane { device: 0, kind: LaneKind::Transfers });
//! let first = problem.jobs.push(SearchJob::new(compute, 5.0));
//! let gather = problem.jobs.push(SearchJob::new(transfer, 5.0));
//! problem.jobs.push(SearchJob { after: vec![first, gather], ..SearchJob::new(compute, 1.0) });
//! let solution = problem.solve(&[])?;
//! assert_eq!(solution.makespan, 6.0);
//! assert_eq!(solution.verdicts[0].hidden_share(), 1.0);
//! # Ok::<(), phalanx_schedule::search::ProblemError>(())
//! ```

mod bound;
mod budget;
mod grant;
mod instance;
mod list;
mod local;
mod low_memory;
mod portfolio;
mod problem;
mod simulate;
mod time;
mod verdict;

pub use crate::LaneKind;
pub use problem::{
    Effort, JobId, LaneId, Problem, ProblemError, SearchBuffer, SearchBufferId, SearchJob, SearchLane,
};
pub use verdict::JobVerdict;

use phalanx_ir::IdVec;

use instance::{Instance, UnitId};
use portfolio::Outcome;
use simulate::Simulator;

/// An order of a problem's jobs, and how it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// All jobs; its restriction to a lane is what the lane does.
    pub order: Vec<JobId>,
    /// When each job starts and is done, in nanoseconds.
    pub times: IdVec<JobId, (f64, f64)>,
    /// When the last job is done.
    pub makespan: f64,
    /// By device: the most bytes alive.
    pub peaks: Vec<i64>,
    /// Bytes above the limits, over all devices: 0 unless no order was found that keeps them.
    pub excess: i64,
    /// No order takes less.
    pub lower_bound: f64,
    /// How many orders were simulated.
    pub tried: usize,
    /// What became of every transfer, in order.
    pub verdicts: Vec<JobVerdict>,
}

impl Problem {
    /// The best order found, starting from `seeds`, which are orders of all jobs.
    pub fn solve(&self, seeds: &[Vec<JobId>]) -> Result<Solution, ProblemError> {
        let instance = Instance::new(self)?;
        let mut units: Vec<Vec<UnitId>> = Vec::with_capacity(seeds.len());
        for (seed, order) in seeds.iter().enumerate() {
            let order = instance.gather(order);
            units.push(order.ok_or(ProblemError::Seed { seed, jobs: self.jobs.len() })?);
        }
        Ok(Solution::new(&instance, portfolio::search(&instance, units)))
    }

    /// The same, but seeds that are no legal orders are passed over.
    pub fn solve_from_legal(&self, seeds: &[Vec<JobId>]) -> Result<Solution, ProblemError> {
        let instance = Instance::new(self)?;
        let units = seeds.iter().filter_map(|order| instance.gather(order)).collect();
        Ok(Solution::new(&instance, portfolio::search(&instance, units)))
    }
}

impl Solution {
    fn new(instance: &Instance<'_>, outcome: Outcome) -> Self {
        let mut simulator = Simulator::new(instance);
        let score = simulator.score(&outcome.order);
        let (times, peaks) = (simulator.times.iter().copied().collect(), simulator.peaks.clone());
        Solution {
            order: instance.flatten(&outcome.order),
            times,
            makespan: score.makespan,
            peaks,
            excess: score.excess,
            lower_bound: outcome.bound,
            tried: outcome.tried,
            verdicts: verdict::verdicts(&mut simulator, &outcome.order),
        }
    }
}
