//! Barriers: rows of events, each triggered by a number of arrivals.
//!
//! A [`Barrier`] names one generation. Handles of later and earlier generations follow from it without a lookup,
//! so arrivals may be made for generations far ahead. Generations trigger in order, each once. An arrival may wait for
//! an event first, and bring a value: the sum of a generation's values can be read after it has triggered. An arrival
//! behind a poisoned event counts, and poisons its generation and no other.
//!
//! The number of arrivals can be altered from a generation on. The altered handle depends on the alteration: whatever
//! is done with it is held back until the alteration, which may wait for an event itself, has been applied.
//!
//! `tally` counts and knows neither events nor locks; this file locks it and triggers; `operation` is for graphs.
//! Events are marked under the barrier's lock, so that they trigger in the order of generations, and their waiters run
//! after it is free.

mod operation;
mod tally;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use phalanx_runtime::parts::Table;
use phalanx_runtime::sync::{Mutex, lock};
use phalanx_runtime::{Cause, Event, Events, Fault, Outcome};

use tally::{Change, Message, Tally};

/// One generation of a barrier. Copy it as you like.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Barrier {
    index: u32,
    generation: u32,
    /// The alteration that this handle depends on; zero if none.
    stamp: u64,
}

impl Barrier {
    /// The barrier that has always triggered; no arrival at it is possible.
    pub const NONE: Barrier = Barrier { index: 0, generation: 0, stamp: 0 };

    /// The generation after the last one there is.
    const END: u32 = u32::MAX;

    /// The next generation; none after the last one.
    #[must_use]
    pub fn advance(self) -> Barrier {
        match self.generation {
            0 => Barrier::NONE,
            generation if generation + 1 == Barrier::END => Barrier::NONE,
            generation => Barrier { generation: generation + 1, ..self },
        }
    }

    /// The generation before; none before the first one.
    #[must_use]
    pub fn previous(self) -> Barrier {
        match self.generation {
            0 | 1 => Barrier::NONE,
            generation => Barrier { generation: generation - 1, ..self },
        }
    }
}

impl fmt::Display for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "barrier{}.{}", self.index, self.generation)
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}+{}", self.stamp)
    }
}

/// What arrives at a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// How many arrivals this one stands for.
    pub count: u32,
    /// It arrives when this event triggers, poisoned if that is.
    pub after: Event,
    /// Added to the generation's sum, which wraps around: an integer, so that the order of arrivals does not matter.
    pub value: i64,
}

impl Default for Arrival {
    /// One arrival, now, of no value.
    fn default() -> Arrival {
        Arrival { count: 1, after: Event::NONE, value: 0 }
    }
}

/// Something that cannot be done with a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BarrierError {
    /// There is no such barrier.
    #[error("{0} does not exist or has been destroyed; create one first")]
    Unknown(Barrier),
    /// The generation has triggered.
    #[error("{barrier} has triggered and generation {current} is in flight; use a handle advanced to that")]
    Triggered {
        /// The generation that was meant.
        barrier: Barrier,
        /// The oldest generation that has not triggered.
        current: u32,
    },
    /// More would arrive than the generation needs.
    #[error(
        "{count} more arrivals at {barrier}, which needs {needs} and has {arrived}; alter its number first"
    )]
    TooMany {
        /// The generation arrived at.
        barrier: Barrier,
        /// Arrivals it needs.
        needs: i64,
        /// Arrivals it has.
        arrived: i64,
        /// Arrivals that do not fit.
        count: u32,
    },
    /// A generation would need less than one arrival, or less than it has.
    #[error(
        "altering {barrier} by {delta} leaves generation {generation} needing {needs} arrivals; it has {arrived}, and \
         needs at least one"
    )]
    TooFew {
        /// The generation to alter from.
        barrier: Barrier,
        /// The alteration.
        delta: i32,
        /// The generation that cannot be altered.
        generation: u32,
        /// Arrivals it would need.
        needs: i64,
        /// Arrivals it has.
        arrived: i64,
    },
}

/// Why a generation's sum cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoResult {
    /// It has not triggered.
    #[error("{0} has not triggered; wait for its event first")]
    Pending(Barrier),
    /// It is poisoned.
    #[error("{0} is poisoned: {1}")]
    Poisoned(Barrier, Fault),
    /// It is too long ago.
    #[error("the sum of {barrier} is forgotten; the oldest one kept is that of generation {oldest}")]
    Forgotten {
        /// The generation asked for.
        barrier: Barrier,
        /// The oldest generation whose sum is kept.
        oldest: u32,
    },
}

/// All barriers of a runtime.
pub struct Barriers {
    events: Arc<Events>,
    tallies: Table<Mutex<Tally>>,
}

