//! One place in the table of events: a row of generations, of which at most one is waited for at a time.
//!
//! `word` holds the number of the last generation that has triggered, and whether the next may have waiters. A
//! generation is handed out only after the one before has triggered, so a handle of an older generation reads as
//! triggered forever. The lock guards the waiters of the generation in flight and the faults of older ones; reading an
//! outcome takes it only if some generation failed.
//!
//! * `trigger` (once a generation): one exchange, if it is clean and there are no waiters. Else, under the lock: keep
//!   the fault, exchange, take the waiters.
//! * `subscribe`: under the lock, set the flag in `word`, and see in the same step which generation has triggered; if
//!   it is not there yet, leave the waiter.
//!
//! So a waiter is either taken by the trigger or called at once, never both and never neither: the flag comes before
//! the exchange of a trigger, which then needs the lock and finds the waiter, or it comes after and shows the
//! generation.

use crate::fault::{Fault, Outcome};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};

use super::Waiter;

/// Faults that a slot remembers; with this many it is not used again.
const MAX_FAULTS: usize = 16;

/// In `word`: the generation in flight may have waiters.
const WAITED: u64 = 1;

/// In `word`: one generation.
const GENERATION: u64 = 1 << 32;

#[derive(Default)]
pub(super) struct Slot {
    /// The last generation triggered in the upper half, `WAITED` or nothing in the lower one.
    word: AtomicU64,
    /// Whether `faults` holds any.
    failed: AtomicBool,
    state: Mutex<State>,
}

struct State {
    waiters: Vec<(u64, Waiter)>,
    faults: Vec<(u32, Fault)>,
    /// Waiters so far: their names.
    named: u64,
}

impl Default for State {
    fn default() -> Self {
        // Room for the waiter that almost every event has, so that waiting allocates nothing.
        State { waiters: Vec::with_capacity(1), faults: Vec::new(), named: 0 }
    }
}

/// What became of a waiter.
pub(super) enum Subscribed {
    /// It waits, under this name.
    Waits(u64),
    /// The event had triggered: the waiter is handed back.
    Already(Waiter, Outcome),
}

/// What a trigger found.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Triggered {
    /// The generation had triggered before; nothing has changed.
    Before,
    /// The slot is ready for its next generation.
    Reusable,
    /// The slot has no room for further generations.
    UsedUp,
}

/// Orderings of accesses to `word`. Models weaken them to see themselves fail.
#[derive(Clone, Copy)]
struct Orderings {
    /// Publishes the fault and all that the operation wrote; pairs with `look`. A thread that sees a later generation
    /// sees this as well, since every change of `word` is an exchange.
    publish: Ordering,
    /// Sees what `publish` has published.
    look: Ordering,
}

const ORDERINGS: Orderings = Orderings { publish: Ordering::Release, look: Ordering::Acquire };

impl Slot {
    /// The generation to hand out, for the thread that has taken the slot.
    pub(super) fn next_generation(&self) -> u32 {
        // Relaxed: the table orders this after the trigger that gave the slot back.
        last_triggered(self.word.load(Ordering::Relaxed)) + 1
    }

    /// The outcome of `generation`; nothing if it has not triggered. What was written before the trigger is seen after.
    pub(super) fn outcome(&self, generation: u32) -> Option<Outcome> {
        self.outcome_with(generation, ORDERINGS)
    }

    /// Leaves `waiter` with `generation`, unless that has triggered.
    pub(super) fn subscribe(&self, generation: u32, waiter: Waiter) -> Subscribed {
        self.subscribe_with(generation, waiter, ORDERINGS)
    }

    /// Takes back the waiter called `name`; nothing if it has been taken by the trigger.
    pub(super) fn unsubscribe(&self, name: u64) -> Option<Waiter> {
        let mut state = lock(&self.state);
        let place = state.waiters.iter().position(|(other, _)| *other == name)?;
        Some(state.waiters.remove(place).1)
    }

    /// Triggers `generation`, the one in flight, and hands its waiters to `into`.
    pub(super) fn trigger(&self, generation: u32, outcome: &Outcome, into: impl FnMut(Waiter)) -> Triggered {
        self.trigger_with(generation, outcome, into, ORDERINGS)
    }

    fn outcome_with(&self, generation: u32, orderings: Orderings) -> Option<Outcome> {
        // Acquire, pairs with the exchange in `publish`; see `Orderings`.
        if last_triggered(self.word.load(orderings.look)) < generation {
            return None;
        }
        // Relaxed: set before the exchange that has been acquired.
        if !self.failed.load(Ordering::Relaxed) {
            return Some(Ok(()));
        }
        Some(lock(&self.state).outcome(generation))
    }

    fn subscribe_with(&self, generation: u32, waiter: Waiter, orderings: Orderings) -> Subscribed {
        let mut state = lock(&self.state);
        // Acquire, pairs with the exchange in `publish`; see `Orderings`. A flag set too late only costs the next
        // trigger the lock.
        if last_triggered(self.word.fetch_or(WAITED, orderings.look)) >= generation {
            return Subscribed::Already(waiter, state.outcome(generation));
        }
        Subscribed::Waits(state.leave(waiter))
    }

    fn trigger_with(
        &self,
        generation: u32,
        outcome: &Outcome,
        into: impl FnMut(Waiter),
        orderings: Orderings,
    ) -> Triggered {
        if outcome.is_ok() && self.publish(generation, 0, orderings) {
            // A slot that is used has room for a fault.
            return if generation < u32::MAX { Triggered::Reusable } else { Triggered::UsedUp };
        }
        let mut state = lock(&self.state);
        if let Err(fault) = outcome {
            state.faults.push((generation, fault.clone()));
            // Relaxed: published by the exchange that follows.
            self.failed.store(true, Ordering::Relaxed);
        }
        if !self.publish(generation, WAITED, orderings) && !self.publish(generation, 0, orderings) {
            if outcome.is_err() {
                state.faults.pop();
            }
            return Triggered::Before;
        }
        state.waiters.drain(..).map(|(_, waiter)| waiter).for_each(into);
        let reusable = state.faults.len() < MAX_FAULTS && generation < u32::MAX;
        if reusable { Triggered::Reusable } else { Triggered::UsedUp }
    }

