//! The ends of things: empty graphs, small ones, many direct ones in line, and destroying.

use std::sync::Arc;

use phalanx_runtime::flow::{Builder, Direct, Mode};
use phalanx_runtime::{Event, Fault, Graph, GraphError, Launch, LaunchError, ProcessorId, Run, Runtime};

use crate::{Count, bind, function, launch, launch_with, nonblocking, replay, runtime};

const MODES: [Mode; 4] = [Mode::Ordered, Mode::Serializable, Mode::Concurrent, Mode::Pipelined { depth: 2 }];

#[test]
fn an_empty_graph_finishes() {
    let runtime = runtime(1);
    for mode in MODES {
        let mut builder = Builder::new("empty", 1);
        builder.mode(mode);
        let graph = bind(&runtime, builder.finish().expect("nothing is wrong with nothing"), vec![]);
        for _ in 0..5 {
            assert_eq!(replay(&runtime, &graph), Ok(()), "{mode:?}");
        }
        let run = launch(&graph);
        let destroyed = graph.destroy(Event::NONE).expect("it was not destroyed before");
        assert_eq!(runtime.wait(destroyed), Ok(()));
        assert_eq!(runtime.events().outcome(run.finish), Some(Ok(())), "{mode:?}");
    }
}

#[test]
fn a_processor_with_one_operation_takes_part() {
    let runtime = runtime(3);
    let (many, one) = (Count::default(), Count::default());
    let mut builder = Builder::new("lonely", 3);
    let first = nonblocking(&mut builder, 0, 0);
    let middle = nonblocking(&mut builder, 2, 1);
    let last = nonblocking(&mut builder, 0, 0);
    builder.edge(first, middle);
    builder.edge(middle, last);
    let graph = bind(&runtime, builder.finish().expect("a chain"), vec![many.body(), one.body()]);
    for _ in 0..100 {
        assert_eq!(replay(&runtime, &graph), Ok(()));
    }
    assert_eq!((many.get(), one.get()), (200, 100));
}

/// A graph that the thread that launches or finishes it runs on the spot.
fn direct_pair(mode: Mode) -> Builder {
    let mut builder = Builder::new("direct", 1);
    builder.mode(mode);
    let gate = builder.input("gate");
    let first = builder.direct(Direct { name: "first", ..Direct::default() });
    let second = builder.direct(Direct { name: "second", ..Direct::default() });
    builder.edge(first, second);
    builder.gate(gate, first);
    builder
}

#[test]
fn a_long_line_of_direct_graphs_costs_no_stack() {
    const RUNS: u64 = 100_000;
    let runtime = runtime(1);
    for mode in MODES {
        let count = Count::default();
        let graph = bind(&runtime, direct_pair(mode).finish().expect("a chain"), vec![count.body()]);
        let gate = runtime.events().user();
        let runs: Vec<_> = (0..RUNS).map(|_| launch_with(&graph, &[gate.event()]).finish).collect();
        assert_eq!(count.get(), 0, "{mode:?}");
        runtime.events().trigger(gate).expect("it is triggered once");
        for run in runs {
            assert_eq!(runtime.wait(run), Ok(()), "{mode:?}");
        }
        assert_eq!(count.get(), 2 * RUNS, "{mode:?}");
    }
}

#[test]
fn a_deep_pipeline_of_direct_graphs_runs_on_one_stack() {
    const DEPTH: u32 = 500;
    let runtime = runtime(1);
    let count = Count::default();
    let builder = direct_pair(Mode::Pipelined { depth: DEPTH });
    let graph = bind(&runtime, builder.finish().expect("a chain"), vec![count.body()]);
    // The first run lets all others go, each of which waits for nothing else.
    let gate = runtime.events().user();
    let first = launch_with(&graph, &[gate.event()]);
    let others: Vec<_> = (1..DEPTH).map(|_| launch(&graph).finish).collect();
    assert_eq!(count.get(), 0);
    runtime.events().trigger(gate).expect("it is triggered once");
    for run in others.into_iter().chain([first.finish]) {
        assert_eq!(runtime.wait(run), Ok(()));
    }
    assert_eq!(count.get(), 2 * u64::from(DEPTH));
}

