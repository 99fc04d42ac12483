//! What a processor remembers between two pieces of work, and how it chooses the next one.

use std::sync::Arc;

use crate::graph::Executor;
use crate::sync::{Ordering, lock, spin_loop};

use super::Processor;
use super::ready::{Fifo, Item, Ready, Urgency};

/// What a processor remembers between two pieces of work. There is one for each processor; the thread that holds it
/// serves the processor.
#[derive(Default)]
pub(crate) struct WorkerCore {
    pub(crate) executor: Executor,
    /// Items taken from the processor's own queue, all of one urgency.
    batch: Fifo,
    /// The queues of the processor's groups, as of change number `seen`.
    groups: Vec<Arc<Ready>>,
    seen: usize,
    /// Whether the last piece of work was one of a graph: of equal priorities the other goes next.
    graph_was_last: bool,
    /// Whether there was an item since the last pause.
    was_busy: bool,
    /// How often in a row polling found nothing, at most [`MAX_BACKOFF`]; each time halves the next spin.
    backoff: u32,
}

/// Leaves an eighth, longer than it takes to wake a thread: two processors that wake each other get to see each other's
/// work without sleeping again.
const MAX_BACKOFF: u32 = 3;

/// What to do next.
pub(super) enum Choice {
    Graph,
    /// An item of this priority.
    Item(i32, Item),
}

/// Where items come from. Of equal ones the first goes first.
#[derive(Clone, Copy)]
enum Source {
    Batch,
    Own,
    Group(usize),
}

impl WorkerCore {
    /// Takes in what has changed for the processor from outside.
    pub(super) fn refresh(&mut self, processor: &Processor) {
        if processor.has_mail() {
            let mut inbox = lock(&processor.inbox);
            inbox.drain(..).for_each(|run| self.executor.begin(run));
            // Relaxed: stores hold the lock.
            processor.inboxed.store(0, Ordering::Relaxed);
        }
        // Acquire pairs with the increment in `change_groups`.
        let changes = processor.changes.load(Ordering::Acquire);
        if changes != self.seen {
            let mut groups = lock(&processor.groups);
            groups.retain(|group| !group.is_spent());
            self.groups.clone_from(&groups);
            self.seen = changes;
        }
    }

    /// Takes the most urgent work; of equal ones a graph and the queues take turns.
    pub(super) fn choose(&mut self, processor: &Processor) -> Option<Choice> {
        loop {
            let queued = self.most_urgent(processor);
            let takes_graph = match (self.executor.peek(), queued) {
                (Some(graph), Some((urgency, _))) => {
                    graph > urgency.priority || graph == urgency.priority && !self.graph_was_last
                }
                (graph, _) => graph.is_some(),
            };
            self.graph_was_last = takes_graph;
            if takes_graph {
                return Some(Choice::Graph);
            }
            // Another processor may have taken the group's item: then look again.
            if let Some((priority, item)) = self.pop(processor, queued?.1) {
                self.was_busy = true;
                return Some(Choice::Item(priority, item));
            }
        }
    }

    fn most_urgent(&self, processor: &Processor) -> Option<(Urgency, Source)> {
        let groups =
            self.groups.iter().enumerate().map(|(index, group)| (group.peek(), Source::Group(index)));
        let mut most = None;
        for (urgency, source) in
            [(self.batch.peek(), Source::Batch), (processor.own.ready.peek(), Source::Own)]
                .into_iter()
                .chain(groups)
        {
            if let Some(urgency) = urgency
                && most.is_none_or(|(other, _)| urgency > other)
            {
                most = Some((urgency, source));
            }
        }
        most
    }

    fn pop(&mut self, processor: &Processor, source: Source) -> Option<(i32, Item)> {
        match source {
            Source::Batch => self.batch.pop(),
            // A whole FIFO at a time, so that producers and the consumer seldom meet at the lock.
            Source::Own if self.batch.peek().is_none() => {
                processor.own.ready.take(&mut self.batch);
                self.batch.pop()
            }
            Source::Own => processor.own.ready.pop(),
            Source::Group(index) => self.groups[index].pop(),
        }
    }

    /// Polls for work for a while if there was some lately, then sleeps until there is. It spins for less after polls
    /// that found nothing: work may be far away, or wait for the very CPU core that polls for it.
    pub(super) fn pause(mut self: Box<Self>, processor: &Processor) -> Box<WorkerCore> {
        let was_busy = std::mem::take(&mut self.was_busy) | self.executor.was_busy();
        // Not between two segments of a run. Relaxed: a hint.
        let asked_for = self.executor.is_idle() && processor.asked_for.swap(false, Ordering::Relaxed);
        if was_busy && !asked_for {
            for _ in 0..processor.polls >> self.backoff {
                if self.has_work(processor) {
                    self.backoff = self.backoff.saturating_sub(1);
                    return self;
                }
                spin_loop();
            }
            self.backoff = MAX_BACKOFF.min(self.backoff + 1);
        }
        let sleep = || processor.sleep.sleep_unless(self, |core| core.has_work(processor));
        match processor.idle_monitor.get() {
            Some(idle_monitor) => idle_monitor.during(sleep),
            None => sleep(),
        }
    }

    /// Whether there is, or may be, work that only a worker can do. Graphs of non-blocking tasks are none, even if they
    /// are ready now and were not a moment ago.
    pub(super) fn needs_worker(&self, processor: &Processor) -> bool {
        // Relaxed: a hint; closing a processor wakes it.
        !self.executor.has_only_nonblocking()
            || self.most_urgent(processor).is_some()
            || processor.closed.load(Ordering::Relaxed)
    }

    /// Whether there is anything to do.
    pub(super) fn has_work(&self, processor: &Processor) -> bool {
        self.executor.peek().is_some()
            || processor.has_mail()
            || self.most_urgent(processor).is_some()
            // Acquire pairs with the increment in `change_groups`.
            || processor.changes.load(Ordering::Acquire) != self.seen
            // Relaxed: a hint; `close` wakes through a fence.
            || processor.closed.load(Ordering::Relaxed)
    }
}
