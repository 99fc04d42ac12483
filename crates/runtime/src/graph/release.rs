//! What follows when an operation is done: arrivals at its successors' gates, and passing on those that open.

use std::sync::Arc;

use crate::fault::Fault;
use crate::sync::{Ordering, fence};

use super::gate::Arrival;
use super::run_state::RunState;
use super::{DIRECT, Inner, Manner};

/// Passes on the successors of operations of one run.
pub(super) struct Release<'a> {
    pub(super) graph: &'a Arc<Inner>,
    pub(super) state: &'a Arc<RunState>,
    /// The processor whose worker core the caller holds, and its stack of ready segments; none outside.
    pub(super) own: Option<(u32, &'a mut Vec<u32>)>,
    /// Direct segments of this run that the caller has yet to do.
    pub(super) direct: &'a mut Vec<u32>,
    /// Processors, of the first 64, that were given work.
    given: u64,
}

impl<'a> Release<'a> {
    pub(super) fn new(
        graph: &'a Arc<Inner>,
        state: &'a Arc<RunState>,
        own: Option<(u32, &'a mut Vec<u32>)>,
        direct: &'a mut Vec<u32>,
    ) -> Self {
        Release { graph, state, own, direct, given: 0 }
    }

    /// The body of `step` has returned or been skipped; `poisoned` if its effects are not there.
    pub(super) fn early(&mut self, step: u32, poisoned: bool) {
        let graph = self.graph;
        if poisoned {
            graph.flow.early().of(step).iter().for_each(|&segment| self.state.poison(segment));
        }
        graph.arrivals.of(step).iter().for_each(|&segment| self.arrive(segment));
        self.wake();
    }

    /// The effects of `step` are complete, or will never be.
    pub(super) fn complete(&mut self, step: u32, poisoned: bool) {
        let flow = &self.graph.flow;
        self.arrive_all(flow.late().of(step), poisoned);
        self.carry(flow.carried().of(step), poisoned);
        self.wake();
        for &post in flow.posts().of(step) {
            if let Some((event, outcome)) = self.state.arrive_at_post(post, poisoned) {
                self.graph.tell(event, outcome);
            }
        }
    }

    fn arrive_all(&mut self, segments: &[u32], poisoned: bool) {
        for &segment in segments {
            if poisoned {
                self.state.poison(segment);
            }
            self.arrive(segment);
        }
    }

    /// One arrival at `segment`.
    pub(super) fn arrive(&mut self, segment: u32) {
        let gate = &self.state.gates[segment as usize];
        let arrival = match self.graph.manner[segment as usize] {
            Manner::Only => gate.arrive_only(),
            Manner::Private if self.own.is_some() => gate.arrive_alone(),
            _ => gate.arrive(),
        };
        if arrival == Arrival::Last {
            self.pass_on(segment);
        }
    }

    fn pass_on(&mut self, segment: u32) {
        let processor = self.graph.flow.segments()[segment as usize].processor;
        match &mut self.own {
            _ if processor == DIRECT => self.direct.push(segment),
            // Its worker looks at the gate.
            _ if self.graph.serial[processor as usize] => self.note(processor),
            Some((own, stack)) if *own == processor => stack.push(segment),
            _ => {
                self.graph.push(self.state, processor, segment);
                self.note(processor);
            }
        }
    }

    /// Arrivals at gates of the next run.
    fn carry(&mut self, segments: &[u32], poisoned: bool) {
        let Some(next) = self.graph.next(self.state).filter(|_| !segments.is_empty()) else { return };
        if poisoned {
            let fault = self.state.outcome().err();
            next.keep(
                &fault.unwrap_or_else(|| Fault::refused(self.graph.flow.name(), "the run before failed")),
            );
        }
        for &segment in segments {
            if poisoned {
                next.poison(segment);
            }
            // Never private: the start of the next run may come at the same time.
            if next.gates[segment as usize].arrive() == Arrival::Last {
                self.pass_on_next(next, segment);
            }
        }
    }

    fn pass_on_next(&mut self, next: &'a Arc<RunState>, segment: u32) {
        let processor = self.graph.flow.segments()[segment as usize].processor;
        if processor == DIRECT {
            return Inner::outside(self.graph, next, |release| release.direct.push(segment));
        }
        if !self.graph.serial[processor as usize] {
            self.graph.push(next, processor, segment);
        }
        self.note(processor);
    }

    fn note(&mut self, processor: u32) {
        match 1u64.checked_shl(processor) {
            Some(bit) => self.given |= bit,
            None => self.graph.processors[processor as usize].wake(),
        }
    }

    /// Wakes the processors that were given work.
    pub(super) fn wake(&mut self) {
        if self.given == 0 {
            return;
        }
        // One fence for all of them; pairs with that of each sleeper.
        fence(Ordering::SeqCst);
        while self.given != 0 {
            let processor = self.given.trailing_zeros();
            self.graph.processors[processor as usize].wake_fenced();
            self.given &= self.given - 1;
        }
    }
}
