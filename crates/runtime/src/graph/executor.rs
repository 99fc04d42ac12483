//! A processor's part in the runs of graphs: which of them it takes part in, and what it does next.
//!
//! For each run a processor has a *cursor*: the next slot of the run's queue to read, a stack of segments that became
//! ready by its own doing, and how many of its segments it has not taken yet. When it has taken all of them the cursor
//! is dropped, so a task that waits keeps no cursor alive. Progress never depends on the order in which processors
//! learn of runs: a processor takes ready segments from any of them, the more urgent run first, equal ones in turn.

use std::sync::Arc;

use crate::flow::TaskKind;
use crate::processor::{Processor, WorkerCore, keep_promise};
use crate::sync::spin_loop;

use super::Inner;
use super::release::Release;
use super::run_state::RunState;

/// A run that a processor takes part in.
pub(crate) struct Announced {
    pub(super) graph: Arc<Inner>,
    pub(super) state: Arc<RunState>,
    /// The processor's number in the flow.
    pub(super) place: u32,
    pub(super) priority: i32,
}

impl Clone for Announced {
    fn clone(&self) -> Self {
        let (graph, state) = (Arc::clone(&self.graph), Arc::clone(&self.state));
        Announced { graph, state, place: self.place, priority: self.priority }
    }
}

/// Runs at a time that a processor is prepared for; more only cost allocations.
pub(crate) const EXPECTED: usize = 8;

/// How often a processor with a fixed order looks at the next gate before it looks for other work: about as long as it
/// takes another processor to open it and this one to notice.
const GATE_POLLS: u32 = 64;

/// What a processor remembers of runs.
pub(crate) struct Executor {
    cursors: Vec<Cursor>,
    /// Where the next look for work starts.
    rotation: usize,
    /// Whether there was work since the last look at this.
    busy: bool,
    /// Empty stacks to use again.
    stacks: Vec<Vec<u32>>,
    direct: Vec<u32>,
}

struct Cursor {
    run: Announced,
    /// Whether the processor runs its segments in the order of their numbers.
    serial: bool,
    /// The next slot to read, or the next segment to run if it is serial, and the one after the last.
    front: u32,
    end: u32,
    stack: Vec<u32>,
    /// Segments that are ready but wait for the device to catch up.
    stalled: Vec<u32>,
    /// Segments not taken yet.
    left: u32,
    /// Units of work that are complete but not reported.
    done: u32,
}

impl Default for Executor {
    fn default() -> Self {
        // Room for some runs from the start: nothing is allocated once a program runs.
        Executor {
            cursors: Vec::with_capacity(EXPECTED),
            rotation: 0,
            busy: false,
            stacks: Vec::with_capacity(EXPECTED),
            direct: Vec::new(),
        }
    }
}

impl Cursor {
    fn has_work(&self) -> bool {
        if self.serial {
            return self.front != self.end && self.run.state.gates[self.front as usize].is_open();
        }
        !self.stack.is_empty() || self.queued().is_some() || !self.stalled.is_empty() && self.run.has_credit()
    }

    fn queued(&self) -> Option<u32> {
        if self.front == self.end { None } else { self.run.state.slots[self.front as usize].get() }
    }

    /// A segment that is ready; where only one can come next, its gate may open within that many polls.
    fn take(&mut self, polls: u32) -> Option<u32> {
        if self.serial {
            return self.take_next(polls);
        }
        let segment = self.stack.pop().or_else(|| {
            let queued = self.queued()?;
            self.front += 1;
            Some(queued)
        });
        let segment = segment.or_else(|| self.stalled.pop())?;
        self.left -= 1;
        Some(segment)
    }

    fn take_next(&mut self, polls: u32) -> Option<u32> {
        let segment = self.front;
        if segment == self.end {
            return None;
        }
        let gate = &self.run.state.gates[segment as usize];
        let opens = || {
            spin_loop();
            gate.is_open()
        };
        if !gate.is_open() && !(0..polls).any(|_| opens()) {
            return None;
        }
        self.front += 1;
        self.left -= 1;
        Some(segment)
    }
}

impl Executor {
    /// Takes part in a run.
    pub(crate) fn begin(&mut self, run: Announced) {
        let owned = run.graph.flow.owned(run.place);
        let left = owned.end - owned.start;
        let stack = self.stacks.pop().unwrap_or_default();
        let serial = run.graph.serial[run.place as usize];
        self.cursors.push(Cursor {
            run,
            serial,
            front: owned.start,
            end: owned.end,
            stack,
            stalled: Vec::new(),
            left,
            done: 0,
        });
    }

