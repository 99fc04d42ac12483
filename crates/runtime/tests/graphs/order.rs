//! Order within a run and from run to run: every operation runs once a run, after all that it waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use phalanx_ir::Id;
use phalanx_runtime::flow::{Builder, Direct, Mode, OpId};
use phalanx_runtime::{Event, Function, Graph, Launch, Runtime};
use phalanx_testkit::Rng;

use crate::dag::{Dag, Recipe};
use crate::{Count, bind, function, launch, nonblocking, replay, runtime};

/// A body for all operations of a graph that checks its predecessors, and how often each has run.
///
/// The counts are relaxed, so that they order nothing themselves.
fn checker(before: Vec<Vec<usize>>, wrong: &Count) -> (Function, Arc<[AtomicU64]>) {
    let done: Arc<[AtomicU64]> = before.iter().map(|_| AtomicU64::new(0)).collect();
    let (seen, wrong) = (Arc::clone(&done), wrong.clone());
    let body = function(move |context| {
        let (op, run) = (context.op().expect("it runs in a graph").index(), context.run());
        let late = before[op].iter().any(|&before| seen[before].load(Relaxed) <= run);
        if late || seen[op].fetch_add(1, Relaxed) != run {
            wrong.add();
        }
    });
    (body, done)
}

fn check_replays(runtime: &Runtime, recipe: Recipe, seed: u64, runs: u64) {
    let dag = Dag::new(recipe, &mut Rng::new(seed));
    let wrong = Count::default();
    let (body, done) = checker(dag.before.clone(), &wrong);
    let graph = bind(runtime, dag.flow(), vec![body]);
    let launched: Vec<_> = (0..runs).map(|_| launch(&graph)).collect();
    for run in &launched {
        assert_eq!(runtime.wait(run.finish), Ok(()), "{recipe:?} seed {seed}");
    }
    assert_eq!(wrong.get(), 0, "operations out of order: {recipe:?} seed {seed}");
    let counts = done.iter().map(|count| count.load(Relaxed));
    assert!(counts.into_iter().all(|count| count == runs), "{recipe:?} seed {seed}");
}

#[test]
fn random_graphs_run_every_operation_once_after_its_predecessors() {
    for processors in [1, 2, 3, 8] {
        let runtime = runtime(processors);
        for seed in 0..40 {
            let density = 5 + seed as usize % 25;
            let recipe = Recipe { ops: 16 + 3 * seed as usize, density, processors, mode: Mode::Ordered };
            check_replays(&runtime, recipe, seed, 20);
            let mode = Mode::Pipelined { depth: 1 + seed as u32 % 4 };
            check_replays(&runtime, Recipe { mode, ..recipe }, 1000 + seed, 20);
        }
    }
}

#[test]
fn large_random_graphs_run_every_operation_once_after_its_predecessors() {
    let runtime = runtime(4);
    for (ops, density) in [(500, 10), (2000, 5), (2000, 30)] {
        for mode in [Mode::Ordered, Mode::Pipelined { depth: 2 }] {
            let recipe = Recipe { ops, density, processors: 4, mode };
            check_replays(&runtime, recipe, ops as u64 + density as u64, 10);
        }
    }
}

#[test]
fn several_processors_of_a_flow_may_be_one_of_the_runtime() {
    let runtime = runtime(1);
    let dag = Dag::new(Recipe { ops: 60, density: 10, processors: 4, mode: Mode::Ordered }, &mut Rng::new(5));
    let wrong = Count::default();
    let (body, done) = checker(dag.before.clone(), &wrong);
    let only = runtime.processors().next().expect("there is one");
    let graph = runtime.graph(dag.flow(), vec![body], &[only; 4]).expect("four places for four");
    for _ in 0..50 {
        assert_eq!(replay(&runtime, &graph), Ok(()));
    }
    assert_eq!(wrong.get(), 0, "operations out of order");
    assert!(done.iter().all(|count| count.load(Relaxed) == 50));
}

