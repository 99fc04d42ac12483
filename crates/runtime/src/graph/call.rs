//! Running the bodies of a segment, and what becomes of them: they return, fail, panic or break a promise.

use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use crate::fault::{Cause, Fault};
use crate::flow::{Flow, OpId, Step};
use crate::processor::{
    Context, Extra, Means, Processor, WorkerCore, broken_promise, panic_message, with_core,
};
use crate::profile::{Measured, Span};

use super::executor::Announced;
use super::release::Release;
use super::run_state::RunState;
use super::{Follows, Function, Inner};

impl Release<'_> {
    /// Runs a segment of non-blocking steps and releases what follows; how many bodies those were.
    pub(super) fn run(&mut self, processor: &Processor, segment: u32) -> u32 {
        let (graph, state) = (self.graph, self.state);
        let (first, end) = graph.steps_of(segment);
        let mut context = graph.context(state, processor, first, Means::Nothing);
        let mut poisoned = state.is_poisoned(segment);
        let mut step = first;
        while step < end {
            let last = graph.follows[step as usize].stop;
            poisoned = poisoned || graph.call_bodies(state, &mut context, step..=last).is_err();
            let Follows { early, late, .. } = graph.follows[last as usize];
            if early {
                self.early(last, poisoned);
            }
            if late {
                self.complete(last, poisoned);
            }
            step = last + 1;
        }
        end - first
    }
}

impl Inner {
    /// What bodies of a run on this thread are given, from `step` on.
    pub(super) fn context<'a>(
        &'a self,
        state: &RunState,
        processor: &'a Processor,
        step: u32,
        means: Means<'a>,
    ) -> Context<'a> {
        let op = self.flow.steps()[step as usize].op;
        Context::of_run(processor, (&self.flow, op), state.number(), means)
    }

    /// Runs the body of a non-blocking step on this thread.
    pub(super) fn call_body<'a>(
        &self,
        state: &'a RunState,
        context: &mut Context<'a>,
        step: u32,
    ) -> Result<(), ()> {
        self.call_bodies(state, context, step..=step)
    }

    /// Runs the bodies of non-blocking steps on this thread, one after the other until one of them fails.
    #[inline]
    fn call_bodies<'a>(
        &self,
        state: &'a RunState,
        context: &mut Context<'a>,
        steps: RangeInclusive<u32>,
    ) -> Result<(), ()> {
        let observer = state.observer();
        let (mut step, last) = steps.into_inner();
        let returned = catch_unwind(AssertUnwindSafe(|| {
            for what in &self.flow.steps()[step as usize..=last as usize] {
                self.call(state, observer.as_deref(), context, what);
                if context.extra.get_mut().is_some() || broken_promise() {
                    return Err(());
                }
                step += 1;
            }
            Ok(())
        }));
        if let Ok(Ok(())) = returned {
            return Ok(());
        }
        let extra = context.extra.take().map(|extra| *extra).unwrap_or_default();
        self.explain(state, step, returned.map(drop), extra);
        Err(())
    }

    /// Calls the body of `step`.
    #[inline]
    fn call<'a>(
        &self,
        state: &'a RunState,
        observer: Option<&Measured>,
        context: &mut Context<'a>,
        step: &Step,
    ) {
        // SAFETY: the operation belongs to the run state's run and runs now.
        context.enter(step.op, unsafe { state.args(step.args) });
        let body = &self.functions[step.function as usize];
        match observer {
            None => body(context),
            Some(observer) => self.observed(observer, context, step.op, body),
        }
    }

    /// Calls the body of `op` and reports when it ran, also if it panics.
    #[cold]
    fn observed(&self, observer: &Measured, context: &Context<'_>, op: OpId, body: &Function) {
        let (graph, name) = (self.flow.name(), self.flow.label(op));
        let (run, processor) = (context.run(), context.processor());
        let span = Span { graph, name, op, run, processor, started: 0, ended: 0 };
        let returned = observer.around(span, || catch_unwind(AssertUnwindSafe(|| body(context))));
        returned.unwrap_or_else(|panic| resume_unwind(panic));
    }

    /// The name of the operation of `step`.
    pub(super) fn name(&self, step: u32) -> Name<'_> {
        Name { flow: &self.flow, op: self.flow.steps()[step as usize].op }
    }

    /// Keeps the fault of a non-blocking step that failed.
    #[cold]
    fn explain(&self, state: &RunState, step: u32, returned: std::thread::Result<()>, extra: Extra) {
        let name = self.name(step);
        let fault = match returned {
            Err(panic) => Fault::failed(&name, panic_message(&*panic)),
            Ok(()) => extra.failure.unwrap_or_else(|| {
                let why = "waited, launched or went on after its body although it promised not to; declare it blocking";
                Fault::new(&name, Cause::BrokenPromise(why.into()))
            }),
        };
        broken_promise();
        self.keep(state, &fault);
    }

    /// Keeps a fault for the outcome of its run and calls the graph's listener.
    pub(super) fn keep(&self, state: &RunState, fault: &Fault) {
        state.keep(fault);
        self.on_fault.get().into_iter().for_each(|told| told(state.number(), fault));
    }
}

/// An operation's name, formatted only when it is printed.
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
    pub(super) fn blocking(
        self,
        core: Box<WorkerCore>,
        processor: &Processor,
        segment: u32,
    ) -> Option<Box<WorkerCore>> {
        let Announced { graph, state, priority, .. } = self;
        let (first, end) = graph.steps_of(segment);
        let mut context = graph.context(&state, processor, first, Means::Nothing);
        let mut poisoned = state.is_poisoned(segment);
        for step in first..end - 1 {
            poisoned = poisoned || graph.call_body(&state, &mut context, step).is_err();
            Inner::outside(&graph, &state, |release| {
                release.early(step, poisoned);
                release.complete(step, poisoned);
            });
        }
        let last = end - 1;
        if poisoned {
            Inner::done(&graph, &state, last, true);
            return Some(core);
        }
        let mut returned = Ok(());
        let back = with_core(core, priority, || {
            let (observer, step) = (state.observer(), &graph.flow.steps()[last as usize]);
            let call = || graph.call(&state, observer.as_deref(), &mut context, step);
            returned = catch_unwind(AssertUnwindSafe(call));
        });
        let extra = context.extra.take().map(|extra| *extra).unwrap_or_default();
        if returned.is_err() || extra.failure.is_some() {
            graph.explain(&state, last, returned, extra);
            Inner::done(&graph, &state, last, true);
        } else if extra.attached.is_empty() {
            Inner::done(&graph, &state, last, false);
        } else {
            let events = Arc::clone(&graph.events);
            let attached = events.merge(&extra.attached);
            events.subscribe(attached, move |outcome| {
                if let Err(fault) = outcome {
                    graph.keep(&state, fault);
                }
                Inner::done(&graph, &state, last, outcome.is_err());
            });
        }
        back
    }
}
