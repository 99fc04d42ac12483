//! Many events in, one consumer: the events that have triggered, in the order in which they report.
//!
//! An event has a place in the queue from `add` until it is popped, so a bounded queue refuses an event when it is
//! added, never when it triggers.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::fault::{Cause, Fault, Outcome};
use crate::sync::{Mutex, lock};

use super::{Event, Events, Notify};

/// An event that has triggered, as popped from a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The event that was added.
    pub event: Event,
    /// What became of it.
    pub outcome: Outcome,
}

/// A bounded queue has no place for another event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no place for event {event:?}: the queue has {capacity}, all with events that are not popped yet; pop some or make \
     the queue growable"
)]
pub struct Full {
    /// The event that was not added.
    pub event: Event,
    /// The queue's places.
    pub capacity: usize,
}

/// Collects events that have triggered, for one consumer.
///
/// ```
/// use std::sync::Arc;
/// use phalanx_runtime::{CompletionQueue, Events};
///
/// let events = Arc::new(Events::default());
/// let queue = CompletionQueue::growable(&events);
/// let (first, second) = (events.user(), events.user());
/// queue.add(first.event())?;
/// queue.add(second.event())?;
/// events.trigger(second)?;
/// let popped: Vec<_> = queue.pop(8).into_iter().map(|completed| completed.event).collect();
/// assert_eq!(popped, [second.event()]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CompletionQueue {
    events: Arc<Events>,
    shared: Arc<Shared>,
    with_faults: Arc<Inlet>,
    without_faults: Arc<Inlet>,
}

impl CompletionQueue {
    /// A queue for any number of events.
    pub fn growable(events: &Arc<Events>) -> CompletionQueue {
        CompletionQueue::bounded(events, usize::MAX)
    }

    /// A queue for at most `capacity` events that are not popped yet.
    pub fn bounded(events: &Arc<Events>, capacity: usize) -> CompletionQueue {
        let state = Mutex::new(State::default());
        let shared = Arc::new(Shared { events: Arc::downgrade(events), capacity, state });
        let inlet = |faults| Arc::new(Inlet { shared: Arc::clone(&shared), faults });
        let (with_faults, without_faults) = (inlet(true), inlet(false));
        CompletionQueue { events: Arc::clone(events), shared, with_faults, without_faults }
    }

    /// Adds `event`, to be popped when it has triggered. If it is poisoned, it leaves the queue unseen.
    pub fn add(&self, event: Event) -> Result<(), Full> {
        self.add_to(&self.without_faults, event)
    }

    /// Adds `event`, to be popped when it has triggered, poisoned or not.
    pub fn add_with_faults(&self, event: Event) -> Result<(), Full> {
        self.add_to(&self.with_faults, event)
    }

    fn add_to(&self, inlet: &Arc<Inlet>, event: Event) -> Result<(), Full> {
        let capacity = self.shared.capacity;
        let mut state = lock(&self.shared.state);
        if state.places == capacity {
            return Err(Full { event, capacity });
        }
        state.places += 1;
        drop(state);
        self.events.notify(event, Arc::clone(inlet) as Arc<dyn Notify>, event.0);
        Ok(())
    }

    /// Takes up to `limit` events that have triggered, first come first; does not block.
    pub fn pop(&self, limit: usize) -> Vec<Completed> {
        let mut state = lock(&self.shared.state);
        let count = limit.min(state.completed.len());
        state.places -= count;
        state.completed.drain(..count).collect()
    }

    /// An event that triggers when there is something to pop. It says nothing of what is left after the next `pop`.
    /// Dropping the queue poisons it.
    pub fn nonempty(&self) -> Event {
        let mut state = lock(&self.shared.state);
        if !state.completed.is_empty() {
            return Event::NONE;
        }
        *state.nonempty.get_or_insert_with(|| self.events.create())
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        let nonempty = lock(&self.shared.state).nonempty.take();
        if let Some(event) = nonempty {
            let fault = Fault::new("a completion queue that was dropped", Cause::Cancelled);
            // The queue is the only one to trigger it, and has taken it out to do so.
            let _ = self.events.complete(event, Err(fault));
        }
    }
}

struct Shared {
    /// Weak: events that wait lead here.
    events: Weak<Events>,
    capacity: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    completed: VecDeque<Completed>,
    /// Events added and not popped.
    places: usize,
    /// Handed out by `nonempty` and not triggered.
    nonempty: Option<Event>,
}

/// Where events report; the token is the event.
struct Inlet {
    shared: Arc<Shared>,
    faults: bool,
}

impl Notify for Inlet {
    fn notify(self: Arc<Self>, token: u64, outcome: &Outcome) {
        let mut state = lock(&self.shared.state);
        if outcome.is_err() && !self.faults {
            state.places -= 1;
            return;
        }
        state.completed.push_back(Completed { event: Event(token), outcome: outcome.clone() });
        let nonempty = state.nonempty.take();
        drop(state);
        if let (Some(event), Some(events)) = (nonempty, self.shared.events.upgrade()) {
            // The queue is the only one to trigger it, and has taken it out to do so.
            let _ = events.complete(event, Ok(()));
        }
    }
}
