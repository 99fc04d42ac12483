//! What a running body knows and may ask for.

use std::cell::Cell;
use std::fmt;

use phalanx_program::flow::OpId;

use crate::device::{Device, Lane};
use crate::event::Event;
use crate::fault::{Fault, Outcome};
use crate::graph::Completion;

use super::{Processor, wait};

/// What a running body knows and may ask for.
pub struct Context<'a> {
    processor: &'a Processor,
    name: &'a dyn fmt::Display,
    args: &'a [u8],
    op: Option<OpId>,
    run: u64,
    lane: Option<(&'a dyn Device, Lane)>,
    completion: Option<&'a Cell<Option<Completion>>>,
    pub(crate) extra: Cell<Option<Box<Extra>>>,
}

/// What a body has said beyond returning.
#[derive(Default)]
pub(crate) struct Extra {
    pub(crate) attached: Vec<Event>,
    pub(crate) failure: Option<Fault>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(processor: &'a Processor, name: &'a dyn fmt::Display, args: &'a [u8]) -> Self {
        let (op, lane, completion) = (None, None, None);
        Context { processor, name, args, op, run: 0, lane, completion, extra: Cell::new(None) }
    }

    /// The same for an operation of a graph's run.
    pub(crate) fn of_graph(self, op: OpId, run: u64) -> Self {
        Context { op: Some(op), run, ..self }
    }

    /// The same with a lane of the processor's device.
    pub(crate) fn on_lane(self, device: &'a dyn Device, lane: Lane) -> Self {
        Context { lane: Some((device, lane)), ..self }
    }

    /// The same with what completes a remote operation.
    pub(crate) fn of_remote(self, completion: &'a Cell<Option<Completion>>) -> Self {
        Context { completion: Some(completion), ..self }
    }

    /// What completes a remote operation; it is there once, and others have none.
    pub fn completion(&self) -> Option<Completion> {
        self.completion?.take()
    }

    /// The device and the lane that the effects of an ordered operation go to.
    pub fn lane(&self) -> Option<(&'a dyn Device, Lane)> {
        self.lane
    }

    /// Which operation of a graph it is.
    pub fn op(&self) -> Option<OpId> {
        self.op
    }

    /// The number of the graph's run.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// The number of the processor it runs on.
    pub fn processor(&self) -> u32 {
        self.processor.number
    }

    /// The arguments of an operation of a graph; none for a spawned task.
    pub fn args(&self) -> &'a [u8] {
        self.args
    }

    /// Waits for `event`. Meanwhile other work runs on the processor.
    pub fn wait(&self, event: Event) -> Outcome {
        wait(&self.processor.events, event, 0)
    }

    /// Lets the operation be complete only when `event` has triggered too.
    pub fn finish_after(&self, event: Event) {
        self.with_extra(|extra| extra.attached.push(event));
    }

    /// Makes the operation fail, with the body's own words; it still runs to its end. The first failure counts.
    pub fn fail(&self, why: impl fmt::Display) {
        let fault = Fault::failed(self.name, why);
        self.with_extra(|extra| {
            extra.failure.get_or_insert(fault);
        });
    }

    fn with_extra(&self, change: impl FnOnce(&mut Extra)) {
        let mut extra = self.extra.take().unwrap_or_default();
        change(&mut extra);
        self.extra.set(Some(extra));
    }
}
