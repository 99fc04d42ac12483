//! A processor's part in the runs of graphs: which of them it takes part in, and what it does next.
//!
//! For each run a processor has a *cursor*: the next slot of the run's queue to read, a stack of segments that became
//! ready by its own doing, and how many of its segments it has not taken yet. When it has taken all of them the cursor is
//! dropped, so a task that waits keeps no cursor alive. Progress never depends on the order in which processors learn of
//! runs: a processor takes ready segments from any of them, the more urgent run first, equal ones in turn.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use phalanx_program::flow::{OpId, Regime};

use crate::device::{Device, Lane};
use crate::fault::{Cause, Fault};
use crate::processor::{
    Baton, Context, Extra, Processor, broken_promise, keep_promise, panic_message, with_baton,
};
use crate::profile::{Measured, Span};

use super::block::Block;
use super::release::Release;
use super::{Follows, Inner};

/// A run that a processor takes part in.
pub(crate) struct Announced {
    pub(super) graph: Arc<Inner>,
    pub(super) block: Arc<Block>,
    /// The processor's number in the flow.
    pub(super) place: u32,
    pub(super) priority: i32,
}

/// Runs at a time that a processor is prepared for; more only cost allocations.
pub(crate) const EXPECTED: usize = 8;

/// The lane of a step on a device.
pub(super) type OnLane<'a> = Option<(&'a dyn Device, Lane)>;

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
            return self.front != self.end && self.run.block.gates[self.front as usize].is_open();
        }
        !self.stack.is_empty() || self.queued().is_some() || !self.stalled.is_empty() && self.run.has_credit()
    }

    fn queued(&self) -> Option<u32> {
        if self.front == self.end { None } else { self.run.block.slots[self.front as usize].get() }
    }

    fn take(&mut self) -> Option<u32> {
        if self.serial {
            let segment = self.front;
            return self.has_work().then(|| {
                self.front += 1;
                self.left -= 1;
                segment
            });
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

    /// Whether a run is going on here, or was lately.
    pub(crate) fn was_busy(&mut self) -> bool {
        std::mem::take(&mut self.busy) || !self.cursors.is_empty()
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

    /// Runs ready segments of one run, about `budget` bodies. The baton comes back unless the processor has closed.
    pub(crate) fn run(mut baton: Box<Baton>, processor: &Processor, budget: u32) -> Option<Box<Baton>> {
        let Some(index) = baton.executor.pick() else { return Some(baton) };
        keep_promise(|| {
            let mut left = budget;
            while left > 0 {
                let Executor { cursors, direct, .. } = &mut baton.executor;
                let cursor = &mut cursors[index];
                let Some(segment) = cursor.take() else { break };
                let bodies = match cursor.run.graph.tail(segment) {
                    Regime::General => {
                        let run = cursor.run.clone();
                        baton.executor.drop_if_taken(index);
                        return run.general(baton, processor, segment);
                    }
                    Regime::Leaf => cursor.leaves(processor, segment, direct),
                    Regime::Opaque | Regime::Ordered if cursor.run.has_credit() => {
                        cursor.issue(processor, segment, direct)
                    }
                    Regime::Opaque | Regime::Ordered => {
                        cursor.stall(segment);
                        break;
                    }
                };
                left = left.saturating_sub(bodies);
                if baton.executor.drop_if_taken(index) {
                    break;
                }
            }
            Some(baton)
        })
    }

    /// Drops the cursor if all of its segments have been taken.
    fn drop_if_taken(&mut self, index: usize) -> bool {
        let taken = self.cursors[index].left == 0;
        if taken {
            let Cursor { run, stack, done, .. } = self.cursors.swap_remove(index);
            self.stacks.push(stack);
            if done > 0 && run.block.complete(done) {
                Inner::finish(run.graph, run.block);
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
        let Announced { graph, block, place, .. } = &self.run;
        let mut release = Release::new(graph, block, Some((*place, &mut self.stack)), direct);
        let mut bodies = release.issue(processor, segment);
        while let Some(segment) = release.direct.pop() {
            bodies += release.run(processor, segment);
            self.done += 1;
        }
        bodies
    }

    /// Runs a segment of leaves and the direct ones that it releases; how many bodies those were.
    fn leaves(&mut self, processor: &Processor, segment: u32, direct: &mut Vec<u32>) -> u32 {
        let Announced { graph, block, place, .. } = &self.run;
        let mut release = Release::new(graph, block, Some((*place, &mut self.stack)), direct);
        let mut bodies = release.run(processor, segment);
        self.done += 1;
        while let Some(segment) = release.direct.pop() {
            bodies += release.run(processor, segment);
            self.done += 1;
        }
        bodies
    }
}

impl Release<'_> {
    /// Runs a segment of leaves and releases what follows; how many bodies those were.
    pub(super) fn run(&mut self, processor: &Processor, segment: u32) -> u32 {
        let (graph, block) = (self.graph, self.block);
        let (first, end) = graph.steps_of(segment);
        let mut poisoned = block.is_poisoned(segment);
        for step in first..end {
            if !poisoned {
                poisoned = graph.call_leaf(block, processor, step, None).is_err();
            }
            let Follows { early, late } = graph.follows[step as usize];
            if early {
                self.early(step, poisoned);
            }
            if late {
                self.complete(step, poisoned);
            }
        }
        end - first
    }
}

impl Inner {
    /// Runs the body of a leaf on this thread.
    #[inline]
    pub(super) fn call_leaf(
        &self,
        block: &Block,
        processor: &Processor,
        step: u32,
        lane: OnLane<'_>,
    ) -> Result<(), ()> {
        let (returned, extra) = self.call(block, processor, step, lane);
        if returned.is_ok() && extra.is_none() && !broken_promise() {
            return Ok(());
        }
        self.explain(block, step, returned, extra.map(|extra| *extra).unwrap_or_default());
        Err(())
    }

    /// Runs the body of `step`; what it panicked with, and what it said.
    #[inline]
    fn call(
        &self,
        block: &Block,
        processor: &Processor,
        step: u32,
        lane: OnLane<'_>,
    ) -> (std::thread::Result<()>, Option<Box<Extra>>) {
        let what = &self.flow.steps()[step as usize];
        let name = Name { graph: self, step };
        // SAFETY: the operation belongs to the block's run and runs now.
        let args = unsafe { block.args(what.args) };
        let mut context = Context::new(processor, &name, args).of_graph(what.op, block.number());
        if let Some((device, lane)) = lane {
            context = context.on_lane(device, lane);
        }
        let body = &self.functions[what.function as usize];
        let call = || catch_unwind(AssertUnwindSafe(|| body(&context)));
        let returned = match block.observer() {
            None => call(),
            Some(observer) => self.observed(&observer, &context, what.op, call),
        };
        (returned, context.extra.take())
    }

    /// Calls the body of `op` and tells when it ran.
    #[cold]
    fn observed<R>(
        &self,
        observer: &Measured,
        context: &Context<'_>,
        op: OpId,
        call: impl FnOnce() -> R,
    ) -> R {
        let (graph, name) = (self.flow.name(), self.flow.label(op));
        let (run, processor) = (context.run(), context.processor());
        observer.around(Span { graph, name, op, run, processor, started: 0, ended: 0 }, call)
    }

    /// Keeps the fault of a leaf that failed.
    #[cold]
    fn explain(&self, block: &Block, step: u32, returned: std::thread::Result<()>, extra: Extra) {
        let name = Name { graph: self, step };
        let fault = match returned {
            Err(panic) => Fault::failed(&name, panic_message(&*panic)),
            Ok(()) => extra.failure.unwrap_or_else(|| {
                let why = "waited, launched or went on after its body although it promised not to; declare it general";
                Fault::new(&name, Cause::BrokenPromise(why.into()))
            }),
        };
        broken_promise();
        block.keep(&fault);
    }
}

/// An operation's name, made only if somebody asks.
pub(super) struct Name<'a> {
    pub(super) graph: &'a Inner,
    pub(super) step: u32,
}

impl std::fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let flow = &self.graph.flow;
        let op = flow.steps()[self.step as usize].op;
        write!(f, "{} ({op} of {})", flow.label(op), flow.name())
    }
}