#[test]
fn destroying_waits_for_all_runs_and_admits_no_more() {
    let runtime = runtime(2);
    for mode in MODES {
        let count = Count::default();
        let mut builder = Builder::new("doomed", 2);
        builder.mode(mode);
        let gate = builder.input("gate");
        let first = nonblocking(&mut builder, 0, 0);
        let second = nonblocking(&mut builder, 1, 0);
        builder.edge(first, second);
        builder.gate(gate, second);
        let graph = bind(&runtime, builder.finish().expect("a chain"), vec![count.body()]);
        let (start, gate) = (runtime.events().user(), runtime.events().user());
        let options = Launch { start: start.event(), inputs: &[gate.event()], ..Launch::default() };
        let runs = [0; 5].map(|_| graph.launch(options).expect("it takes launches").finish);
        let destroyed = graph.destroy(Event::NONE).expect("it was not destroyed before");
        let refused = LaunchError::Destroyed("doomed".into());
        assert_eq!(graph.launch(options).err(), Some(refused.clone()), "{mode:?}");
        assert_eq!(graph.destroy(Event::NONE).err(), Some(refused), "{mode:?}");
        runtime.events().trigger(start).expect("it is triggered once");
        assert_eq!(runtime.events().outcome(destroyed), None, "{mode:?}: no run can have ended");
        runtime.events().trigger(gate).expect("it is triggered once");
        assert_eq!(runtime.wait(destroyed), Ok(()));
        let ends = runs.map(|run| runtime.events().outcome(run));
        assert_eq!(ends, [(); 5].map(|()| Some(Ok(()))), "{mode:?}: runs end before the graph does");
        assert_eq!(count.get(), 10, "{mode:?}");
    }
}

#[test]
fn a_launch_that_races_the_end_runs_before_it_or_is_refused() {
    let runtime = runtime(2);
    for round in 0..100 {
        let count = Count::default();
        let mut builder = Builder::new("raced", 2);
        builder.mode(MODES[round % MODES.len()]);
        let first = nonblocking(&mut builder, 0, 0);
        let second = nonblocking(&mut builder, 1, 0);
        builder.edge(first, second);
        let graph = bind(&runtime, builder.finish().expect("a chain"), vec![count.body()]);
        let launches = || (0..50).map_while(|_| graph.launch(Launch::default()).ok()).collect::<Vec<_>>();
        let runs = std::thread::scope(|scope| {
            let thread = scope.spawn(launches);
            let destroyed = graph.destroy(Event::NONE).expect("it was not destroyed before");
            assert_eq!(runtime.wait(destroyed), Ok(()));
            let runs = thread.join().expect("it does not panic");
            assert!(
                runs.iter().all(|run| runtime.events().outcome(run.finish) == Some(Ok(()))),
                "round {round}"
            );
            runs
        });
        assert_eq!(count.get(), 2 * runs.len() as u64, "round {round}");
    }
}

#[test]
fn a_graph_may_go_while_it_runs() {
    let runtime = runtime(2);
    let count = Count::default();
    for _ in 0..200 {
        let mut builder = Builder::new("dropped", 2);
        let first = nonblocking(&mut builder, 0, 0);
        let second = nonblocking(&mut builder, 1, 0);
        builder.edge(first, second);
        let graph = bind(&runtime, builder.finish().expect("a chain"), vec![count.body()]);
        let finish = launch(&graph).finish;
        drop(graph);
        assert_eq!(runtime.wait(finish), Ok(()));
    }
    assert_eq!(count.get(), 400);
}

#[test]
fn launches_that_do_not_fit_are_refused_and_leave_no_trace() {
    let runtime = runtime(1);
    let mut builder = Builder::new("strict", 1);
    builder.run_args(8).mode(Mode::OneShot);
    nonblocking(&mut builder, 0, 0);
    let graph = bind(&runtime, builder.finish().expect("one operation"), vec![function(|_| {})]);
    let short = graph.launch(Launch { args: &[0; 4], ..Launch::default() }).expect_err("four bytes of eight");
    assert_eq!(short.to_string(), "graph strict takes 8 bytes of arguments, not 4");
    let inputs = &[Event::NONE][..];
    let many =
        graph.launch(Launch { args: &[0; 8], inputs, ..Launch::default() }).expect_err("it has no inputs");
    assert_eq!(many.to_string(), "graph strict has 0 inputs, not 1");
    let run =
        graph.launch(Launch { args: &[0; 8], ..Launch::default() }).expect("it was not launched before");
    assert_eq!((run.number, runtime.wait(run.finish)), (0, Ok(())));
    let again = graph.launch(Launch { args: &[0; 8], ..Launch::default() }).expect_err("it is one-shot");
    assert_eq!(again, LaunchError::Again("strict".into()));
}

