//! Graphs replayed by real threads: what runs, after what, how often, and what a failure takes along.
//!
//! No test looks at a clock. Where something must happen before something else, an input or a post of the flow makes it
//! so; where something must not happen, the order in which things were written down says whether it did.

mod args;
mod base;
mod copies;
mod dag;
mod ends;
mod inputs;
mod many;
mod modes;
mod order;
mod pipelined;
mod poison;
mod promises;
mod remote;
mod run;
mod stepper;
mod views;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use phalanx_runtime::flow::{Builder, Flow, OpId, Task, TaskKind};
use phalanx_runtime::{Config, Context, Event, Function, Graph, Launch, Outcome, Run, Runtime};

/// A runtime whose processors sleep at once when they have nothing to do, so that every wake-up counts.
fn runtime(processors: u32) -> Runtime {
    Runtime::new(Config::new(processors, 0))
}

/// Binds a flow to the first processors of a runtime, as many as it is for.
fn bind(runtime: &Runtime, flow: Flow, functions: Vec<Function>) -> Graph {
    let processors: Vec<_> = runtime.processors().take(flow.processors() as usize).collect();
    runtime.graph(flow, functions, &processors).expect("the flow fits the runtime")
}

/// Adds a non-blocking task that calls `function`.
fn nonblocking(builder: &mut Builder, processor: u32, function: u32) -> OpId {
    builder.task(Task {
        processor,
        function,
        kind: TaskKind::NonBlocking,
        name: "nonblocking",
        ..Task::default()
    })
}

/// Adds a task that may wait.
fn blocking(builder: &mut Builder, processor: u32, function: u32) -> OpId {
    builder.task(Task { processor, function, name: "blocking", ..Task::default() })
}

fn function(body: impl Fn(&Context<'_>) + Send + Sync + 'static) -> Function {
    Box::new(body)
}

/// Launches with nothing special.
fn launch(graph: &Graph) -> Run {
    graph.launch(Launch::default()).expect("the graph takes launches")
}

/// Launches with the given events for the inputs.
fn launch_with(graph: &Graph, inputs: &[Event]) -> Run {
    graph.launch(Launch { inputs, ..Launch::default() }).expect("the graph takes launches")
}

/// Launches and waits for the end.
fn replay(runtime: &Runtime, graph: &Graph) -> Outcome {
    runtime.wait(launch(graph).finish)
}

/// A count that bodies share.
#[derive(Clone, Default)]
struct Count(Arc<AtomicU64>);

impl Count {
    /// Counts one; how many there were before.
    fn add(&self) -> u64 {
        self.0.fetch_add(1, SeqCst)
    }

    fn get(&self) -> u64 {
        self.0.load(SeqCst)
    }

    /// A body that counts its calls.
    fn body(&self) -> Function {
        let count = self.clone();
        function(move |_| {
            count.add();
        })
    }
}
