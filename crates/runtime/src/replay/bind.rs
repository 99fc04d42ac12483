//! A program on a runtime: processors for its lanes, functions for its operations.

use std::sync::Arc;
use std::time::Duration;

use phalanx_program::{FEED, FETCH, Lane, Operation, Program, RECEIVE};

use crate::flow::{self, Id};
use crate::graph::{Function, Graph};
use crate::processor::{Context, Options};
use crate::{Config, ProcessorId, Runtime};

use super::DEPTH;
use super::memory::{Kernels, Memory};
use super::messages::is_message;

/// Starts the processors of a program and binds its flow to them.
pub(super) fn bind<K>(memory: &Arc<Memory<K>>, polls: u32) -> (Runtime, Graph)
where
    K: Kernels + Send + Sync + 'static,
{
    let (count, processors) = processors(&memory.program);
    let runtime = Runtime::new(Config { polls, wait_polls: 0, ..Config::new(count, count as usize) });
    let (flow, functions) = (flow::of_program(&memory.program, DEPTH), vec![execute(memory), start(memory)]);
    let graph = runtime.graph(flow, functions, &processors).expect("a program's flow calls two functions");
    warm_up(&runtime);
    (runtime, graph)
}

/// How many processors the lanes of a program need, and which one each has. Lanes of messages need none, since the
/// thread that releases a message starts it.
fn processors(program: &Program) -> (u32, Vec<ProcessorId>) {
    let needs_none = |lane: &Lane| {
        let operations = program.operations_of(lane);
        !operations.is_empty() && operations.iter().all(|operation| is_message(program, operation))
    };
    let mut count = 0;
    let mut processor = |lane| {
        if needs_none(lane) {
            return ProcessorId(0);
        }
        count += 1;
        ProcessorId(count - 1)
    };
    let processors = program.lanes().iter().map(&mut processor).collect();
    (count, processors)
}

/// The processors of lanes that only move bytes, whose work may be done by the thread that waits for it.
pub(super) fn movers(program: &Program) -> Vec<ProcessorId> {
    let is_mover =
        |lane: &Lane| program.operations_of(lane).iter().all(|operation| moves(program, operation));
    processors_of(program, |lane| !program.operations_of(lane).is_empty() && is_mover(lane))
}

/// The processors of lanes that compute.
pub(super) fn computers(program: &Program) -> Vec<ProcessorId> {
    let computes = |operation: &Operation| !moves(program, operation) && !is_message(program, operation);
    processors_of(program, |lane| program.operations_of(lane).iter().any(computes))
}

fn moves(program: &Program, operation: &Operation) -> bool {
    [RECEIVE, FEED, FETCH].contains(&program.kernel(operation))
}

fn processors_of(program: &Program, chosen: impl Fn(&Lane) -> bool) -> Vec<ProcessorId> {
    let (_, processors) = processors(program);
    let lanes = program.lanes().iter().zip(processors);
    lanes.filter(|(lane, _)| chosen(lane)).map(|(_, processor)| processor).collect()
}

/// Executes operations.
fn execute<K: Kernels + Send + Sync + 'static>(memory: &Arc<Memory<K>>) -> Function {
    let memory = Arc::clone(memory);
    Box::new(move |context: &Context<'_>| {
        // SAFETY: the flow starts an operation after its predecessors in this run and the one before.
        unsafe { memory.execute(operation(context), memory.replayed(context.run())) };
    })
}

/// Starts messages.
fn start<K: Kernels + Send + Sync + 'static>(memory: &Arc<Memory<K>>) -> Function {
    let memory = Arc::clone(memory);
    Box::new(move |context: &Context<'_>| {
        let completion = context.completion().expect("messages are remote operations");
        // SAFETY: as in `execute`, and what follows the operation starts when its completion is reported.
        unsafe { memory.start(operation(context), memory.replayed(context.run()), completion) };
    })
}

fn operation(context: &Context<'_>) -> usize {
    context.op().expect("it is an operation of a graph").index()
}

/// Lets everything that is made at first use be made now, so that runs allocate nothing: the table of events, the
/// threads, and what this thread waits with.
fn warm_up(runtime: &Runtime) {
    let start = runtime.events().user();
    let after = Options { name: "warm-up", after: start.event(), ..Options::default() };
    let tasks: Vec<_> = runtime.processors().map(|on| runtime.spawn(on, after, |_| {}).finish()).collect();
    let all = runtime.events().merge(&tasks);
    let waited = runtime.events().wait_timeout(all, Duration::ZERO);
    debug_assert_eq!(waited, None, "nothing has started");
    runtime.events().trigger(start).expect("it is triggered here alone");
    runtime.wait(all).expect("an empty task does not fail");
}
