//! Copies as operations: after an event, and with one of their own.
//!
//! A small copy is done by the thread that triggers its precondition: that takes less time than waking another one. A
//! large one goes to the background, so that a trigger never takes long.

use std::sync::Arc;

use phalanx_runtime::parts::Measured;
use phalanx_runtime::sync::Ordering;
use phalanx_runtime::{Event, Outcome};

use super::{CopyError, CopyKind, CopyPlan};
use crate::instance::Instance;
use crate::memory::{Memories, World};
use crate::space::Rect;

/// Copies of up to this many bytes are done at once.
pub const MAX_INLINE_COPY: usize = 64 << 10;

impl Memories {
    /// The plan of `kind` into `destination`, over the points of `rect` that all instances have.
    pub fn plan(&self, kind: CopyKind, rect: Rect, destination: &Instance) -> Result<CopyPlan, CopyError> {
        // Relaxed: a name that nothing is published with.
        let number = self.world.plans.fetch_add(1, Ordering::Relaxed);
        CopyPlan::new(number, kind, rect, destination.clone())
    }

    /// Does `plan` when `after` has triggered; the event of its being done. Poisoned if `after` is or if the plan
    /// cannot be done.
    pub fn copy(&self, plan: &Arc<CopyPlan>, after: Event) -> Event {
        let events = self.events();
        let measured = self.profile.as_ref().map(|profile| {
            let measured = Measured::new(profile, self.world.clock, &plan.to_string());
            Box::new(measured.of_bytes(plan.bytes()))
        });
        match events.outcome(after) {
            Some(outcome @ Err(_)) => {
                measured.iter().for_each(|measured| measured.completed(&outcome));
                return after;
            }
            Some(Ok(())) if plan.bytes() <= MAX_INLINE_COPY => {
                measured.iter().for_each(|measured| measured.ready());
                let outcome = execute(plan, measured.as_deref());
                if outcome.is_ok() {
                    return Event::NONE;
                }
                let done = events.create();
                self.world.finish(done, outcome);
                return done;
            }
            _ => {}
        }
        let done = events.create();
        let (world, plan) = (Arc::clone(&self.world), Arc::clone(plan));
        events.subscribe(after, move |outcome| {
            if outcome.is_err() {
                measured.iter().for_each(|measured| measured.completed(outcome));
                return world.finish(done, outcome.clone());
            }
            measured.iter().for_each(|measured| measured.ready());
            if plan.bytes() <= MAX_INLINE_COPY {
                return world.finish(done, execute(&plan, measured.as_deref()));
            }
            let events = Arc::clone(&world.events);
            events.later(move || world.finish(done, execute(&plan, measured.as_deref())));
        });
        done
    }
}

impl World {
    fn finish(&self, done: Event, outcome: Outcome) {
        // No other code can trigger the event of a copy.
        let _ = self.events.complete(done, outcome);
    }
}

/// Does `plan`, and reports it to the profile, if there is one.
fn execute(plan: &CopyPlan, measured: Option<&Measured>) -> Outcome {
    let Some(measured) = measured else { return plan.execute() };
    measured.started(None);
    let outcome = plan.execute();
    measured.ended();
    measured.completed(&outcome);
    outcome
}
