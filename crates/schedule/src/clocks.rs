//! What each lane knows of the others: how many of their tasks are complete before its next one starts.
//!
//! A lane's knowledge changes only when it waits. Then it takes over what the other lane knew after the task waited for
//! (a *snapshot*), so knowledge is always closed: a lane that knows a task knows all that the task knew. Snapshots are shared
//! between tasks with no wait between them and dropped after their last use.

use phalanx_ir::Id;
use phalanx_ir::tasks::TaskId;

const NONE: u32 = u32::MAX;

pub(crate) struct Clocks {
    lanes: usize,
    /// Records of one number for each lane, end to end.
    known: Vec<u32>,
    /// How many lanes and snapshots use each record.
    uses: Vec<u32>,
    free: Vec<u32>,
    /// The record of each lane.
    current: Vec<u32>,
    /// The record of each task that others will still wait for.
    snapshots: Vec<u32>,
    /// How often each task will still be waited for.
    waiters: Vec<u32>,
}

/// A task's place among the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub lane: u32,
    pub position: u32,
}

impl Clocks {
    /// Nothing is known; `waiters` has how often [`Clocks::wait`] will be called for each task.
    pub fn new(lanes: usize, waiters: Vec<u32>) -> Self {
        Clocks {
            lanes,
            known: vec![0; lanes * lanes],
            uses: vec![1; lanes],
            free: Vec::new(),
            current: (0..lanes as u32).collect(),
            snapshots: vec![NONE; waiters.len()],
            waiters,
        }
    }

    /// Whether the task at `other` is complete before the next one of `lane` starts. Own tasks are not asked for.
    pub fn knows(&self, lane: usize, other: Spot) -> bool {
        let record = self.current[lane] as usize * self.lanes;
        self.known[record + other.lane as usize] > other.position
    }

    /// The next task of `lane` waits for `task`, which is complete and lies at `spot`.
    pub fn wait(&mut self, lane: usize, task: TaskId, spot: Spot) {
        if !self.knows(lane, spot) {
            self.own(lane);
            let mine = self.current[lane] as usize * self.lanes;
            let theirs = self.snapshots[task.index()] as usize * self.lanes;
            let (mine, theirs) = two(&mut self.known, mine, theirs, self.lanes);
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
            mine[spot.lane as usize] = spot.position + 1;
        }
        self.forget(task);
    }

    fn forget(&mut self, task: TaskId) {
        let waiters = &mut self.waiters[task.index()];
        *waiters -= 1;
        if *waiters == 0 {
            self.unuse(self.snapshots[task.index()]);
        }
    }

    /// `task`, the next one of `lane`, is complete.
    pub fn complete(&mut self, lane: usize, task: TaskId) {
        if self.waiters[task.index()] > 0 {
            let record = self.current[lane];
            self.uses[record as usize] += 1;
            self.snapshots[task.index()] = record;
        }
    }

    /// Gives the lane a record that no snapshot uses.
    fn own(&mut self, lane: usize) {
        let shared = self.current[lane];
        if self.uses[shared as usize] == 1 {
            return;
        }
        let record = self.free.pop().unwrap_or_else(|| {
            self.uses.push(0);
            self.known.resize(self.uses.len() * self.lanes, 0);
            (self.uses.len() - 1) as u32
        });
        let from = shared as usize * self.lanes;
        self.known.copy_within(from..from + self.lanes, record as usize * self.lanes);
        self.uses[record as usize] = 1;
        self.current[lane] = record;
        self.unuse(shared);
    }

    fn unuse(&mut self, record: u32) {
        self.uses[record as usize] -= 1;
        if self.uses[record as usize] == 0 {
            self.free.push(record);
        }
    }
}

/// The records that start at `mine`, to change, and at `theirs`.
fn two(known: &mut [u32], mine: usize, theirs: usize, lanes: usize) -> (&mut [u32], &[u32]) {
    if mine < theirs {
        let (low, high) = known.split_at_mut(theirs);
        (&mut low[mine..mine + lanes], &high[..lanes])
    } else {
        let (low, high) = known.split_at_mut(mine);
        (&mut high[..lanes], &low[theirs..theirs + lanes])
    }
}
