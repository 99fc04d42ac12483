//! Events that trigger when several others have.
//!
//! A merge counts its inputs down. It lives in the lists of waiters of those that have not reported, so it is there
//! until the last one has, even if a fault fired its event long before.

use std::sync::{Arc, Weak};

use crate::fault::Outcome;
use crate::sync::{AtomicU32, Ordering};

use super::{Event, Events, Notify};

impl Events {
    /// An event that triggers when all of `inputs` have, and poisoned as soon as one of them is.
    pub fn merge(self: &Arc<Self>, inputs: &[Event]) -> Event {
        let mut pending = None;
        let mut several = false;
        for &input in inputs {
            match self.outcome(input) {
                Some(Ok(())) => {}
                Some(Err(_)) => return input,
                None => several |= *pending.get_or_insert(input) != input,
            }
        }
        if several { self.merge_with(inputs, Faults::Eager) } else { pending.unwrap_or(Event::NONE) }
    }

    /// An event that triggers when all of `inputs` have, poisoned or not. It is never poisoned itself.
    pub fn merge_ignoring_poison(self: &Arc<Self>, inputs: &[Event]) -> Event {
        // One pending input is no answer of its own: it may still be poisoned.
        let pending = inputs.iter().any(|&input| self.outcome(input).is_none());
        if pending { self.merge_with(inputs, Faults::Ignored) } else { Event::NONE }
    }

    fn merge_with(self: &Arc<Self>, inputs: &[Event], faults: Faults) -> Event {
        let merged = self.create();
        // One more than the inputs, so that none of them fires it while others are still being added.
        let owed = u32::try_from(inputs.len() + 1).expect("fewer than four billion inputs");
        let merge = Merge { events: Arc::downgrade(self), merged, faults, owed: AtomicU32::new(owed) };
        let merge = Arc::new(merge);
        for &input in inputs {
            self.notify(input, Arc::clone(&merge) as Arc<dyn Notify>, 0);
        }
        merge.notify(0, &Ok(()));
        merged
    }
}

/// What a poisoned input means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Faults {
    /// It poisons the merge at once.
    Eager,
    Ignored,
}

struct Merge {
    events: Weak<Events>,
    merged: Event,
    faults: Faults,
    /// Inputs that have not reported.
    owed: AtomicU32,
}

impl Merge {
    fn complete(&self, outcome: Outcome) {
        if let Some(events) = self.events.upgrade() {
            // It may have triggered before: the first fault counts, and is complete before its input reports below.
            let _ = events.complete(self.merged, outcome);
        }
    }
}

impl Notify for Merge {
    fn notify(self: Arc<Self>, _: u64, outcome: &Outcome) {
        if outcome.is_err() && self.faults == Faults::Eager {
            self.complete(outcome.clone());
        }
        // AcqRel, pairs with itself: Release publishes what came before this input; Acquire lets the last one, which
        // triggers, publish what came before all of them.
        if self.owed.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.complete(Ok(()));
        }
    }
}