/// Two operations in a row on a processor, and a third that also waits for what is released by the first, direct or on
/// another processor.
#[test]
fn a_way_round_a_chain_holds_up_its_end() {
    let runtime = runtime(2);
    for round in [None, Some(0), Some(1)] {
        for mode in [Mode::Ordered, Mode::Pipelined { depth: 2 }] {
            let mut builder = Builder::new("round", 2);
            builder.mode(mode);
            let chain = [0; 3].map(|_| nonblocking(&mut builder, 0, 0));
            let beside = match round {
                Some(place) => nonblocking(&mut builder, place, 0),
                None => builder.direct(Direct { name: "beside", ..Direct::default() }),
            };
            let edges = [(chain[0], chain[1]), (chain[1], chain[2]), (chain[0], beside), (beside, chain[2])];
            edges.iter().for_each(|&(from, to)| builder.edge(from, to));
            let wrong = Count::default();
            let (body, done) = checker(vec![vec![], vec![0], vec![1, 3], vec![0]], &wrong);
            let graph = bind(&runtime, builder.finish().expect("edges go forward"), vec![body]);
            for _ in 0..50 {
                assert_eq!(replay(&runtime, &graph), Ok(()), "{round:?} {mode:?}");
            }
            assert_eq!(wrong.get(), 0, "{round:?} {mode:?}");
            assert!(done.iter().all(|count| count.load(Relaxed) == 50), "{round:?} {mode:?}");
        }
    }
}

/// Two writers, then two readers of both cells, twice; a writer of one layer also follows the readers before it.
struct Layers {
    builder: Builder,
    functions: Vec<Function>,
    wrong: Count,
    reads: Count,
}

fn layers(mode: Mode) -> Layers {
    let cells: Arc<[AtomicU64; 2]> = Arc::default();
    let (wrong, reads) = (Count::default(), Count::default());
    let mut builder = Builder::new("layers", 2);
    builder.mode(mode);
    let mut functions = Vec::new();
    let mut last: Vec<OpId> = Vec::new();
    for layer in 0..4_u64 {
        let value = move |run: u64| 1 + 2 * run + layer / 2;
        let ops = [0, 1].map(|place: u32| nonblocking(&mut builder, place, functions.len() as u32 + place));
        for place in 0..2 {
            let (cells, wrong, reads) = (Arc::clone(&cells), wrong.clone(), reads.clone());
            functions.push(function(move |context| {
                let value = value(context.run());
                if layer % 2 == 0 {
                    return cells[place].store(value, Relaxed);
                }
                reads.add();
                if cells.iter().any(|cell| cell.load(Relaxed) != value) {
                    wrong.add();
                }
            }));
        }
        last.iter().for_each(|&from| ops.iter().for_each(|&to| builder.edge(from, to)));
        last = ops.to_vec();
    }
    Layers { builder, functions, wrong, reads }
}

const REPLAYS: u64 = 10_000;

fn check_layers(mode: Mode, start: impl Fn(Event) -> Event) {
    let runtime = runtime(2);
    let Layers { builder, functions, wrong, reads } = layers(mode);
    let graph: Graph = bind(&runtime, builder.finish().expect("layers go forward"), functions);
    let mut last = Event::NONE;
    for _ in 0..REPLAYS {
        let launch = Launch { start: start(last), ..Launch::default() };
        last = graph.launch(launch).expect("the graph takes launches").finish;
    }
    assert_eq!(runtime.wait(last), Ok(()));
    assert_eq!((wrong.get(), reads.get()), (0, 4 * REPLAYS));
}

#[test]
fn replays_launched_ahead_read_what_their_own_run_wrote() {
    check_layers(Mode::Ordered, |_| Event::NONE);
}

#[test]
fn replays_chained_by_events_read_what_their_own_run_wrote() {
    check_layers(Mode::Concurrent, |last| last);
}
