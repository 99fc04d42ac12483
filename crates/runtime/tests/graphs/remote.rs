//! Remote operations: complete when their completion is reported, by any thread, at any time, and never before.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use phalanx_ir::Id;
use phalanx_runtime::flow::{Builder, Direct, Flow, Mode, OpId, Patch, TaskKind};
use phalanx_runtime::{Cause, Completion, Context, Fault, Function, Launch, Runtime};
use phalanx_testkit::Rng;

use crate::dag::{Dag, Recipe};
use crate::{Count, bind, function, launch, nonblocking, replay, runtime};

/// What the thread that tells is given to do.
type Tell = Box<dyn FnOnce() + Send>;

/// A thread that reports completions, those it has in an order of its own. It ends when it can get no more.
#[derive(Clone)]
struct Teller(Sender<Tell>);

impl Teller {
    fn new(seed: u64) -> Teller {
        let (given, takes) = channel::<Tell>();
        thread::spawn(move || {
            let (random, mut waiting) = (&mut Rng::new(seed), Vec::new());
            while let Ok(tell) = takes.recv() {
                waiting.push(tell);
                while !waiting.is_empty() {
                    waiting.extend(takes.try_iter());
                    waiting.swap_remove(random.below(waiting.len()))();
                }
            }
        });
        Teller(given)
    }

    fn give(&self, tell: impl FnOnce() + Send + 'static) {
        self.0.send(Box::new(tell)).expect("it takes more");
    }
}

fn remote(builder: &mut Builder, function: u32) -> OpId {
    builder.remote(Direct { function, name: "remote", ..Direct::default() })
}

/// A body for non-blocking and remote operations: it looks at its predecessors, and its effects are a count. Those of a
/// remote one come on its own thread or on the teller's.
fn checker(before: Vec<Vec<usize>>, wrong: &Count, teller: &Teller) -> (Function, Arc<[AtomicU64]>) {
    let done: Arc<[AtomicU64]> = before.iter().map(|_| AtomicU64::new(0)).collect();
    let (seen, wrong, teller) = (Arc::clone(&done), wrong.clone(), teller.clone());
    let body = function(move |context| {
        let (op, run) = (context.op().expect("it runs in a graph").index(), context.run());
        if before[op].iter().any(|&before| seen[before].load(Relaxed) <= run) {
            wrong.add();
        }
        let (seen, wrong) = (Arc::clone(&seen), wrong.clone());
        let happen = move || {
            if seen[op].fetch_add(1, Relaxed) != run {
                wrong.add();
            }
        };
        match context.completion() {
            None => happen(),
            Some(completion) if (op as u64 + run).is_multiple_of(3) => {
                happen();
                completion.done(Ok(()));
            }
            Some(completion) => {
                teller.give(move || {
                    happen();
                    completion.done(Ok(()));
                });
            }
        }
        assert!(context.completion().is_none(), "there is one at most");
    });
    (body, done)
}

fn check_replays(runtime: &Runtime, recipe: Recipe, seed: u64, runs: u64) {
    use TaskKind::{Blocking, NonBlocking, Remote};
    let dag = Dag::of(
        recipe,
        &mut Rng::new(seed),
        &[Blocking, NonBlocking, NonBlocking, NonBlocking, Remote, Remote, Remote],
    );
    let (wrong, teller) = (Count::default(), Teller::new(seed));
    let (body, done) = checker(dag.before.clone(), &wrong, &teller);
    let graph = bind(runtime, dag.flow(), vec![body]);
    let launched: Vec<_> = (0..runs).map(|_| launch(&graph)).collect();
    for run in &launched {
        assert_eq!(runtime.wait(run.finish), Ok(()), "{recipe:?} seed {seed}");
    }
    assert_eq!(wrong.get(), 0, "operations out of order: {recipe:?} seed {seed}");
    assert!(done.iter().all(|count| count.load(Relaxed) == runs), "{recipe:?} seed {seed}");
}

