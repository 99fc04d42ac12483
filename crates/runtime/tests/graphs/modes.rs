//! How runs of one graph relate: which may overtake, which may overlap.

use std::sync::{Arc, Mutex};

use phalanx_runtime::flow::{Builder, Mode};
use phalanx_runtime::{Function, Launch};

use crate::{bind, function, launch, launch_with, nonblocking, runtime};

/// The runs in the order in which they did something.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u64>>>);

impl Log {
    fn body(&self) -> Function {
        let log = self.clone();
        function(move |context| log.0.lock().expect("no thread panics with it").push(context.run()))
    }

    fn get(&self) -> Vec<u64> {
        self.0.lock().expect("no thread panics with it").clone()
    }
}

/// A graph of one operation that waits for an input.
fn gated(mode: Mode) -> Builder {
    let mut builder = Builder::new("gated", 1);
    builder.mode(mode);
    let gate = builder.input("gate");
    let op = nonblocking(&mut builder, 0, 0);
    builder.gate(gate, op);
    builder
}

#[test]
fn ordered_runs_go_in_the_order_of_launch_whatever_triggers_first() {
    let runtime = runtime(1);
    let log = Log::default();
    let graph = bind(&runtime, gated(Mode::Ordered).finish().expect("one operation"), vec![log.body()]);
    let starts = [0; 4].map(|_| runtime.events().user());
    let runs = starts.map(|start| graph.launch(Launch { start: start.event(), ..Launch::default() }));
    for start in starts.into_iter().rev() {
        runtime.events().trigger(start).expect("it is triggered once");
    }
    for run in runs {
        assert_eq!(runtime.wait(run.expect("it takes launches").finish), Ok(()));
    }
    assert_eq!(log.get(), [0, 1, 2, 3]);
}

#[test]
fn serializable_runs_go_in_the_order_in_which_their_starts_trigger() {
    let runtime = runtime(1);
    let log = Log::default();
    let graph = bind(&runtime, gated(Mode::Serializable).finish().expect("one operation"), vec![log.body()]);
    let start = runtime.events().user();
    let waits =
        graph.launch(Launch { start: start.event(), ..Launch::default() }).expect("it takes launches");
    let overtakes = launch(&graph);
    assert_eq!(runtime.wait(overtakes.finish), Ok(()));
    assert_eq!(runtime.events().outcome(waits.finish), None);
    runtime.events().trigger(start).expect("it is triggered once");
    assert_eq!(runtime.wait(waits.finish), Ok(()));
    assert_eq!(log.get(), [1, 0]);
}

#[test]
fn serializable_runs_do_not_overlap() {
    let runtime = runtime(1);
    let log = Log::default();
    let graph = bind(&runtime, gated(Mode::Serializable).finish().expect("one operation"), vec![log.body()]);
    let gate = runtime.events().user();
    let first = launch_with(&graph, &[gate.event()]);
    let second = launch(&graph);
    runtime.events().trigger(gate).expect("it is triggered once");
    assert_eq!((runtime.wait(second.finish), runtime.wait(first.finish)), (Ok(()), Ok(())));
    assert_eq!(log.get(), [0, 1], "the second was ready long before the first");
}

#[test]
fn concurrent_runs_may_wait_for_each_other() {
    let runtime = runtime(2);
    let log = Log::default();
    let mut builder = Builder::new("mutual", 2);
    builder.mode(Mode::Concurrent);
    let other = builder.input("the other has said hello");
    let hello = nonblocking(&mut builder, 0, 0);
    let goodbye = nonblocking(&mut builder, 1, 0);
    builder.edge(hello, goodbye);
    builder.gate(other, goodbye);
    builder.post("hello", &[hello]);
    let graph = bind(&runtime, builder.finish().expect("a chain"), vec![log.body()]);
    for _ in 0..200 {
        let hellos = [0; 2].map(|_| runtime.events().user());
        let first = launch_with(&graph, &[hellos[1].event()]);
        let second = launch_with(&graph, &[hellos[0].event()]);
        runtime.events().trigger_after(hellos[0], first.posts[0]);
        runtime.events().trigger_after(hellos[1], second.posts[0]);
        assert_eq!((runtime.wait(first.finish), runtime.wait(second.finish)), (Ok(()), Ok(())));
    }
    assert_eq!(log.get().len(), 800);
}

#[test]
fn the_more_urgent_run_goes_first() {
    let runtime = runtime(1);
    let log = Log::default();
    let graph = bind(&runtime, gated(Mode::Concurrent).finish().expect("one operation"), vec![log.body()]);
    let only = runtime.processors().next().expect("there is one");
    let busy = runtime.events().user();
    let (began, begin) = (runtime.events().user(), Arc::clone(runtime.events()));
    // The processor is kept until all of them are ready.
    let keeper = runtime.spawn(only, phalanx_runtime::Options::default(), {
        let events = Arc::clone(runtime.events());
        move |_| {
            begin.trigger(began).expect("it is triggered once");
            events.wait(busy.event()).expect("it is triggered clean");
        }
    });
    assert_eq!(runtime.wait(began.event()), Ok(()));
    let priorities = [0, 7, -3, 7, 2];
    let runs = priorities.map(|priority| graph.launch(Launch { priority, ..Launch::default() }));
    runtime.events().trigger(busy).expect("it is triggered once");
    for run in runs {
        assert_eq!(runtime.wait(run.expect("it takes launches").finish), Ok(()));
    }
    assert_eq!(runtime.wait(keeper.finish()), Ok(()));
    assert_eq!(log.get(), [1, 3, 4, 0, 2]);
}