    /// The priority of the most urgent segment that is ready.
    pub(crate) fn peek(&self) -> Option<i32> {
        self.cursors.iter().filter(|cursor| cursor.has_work()).map(|cursor| cursor.run.priority).max()
    }

    /// Whether all runs here are of graphs that consist of non-blocking tasks.
    pub(crate) fn has_only_nonblocking(&self) -> bool {
        self.cursors.iter().all(|cursor| cursor.run.graph.nonblocking)
    }

    /// Whether no run is going on here.
    pub(crate) fn is_idle(&self) -> bool {
        self.cursors.is_empty()
    }

    /// Whether a run is going on here, or was lately.
    pub(crate) fn was_busy(&mut self) -> bool {
        std::mem::take(&mut self.busy) || !self.is_idle()
    }

    /// The cursor to serve next.
    fn pick(&mut self) -> Option<usize> {
        let n = self.cursors.len();
        let priority = self.peek()?;
        let order = (0..n).map(|offset| (self.rotation + offset) % n);
        let ready =
            |&index: &usize| self.cursors[index].run.priority == priority && self.cursors[index].has_work();
        let index = order.into_iter().find(ready)?;
        self.rotation = index + 1;
        self.busy = true;
        Some(index)
    }

    /// Runs ready segments of one run, about `budget` bodies. The worker core comes back unless the processor has
    /// closed.
    pub(crate) fn run(
        mut core: Box<WorkerCore>,
        processor: &Processor,
        budget: u32,
    ) -> Option<Box<WorkerCore>> {
        let Some(index) = core.executor.pick() else { return Some(core) };
        // Other runs may have work meanwhile.
        let polls = if core.executor.cursors.len() == 1 { GATE_POLLS.min(processor.polls()) } else { 0 };
        keep_promise(|| {
            let mut left = budget;
            while left > 0 {
                let Executor { cursors, direct, .. } = &mut core.executor;
                let cursor = &mut cursors[index];
                let Some(segment) = cursor.take(polls) else { break };
                let bodies = match cursor.run.graph.tail(segment) {
                    TaskKind::Blocking => {
                        let run = cursor.run.clone();
                        core.executor.drop_if_taken(index);
                        return run.blocking(core, processor, segment);
                    }
                    // Remote ones are direct, and no processor's.
                    TaskKind::NonBlocking | TaskKind::Remote => {
                        cursor.nonblocking(processor, segment, direct)
                    }
                    TaskKind::Async | TaskKind::StreamOrdered if cursor.run.has_credit() => {
                        cursor.issue(processor, segment, direct)
                    }
                    TaskKind::Async | TaskKind::StreamOrdered => {
                        cursor.stall(segment);
                        break;
                    }
                };
                left = left.saturating_sub(bodies);
                if core.executor.drop_if_taken(index) {
                    break;
                }
            }
            Some(core)
        })
    }

    /// Drops the cursor if all of its segments have been taken.
    fn drop_if_taken(&mut self, index: usize) -> bool {
        let taken = self.cursors[index].left == 0;
        if taken {
            let Cursor { run, stack, done, .. } = self.cursors.swap_remove(index);
            self.stacks.push(stack);
            if done > 0 && run.state.complete(done) {
                Inner::finish(run.graph, run.state);
            }
        }
        taken
    }
}

impl Cursor {
    /// Keeps a segment until the device has caught up.
    fn stall(&mut self, segment: u32) {
        self.stalled.push(segment);
        self.left += 1;
    }

    /// Issues a segment whose last step goes to the device; its work is complete when the device says so.
    fn issue(&mut self, processor: &Processor, segment: u32, direct: &mut Vec<u32>) -> u32 {
        self.releasing(processor, direct, |release| release.issue(processor, segment))
    }

    /// Runs a segment of non-blocking steps.
    fn nonblocking(&mut self, processor: &Processor, segment: u32, direct: &mut Vec<u32>) -> u32 {
        self.done += 1;
        self.releasing(processor, direct, |release| release.run(processor, segment))
    }

    /// Does `work` and the direct segments that it releases; how many bodies those were.
    fn releasing(
        &mut self,
        processor: &Processor,
        direct: &mut Vec<u32>,
        work: impl FnOnce(&mut Release<'_>) -> u32,
    ) -> u32 {
        let Announced { graph, state, place, .. } = &self.run;
        let mut release = Release::new(graph, state, Some((*place, &mut self.stack)), direct);
        let mut bodies = work(&mut release);
        while let Some(segment) = release.direct.pop() {
            bodies += release.run_direct(processor, segment);
            self.done += 1;
        }
        bodies
    }
}
