//! Graphs run to their end by the thread that waits, which does a part of them.

use std::sync::mpsc::{Receiver, channel};
use std::thread::{ThreadId, current};

use phalanx_runtime::flow::{Builder, Flow};
use phalanx_runtime::{Cause, Config, Context, Graph, Launch, Options, ProcessorId, Runtime};

use crate::{Count, bind, blocking, function, nonblocking, runtime};

/// Runs after which a thread serves a processor at the latest, if no other thread wants to: it has asked for the worker
/// core long before.
const LATEST: usize = 1000;

fn run(graph: &Graph) {
    assert_eq!(graph.run(Launch::default()).expect("the graph takes launches"), Ok(()));
}

/// A non-blocking task on each of two processors, the second one after the first, and one on the first after that.
fn there_and_back() -> Flow {
    let mut builder = Builder::new("there and back", 2);
    let ops = [0, 1, 0].map(|place| nonblocking(&mut builder, place, 0));
    ops.windows(2).for_each(|pair| builder.edge(pair[0], pair[1]));
    builder.finish().expect("a chain")
}

/// A graph whose bodies report on which thread and processor they run.
fn telling(runtime: &Runtime, flow: Flow) -> (Graph, Receiver<(u32, ThreadId)>) {
    let (tell, told) = channel();
    let body =
        function(move |context| tell.send((context.processor(), current().id())).expect("the test listens"));
    (bind(runtime, flow, vec![body]), told)
}

#[test]
fn who_waits_serves_the_first_processor() {
    // With workers that sleep at once, and with workers that look for work for a while and keep the worker core.
    for cores in [0, 2] {
        let runtime = Runtime::new(Config::new(2, cores));
        let (graph, told) = telling(&runtime, there_and_back());
        let here = current().id();
        let served = (0..LATEST).any(|_| {
            run(&graph);
            let by: Vec<_> = told.try_iter().collect();
            assert_eq!(by.iter().map(|(place, _)| *place).collect::<Vec<_>>(), [0, 1, 0]);
            assert_ne!(by[1].1, here, "the second processor has a worker of its own");
            by[0].1 == here
        });
        assert!(
            served,
            "the worker of the first processor, on {cores} cores, never left it to the waiting thread"
        );
    }
}

#[test]
fn who_serves_keeps_all_nonblocking_tasks_of_a_run() {
    // A thread that polls forever gives the worker core back only for work of others, and there is none.
    let runtime = Runtime::new(Config { polls: u32::MAX, ..Config::new(2, 2) });
    let mut builder = Builder::new("to and fro", 2);
    let ops: Vec<_> = (0..100).map(|op| nonblocking(&mut builder, op % 2, 0)).collect();
    ops.windows(2).for_each(|pair| builder.edge(pair[0], pair[1]));
    let (graph, told) = telling(&runtime, builder.finish().expect("a chain"));
    let here = current().id();
    let serves = |_: &usize| {
        run(&graph);
        let mut first = told.try_iter().filter(|&(place, _)| place == 0).map(|(_, by)| by);
        let serves = first.next() == Some(here);
        assert!(
            !serves || first.all(|by| by == here),
            "a worker was woken in a run of the thread that waits"
        );
        serves
    };
    assert_eq!(
        (0..LATEST).filter(serves).take(20).count(),
        20,
        "workers leave processors to the waiting thread"
    );
}

#[test]
fn a_failure_is_what_became_of_the_run() {
    let runtime = runtime(2);
    let count = Count::default();
    let mut builder = Builder::new("fails", 2);
    let ops = [nonblocking(&mut builder, 0, 0), nonblocking(&mut builder, 1, 1)];
    builder.edge(ops[0], ops[1]);
    let fails = function(|context| context.fail("no more"));
    let graph = bind(&runtime, builder.finish().expect("a chain"), vec![fails, count.body()]);
    for _ in 0..100 {
        let fault = graph.run(Launch::default()).expect("the graph takes launches").expect_err("it fails");
        assert_eq!(*fault.cause(), Cause::Failed("no more".into()));
    }
    assert_eq!(count.get(), 0);
    let wrong = Launch { args: &[1], ..Launch::default() };
    assert!(graph.run(wrong).is_err(), "it takes no arguments");
}

#[test]
fn what_may_wait_is_left_to_workers() {
    let runtime = runtime(1);
    let mut builder = Builder::new("waits", 1);
    let op = blocking(&mut builder, 0, 0);
    let after = nonblocking(&mut builder, 0, 0);
    builder.edge(op, after);
    let (graph, told) = telling(&runtime, builder.finish().expect("a chain"));
    (0..100).for_each(|_| run(&graph));
    assert!(told.try_iter().all(|(_, by)| by != current().id()));
}

#[test]
fn a_task_runs_a_graph_on_its_own_processor() {
    let runtime = runtime(1);
    let count = Count::default();
    let mut builder = Builder::new("inner", 1);
    nonblocking(&mut builder, 0, 0);
    let graph = bind(&runtime, builder.finish().expect("a nonblocking"), vec![count.body()]);
    let task = runtime.spawn(ProcessorId(0), Options::default(), move |_| run(&graph));
    assert_eq!(runtime.wait(task.finish()), Ok(()));
    assert_eq!(count.get(), 1);
}

#[test]
fn a_task_does_not_wait_for_all_that_a_helper_has_to_do() {
    const OPS: u64 = 10_000;
    /// A helper thread looks at other work after this many bodies, and finishes the chain it is in, which is as long at
    /// most.
    const BUDGET: u64 = 64;
    let runtime = runtime(1);
    let (count, spawner) = (Count::default(), runtime.clone());
    let (tell, told) = channel();
    let counted = count.clone();
    let body = function(move |_| {
        if counted.add() != 100 {
            return;
        }
        let (spawner, tell, counted) = (spawner.clone(), tell.clone(), counted.clone());
        let task = move |_: &Context<'_>| tell.send(counted.get()).expect("the test listens");
        // Non-blocking tasks spawn nothing themselves.
        let spawn = move || spawner.spawn(ProcessorId(0), Options::default(), task);
        std::thread::spawn(spawn).join().expect("it does not panic");
    });
    let mut builder = Builder::new("long", 1);
    let ops: Vec<_> = (0..OPS).map(|_| nonblocking(&mut builder, 0, 0)).collect();
    ops.windows(2).for_each(|pair| builder.edge(pair[0], pair[1]));
    let graph = bind(&runtime, builder.finish().expect("a chain"), vec![body]);
    run(&graph);
    let at = told.recv().expect("the task runs");
    assert!(at < 100 + 2 * BUDGET, "the task, ready after 101 bodies, ran after {at}");
    assert_eq!(count.get(), OPS);
}
