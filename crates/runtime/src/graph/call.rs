//! Running the bodies of a segment, and what becomes of them: they return, fail, panic or break a promise.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use phalanx_program::flow::{Flow, OpId};

use crate::fault::{Cause, Fault};
use crate::processor::{Baton, Context, Extra, Means, Processor, broken_promise, panic_message, with_baton};
use crate::profile::{Measured, Span};

use super::block::Block;
use super::executor::Announced;
use super::release::Release;
use super::{Follows, Inner};

impl Release<'_> {
    /// Runs a segment of leaves and releases what follows; how many bodies those were.
    pub(super) fn run(&mut self, processor: &Processor, segment: u32) -> u32 {
        let (graph, block) = (self.graph, self.block);
        let (first, end) = graph.steps_of(segment);
        let mut context = graph.context(block, processor, first, Means::Nothing);
        let mut poisoned = block.is_poisoned(segment);
        for step in first..end {
            if !poisoned {
                poisoned = graph.call_leaf(block, &mut context, step).is_err();
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
    /// What bodies of a run on this thread are given, from `step` on.
    pub(super) fn context<'a>(
        &'a self,
        block: &Block,
        processor: &'a Processor,
        step: u32,
        means: Means<'a>,
    ) -> Context<'a> {
        let op = self.flow.steps()[step as usize].op;
        Context::of_run(processor, (&self.flow, op), block.number(), means)
    }

    /// Runs the body of a leaf on this thread.
    #[inline]
    pub(super) fn call_leaf<'a>(
        &self,
        block: &'a Block,
        context: &mut Context<'a>,
        step: u32,
    ) -> Result<(), ()> {
        let returned = self.call(block, context, step);
        let extra = context.extra.take();
        if returned.is_ok() && extra.is_none() && !broken_promise() {
            return Ok(());
        }
        self.explain(block, step, returned, extra.map(|extra| *extra).unwrap_or_default());
        Err(())
    }

    /// Runs the body of `step`; what it panicked with.
    #[inline]
    fn call<'a>(&self, block: &'a Block, context: &mut Context<'a>, step: u32) -> std::thread::Result<()> {
        let what = &self.flow.steps()[step as usize];
        // SAFETY: the operation belongs to the block's run and runs now.
        context.enter(what.op, unsafe { block.args(what.args) });
        let body = &self.functions[what.function as usize];
        let call = || catch_unwind(AssertUnwindSafe(|| body(context)));
        match block.observer() {
            None => call(),
            Some(observer) => self.observed(&observer, context, what.op, call),
        }
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

    /// The name of the operation of `step`.
    pub(super) fn name(&self, step: u32) -> Name<'_> {
        Name { flow: &self.flow, op: self.flow.steps()[step as usize].op }
    }

    /// Keeps the fault of a leaf that failed.
    #[cold]
    fn explain(&self, block: &Block, step: u32, returned: std::thread::Result<()>, extra: Extra) {
        let name = self.name(step);
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
pub(crate) struct Name<'a> {
    pub(crate) flow: &'a Flow,
    pub(crate) op: OpId,
}

impl std::fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} of {})", self.flow.label(self.op), self.op, self.flow.name())
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
        let mut context = graph.context(&block, processor, first, Means::Nothing);
        let mut poisoned = block.is_poisoned(segment);
        for step in first..end - 1 {
            poisoned = poisoned || graph.call_leaf(&block, &mut context, step).is_err();
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
        let mut returned = Ok(());
        let back = with_baton(baton, priority, || returned = graph.call(&block, &mut context, last));
        let extra = context.extra.take().map(|extra| *extra).unwrap_or_default();
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
