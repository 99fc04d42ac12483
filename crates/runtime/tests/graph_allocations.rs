//! Replaying a graph allocates nothing, and a million replays leave nothing behind.
//!
//! A binary of its own, and one test: the allocator counts for the whole process.

use std::sync::{Arc, Mutex};

use phalanx_runtime::flow::{Builder, Direct, Flow, Mode, OpId, Task, TaskKind};
use phalanx_runtime::{Completion, Config, Context, Event, Function, Graph, Launch, Runtime};
use phalanx_testkit::allocations::{self, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A body that does nothing, on a processor or wherever it is released.
fn add(builder: &mut Builder, processor: Option<u32>) -> OpId {
    match processor {
        Some(processor) => builder.task(Task { processor, kind: TaskKind::NonBlocking, ..Task::default() }),
        None => builder.direct(Direct::default()),
    }
}

/// A chain whose links are placed in turn.
fn chain(length: usize, places: &[Option<u32>]) -> Flow {
    let mut builder = Builder::new("chain", 2);
    let ops: Vec<_> = (0..length).map(|link| add(&mut builder, places[link % places.len()])).collect();
    ops.windows(2).for_each(|pair| builder.edge(pair[0], pair[1]));
    builder.finish().expect("a chain")
}

/// A chain of remote links, and one that another processor tells to be complete.
fn remotes(mode: Mode) -> Flow {
    let mut builder = Builder::new("remotes", 2);
    builder.mode(mode);
    let mut last = add(&mut builder, Some(0));
    let teller =
        builder.task(Task { processor: 1, function: 3, kind: TaskKind::NonBlocking, ..Task::default() });
    builder.edge(last, teller);
    for function in [1, 1, 2, 1] {
        let link = builder.remote(Direct { function, ..Direct::default() });
        builder.edge(last, link);
        last = link;
    }
    let end = add(&mut builder, Some(0));
    builder.edge(last, end);
    builder.finish().expect("a chain")
}

/// Nothing, being complete at once, leaving a completion behind, and telling it.
fn functions() -> Vec<Function> {
    let left = Arc::new(Mutex::new(None::<Completion>));
    let leave = Arc::clone(&left);
    let completion = |context: &Context<'_>| context.completion().expect("it is remote");
    vec![
        Box::new(|_| {}),
        Box::new(move |context| completion(context).done(Ok(()))),
        Box::new(move |context| *leave.lock().expect("no thread panics") = Some(completion(context))),
        Box::new(move |_| {
            let take = || left.lock().expect("no thread panics").take();
            std::iter::repeat_with(take)
                .find_map(|taken| taken)
                .into_iter()
                .for_each(|left| left.done(Ok(())));
        }),
    ]
}

/// Rows of cells, each after itself and its neighbours in the row before; halves on two processors.
fn stencil(mode: Mode) -> Flow {
    const WIDTH: usize = 8;
    let mut builder = Builder::new("stencil", 2);
    builder.mode(mode);
    let mut last: Vec<OpId> = Vec::new();
    for _ in 0..8 {
        let row: Vec<_> = (0..WIDTH).map(|x| add(&mut builder, Some((x >= WIDTH / 2) as u32))).collect();
        for (x, &to) in row.iter().enumerate() {
            let near = last.iter().skip(x.saturating_sub(1)).take(if x == 0 { 2 } else { 3 });
            near.for_each(|&from| builder.edge(from, to));
        }
        last = row;
    }
    builder.finish().expect("rows go forward")
}

fn bind(runtime: &Runtime, flow: Flow) -> Graph {
    let processors: Vec<_> = runtime.processors().collect();
    runtime.graph(flow, functions(), &processors).expect("the flow fits")
}

fn launch(graph: &Graph) -> Event {
    graph.launch(Launch::default()).expect("the graph takes launches").finish
}

/// Replays with `ahead` runs in flight; with none, by the thread that waits.
fn replay(runtime: &Runtime, graph: &Graph, times: u64, ahead: usize) {
    if ahead == 0 {
        return (0..times).for_each(|_| assert_eq!(graph.run(Launch::default()).ok(), Some(Ok(()))));
    }
    let mut flying = [Event::NONE; 2];
    for run in 0..times as usize {
        assert_eq!(runtime.wait(flying[run % ahead]), Ok(()));
        flying[run % ahead] = launch(graph);
    }
    flying.iter().for_each(|&finish| assert_eq!(runtime.wait(finish), Ok(())));
}

/// Allocations and bytes more, after a warm-up, over `times` replays.
fn growth(runtime: &Runtime, flow: Flow, times: u64, ahead: usize) -> (u64, i64) {
    // Kept for ever: a worker may be the last to let go of a graph, and free it while the next one is measured.
    let graph = std::mem::ManuallyDrop::new(bind(runtime, flow));
    replay(runtime, &graph, 2000, ahead);
    let before = (allocations::count(), allocations::bytes());
    replay(runtime, &graph, times, ahead);
    (allocations::count() - before.0, allocations::bytes() - before.1)
}

#[test]
fn replays_allocate_nothing() {
    let runtime = Runtime::new(Config::new(2, 0));
    let alone = chain(100, &[Some(0)]);
    assert_eq!(growth(&runtime, alone, 1000, 1), (0, 0), "a chain on one processor");
    for ahead in [0, 1] {
        let crossing = chain(20, &[Some(0), Some(1)]);
        assert_eq!(growth(&runtime, crossing, 1000, ahead), (0, 0), "a chain that changes processors");
    }
    let mixed = chain(20, &[Some(0), None, Some(1), None]);
    assert_eq!(growth(&runtime, mixed, 1000, 1), (0, 0), "a chain with direct links");
    assert_eq!(growth(&runtime, stencil(Mode::Ordered), 1000, 1), (0, 0), "a stencil on two processors");
    let pipelined = stencil(Mode::Pipelined { depth: 2 });
    assert_eq!(growth(&runtime, pipelined, 1000, 2), (0, 0), "two runs at a time");
    assert_eq!(growth(&runtime, remotes(Mode::Ordered), 1000, 1), (0, 0), "remote links");
    let pipelined = remotes(Mode::Pipelined { depth: 2 });
    assert_eq!(growth(&runtime, pipelined, 1000, 2), (0, 0), "remote links of two runs at a time");
    // The launching thread runs it on the spot, which makes this many cheap.
    for (place, ahead) in [(None, 1), (Some(0), 0)] {
        let grown = growth(&runtime, chain(2, &[place]), 1_000_000, ahead);
        assert_eq!(grown, (0, 0), "allocations and bytes of a million replays");
    }
    let graph = bind(&runtime, chain(4, &[Some(0)]));
    assert!(allocations::count() > 0, "the allocator counts");
    assert_eq!(runtime.wait(launch(&graph)), Ok(()));
}
