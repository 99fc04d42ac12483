//! What a failure takes along: its descendants, the posts and the finish behind them, and nothing else.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use phalanx_ir::Id;
use phalanx_runtime::flow::{Builder, Flow, Mode};
use phalanx_runtime::{Cause, Event, Function, Launch, Runtime};
use phalanx_testkit::Rng;

use crate::dag::{Dag, Recipe, carried};
use crate::{Count, bind, function, launch, nonblocking, replay, runtime};

/// Operations that fail, and those whose bodies were called, both as (run, operation).
#[derive(Clone, Default)]
struct Ledger {
    fails: Arc<BTreeSet<(u64, usize)>>,
    called: Arc<Mutex<BTreeSet<(u64, usize)>>>,
}

impl Ledger {
    fn new(fails: impl IntoIterator<Item = (u64, usize)>) -> Ledger {
        Ledger { fails: Arc::new(fails.into_iter().collect()), ..Ledger::default() }
    }

    /// A body that writes itself down, and fails in one of two ways if it is to.
    fn body(&self) -> Function {
        let ledger = self.clone();
        function(move |context| {
            let at = (context.run(), context.op().expect("it runs in a graph").index());
            assert!(ledger.called.lock().expect("no thread panics with it").insert(at), "{at:?} runs twice");
            if ledger.fails.contains(&at) {
                match at.1 % 2 {
                    0 => context.fail("on purpose"),
                    _ => std::panic::resume_unwind(Box::new("on purpose")),
                }
            }
        })
    }

    fn called(&self, run: u64, n: usize) -> Vec<bool> {
        let called = self.called.lock().expect("no thread panics with it");
        (0..n).map(|op| called.contains(&(run, op))).collect()
    }
}

/// By operation whether its body is called, if those of `poisoned` are not and those of `fails` fail.
fn expected(dag: &Dag, poisoned: &[usize], fails: &[usize]) -> (Vec<bool>, Vec<bool>) {
    let bad = dag.reach(&[poisoned, fails].concat());
    let called = (0..dag.ops.len())
        .map(|op| !poisoned.contains(&op) && !dag.before[op].iter().any(|&before| bad[before]));
    (called.collect(), bad)
}

fn check_failures(runtime: &Runtime, recipe: Recipe, seed: u64) {
    let random = &mut Rng::new(seed);
    let mut dag = Dag::new(recipe, random);
    let n = dag.ops.len();
    let gated = random.subset(n, 20);
    let input = dag.builder.input("input");
    gated.iter().for_each(|&op| dag.builder.gate(input, dag.ops[op]));
    let members: Vec<_> = (0..5).map(|_| vec![random.below(n), random.below(n)]).collect();
    for members in &members {
        dag.builder.post("post", &[dag.ops[members[0]], dag.ops[members[1]]]);
    }
    let fails = random.subset(n, 5);
    let ledger = Ledger::new(fails.iter().map(|&op| (1, op)));
    let graph = bind(runtime, dag.flow(), vec![ledger.body()]);
    // Clean, with failures, clean, with a poisoned input, clean.
    for run in 0..5 {
        let (gated, fails) =
            (if run == 3 { &gated[..] } else { &[] }, if run == 1 { &fails[..] } else { &[] });
        let event = runtime.events().user();
        let inputs = [if run == 3 { event.event() } else { Event::NONE }];
        let launched =
            graph.launch(Launch { inputs: &inputs, ..Launch::default() }).expect("it takes launches");
        runtime.events().cancel(event, "the one outside").expect("it is triggered once");
        let (called, bad) = expected(&dag, gated, fails);
        let clean = run != 3 && !bad.contains(&true);
        assert_eq!(runtime.wait(launched.finish).is_ok(), clean, "run {run}, {recipe:?} seed {seed}");
        assert_eq!(ledger.called(run, n), called, "run {run}, {recipe:?} seed {seed}");
        for (post, members) in launched.posts.iter().zip(&members) {
            let whole = !members.iter().any(|&op| bad[op]);
            assert_eq!(runtime.wait(*post).is_ok(), whole, "run {run}, {recipe:?} seed {seed}");
        }
    }
}

#[test]
fn a_failure_skips_exactly_its_descendants() {
    for processors in [1, 2, 4] {
        let runtime = runtime(processors);
        for seed in 0..150 {
            let mode = [Mode::Ordered, Mode::Concurrent, Mode::Pipelined { depth: 2 }][seed as usize % 3];
            let ops = 10 + seed as usize % 50;
            check_failures(&runtime, Recipe { ops, density: 3 + ops % 9, processors, mode }, seed);
        }
    }
}

#[test]
fn a_fault_names_the_operation_and_says_its_words() {
    let runtime = runtime(1);
    let mut builder = Builder::new("flow", 1);
    let first = nonblocking(&mut builder, 0, 0);
    let second = nonblocking(&mut builder, 0, 1);
    builder.edge(first, second);
    let after = Count::default();
    let fails = function(|context| context.fail("the disk is full"));
    let graph = bind(&runtime, builder.finish().expect("a chain"), vec![fails, after.body()]);
    let fault = replay(&runtime, &graph).expect_err("it fails");
    assert_eq!(fault.operation(), "nonblocking (op0 of flow)");
    assert_eq!(fault.cause(), &Cause::Failed("the disk is full".into()));
    assert_eq!(after.get(), 0);
}

