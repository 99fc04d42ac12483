//! Operations that leave work on a device: issued early, complete late.
//!
//! A stream-ordered step is issued when its gate opens: its lane waits for the tokens of its predecessors on the same
//! device, its body enqueues, a token is recorded, and its early successors are released while the device is still
//! busy. What needs the effects themselves is released when the token fires. Every run has a lane of its own on each
//! device, given back when the run ends, so runs wait for nothing of each other's.

use std::sync::Arc;

use crate::device::Token;
use crate::fault::Outcome;
use crate::flow::TaskKind;
use crate::processor::{Attached, Means, Processor};

use super::Inner;
use super::executor::Announced;
use super::release::Release;
use super::run_state::RunState;

/// Whether an operation leaves work on its processor's device.
pub(super) fn is_on_device(kind: TaskKind) -> bool {
    matches!(kind, TaskKind::Async | TaskKind::StreamOrdered)
}

impl Announced {
    /// Whether the device may be given more.
    pub(super) fn has_credit(&self) -> bool {
        self.graph.processors[self.place as usize].device.get().is_none_or(Attached::has_credit)
    }
}

impl Release<'_> {
    /// Runs the non-blocking steps of a segment and issues its last step; how many bodies those were.
    pub(super) fn issue(&mut self, processor: &Processor, segment: u32) -> u32 {
        let (graph, state) = (self.graph, self.state);
        let (first, end) = graph.steps_of(segment);
        let last = end - 1;
        let mut context = graph.context(state, processor, first, Means::Nothing);
        let mut poisoned = state.is_poisoned(segment);
        for step in first..last {
            poisoned = poisoned || graph.call_body(state, &mut context, step).is_err();
            self.early(step, poisoned);
            self.complete(step, poisoned);
        }
        let place = graph.flow.segments()[segment as usize].processor;
        let token = if poisoned { None } else { graph.issue(state, processor, place, last) };
        self.early(last, token.is_none());
        let (graph, state) = (Arc::clone(graph), Arc::clone(state));
        match (token, processor.device.get()) {
            (Some(token), Some(attached)) => {
                attached.take_credit();
                let fired = move |outcome| Inner::fired(&graph, &state, place, last, outcome);
                attached.device.when_fired(token, Box::new(fired));
            }
            _ => {
                self.complete(last, true);
                Inner::part_done(&graph, &state);
            }
        }
        end - first
    }
}

impl Inner {
    /// Gives the device the work of `step`; the token that fires when it is done, or nothing if the body failed.
    fn issue(&self, state: &RunState, processor: &Processor, place: u32, step: u32) -> Option<Token> {
        let device = &*processor.device.get()?.device;
        let lane = state.lane(place, device);
        for &before in self.flow.tokens().of(step) {
            device.wait(lane, state.token(before));
        }
        let mut context = self.context(state, processor, step, Means::Lane(device, lane));
        self.call_body(state, &mut context, step).ok()?;
        let ordered = self.flow.steps()[step as usize].kind == TaskKind::StreamOrdered;
        let token = if ordered { device.record(lane) } else { device.record_all() };
        state.set_token(step, token);
        Some(token)
    }

    /// The device has done, or failed to do, the work of `step`.
    fn fired(graph: &Arc<Inner>, state: &Arc<RunState>, place: u32, step: u32, outcome: Outcome) {
        Inner::settle(graph, state, step, &outcome);
        let processor = &graph.processors[place as usize];
        processor.device.get().into_iter().for_each(Attached::give_credit);
        processor.wake();
    }

    /// Gives back the lanes of a run that has no work left.
    pub(super) fn give_lanes_back(&self, state: &RunState) {
        for &place in &self.members {
            if let (Some(lane), Some(attached)) =
                (state.take_lane(place), self.processors[place as usize].device.get())
            {
                attached.device.give_back(lane);
            }
        }
    }
}
