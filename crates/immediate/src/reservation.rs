//! Reservations: locks that are granted by events, so that no thread blocks to have one.
//!
//! Holders of the same shared mode coexist; everything else excludes each other. Requests are granted in the order in
//! which they are made, where a request is made when the event that it waits for triggers. A shared request queues
//! behind an exclusive one, even if it could be granted: a stream of sharers starves no request.
//!
//! An acquisition behind a poisoned event takes nothing; its event is poisoned. A release behind a poisoned event is
//! dropped: the holder did not get to the point where it lets go, so what it guards may be half changed.
//!
//! A release happens before the next grant. Events are marked under the reservation's lock, so that they trigger in the
//! order of grants, and their waiters run after it is free.

use std::collections::VecDeque;
use std::sync::Arc;

use phalanx_runtime::sync::{Mutex, lock};
use phalanx_runtime::{Event, Events, Outcome};

/// How a reservation is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// By one holder alone.
    Exclusive,
    /// Together with all others of the same number.
    Shared(u32),
}

/// A release of a reservation that is not held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reservation is not held; release it once for each acquisition, after that has been granted")]
pub struct NotHeld;

/// A lock granted by events. Clones are the same lock.
///
/// ```
/// use std::sync::Arc;
/// use phalanx_immediate::{Mode, Reservation};
/// use phalanx_runtime::{Event, Events};
///
/// let events = Arc::new(Events::default());
/// let reservation = Reservation::new(&events);
/// let first = reservation.acquire(Mode::Exclusive, Event::NONE);
/// let second = reservation.acquire(Mode::Exclusive, Event::NONE);
/// assert!(events.outcome(first).is_some() && events.outcome(second).is_none());
/// reservation.release(Event::NONE)?;
/// assert_eq!(events.outcome(second), Some(Ok(())));
/// # Ok::<(), phalanx_immediate::NotHeld>(())
/// ```
#[derive(Clone)]
pub struct Reservation {
    events: Arc<Events>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// How it is held; meaningless without holders.
    mode: Option<Mode>,
    holders: u32,
    /// Requests that are not granted, oldest first, with the events that grant them.
    queue: VecDeque<(Mode, Event)>,
    /// Triggers when a failed try may be repeated.
    retry: Option<Event>,
}

impl Reservation {
    /// A reservation that is not held, granted by events of `events`.
    pub fn new(events: &Arc<Events>) -> Reservation {
        Reservation { events: Arc::clone(events), state: Arc::default() }
    }

    /// Asks for the reservation when `after` triggers; the event returned triggers when it is granted.
    pub fn acquire(&self, mode: Mode, after: Event) -> Event {
        match self.events.outcome(after) {
            Some(Ok(())) => {}
            Some(Err(_)) => return after,
            None => return self.acquire_later(mode, after),
        }
        let mut state = lock(&self.state);
        if state.try_take(mode) {
            return Event::NONE;
        }
        let granted = self.events.create();
        state.queue.push_back((mode, granted));
        granted
    }

    /// Takes the reservation if it is to be had now. Else an event after which it makes sense to try again.
    pub fn try_acquire(&self, mode: Mode) -> Result<(), Event> {
        let mut state = lock(&self.state);
        if state.try_take(mode) {
            return Ok(());
        }
        Err(*state.retry.get_or_insert_with(|| self.events.create()))
    }

    /// Gives the reservation back when `after` triggers. A late release of what is not held by then does nothing.
    pub fn release(&self, after: Event) -> Result<(), NotHeld> {
        match self.events.outcome(after) {
            Some(Ok(())) => return self.release_now(),
            Some(Err(_)) => {}
            None => self.later(after, |reservation, outcome| {
                if outcome.is_ok() {
                    let _ = reservation.release_now();
                }
            }),
        }
        Ok(())
    }

    fn acquire_later(&self, mode: Mode, after: Event) -> Event {
        let granted = self.events.create();
        self.later(after, move |reservation, outcome| {
            let mut state = lock(&reservation.state);
            if outcome.is_err() || state.try_take(mode) {
                reservation.mark(granted, outcome);
            } else {
                state.queue.push_back((mode, granted));
            }
            drop(state);
            reservation.events.run_waiters();
        });
        granted
    }

    fn release_now(&self) -> Result<(), NotHeld> {
        let mut state = lock(&self.state);
        state.holders = state.holders.checked_sub(1).ok_or(NotHeld)?;
        while let Some(granted) = state.grant_next() {
            self.mark(granted, &Ok(()));
        }
        if let Some(retry) = state.take_retry() {
            self.mark(retry, &Ok(()));
        }
        drop(state);
        self.events.run_waiters();
        Ok(())
    }

    fn mark(&self, event: Event, outcome: &Outcome) {
        self.events.mark(event, outcome).expect("a grant triggers once, by the thread that took it out");
    }

    /// Calls `then` when `after` triggers. The table of events is held weakly: it holds what waits.
    fn later(&self, after: Event, then: impl FnOnce(&Reservation, &Outcome) + Send + 'static) {
        let (events, state) = (Arc::downgrade(&self.events), Arc::clone(&self.state));
        self.events.subscribe(after, move |outcome| {
            if let Some(events) = events.upgrade() {
                then(&Reservation { events, state }, outcome);
            }
        });
    }
}

impl State {
    /// Takes the reservation, if it can be held in `mode` and no request waits.
    fn try_take(&mut self, mode: Mode) -> bool {
        let take = self.queue.is_empty() && self.admits(mode);
        if take {
            self.hold(mode);
        }
        take
    }

    /// Grants the oldest request, if it can be granted now.
    fn grant_next(&mut self) -> Option<Event> {
        let &(mode, granted) = self.queue.front()?;
        if !self.admits(mode) {
            return None;
        }
        self.queue.pop_front();
        self.hold(mode);
        Some(granted)
    }

    /// Takes out the event of the requests that may try again, unless a try would fail in any mode.
    fn take_retry(&mut self) -> Option<Event> {
        let exclusive = self.holders > 0 && self.mode == Some(Mode::Exclusive);
        if exclusive || !self.queue.is_empty() { None } else { self.retry.take() }
    }

    fn admits(&self, mode: Mode) -> bool {
        self.holders == 0 || mode != Mode::Exclusive && self.mode == Some(mode)
    }

    fn hold(&mut self, mode: Mode) {
        self.mode = Some(mode);
        self.holders += 1;
    }
}
