//! Tasks: bodies that run once on a processor, after an event, with a finish event of their own.
//!
//! A task is one allocation, shared by its handle and its entries in queues; the body lies at its end. Its finish event
//! is triggered by the thread that ends it: the worker that ran it, or the thread that withdrew it before.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::event::{Event, Events};
use crate::fault::{Cause, Fault, Outcome};
use crate::profile::{Measured, Profile};
use crate::sync::{Mutex, lock};

use super::life::{Life, Reprioritized, Status};
use super::queue::Queue;
use super::ready::Item;
use super::thread_state::{self, contain};
use super::{Context, Processor};

/// How a task is spawned.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Its name, in faults and reports.
    pub name: &'a str,
    /// What must have happened before; if that is poisoned, the task never runs.
    pub after: Event,
    /// The higher one goes first.
    pub priority: i32,
    /// What it is reported to.
    pub profile: Option<&'a Profile>,
}

/// A task that has been spawned. Dropping the handle changes nothing for the task.
#[derive(Clone)]
pub struct Task {
    record: Arc<Record>,
    queue: Arc<Queue>,
}

pub(super) struct Record<B: ?Sized = dyn Body> {
    finish: Event,
    /// Empty if it was spawned without one.
    name: Box<str>,
    life: Life,
    measured: Option<Arc<Measured>>,
    body: B,
}

/// A body that is called at most once.
pub(super) trait Body: Send + Sync {
    /// Calls it, on the thread that has started the task.
    fn call(&self, context: &Context<'_>);

    /// Drops it, on the thread that has withdrawn the task.
    fn discard(&self);
}

impl<F: FnOnce(&Context<'_>) + Send> Body for Mutex<Option<F>> {
    fn call(&self, context: &Context<'_>) {
        let body = lock(self).take();
        body.expect("a task starts once, if it is not withdrawn")(context);
    }

    fn discard(&self) {
        let body = lock(self).take();
        drop(body);
    }
}

impl Task {
    /// Triggers when the task is complete, poisoned if it did not run or failed.
    pub fn finish(&self) -> Event {
        self.record.finish
    }

    /// Where it is in its life.
    pub fn status(&self) -> Status {
        self.record.life.status()
    }

    /// Keeps the task from running. Whether it had not started; then its finish event is poisoned.
    pub fn cancel(&self) -> bool {
        self.record.withdraw(&self.queue, Fault::new(self.record.name(), Cause::Cancelled))
    }

    /// Changes its priority. Whether it had not started; among tasks of the new priority it is the youngest.
    pub fn set_priority(&self, priority: i32) -> bool {
        let found = self.record.life.set_priority(priority);
        if found == Reprioritized::Ready {
            self.queue.push(priority, Item::Task(Arc::clone(&self.record)));
        }
        found != Reprioritized::TooLate
    }

    /// A task that runs `body` by way of `queue`.
    pub(crate) fn spawn(
        queue: &Arc<Queue>,
        events: &Arc<Events>,
        options: Options<'_>,
        body: impl FnOnce(&Context<'_>) + Send + 'static,
    ) -> Task {
        let task = Task::new(queue, events, options, body);
        if thread_state::breaks_promise() {
            let why = Cause::BrokenPromise("spawned by a task that promised not to".into());
            task.record.withdraw(queue, Fault::new(task.record.name(), why));
            return task;
        }
        match events.outcome(options.after) {
            Some(outcome) => Arc::clone(&task.record).arrive(queue, &outcome),
            None => {
                let Task { record, queue } = task.clone();
                events.subscribe(options.after, move |outcome| record.arrive(&queue, outcome));
            }
        }
        task
    }

    /// A task that never runs.
    pub(crate) fn refused(queue: &Arc<Queue>, events: &Arc<Events>, options: Options<'_>, why: &str) -> Task {
        let task = Task::new(queue, events, options, |_| {});
        task.record.withdraw(queue, Fault::refused(task.record.name(), why));
        task
    }

    fn new(
        queue: &Arc<Queue>,
        events: &Arc<Events>,
        options: Options<'_>,
        body: impl FnOnce(&Context<'_>) + Send + 'static,
    ) -> Task {
        let Options { name, priority, profile, .. } = options;
        let record = Arc::new(Record {
            finish: events.create(),
            name: name.into(),
            life: Life::new(priority),
            measured: profile.map(|profile| Arc::new(Measured::new(profile, queue.clock, name))),
            body: Mutex::new(Some(body)),
        });
        Task { record, queue: Arc::clone(queue) }
    }
}

impl Record {
    pub(super) fn name(&self) -> &str {
        if self.name.is_empty() { "a task" } else { &self.name }
    }

    /// What the task comes after has happened or failed.
    fn arrive(self: Arc<Self>, queue: &Queue, outcome: &Outcome) {
        if let Err(fault) = outcome {
            self.withdraw(queue, fault.clone());
        } else if let Some(priority) = self.life.become_ready() {
            self.measure(Measured::ready);
            queue.push(priority, Item::Task(self));
        }
    }

    /// Keeps the task from running, because of `fault`. Whether it had not started.
    pub(super) fn withdraw(&self, queue: &Queue, fault: Fault) -> bool {
        let withdrawn = self.life.withdraw();
        if withdrawn {
            // Without a table of events there are no waiters.
            if let Some(events) = queue.events.upgrade() {
                self.complete(&events, Err(fault));
            }
            self.body.discard();
        }
        withdrawn
    }

    /// Runs the body on this thread, if the task is to be run by an entry of `priority`.
    pub(super) fn run(self: Arc<Self>, priority: i32, processor: &Processor) {
        if !self.life.start(priority) {
            return;
        }
        self.measure(|measured| measured.started(processor.number));
        let name = self.name();
        let context = Context::of_task(processor, &name);
        let call = || catch_unwind(AssertUnwindSafe(|| self.body.call(&context)));
        let returned = match &self.measured {
            Some(measured) => thread_state::measuring(measured, call),
            None => call(),
        };
        self.measure(Measured::ended);
        let extra = context.extra.take().map(|extra| *extra).unwrap_or_default();
        let outcome = match returned {
            Err(panic) => Err(Fault::failed(name, panic_message(&*panic))),
            Ok(()) => extra.failure.map_or(Ok(()), Err),
        };
        if outcome.is_err() || extra.attached.is_empty() {
            return self.finish(&processor.events, outcome);
        }
        let attached = processor.events.merge(&extra.attached);
        // Weak: the waiter lies in the table itself.
        let events = Arc::downgrade(&processor.events);
        processor.events.subscribe(attached, move |outcome| {
            if let Some(events) = events.upgrade() {
                self.finish(&events, outcome.clone());
            }
        });
    }

    /// The task has run and nothing more is to come.
    fn finish(&self, events: &Events, outcome: Outcome) {
        self.life.end(if outcome.is_ok() { Status::Completed } else { Status::Failed });
        // A waiter that panics must not take the worker with it.
        contain(|| self.complete(events, outcome));
    }

    fn complete(&self, events: &Events, outcome: Outcome) {
        self.measure(|measured| measured.completed(&outcome));
        events.complete(self.finish, outcome).expect("a task's finish event is triggered by it alone");
    }

    fn measure(&self, note: impl FnOnce(&Measured)) {
        if let Some(measured) = &self.measured {
            note(measured);
        }
    }
}

/// What a panic said.
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a message")
}
