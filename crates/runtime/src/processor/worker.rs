//! The threads of a processor and the worker core that makes one of them serve it.
//!
//! The worker core is always in one of three places: held by a worker that looks for work or runs a non-blocking task;
//! in the thread-local state of a worker while that runs a body which may wait; in the mailbox of a worker that is
//! about to wake. A body that waits takes it from the thread-local state, subscribes the worker to the event, passes
//! the worker core on, and sleeps until another worker puts it in the mailbox. A worker without the worker core stays
//! for the next wait: a processor has one thread more than tasks have ever waited on it at the same time.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::event::cascade::prepare_thread;
use crate::event::{Event, Events, Notify};
use crate::fault::{Fault, Outcome};
use crate::graph::Executor;
use crate::sync::{Ordering, lock};

use super::mailbox::Mailbox;
use super::ready::Item;
use super::thread_state::{as_worker, with_core};
use super::worker_core::{Choice, WorkerCore};
use super::{BUDGET, Processor};

/// A thread that can serve a processor.
pub(crate) struct Worker {
    processor: Arc<Processor>,
    pub(super) mailbox: Mailbox<Box<WorkerCore>>,
}

impl Worker {
    /// Starts a worker that waits for the worker core.
    pub(super) fn start(processor: &Arc<Processor>) -> io::Result<(Arc<Worker>, JoinHandle<()>)> {
        let worker = Arc::new(Worker { processor: Arc::clone(processor), mailbox: Mailbox::new() });
        let thread = std::thread::Builder::new().name(format!("processor {}", processor.number)).spawn({
            let worker = Arc::clone(&worker);
            move || as_worker(&worker, || worker.work())
        })?;
        Ok((worker, thread))
    }

    pub(super) fn serves(&self, processor: &Arc<Processor>) -> bool {
        Arc::ptr_eq(&self.processor, processor)
    }

    /// The fault of a task that waits on a processor which has closed.
    pub(super) fn closed() -> Fault {
        Fault::refused("a task that waits", "its processor has been shut down")
    }

    fn work(self: &Arc<Self>) {
        // Room from the start: nothing is allocated once a program runs.
        prepare_thread();
        while let Some(core) = self.mailbox.receive() {
            self.serve(core);
        }
    }

    /// Serves the processor until the worker core goes to another worker or the processor closes.
    fn serve(self: &Arc<Self>, mut core: Box<WorkerCore>) {
        let processor = &*self.processor;
        loop {
            core.refresh(processor);
            let next = match core.choose(processor) {
                Some(Choice::Graph) => Executor::run(core, processor, BUDGET),
                Some(Choice::Item(priority, Item::Task(task))) => {
                    with_core(core, priority, || task.run(priority, processor))
                }
                Some(Choice::Item(_, Item::Resume(worker))) => {
                    lock(&processor.idle).push(Arc::clone(self));
                    return worker.mailbox.give(core);
                }
                // Relaxed: a hint; `close` wakes through a fence.
                None if processor.closed.load(Ordering::Relaxed) => {
                    if processor.leave_queues() {
                        return processor.end();
                    }
                    Some(core)
                }
                None => Some(core.pause(processor)),
            };
            let Some(next) = next else { return };
            core = next;
        }
    }

    /// Gives the processor away until `event` has triggered. The worker core comes back unless the processor has
    /// closed.
    pub(super) fn block(
        self: &Arc<Self>,
        core: Box<WorkerCore>,
        priority: i32,
        events: &Events,
        event: Event,
    ) -> (Option<Box<WorkerCore>>, Outcome) {
        let next = match self.processor.idle_worker() {
            Ok(next) => next,
            Err(error) => return (Some(core), Err(no_thread(error))),
        };
        let subscription =
            events.notify(event, Arc::clone(self) as Arc<dyn Notify>, u64::from(priority as u32));
        next.mailbox.give(core);
        let core = self.mailbox.receive();
        let outcome = match &core {
            Some(_) => events.outcome(event).expect("the event has woken the task"),
            None => Err(Worker::closed()),
        };
        if let (None, Some(subscription)) = (&core, subscription) {
            events.unsubscribe(subscription);
        }
        (core, outcome)
    }
}

fn no_thread(error: io::Error) -> Fault {
    let why = format!("no thread could be started to serve its processor meanwhile: {error}");
    Fault::refused("a task that waits", why)
}

impl Notify for Worker {
    fn notify(self: Arc<Self>, token: u64, _: &Outcome) {
        let processor = Arc::clone(&self.processor);
        processor.own.push(token as u32 as i32, Item::Resume(self));
    }
}
