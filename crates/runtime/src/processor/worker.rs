//! The threads of a processor and the baton that makes one of them serve it.
//!
//! The baton is always in one of three places: in the hands of a worker that looks for work or runs a leaf; on the *seat*
//! of a worker's thread while that runs a body which may wait; in the mailbox of a worker that is about to wake. A body
//! that waits takes it from its seat, leaves the worker's name with the event, passes the baton on, and sleeps until
//! somebody puts it in the mailbox. A worker whose baton is elsewhere stays for the next wait: a processor has as many
//! threads as tasks have waited on it at the same time, and one.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::event::cascade::prepare_thread;
use crate::event::{Event, Events, Notify};
use crate::fault::{Fault, Outcome};
use crate::graph::Executor;
use crate::sync::{Ordering, lock};

use super::baton::{Baton, Choice};
use super::mailbox::Mailbox;
use super::ready::Item;
use super::seat::{as_worker, with_baton};
use super::{BUDGET, Processor};

/// A thread that can serve a processor.
pub(crate) struct Worker {
    processor: Arc<Processor>,
    pub(super) mailbox: Mailbox<Box<Baton>>,
}

impl Worker {
    /// Starts a worker that waits for the baton.
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

    /// What a task is told that waits on a processor which has closed.
    pub(super) fn closed() -> Fault {
        Fault::refused("a task that waits", "its processor has been shut down")
    }

    fn work(self: &Arc<Self>) {
        // Room from the start: nothing is allocated once a program runs.
        prepare_thread();
        while let Some(baton) = self.mailbox.receive() {
            self.serve(baton);
        }
    }

    /// Serves the processor until the baton goes to another worker or the processor closes.
    fn serve(self: &Arc<Self>, mut baton: Box<Baton>) {
        let processor = &*self.processor;
        loop {
            baton.refresh(processor);
            let next = match baton.choose(processor) {
                Some(Choice::Graph) => Executor::run(baton, processor, BUDGET),
                Some(Choice::Item(priority, Item::Task(task))) => {
                    with_baton(baton, priority, || task.run(priority, processor))
                }
                Some(Choice::Item(_, Item::Resume(worker))) => {
                    lock(&processor.idle).push(Arc::clone(self));
                    return worker.mailbox.give(baton);
                }
                // Relaxed: a hint; `close` wakes through a fence.
                None if processor.closed.load(Ordering::Relaxed) => {
                    if processor.leave_queues() {
                        return processor.end();
                    }
                    Some(baton)
                }
                None => Some(baton.pause(processor)),
            };
            let Some(next) = next else { return };
            baton = next;
        }
    }

    /// Gives the processor away until `event` has triggered. The baton comes back unless the processor has closed.
    pub(super) fn block(
        self: &Arc<Self>,
        baton: Box<Baton>,
        priority: i32,
        events: &Events,
        event: Event,
    ) -> (Option<Box<Baton>>, Outcome) {
        let next = match self.processor.idle_worker() {
            Ok(next) => next,
            Err(error) => return (Some(baton), Err(no_thread(error))),
        };
        let subscription =
            events.notify(event, Arc::clone(self) as Arc<dyn Notify>, u64::from(priority as u32));
        next.mailbox.give(baton);
        let baton = self.mailbox.receive();
        let outcome = match &baton {
            Some(_) => events.outcome(event).expect("the event has woken the task"),
            None => Err(Worker::closed()),
        };
        if let (None, Some(subscription)) = (&baton, subscription) {
            events.unsubscribe(subscription);
        }
        (baton, outcome)
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