#[test]
fn random_graphs_wait_until_remote_operations_are_told_to_be_complete() {
    for processors in [1, 2, 3] {
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

/// Lets an operation fail in one of five ways, if it is remote, else in one of two.
fn fail(context: &Context<'_>, how: usize, teller: &Teller) {
    let told = |completion: Completion| completion.done(Err(Fault::failed("the peer", "on purpose")));
    match (how % 5, context.completion()) {
        (0, _) => std::panic::resume_unwind(Box::new("on purpose")),
        (2, Some(completion)) => told(completion),
        (3, Some(completion)) => teller.give(move || told(completion)),
        (4, Some(completion)) => teller.give(move || drop(completion)),
        _ => context.fail("on purpose"),
    }
}

type Called = Arc<Mutex<BTreeSet<(u64, usize)>>>;

/// A body that writes itself down as (run, operation), and fails in the first run if it is to.
fn failing(fails: Vec<usize>, called: &Called, teller: &Teller) -> Function {
    let (called, teller) = (Arc::clone(called), teller.clone());
    function(move |context| {
        let (run, op) = (context.run(), context.op().expect("it runs in a graph").index());
        assert!(called.lock().expect("no thread panics with it").insert((run, op)), "{op} runs twice");
        if run == 0 && fails.contains(&op) {
            return fail(context, op, &teller);
        }
        if let Some(completion) = context.completion() {
            teller.give(|| completion.done(Ok(())));
        }
    })
}

fn check_failures(runtime: &Runtime, recipe: Recipe, seed: u64) {
    use TaskKind::{NonBlocking, Remote};
    let random = &mut Rng::new(seed);
    let mut dag = Dag::of(recipe, random, &[NonBlocking, NonBlocking, Remote, Remote]);
    let n = dag.ops.len();
    (0..n).for_each(|op| {
        dag.builder.post("post", &[dag.ops[op]]);
    });
    let fails = random.subset(n, 5);
    let (called, teller) = (Called::default(), Teller::new(seed));
    let graph = bind(runtime, dag.flow(), vec![failing(fails.clone(), &called, &teller)]);
    let bad = dag.reach(&fails);
    let run = launch(&graph);
    assert_eq!(runtime.wait(run.finish).is_err(), !fails.is_empty(), "seed {seed}");
    for op in 0..n {
        let skipped = dag.before[op].iter().any(|&before| bad[before]);
        let body = called.lock().expect("no thread panics with it").contains(&(0, op));
        assert_eq!(body, !skipped, "op {op} seed {seed}");
        assert_eq!(runtime.wait(run.posts[op]).is_err(), bad[op], "post of op {op} seed {seed}");
    }
    assert_eq!(replay(runtime, &graph), Ok(()), "runs one at a time do not hurt each other, seed {seed}");
}

#[test]
fn a_failure_takes_along_exactly_what_follows() {
    let runtime = runtime(3);
    for seed in 0..200 {
        let recipe = Recipe { ops: 40, density: 6, processors: 3, mode: Mode::Ordered };
        check_failures(&runtime, recipe, seed);
    }
}

/// A non-blocking task, a remote operation, and one more of each.
fn pipeline() -> (Flow, [OpId; 4]) {
    let mut builder = Builder::new("pipeline", 1);
    builder.mode(Mode::Pipelined { depth: 2 });
    let ops = [0, 1, 2, 3].map(|link| match link % 2 {
        0 => nonblocking(&mut builder, 0, 0),
        _ => remote(&mut builder, 0),
    });
    ops.windows(2).for_each(|pair| builder.edge(pair[0], pair[1]));
    (builder.finish().expect("a chain"), ops)
}

#[test]
fn a_pipeline_in_which_a_message_was_skipped_never_recovers() {
    let runtime = runtime(1);
    let (flow, ops) = pipeline();
    let (called, teller) = (Called::default(), Teller::new(1));
    let graph = bind(&runtime, flow, vec![failing(vec![ops[2].index()], &called, &teller)]);
    let first = replay(&runtime, &graph).expect_err("it fails");
    for run in 1..10 {
        assert_eq!(replay(&runtime, &graph), Err(first.clone()), "run {run}, when none is in flight");
    }
    let called = called.lock().expect("no thread panics with it");
    for run in 0..10 {
        let bodies: Vec<_> = ops.iter().map(|op| called.contains(&(run, op.index()))).collect();
        assert_eq!(bodies, [true, true, run == 0, false], "run {run}");
    }
}

type Body = fn(&Context<'_>);

#[test]
fn the_fault_of_a_remote_operation_says_what_happened() {
    let runtime = runtime(1);
    let cases: [(Body, &str, &str); 5] = [
        (|_| (), "remote (op0 of flow)", "its completion was dropped"),
        (|context| drop(context.completion()), "remote (op0 of flow)", "its completion was dropped"),
        (|context| context.fail("no such peer"), "remote (op0 of flow)", "no such peer"),
        (
            |context| {
                let _held = context.completion();
                std::panic::resume_unwind(Box::new("it broke"));
            },
            "remote (op0 of flow)",
            "it broke",
        ),
        (
            |context| {
                let completion = context.completion().expect("it is remote");
                completion.done(Err(Fault::failed("rank 3", "is gone")));
            },
            "rank 3",
            "is gone",
        ),
    ];
    for (body, operation, why) in cases {
        let mut builder = Builder::new("flow", 1);
        remote(&mut builder, 0);
        let graph = bind(&runtime, builder.finish().expect("one operation"), vec![function(body)]);
        let fault = replay(&runtime, &graph).expect_err("it fails");
        assert_eq!((fault.operation(), fault.cause()), (operation, &Cause::Failed(why.into())));
    }
}

#[test]
fn a_body_that_fails_after_it_gave_its_completion_away_fails_the_run_alone() {
    let runtime = runtime(1);
    let mut builder = Builder::new("flow", 1);
    let (first, after) = (remote(&mut builder, 0), nonblocking(&mut builder, 0, 1));
    builder.edge(first, after);
    let count = Count::default();
    let body = function(|context| {
        context.completion().expect("it is remote").done(Ok(()));
        context.fail("too late");
    });
    let graph = bind(&runtime, builder.finish().expect("a chain"), vec![body, count.body()]);
    let fault = replay(&runtime, &graph).expect_err("it fails");
    assert_eq!(fault.cause(), &Cause::Failed("too late".into()));
    assert_eq!(count.get(), 1, "its effects are there");
}

/// Each is complete while its body still runs, which another thread has told; the next run waits for the body.
#[test]
fn a_body_may_look_at_its_arguments_after_it_is_complete() {
    let runtime = runtime(1);
    let mut builder = Builder::new("args", 1);
    builder.run_args(8);
    let first = nonblocking(&mut builder, 0, 0);
    let told = builder.remote(Direct { function: 1, name: "told", args: &[0; 8] });
    builder.interpolate(told, 0, 0..8, Patch::Overwrite);
    builder.edge(first, told);
    let (seen, started) = (Arc::new(Mutex::new(Vec::new())), Count::default());
    let (list, runs) = (Arc::clone(&seen), started.clone());
    let body = function(move |context| {
        let completion = context.completion().expect("it is remote");
        thread::spawn(|| completion.done(Ok(()))).join().expect("telling does not panic");
        let value = u64::from_ne_bytes(context.args().try_into().expect("eight bytes"));
        list.lock().expect("no thread panics with it").push((value, runs.get()));
    });
    let graph = bind(&runtime, builder.finish().expect("a chain"), vec![started.body(), body]);
    let launch = |run: u64| {
        graph.launch(Launch { args: &run.to_ne_bytes(), ..Launch::default() }).expect("it takes launches")
    };
    let runs: Vec<_> = (0..50).map(launch).collect();
    runs.iter().for_each(|run| assert_eq!(runtime.wait(run.finish), Ok(())));
    let expected: Vec<_> = (0..50).map(|run| (run, run + 1)).collect();
    assert_eq!(*seen.lock().expect("no thread panics with it"), expected, "own arguments, and runs so far");
}

#[test]
fn a_long_chain_that_is_complete_at_once_costs_no_stack() {
    let mut builder = Builder::new("chain", 1);
    let ops: Vec<_> = (0..100_000).map(|_| remote(&mut builder, 0)).collect();
    ops.windows(2).for_each(|pair| builder.edge(pair[0], pair[1]));
    let (flow, called) = (builder.finish().expect("a chain"), Count::default());
    let count = called.clone();
    let body = function(move |context| {
        count.add();
        context.completion().expect("it is remote").done(Ok(()));
    });
    // The launching thread does all of it.
    let launches = move || {
        let runtime = runtime(1);
        replay(&runtime, &bind(&runtime, flow, vec![body]))
    };
    let thread = thread::Builder::new().stack_size(64 << 10).spawn(launches).expect("threads start");
    assert_eq!(thread.join().expect("its stack is large enough"), Ok(()));
    assert_eq!(called.get(), 100_000);
}
