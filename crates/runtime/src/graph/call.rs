//! Running the bodies of a segment, and what becomes of them: they return, fail, panic or break a promise.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use phalanx_program::flow::OpId;

use crate::device::{Device, Lane};
use crate::fault::{Cause, Fault};
use crate::processor::{Baton, Context, Extra, Processor, broken_promise, panic_message, with_baton};
use crate::profile::{Measured, Span};

use super::block::Block;
use super::executor::Announced;
use super::release::Release;
use super::{Completion, Follows, Inner};

/// What a body is given to do its work with.
#[derive(Clone, Copy)]
pub(super) enum Means<'a> {
    Nothing,
    /// The lane that its effects go to.
    Lane(&'a dyn Device, Lane),
    /// What completes it, to be taken.
    Completion(&'a Cell<Option<Completion>>),
}

impl Release<'_> {
    /// Runs a segment of leaves and releases what follows; how many bodies those were.
    pub(super) fn run(&mut self, processor: &Processor, segment: u32) -> u32 {
        let (graph, block) = (self.graph, self.block);
        let (first, end) = graph.steps_of(segment);
        let mut poisoned = block.is_poisoned(segment);
        for step in first..end {
            if !poisoned {
                poisoned = graph.call_leaf(block, processor, step, Means::Nothing).is_err();
            }
            let Follows { early, late } = graph.follows[step as usize];
            if early {
                self.early(step, poisoned);
            }
            if late {
                self.complete(step, poisoned);
            }
        }
        end - first
    }
}

impl Inner {
    /// Runs the body of a leaf on this thread.
    #[inline]
    pub(super) fn call_leaf(
        &self,
        block: &Block,
        processor: &Processor,
        step: u32,
        means: Means<'_>,
    ) -> Result<(), ()> {
        let (returned, extra) = self.call(block, processor, step, means);
        if returned.is_ok() && extra.is_none() && !broken_promise() {
            return Ok(());
        }
        self.explain(block, step, returned, extra.map(|extra| *extra).unwrap_or_default());
        Err(())
    }

    /// Runs the body of `step`; what it panicked with, and what it said.
    #[inline]
    fn call(
        &self,
        block: &Block,
        processor: &Processor,
        step: u32,
        means: Means<'_>,
    ) -> (std::thread::Result<()>, Option<Box<Extra>>) {
        let what = &self.flow.steps()[step as usize];
        let name = Name { graph: self, step };
        // SAFETY: the operation belongs to the block's run and runs now.
        let args = unsafe { block.args(what.args) };
        let mut context = Context::new(processor, &name, args).of_graph(what.op, block.number());
        match means {
            Means::Nothing => {}
            Means::Lane(device, lane) => context = context.on_lane(device, lane),
            Means::Completion(completion) => context = context.of_remote(completion),
        }
        let body = &self.functions[what.function as usize];
        let call = || catch_unwind(AssertUnwindSafe(|| body(&context)));
        let returned = match block.observer() {
            None => call(),
            Some(observer) => self.observed(&observer, &context, what.op, call),
        };
        (returned, context.extra.take())
    }

    /// Calls the body of `op` and tells when it ran.
    #[cold]
    fn observed<R>(
        &self,
        observer: &Measured,
        context: &Context<'_>,
        op: OpId,
        call: impl FnOnce() -> R,
    ) -> R {
        let (graph, name) = (self.flow.name(), self.flow.label(op));
        let (run, processor) = (context.run(), context.processor());
        observer.around(Span { graph, name, op, run, processor, started: 0, ended: 0 }, call)
    }

    /// Keeps the fault of a leaf that failed.
    #[cold]
    fn explain(&self, block: &Block, step: u32, returned: std::thread::Result<()>, extra: Extra) {
        let name = Name { graph: self, step };
        let fault = match returned {
            Err(panic) => Fault::failed(&name, panic_message(&*panic)),
            Ok(()) => extra.failure.unwrap_or_else(|| {
                let why = "waited, launched or went on after its body although it promised not to; declare it general";
                Fault::new(&name, Cause::BrokenPromise(why.into()))
            }),
        };
        broken_promise();
        block.keep(&fault);
    }
}

/// An operation's name, made only if somebody asks.
pub(super) struct Name<'a> {
    pub(super) graph: &'a Inner,
    pub(super) step: u32,
}

impl std::fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let flow = &self.graph.flow;
        let op = flow.steps()[self.step as usize].op;
        write!(f, "{} ({op} of {})", flow.label(op), flow.name())
    }
}

impl Announced {
    /// Runs a segment whose last step may wait.
    pub(super) fn general(
        self,
        baton: Box<Baton>,
        processor: &Processor,
        segment: u32,
    ) -> Option<Box<Baton>> {
        let Announced { graph, block, priority, .. } = self;
        let (first, end) = graph.steps_of(segment);
        let mut poisoned = block.is_poisoned(segment);
        for step in first..end - 1 {
            poisoned = poisoned || graph.call_leaf(&block, processor, step, Means::Nothing).is_err();
            Inner::outside(&graph, &block, |release| {
                release.early(step, poisoned);
                release.complete(step, poisoned);
            });
        }
        let last = end - 1;
        if poisoned {
            Inner::done(&graph, &block, last, true);
            return Some(baton);
        }
        let mut called = (Ok(()), None);
        let back =
            with_baton(baton, priority, || called = graph.call(&block, processor, last, Means::Nothing));
        let (returned, extra) = called;
        let extra = extra.map(|extra| *extra).unwrap_or_default();
        if returned.is_err() || extra.failure.is_some() {
            graph.explain(&block, last, returned, extra);
            Inner::done(&graph, &block, last, true);
        } else if extra.attached.is_empty() {
            Inner::done(&graph, &block, last, false);
        } else {
            let events = Arc::clone(&graph.events);
            let attached = events.merge(&extra.attached);
            events.subscribe(attached, move |outcome| {
                if let Err(fault) = outcome {
                    block.keep(fault);
                }
                Inner::done(&graph, &block, last, outcome.is_err());
            });
        }
        back
    }
}