impl Clone for Announced {
    fn clone(&self) -> Self {
        let (graph, block) = (Arc::clone(&self.graph), Arc::clone(&self.block));
        Announced { graph, block, place: self.place, priority: self.priority }
    }
}

impl Announced {
    /// Runs a segment whose last step may wait.
    fn general(self, mut baton: Box<Baton>, processor: &Processor, segment: u32) -> Option<Box<Baton>> {
        let Announced { graph, block, priority, .. } = self;
        let (first, end) = graph.steps_of(segment);
        let mut poisoned = block.is_poisoned(segment);
        for step in first..end - 1 {
            poisoned = poisoned || graph.call_leaf(&block, processor, step, None).is_err();
            Inner::outside(&graph, &block, |release| {
                release.early(step, poisoned);
                release.complete(step, poisoned);
            });
        }
        let last = end - 1;
        if poisoned {
            Inner::done(&graph, &block, last, true);
            return Some(baton);
        }
        let mut called = (Ok(()), None);
        let back = with_baton(baton, priority, || called = graph.call(&block, processor, last, None));
        let (returned, extra) = called;
        let extra = extra.map(|extra| *extra).unwrap_or_default();
        if returned.is_err() || extra.failure.is_some() {
            graph.explain(&block, last, returned, extra);
            Inner::done(&graph, &block, last, true);
        } else if extra.attached.is_empty() {
            Inner::done(&graph, &block, last, false);
        } else {
            let events = Arc::clone(&graph.events);
            let attached = events.merge(&extra.attached);
            events.subscribe(attached, move |outcome| {
                if let Err(fault) = outcome {
                    block.keep(fault);
                }
                Inner::done(&graph, &block, last, outcome.is_err());
            });
        }
        baton = back?;
        Some(baton)
    }
}