impl Barriers {
    /// Barriers whose generations are events of `events`.
    pub fn new(events: &Arc<Events>) -> Barriers {
        Barriers { events: Arc::clone(events), tallies: Table::default() }
    }

    /// The first generation of a new barrier, each of which triggers after `needs` arrivals.
    pub fn create(&self, needs: NonZeroU32) -> Barrier {
        let index = self.tallies.take();
        let generation = lock(self.tallies.entry(index)).open(needs);
        Barrier { index, generation, stamp: 0 }
    }

    /// Arrives at `barrier` when `arrival.after` triggers. An arrival made late that does not fit has no caller left to
    /// return an error to, so it poisons the generation in flight.
    pub fn arrive(self: &Arc<Self>, barrier: Barrier, arrival: Arrival) -> Result<(), BarrierError> {
        let Arrival { count, after, value } = arrival;
        self.send(after, barrier, Change::Arrive { count, value })
    }

    /// Alters the arrivals needed by `barrier` and all later generations, when `after` triggers. What depends on it,
    /// such as arrivals that it makes room for, uses the handle returned, or one advanced from that. A late alteration
    /// that cannot be made poisons the generation in flight.
    pub fn alter(
        self: &Arc<Self>,
        barrier: Barrier,
        delta: i32,
        after: Event,
    ) -> Result<Barrier, BarrierError> {
        let stamp = lock(self.tally(barrier)).announce(barrier)?;
        self.send(after, barrier, Change::Alter { delta, stamp })?;
        Ok(Barrier { stamp, ..barrier })
    }

    /// The event that triggers when the generation does.
    pub fn event(&self, barrier: Barrier) -> Result<Event, BarrierError> {
        lock(self.tally(barrier)).event(barrier, || self.events.create())
    }

    /// The sum of a generation's values. Those of the last thousand generations are kept.
    pub fn result(&self, barrier: Barrier) -> Result<i64, NoResult> {
        let tally = lock(self.tally(barrier));
        let failed = tally.failed(barrier.generation);
        match failed.and_then(|event| self.events.outcome(event)) {
            Some(Err(fault)) => Err(NoResult::Poisoned(barrier, fault)),
            _ => tally.result(barrier),
        }
    }

    /// Ends the barrier; generations with waiters are poisoned. No handle of it is of use afterwards.
    pub fn destroy(&self, barrier: Barrier) -> Result<(), BarrierError> {
        let mut tally = lock(self.tally(barrier));
        let fault = Fault::new(format_args!("{barrier}, which was destroyed"), Cause::Cancelled);
        let pending = tally.close(barrier)?;
        for (generation, event) in pending {
            self.mark(&mut tally, generation, Some(event), Err(fault.clone()));
        }
        if tally.has_generations() {
            self.tallies.give_back(barrier.index);
        }
        drop(tally);
        self.events.run_waiters();
        Ok(())
    }

    /// Delivers a change when `after` triggers; at once, with the answer, if it has.
    fn send(self: &Arc<Self>, after: Event, barrier: Barrier, change: Change) -> Result<(), BarrierError> {
        if let Some(outcome) = self.events.outcome(after) {
            let message = Message { barrier, change, fault: outcome.err() };
            return self.update(barrier, |tally| tally.deliver(message));
        }
        lock(self.tally(barrier)).verify_in_flight(barrier)?;
        let barriers = Arc::downgrade(self);
        self.events.subscribe(after, move |outcome| {
            if let Some(barriers) = barriers.upgrade() {
                let message = Message { barrier, change, fault: outcome.clone().err() };
                barriers.update(barrier, |tally| tally.deliver_late(message));
            }
        });
        Ok(())
    }

    /// Changes a tally and triggers the generations that are complete then.
    fn update<R>(&self, barrier: Barrier, change: impl FnOnce(&mut Tally) -> R) -> R {
        let mut tally = lock(self.tally(barrier));
        let answer = change(&mut tally);
        while let Some((generation, event, fault)) = tally.pop_complete() {
            self.mark(&mut tally, generation, event, fault.map_or(Ok(()), Err));
        }
        drop(tally);
        self.events.run_waiters();
        answer
    }

    /// Triggers the event of a generation; one without an event needs one only to carry its fault.
    fn mark(&self, tally: &mut Tally, generation: u32, event: Option<Event>, outcome: Outcome) {
        let event = match event {
            Some(event) => event,
            None if outcome.is_ok() => return,
            None => self.events.create(),
        };
        if outcome.is_err() {
            tally.remember_failed(generation, event);
        }
        self.events
            .mark(event, &outcome)
            .expect("a generation triggers once, by the thread that took it out");
    }

    fn tally(&self, barrier: Barrier) -> &Mutex<Tally> {
        self.tallies.entry(barrier.index)
    }
}
