//! Events: things that happen once, or fail once.
//!
//! An [`Event`] is a number: a slot of a table and a generation of that slot. Events are never freed. When a generation
//! has triggered, its slot goes back to the table and is handed out with the next one; handles of older generations
//! read as triggered, and as failed if they were. An event triggers *poisoned* with the [`Fault`] of the operation
//! behind it.
//!
//! A thread that waits leaves a [`Waiter`] with the slot; the thread that triggers runs the first of them (see
//! `cascade`). Waiters that need the table hold it weakly: a table that is dropped drops the waiters that are left.
//!
//! A trigger happens before everything that sees it: an outcome read, a waiter run, a wait that returns.

pub(crate) mod cascade;
mod completion;
mod merge;
mod slot;
mod wait;

use std::fmt;
use std::sync::Arc;

use crate::background::Background;
use crate::fault::{Cause, Fault, Outcome};
use crate::table::Table;
use slot::{Slot, Subscribed, Triggered};

pub use completion::{Completed, CompletionQueue, Full};

/// Something that happens once. Copy it as you like.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Event(u64);

impl Event {
    /// The event that has always triggered.
    pub const NONE: Event = Event(0);

    fn new(slot: u32, generation: u32) -> Event {
        Event(u64::from(slot) << 32 | u64::from(generation))
    }

    fn slot(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn generation(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}.{}", self.slot(), self.generation())
    }
}

/// An event that its owner triggers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UserEvent(Event);

impl UserEvent {
    /// The event, to wait for.
    pub fn event(self) -> Event {
        self.0
    }
}

/// The event had triggered before: it is triggered once, by one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event {0:?} has triggered before; create a new one for each thing that happens")]
pub struct AlreadyTriggered(pub Event);

/// Notified when an event triggers, without an allocation for each time.
pub(crate) trait Notify: Send + Sync {
    /// The event that was subscribed to with `token` has triggered.
    fn notify(self: Arc<Self>, token: u64, outcome: &Outcome);
}

/// What runs when an event triggers, once.
pub(crate) enum Waiter {
    Call(Box<dyn FnOnce(&Outcome) + Send>),
    Notify(Arc<dyn Notify>, u64),
}

impl Waiter {
    fn run(self, outcome: &Outcome) {
        match self {
            Waiter::Call(call) => call(outcome),
            Waiter::Notify(target, token) => target.notify(token, outcome),
        }
    }
}

/// A waiter that can be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscription {
    event: Event,
    name: u64,
}

/// All events of a runtime.
pub struct Events {
    slots: Table<Slot>,
    background: Arc<Background>,
}

impl Default for Events {
    /// A table with a background thread of its own.
    fn default() -> Events {
        Events { slots: Table::default(), background: Arc::new(Background::new()) }
    }
}

impl Events {
    /// A new event that the caller triggers.
    pub fn user(&self) -> UserEvent {
        UserEvent(self.create())
    }

    /// Triggers `user`.
    pub fn trigger(&self, user: UserEvent) -> Result<(), AlreadyTriggered> {
        self.complete(user.0, Ok(()))
    }

    /// Triggers `user` poisoned, as cancelled by `operation`.
    pub fn cancel(&self, user: UserEvent, operation: &str) -> Result<(), AlreadyTriggered> {
        self.complete(user.0, Err(Fault::new(operation, Cause::Cancelled)))
    }

    /// Triggers `user` when `event` triggers, poisoned if that is.
    pub fn trigger_after(self: &Arc<Self>, user: UserEvent, event: Event) {
        self.relay(user, event, Outcome::clone);
    }

    /// Triggers `user` when `event` triggers, poisoned or not.
    pub fn trigger_after_ignoring_poison(self: &Arc<Self>, user: UserEvent, event: Event) {
        self.relay(user, event, |_| Ok(()));
    }

    fn relay(self: &Arc<Self>, user: UserEvent, event: Event, translate: fn(&Outcome) -> Outcome) {
        let events = Arc::downgrade(self);
        self.subscribe(event, move |outcome| {
            if let Some(events) = events.upgrade() {
                // Another thread may have triggered it meanwhile: the first one counts.
                let _ = events.complete(user.0, translate(outcome));
            }
        });
    }

    /// What became of `event`; nothing if it has not triggered.
    pub fn outcome(&self, event: Event) -> Option<Outcome> {
        if event == Event::NONE {
            return Some(Ok(()));
        }
        self.slot(event).outcome(event.generation())
    }

    /// Calls `waiter` when `event` triggers, at once if it has. Nothing if it was called at once.
    pub fn subscribe(
        &self,
        event: Event,
        waiter: impl FnOnce(&Outcome) + Send + 'static,
    ) -> Option<Subscription> {
        match self.outcome(event) {
            Some(outcome) => {
                waiter(&outcome);
                None
            }
            None => self.leave(event, Waiter::Call(Box::new(waiter))),
        }
    }

    /// Takes a waiter back. Whether it had not been called, and now never is.
    pub fn unsubscribe(&self, subscription: Subscription) -> bool {
        let Subscription { event, name } = subscription;
        self.slot(event).unsubscribe(name).is_some()
    }

    /// Slots ever used: events that were in flight at the same time, and some that failed too often.
    pub fn capacity(&self) -> usize {
        self.slots.used() as usize
    }

    /// Lets `target` know when `event` triggers, at once if it has.
    pub(crate) fn notify(&self, event: Event, target: Arc<dyn Notify>, token: u64) -> Option<Subscription> {
        match self.outcome(event) {
            Some(outcome) => {
                target.notify(token, &outcome);
                None
            }
            None => self.leave(event, Waiter::Notify(target, token)),
        }
    }

    fn leave(&self, event: Event, waiter: Waiter) -> Option<Subscription> {
        match self.slot(event).subscribe(event.generation(), waiter) {
            Subscribed::Waits(name) => Some(Subscription { event, name }),
            Subscribed::Already(waiter, outcome) => {
                waiter.run(&outcome);
                None
            }
        }
    }

    /// A new event, which its maker completes: an operation that this crate does not know.
    pub fn create(&self) -> Event {
        let slot = self.slots.take();
        Event::new(slot, self.slots.entry(slot).next_generation())
    }

    /// Triggers an event that the caller has made, and runs its waiters.
    pub fn complete(&self, event: Event, outcome: Outcome) -> Result<(), AlreadyTriggered> {
        self.mark(event, &outcome)?;
        self.run_waiters();
        Ok(())
    }

    /// Triggers an event that the caller has made without running anything, so the caller may hold a lock. It owes a
    /// call of [`Events::run_waiters`].
    pub fn mark(&self, event: Event, outcome: &Outcome) -> Result<(), AlreadyTriggered> {
        let after = cascade::collect(|cascade| {
            let keep = |waiter| cascade.push(waiter, outcome);
            self.slot(event).trigger(event.generation(), outcome, keep)
        });
        match after {
            Triggered::Before => return Err(AlreadyTriggered(event)),
            Triggered::Reusable => self.slots.give_back(event.slot()),
            Triggered::UsedUp => {}
        }
        Ok(())
    }

    /// Runs the waiters of what this thread has marked.
    pub fn run_waiters(&self) {
        cascade::run(&self.background);
    }

    /// Does `job` soon, on the thread for what must not delay its cause.
    pub fn later(&self, job: impl FnOnce() + Send + 'static) {
        self.background.submit(job);
    }

    fn slot(&self, event: Event) -> &Slot {
        self.slots.entry(event.slot())
    }
}