/// By run and operation whether its body is called and whether it is bad, over the unrolled runs.
fn unrolled(
    dag: &Dag,
    flow: &Flow,
    runs: u64,
    fails: &BTreeSet<(u64, usize)>,
) -> Vec<(Vec<bool>, Vec<bool>)> {
    let carried = carried(flow);
    // A segment of the next run is skipped as a whole, from its head on.
    let mut held = vec![false; dag.ops.len()];
    let mut result = Vec::new();
    for run in 0..runs {
        let failing: Vec<_> = (0..dag.ops.len()).filter(|&op| fails.contains(&(run, op))).collect();
        let poisoned: Vec<_> = (0..dag.ops.len()).filter(|&op| held[op]).collect();
        let (called, bad) = expected(dag, &poisoned, &failing);
        let bad: Vec<_> =
            bad.iter().enumerate().map(|(op, &bad)| bad && (!called[op] || failing.contains(&op))).collect();
        held = vec![false; dag.ops.len()];
        for op in (0..dag.ops.len()).filter(|&op| bad[op]) {
            carried[op].iter().for_each(|&next| held[next] = true);
        }
        result.push((called, bad));
    }
    result
}

const DEPTH: u64 = 3;

fn check_pipeline(runtime: &Runtime, processors: u32, seed: u64) {
    let random = &mut Rng::new(seed);
    let mode = Mode::Pipelined { depth: DEPTH as u32 };
    let dag = Dag::new(Recipe { ops: 40, density: 6, processors, mode }, random);
    let (n, flow) = (dag.ops.len(), dag.flow());
    let fails: BTreeSet<_> = [(0, random.below(n)), (1, random.below(n))].into();
    let ledger = Ledger::new(fails.clone());
    let expected = unrolled(&dag, &flow, DEPTH, &fails);
    let graph = bind(runtime, flow, vec![ledger.body()]);
    // All of them are in flight before the first one starts.
    let start = runtime.events().user();
    let first =
        graph.launch(Launch { start: start.event(), ..Launch::default() }).expect("it takes launches");
    let runs = [first, launch(&graph), launch(&graph)];
    runtime.events().trigger(start).expect("it is triggered once");
    for (run, (called, bad)) in runs.iter().zip(expected) {
        assert_eq!(runtime.wait(run.finish).is_err(), bad.contains(&true), "run {} seed {seed}", run.number);
        assert_eq!(ledger.called(run.number, n), called, "run {} seed {seed}", run.number);
    }
    assert_eq!(replay(runtime, &graph), Ok(()), "seed {seed}: the pipeline has drained");
    assert_eq!(ledger.called(DEPTH, n), vec![true; n], "seed {seed}");
}

#[test]
fn a_failure_in_a_pipeline_skips_what_follows_in_the_runs_in_flight() {
    for processors in [1, 2, 4] {
        let runtime = runtime(processors);
        (0..100).for_each(|seed| check_pipeline(&runtime, processors, seed));
    }
}

#[test]
fn a_poisoned_start_skips_everything_once() {
    let runtime = runtime(2);
    let modes = [Mode::Ordered, Mode::Serializable, Mode::Concurrent, Mode::Pipelined { depth: 2 }];
    for mode in modes {
        let mut dag = Dag::new(Recipe { ops: 30, density: 8, processors: 2, mode }, &mut Rng::new(3));
        dag.builder.post("post", &[dag.ops[0]]);
        let ledger = Ledger::default();
        let graph = bind(&runtime, dag.flow(), vec![ledger.body()]);
        let start = runtime.events().user();
        let poisoned =
            graph.launch(Launch { start: start.event(), ..Launch::default() }).expect("it takes launches");
        runtime.events().cancel(start, "whoever comes first").expect("it is triggered once");
        let fault = runtime.wait(poisoned.finish).expect_err("its start is poisoned");
        assert_eq!((fault.operation(), fault.cause()), ("whoever comes first", &Cause::Cancelled));
        assert!(runtime.wait(poisoned.posts[0]).is_err(), "{mode:?}");
        assert_eq!(ledger.called(0, 30), [false; 30], "{mode:?}");
        let clean = launch(&graph);
        assert_eq!((runtime.wait(clean.finish), runtime.wait(clean.posts[0])), (Ok(()), Ok(())), "{mode:?}");
        assert_eq!(ledger.called(1, 30), [true; 30], "{mode:?}");
    }
}

#[test]
fn a_task_that_completes_later_may_fail_later() {
    let runtime = runtime(1);
    let mut builder = Builder::new("late", 1);
    let first = crate::blocking(&mut builder, 0, 0);
    let second = nonblocking(&mut builder, 0, 1);
    builder.edge(first, second);
    let (event, after) = (runtime.events().user(), Count::default());
    let body = function(move |context| context.finish_after(event.event()));
    let graph = bind(&runtime, builder.finish().expect("a chain"), vec![body, after.body()]);
    let finish = launch(&graph).finish;
    // The processor is free meanwhile.
    let only = runtime.processors().next().expect("there is one");
    let other = runtime.spawn(only, phalanx_runtime::Options::default(), |_| {});
    assert_eq!(runtime.wait(other.finish()), Ok(()));
    assert_eq!((runtime.events().outcome(finish), after.get()), (None, 0));
    runtime.events().cancel(event, "the one behind it").expect("it is triggered once");
    assert_eq!(runtime.wait(finish).expect_err("it failed late").operation(), "the one behind it");
    assert_eq!(after.get(), 0);
}
