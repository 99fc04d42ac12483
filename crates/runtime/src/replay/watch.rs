//! Where the lanes of a program stand and whether one has failed, for observers on other threads.
//!
//! A lane's worker stores one number when an operation is complete, and nothing orders it: it costs no more than that.
//! All else follows from the program when an observer looks. What it sees is the picture of a moment, and while much
//! goes on a blurred one; of lanes that are stuck it is exact.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use phalanx_program::{Operation, Program, Wait};

use super::failure::{Failure, FailureCell};

/// Looks at runs of a program from any thread while they go on. Cheap to clone.
#[derive(Clone)]
pub struct Watch {
    program: Arc<Program>,
    progress: Arc<Progress>,
}

/// Where a lane stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneState {
    /// How many of its operations are complete in this run; the next one is what it is at.
    pub done: u64,
    /// The run: how many the lane has completed.
    pub run: u64,
    /// Whether all that its next operation waits for is complete: it runs, or its message is under way.
    pub running: bool,
}

/// How far each lane has come.
pub(super) struct Progress {
    /// Runs launched so far.
    launched: AtomicU64,
    lanes: Box<[Station]>,
    pub(super) failure: FailureCell,
}

/// A lane's progress, on a cache line of its own: its worker writes it all the time.
#[repr(align(128))]
struct Station {
    /// Operations of all runs, up to the last one that is complete.
    count: AtomicU64,
    /// The lane's first operation in the program, and how many it has.
    first: usize,
    len: u64,
}

impl Progress {
    pub(super) fn new(program: &Program) -> Progress {
        let station = |lane: &phalanx_program::Lane| Station {
            count: AtomicU64::new(0),
            first: lane.operations.start as usize,
            len: u64::from(lane.operations.end - lane.operations.start),
        };
        Progress {
            launched: AtomicU64::new(0),
            lanes: program.lanes().iter().map(station).collect(),
            failure: FailureCell::default(),
        }
    }

    /// A run has been launched.
    pub(super) fn launched(&self, runs: u64) {
        // Relaxed, here and below: the numbers order nothing.
        self.launched.store(runs, Relaxed);
    }

    /// An operation of a lane is complete.
    #[inline]
    pub(super) fn complete(&self, lane: usize, operation: usize, run: u64) {
        let Station { count, first, len } = &self.lanes[lane];
        count.store(run * len + (operation - first) as u64 + 1, Relaxed);
    }
}

impl Watch {
    pub(super) fn new(program: &Arc<Program>, progress: &Arc<Progress>) -> Watch {
        Watch { program: Arc::clone(program), progress: Arc::clone(progress) }
    }

    /// Runs launched so far.
    pub fn launched(&self) -> u64 {
        self.progress.launched.load(Relaxed)
    }

    /// Calls `listener` once, as soon as a part on a network fails, or now if it has; on the thread on which the fault
    /// arises, so it must be quick. The last listener counts.
    pub fn on_failure(&self, listener: impl FnOnce(&Failure) + Send + 'static) {
        self.progress.failure.listen(Box::new(listener));
    }

    /// Operations that are complete, in all runs so far.
    pub fn completed(&self) -> u64 {
        self.progress.lanes.iter().map(|lane| lane.count.load(Relaxed)).sum()
    }

    /// Where each lane of the program stands.
    pub fn lanes(&self) -> Vec<LaneState> {
        let Progress { launched, lanes, .. } = &*self.progress;
        let launched = launched.load(Relaxed);
        let counts: Vec<u64> = lanes.iter().map(|lane| lane.count.load(Relaxed)).collect();
        let state = |(lane, count): (&phalanx_program::Lane, &u64)| {
            let operations = self.program.operations_of(lane);
            let n = operations.len() as u64;
            let (run, done) = (count.checked_div(n).unwrap_or(0), count.checked_rem(n).unwrap_or(0));
            let next = operations.get(done as usize).filter(|_| run < launched);
            LaneState { done, run, running: next.is_some_and(|next| self.is_ready(next, run, &counts)) }
        };
        self.program.lanes().iter().zip(&counts).map(state).collect()
    }

    /// Whether all that an operation waits for in other lanes is complete.
    fn is_ready(&self, operation: &Operation, run: u64, counts: &[u64]) -> bool {
        let complete = |wait: &Wait, run: u64| {
            let lane = wait.lane as usize;
            counts[lane] > run * self.progress.lanes[lane].len + u64::from(wait.position)
        };
        let carried = self.program.carried(operation);
        self.program.waits(operation).iter().all(|wait| complete(wait, run))
            && (run == 0 || carried.iter().all(|wait| complete(wait, run - 1)))
    }
}
