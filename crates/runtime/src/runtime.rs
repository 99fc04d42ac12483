//! A runtime: processors, events, and the two modes of using them.
//!
//! The *immediate* mode spawns tasks one by one, each after an event, with an event of its own. The *replay* mode binds
//! a flow once ([`Runtime::graph`]) and launches it often. Both run on the same processors and may be mixed.

use std::sync::{Arc, Weak};

use crate::device::Device;
use crate::event::{Event, Events};
use crate::fault::Outcome;
use crate::flow::Flow;
use crate::graph::{Function, Graph, GraphError, Pending};
use crate::processor::{
    self, Attached, Context, Group, GroupError, HelperThread, IdleMonitor, Options, Processor, Task,
};
use crate::profile::Clock;

/// How a runtime is made.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How many processors.
    pub processors: u32,
    /// How often a processor without work looks again before it sleeps, if it had some lately; none if the machine
    /// has fewer cores than threads that run, since it would take them from those it waits for.
    pub polls: u32,
    /// How often a thread outside looks again before it sleeps; none if no core is left for it.
    pub wait_polls: u32,
    /// Where the times in reports come from.
    pub clock: Clock,
}

impl Config {
    /// `processors` of them on a machine with `cores` cores, and a clock that stands at 0.
    pub fn new(processors: u32, cores: usize) -> Config {
        // About a hundred microseconds: waking a core that has gone idle takes that long.
        let polls = |threads: usize| if threads <= cores { 2000 } else { 0 };
        let needed = processors as usize;
        Config { processors, polls: polls(needed), wait_polls: polls(needed + 1), clock: || 0 }
    }
}

/// A handle to a runtime; the last one to go ends it.
///
/// The end waits until each processor has run what is ready there. A task that still waits then gets a fault, and so
/// does one that becomes ready later; one that never becomes ready is forgotten, and so is a run of a graph. Wait for
/// what you need before.
#[derive(Clone)]
pub struct Runtime(Arc<Core>);

struct Core {
    events: Arc<Events>,
    clock: Clock,
    wait_polls: u32,
    processors: Vec<Arc<Processor>>,
    pending: Arc<Pending>,
}

/// A processor of a runtime, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessorId(pub u32);

impl Runtime {
    /// Starts a runtime.
    pub fn new(config: Config) -> Runtime {
        let events = Arc::new(Events::default());
        let start = |number| Processor::start(number, &events, config.polls, config.clock);
        let processors = (0..config.processors.max(1)).map(start).collect();
        let Config { clock, wait_polls, .. } = config;
        Runtime(Arc::new(Core { events, clock, wait_polls, processors, pending: Arc::default() }))
    }

    /// Its events.
    pub fn events(&self) -> &Arc<Events> {
        &self.0.events
    }

    /// Where the times in reports come from.
    pub fn clock(&self) -> Clock {
        self.0.clock
    }

    /// Its processors.
    pub fn processors(&self) -> impl ExactSizeIterator<Item = ProcessorId> {
        (0..self.0.processors.len() as u32).map(ProcessorId)
    }

    /// Waits for `event`: a thread outside sleeps, a task gives its processor away meanwhile.
    pub fn wait(&self, event: Event) -> Outcome {
        processor::wait(&self.0.events, event, self.0.wait_polls)
    }

    /// Runs `body` once on a processor. If there is no such processor, the task's finish event says so.
    pub fn spawn(
        &self,
        on: ProcessorId,
        options: Options<'_>,
        body: impl FnOnce(&Context<'_>) + Send + 'static,
    ) -> Task {
        let Core { events, processors, .. } = &*self.0;
        match processors.get(on.0 as usize) {
            Some(processor) => Task::spawn(&processor.own, events, options, body),
            None => {
                let (first, n) = (&processors[0], processors.len());
                let why = format!("spawned on processor {} of a runtime with {n}; use 0 to {}", on.0, n - 1);
                Task::refused(&first.own, events, options, &why)
            }
        }
    }

    /// Runs `body` once on whichever processor of the group comes to it first.
    pub fn spawn_any(
        &self,
        on: &Group,
        options: Options<'_>,
        body: impl FnOnce(&Context<'_>) + Send + 'static,
    ) -> Task {
        let Core { events, processors, .. } = &*self.0;
        if !on.queue().belongs_to(events) {
            return Task::refused(
                &processors[0].own,
                events,
                options,
                "spawned on a group of another runtime",
            );
        }
        Task::spawn(on.queue(), events, options, body)
    }

    /// A group of processors.
    pub fn group(&self, members: &[ProcessorId]) -> Result<Group, GroupError> {
        let all = &self.0.processors;
        let member = |&ProcessorId(number): &ProcessorId| {
            let missing = GroupError::NoSuchProcessor { processor: number, processors: all.len() as u32 };
            all.get(number as usize).cloned().ok_or(missing)
        };
        Group::new(&members.iter().map(member).collect::<Result<Vec<_>, _>>()?)
    }

    /// Lets a processor issue work to `device`, at most `credits` tokens ahead of it. Whether there is such a processor
    /// and it had none before.
    pub fn attach(&self, processor: ProcessorId, device: Arc<dyn Device>, credits: usize) -> bool {
        let attached = Attached::new(device, credits.max(1));
        self.0
            .processors
            .get(processor.0 as usize)
            .is_some_and(|processor| processor.device.set(attached).is_ok())
    }

    /// Binds `flow` to functions and, by their numbers in the flow, to processors.
    pub fn graph(
        &self,
        flow: Flow,
        functions: Vec<Function>,
        processors: &[ProcessorId],
    ) -> Result<Graph, GraphError> {
        let all = &self.0.processors;
        let member = |&ProcessorId(processor): &ProcessorId| {
            let flow = || flow.name().to_string();
            let missing = || GraphError::NoSuchProcessor { flow: flow(), processor, processors: all.len() };
            all.get(processor as usize).cloned().ok_or_else(missing)
        };
        let processors = processors.iter().map(member).collect::<Result<_, _>>()?;
        Graph::new(flow, functions, processors, self, &all[0])
    }

    /// Lets a thread serve a processor while it waits.
    pub(crate) fn helper(&self, on: ProcessorId) -> HelperThread {
        HelperThread::new(self.processor(on))
    }

    /// Watches processors: `on_idle` is called whenever one of them runs out of work.
    pub(crate) fn idle_monitor(
        &self,
        of: &[ProcessorId],
        on_idle: impl Fn() + Send + Sync + 'static,
    ) -> Arc<IdleMonitor> {
        IdleMonitor::of(of.iter().map(|&id| self.processor(id)), on_idle)
    }

    /// What holds graphs whose runs wait for events.
    pub(crate) fn pending(&self) -> Weak<Pending> {
        Arc::downgrade(&self.0.pending)
    }

    fn processor(&self, id: ProcessorId) -> &Arc<Processor> {
        &self.0.processors[id.0 as usize]
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.processors.iter().for_each(|processor| processor.close());
        // The last owner may be a task of its own, which cannot wait for its own end: then the threads end by
        // themselves.
        if !processor::serves_one_of(&self.processors) {
            self.processors.iter().for_each(|processor| processor.join());
        }
    }
}