#[test]
fn flows_that_do_not_fit_are_refused() {
    let runtime = runtime(1);
    let flow = || {
        let mut builder = Builder::new("wide", 2);
        nonblocking(&mut builder, 1, 3);
        builder.finish().expect("one operation")
    };
    let only: Vec<_> = runtime.processors().collect();
    let error = runtime.graph(flow(), vec![], &only).err().expect("one processor is not two");
    assert_eq!(error, GraphError::Processors { flow: "wide".into(), needed: 2, given: 1 });
    let beyond = [only[0], ProcessorId(1)];
    let error = runtime.graph(flow(), vec![], &beyond).err().expect("there is no second processor");
    let message = "flow wide was given processor 1 of a runtime with 1; use 0 to 0";
    assert_eq!(error.to_string(), message);
    let twice = [only[0], only[0]];
    let error = runtime.graph(flow(), vec![function(|_| {})], &twice).err().expect("there is no function 3");
    let message = "nonblocking of flow wide calls function 3, but the table has 1; add it to the table";
    assert_eq!(error.to_string(), message);
}

#[test]
fn destroying_also_waits_for_its_precondition() {
    let runtime = runtime(1);
    let graph =
        bind(&runtime, Builder::new("idle", 1).finish().expect("nothing is wrong with nothing"), vec![]);
    let permission = runtime.events().user();
    let destroyed = graph.destroy(permission.event()).expect("it was not destroyed before");
    assert_eq!(runtime.events().outcome(destroyed), None, "it was not permitted");
    assert_eq!(graph.launch(Launch::default()).err(), Some(LaunchError::Destroyed("idle".into())));
    runtime.events().trigger(permission).expect("it is triggered here alone");
    assert_eq!(runtime.wait(destroyed), Ok(()));
}

/// Launches a run of `direct_pair` that waits for `start` and `gate`, and forgets the graph.
fn launch_and_forget(
    runtime: &Runtime,
    mode: Mode,
    [start, gate]: [Event; 2],
    captured: &Arc<()>,
) -> (Run, Graph) {
    let held = Arc::clone(captured);
    let body = function(move |_| _ = Arc::strong_count(&held));
    let graph = bind(runtime, direct_pair(mode).finish().expect("a chain"), vec![body]);
    let run = graph.launch(Launch { start, inputs: &[gate], ..Launch::default() });
    (run.expect("the graph takes launches"), graph)
}

#[test]
fn a_run_goes_on_when_its_graph_is_forgotten() {
    let runtime = runtime(1);
    for mode in MODES {
        let (start, gate) = (runtime.events().user(), runtime.events().user());
        let captured = Arc::new(());
        let waits_for = [start.event(), gate.event()];
        let (run, graph) = launch_and_forget(&runtime, mode, waits_for, &captured);
        drop(graph);
        runtime.events().trigger(start).expect("once");
        runtime.events().trigger(gate).expect("once");
        assert_eq!(runtime.wait(run.finish), Ok(()), "{mode:?}");
        assert_eq!(Arc::strong_count(&captured), 1, "{mode:?}: the graph ends with its last run");
    }
}

#[test]
fn an_event_that_never_triggers_keeps_no_run_alive() {
    for mode in MODES {
        for waits_for_start in [true, false] {
            let runtime = runtime(1);
            let events = Arc::downgrade(runtime.events());
            let captured = Arc::new(());
            let never = runtime.events().user().event();
            let waits_for = if waits_for_start { [never, Event::NONE] } else { [Event::NONE, never] };
            drop(launch_and_forget(&runtime, mode, waits_for, &captured));
            drop(runtime);
            assert_eq!(Arc::strong_count(&captured), 1, "{mode:?}: the graph is dropped");
            assert_eq!(events.strong_count(), 0, "{mode:?}: nothing keeps the table of events");
        }
    }
}

#[test]
fn a_run_whose_start_comes_after_the_end_of_its_runtime_is_poisoned() {
    for mode in MODES {
        let runtime = runtime(1);
        let events = Arc::clone(runtime.events());
        let (start, gate) = (events.user(), events.user());
        let (run, graph) = launch_and_forget(&runtime, mode, [start.event(), gate.event()], &Arc::new(()));
        drop((graph, runtime));
        events.trigger(start).expect("once");
        events.trigger(gate).expect("once");
        let ended = Fault::refused("direct", "its runtime has ended");
        assert_eq!(events.outcome(run.finish), Some(Err(ended)), "{mode:?}");
    }
}
