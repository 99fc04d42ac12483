//! What a running body knows and may ask for.

use std::cell::Cell;
use std::fmt;

use crate::device::{Device, Lane};
use crate::event::Event;
use crate::fault::{Fault, Outcome};
use crate::flow::{Flow, OpId};
use crate::graph::{Completion, Name};

use super::{Processor, wait};

/// What a running body knows and may ask for.
pub struct Context<'a> {
    processor: &'a Processor,
    origin: Origin<'a>,
    args: &'a [u8],
    run: u64,
    means: Means<'a>,
    pub(crate) extra: Cell<Option<Box<Extra>>>,
}

/// Whose body it is.
#[derive(Clone, Copy)]
enum Origin<'a> {
    /// A spawned task's, of this name.
    Task(&'a dyn fmt::Display),
    Operation(&'a Flow, OpId),
}

/// What a body of a graph is given to do its work with.
#[derive(Clone, Copy)]
pub(crate) enum Means<'a> {
    Nothing,
    /// The lane that its effects go to.
    Lane(&'a dyn Device, Lane),
    /// What completes it, to be taken.
    Completion(&'a Cell<Option<Completion>>),
}

/// What a body has said beyond returning.
#[derive(Default)]
pub(crate) struct Extra {
    pub(crate) attached: Vec<Event>,
    pub(crate) failure: Option<Fault>,
}

impl<'a> Context<'a> {
    /// That of a spawned task.
    pub(crate) fn of_task(processor: &'a Processor, name: &'a dyn fmt::Display) -> Self {
        let (origin, means) = (Origin::Task(name), Means::Nothing);
        Context { processor, origin, args: &[], run: 0, means, extra: Cell::new(None) }
    }

    /// That of operations of one run of `flow`, the first of which is `op`.
    pub(crate) fn of_run(
        processor: &'a Processor,
        (flow, op): (&'a Flow, OpId),
        run: u64,
        means: Means<'a>,
    ) -> Self {
        let origin = Origin::Operation(flow, op);
        Context { processor, origin, args: &[], run, means, extra: Cell::new(None) }
    }

    /// Goes on to the operation `op` of the same run.
    #[inline]
    pub(crate) fn enter(&mut self, op: OpId, args: &'a [u8]) {
        if let Origin::Operation(_, current) = &mut self.origin {
            *current = op;
        }
        self.args = args;
    }

    /// What completes a remote operation; it is there once, and others have none.
    pub fn completion(&self) -> Option<Completion> {
        match self.means {
            Means::Completion(completion) => completion.take(),
            _ => None,
        }
    }

    /// The device and the lane that the effects of a stream-ordered operation go to.
    pub fn lane(&self) -> Option<(&'a dyn Device, Lane)> {
        match self.means {
            Means::Lane(device, lane) => Some((device, lane)),
            _ => None,
        }
    }

    /// Which operation of a graph it is.
    pub fn op(&self) -> Option<OpId> {
        match self.origin {
            Origin::Operation(_, op) => Some(op),
            Origin::Task(_) => None,
        }
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
        let fault = match self.origin {
            Origin::Task(name) => Fault::failed(name, why),
            Origin::Operation(flow, op) => Fault::failed(Name { flow, op }, why),
        };
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