    /// Steps on to `generation` if that is the next one and the flag is `waited`.
    fn publish(&self, generation: u32, waited: u64, orderings: Orderings) -> bool {
        let after = u64::from(generation) * GENERATION;
        let Some(before) = after.checked_sub(GENERATION) else { return false };
        // Release: see `Orderings`. Relaxed: a failure reads nothing that was published.
        self.word.compare_exchange(before | waited, after, orderings.publish, Ordering::Relaxed).is_ok()
    }
}

fn last_triggered(word: u64) -> u32 {
    (word / GENERATION) as u32
}

impl State {
    fn leave(&mut self, waiter: Waiter) -> u64 {
        self.named += 1;
        self.waiters.push((self.named, waiter));
        self.named
    }

    fn outcome(&self, generation: u32) -> Outcome {
        let fault = self.faults.iter().find(|(failed, _)| *failed == generation);
        fault.map_or(Ok(()), |(_, fault)| Err(fault.clone()))
    }
}

#[cfg(all(loom, test))]
mod models {
    use std::panic::catch_unwind;

    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;
    use loom::thread;

    use super::*;

    /// Runs `model` in every order; whether loom found one in which it fails.
    fn fails(model: impl Fn() + Sync + Send + std::panic::UnwindSafe + 'static) -> bool {
        catch_unwind(|| loom::model(model)).is_err()
    }

    /// One thread triggers while another leaves a waiter with `subscribe`: it runs exactly once.
    fn waiter_runs_once(subscribe: fn(&Slot, Waiter) -> Subscribed) {
        let (slot, runs) = (Arc::new(Slot::default()), Arc::new(AtomicU32::new(0)));
        let trigger = thread::spawn({
            let slot = Arc::clone(&slot);
            move || assert_eq!(slot.trigger(1, &Ok(()), |waiter| waiter.run(&Ok(()))), Triggered::Reusable)
        });
        let count = Arc::clone(&runs);
        // Relaxed: the join orders it before the assertion.
        let waiter = Waiter::Call(Box::new(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        if let Subscribed::Already(waiter, outcome) = subscribe(&slot, waiter) {
            waiter.run(&outcome);
        }
        trigger.join().expect("the trigger does not panic");
        assert_eq!(runs.load(Ordering::Relaxed), 1, "runs of the waiter");
    }

    #[test]
    fn a_waiter_left_during_the_trigger_runs_once() {
        loom::model(|| waiter_runs_once(|slot, waiter| slot.subscribe(1, waiter)));
    }

    /// A look before the lock, without the flag: the waiter may miss the trigger.
    #[test]
    fn a_plain_look_loses_the_waiter() {
        fn subscribe(slot: &Slot, waiter: Waiter) -> Subscribed {
            if slot.outcome(1).is_some() {
                return Subscribed::Already(waiter, Ok(()));
            }
            Subscribed::Waits(lock(&slot.state).leave(waiter))
        }
        assert!(fails(|| waiter_runs_once(subscribe)));
    }

    /// Ways to see that generation 1 has triggered.
    const LOOKS: [fn(&Slot, Orderings) -> Option<Outcome>; 2] = [
        |slot, orderings| slot.outcome_with(1, orderings),
        |slot, orderings| match slot.subscribe_with(1, Waiter::Call(Box::new(|_| ())), orderings) {
            Subscribed::Already(_, outcome) => Some(outcome),
            Subscribed::Waits(_) => None,
        },
    ];

    /// One thread writes and triggers; another that finds the event triggered reads. The writer is the model's own
    /// thread, which loom runs first: of a reader that looks first, loom does not always try the other order.
    fn trigger_publishes(outcome: Outcome, orderings: Orderings, look: usize) {
        let (slot, data) = (Arc::new(Slot::default()), Arc::new(UnsafeCell::new(0)));
        let reader = thread::spawn({
            let (slot, data, outcome) = (Arc::clone(&slot), Arc::clone(&data), outcome.clone());
            move || {
                let Some(seen) = LOOKS[look](&slot, orderings) else { return };
                assert_eq!(seen, outcome);
                // SAFETY: loom checks that no other thread writes.
                assert_eq!(data.with(|data| unsafe { *data }), 7);
            }
        });
        // SAFETY: loom checks that no other thread has access.
        data.with_mut(|data| unsafe { *data = 7 });
        assert_eq!(slot.trigger_with(1, &outcome, drop, orderings), Triggered::Reusable);
        reader.join().expect("the reader does not panic");
    }

    #[test]
    fn what_was_written_before_the_trigger_is_seen_after() {
        for look in 0..LOOKS.len() {
            loom::model(move || trigger_publishes(Ok(()), ORDERINGS, look));
            loom::model(move || trigger_publishes(Err(Fault::failed("t", "on purpose")), ORDERINGS, look));
        }
    }

    #[test]
    fn a_relaxed_publish_or_look_shows_unwritten_data() {
        let relaxed = Ordering::Relaxed;
        for look in 0..LOOKS.len() {
            for weak in
                [Orderings { publish: relaxed, ..ORDERINGS }, Orderings { look: relaxed, ..ORDERINGS }]
            {
                assert!(fails(move || trigger_publishes(Ok(()), weak, look)), "look {look}");
            }
        }
    }
}
