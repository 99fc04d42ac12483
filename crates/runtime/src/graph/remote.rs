//! Operations that are complete when another component says so: a message to another process, for example.
//!
//! A remote step is direct: the thread that releases it calls its body, which starts something and hands its
//! [`Completion`] to the component that will know when it is complete. It has two units of work: its body's, since that
//! may look at the run's arguments until it returns, and its completion's. So neither has to know which of the two
//! comes first, nor on which thread.
//!
//! Completions that are reported to a thread while it calls such a body, or while it releases what follows another one,
//! are released afterwards. So a chain of steps that are complete as soon as they start costs no stack, however long it
//! is.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use crate::fault::{Fault, Outcome};
use crate::flow::TaskKind;
use crate::processor::{Means, Processor};

use super::Inner;
use super::release::Release;
use super::run_state::RunState;

std::thread_local! {
    /// Whether this thread calls a remote body, or releases what follows one.
    static BUSY: Cell<bool> = const { Cell::new(false) };
    /// Completions reported to it meanwhile.
    static TOLD: RefCell<VecDeque<(Owed, Outcome)>> = const { RefCell::new(VecDeque::new()) };
}

/// What completes a remote operation, on whatever thread. One that is dropped makes its operation fail.
#[must_use = "the operation fails if it is dropped"]
pub struct Completion(Option<Owed>);

/// A step whose effects are not complete.
struct Owed {
    graph: Arc<Inner>,
    state: Arc<RunState>,
    step: u32,
}

impl Completion {
    /// The effects of the operation are complete, or will never be: what waits for them goes on, or is skipped.
    pub fn done(mut self, outcome: Outcome) {
        self.tell(outcome);
    }

    fn tell(&mut self, outcome: Outcome) {
        match self.0.take() {
            Some(owed) if BUSY.get() => TOLD.with_borrow_mut(|told| told.push_back((owed, outcome))),
            Some(owed) => then_all_told(|| owed.settle(outcome)),
            None => {}
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(Owed { graph, step, .. }) = &self.0 {
            let fault = Fault::failed(graph.name(*step), "its completion was dropped");
            self.tell(Err(fault));
        }
    }
}

impl Owed {
    fn settle(self, outcome: Outcome) {
        let Owed { graph, state, step } = self;
        Inner::settle(&graph, &state, step, &outcome);
    }
}

/// Does `work`, and then releases the completions reported meanwhile, unless a caller of this does.
fn then_all_told(work: impl FnOnce()) {
    if BUSY.replace(true) {
        return work();
    }
    work();
    while let Some((owed, outcome)) = TOLD.with_borrow_mut(VecDeque::pop_front) {
        owed.settle(outcome);
    }
    BUSY.set(false);
}

impl Release<'_> {
    /// Does a direct segment; how many bodies those were. The caller completes one unit for it.
    pub(super) fn run_direct(&mut self, processor: &Processor, segment: u32) -> u32 {
        let (graph, state) = (self.graph, self.state);
        if graph.tail(segment) != TaskKind::Remote {
            return self.run(processor, segment);
        }
        let (step, end) = graph.steps_of(segment);
        debug_assert_eq!(step + 1, end, "a remote step is a segment of its own");
        if state.is_poisoned(segment) {
            self.complete(step, true);
            let last = state.complete(1);
            debug_assert!(!last, "the caller has a unit");
        } else {
            then_all_told(|| Inner::start(graph, state, processor, step));
        }
        1
    }
}

impl Inner {
    /// Calls the body of a remote step. If it does not take its completion, the step has failed.
    fn start(graph: &Arc<Inner>, state: &Arc<RunState>, processor: &Processor, step: u32) {
        let (owner, run) = (Arc::clone(graph), Arc::clone(state));
        let completion = Cell::new(Some(Completion(Some(Owed { graph: owner, state: run, step }))));
        // A fault is kept for the run. What follows the step depends on what the completion reports.
        let mut context = graph.context(state, processor, step, Means::Completion(&completion));
        let _ = graph.call_body(state, &mut context, step);
    }

    /// The effects of `step` are complete, or will never be.
    pub(super) fn settle(graph: &Arc<Inner>, state: &Arc<RunState>, step: u32, outcome: &Outcome) {
        if let Err(fault) = outcome {
            graph.keep(state, fault);
        }
        Inner::outside(graph, state, |release| release.complete(step, outcome.is_err()));
        Inner::part_done(graph, state);
    }
}
