//! Inputs and posts: events outside that operations wait for and trigger.

use phalanx_runtime::flow::Builder;
use phalanx_runtime::{Event, Launch};

use crate::{Count, bind, launch, launch_with, nonblocking, runtime};

#[test]
fn inputs_come_late_never_were_or_are_none() {
    let runtime = runtime(2);
    let count = Count::default();
    let mut builder = Builder::new("inputs", 2);
    let inputs = ["first", "second"].map(|name| builder.input(name));
    let ops = [nonblocking(&mut builder, 0, 0), nonblocking(&mut builder, 1, 0)];
    builder.gate(inputs[0], ops[0]);
    builder.gate(inputs[1], ops[1]);
    builder.post("the second's", &[ops[1]]);
    let graph = bind(&runtime, builder.finish().expect("two operations"), vec![count.body()]);
    // Missing and none have happened.
    assert_eq!(runtime.wait(launch(&graph).finish), Ok(()));
    assert_eq!(runtime.wait(launch_with(&graph, &[Event::NONE]).finish), Ok(()));
    assert_eq!(count.get(), 4);
    // One is late: the other operation does not care, and its post is seen before the end.
    for _ in 0..200 {
        let before = count.get();
        let late = runtime.events().user();
        let run = launch_with(&graph, &[late.event()]);
        assert_eq!(runtime.wait(run.posts[0]), Ok(()));
        assert_eq!((runtime.events().outcome(run.finish), count.get()), (None, before + 1));
        runtime.events().trigger(late).expect("it is triggered once");
        assert_eq!(runtime.wait(run.finish), Ok(()));
        assert_eq!(count.get(), before + 2);
    }
}

#[test]
fn one_input_may_gate_many_and_many_one() {
    let runtime = runtime(4);
    let count = Count::default();
    let mut builder = Builder::new("gates", 4);
    let inputs = [0; 6].map(|_| builder.input("input"));
    let all: Vec<_> = (0..4).map(|place| nonblocking(&mut builder, place, 0)).collect();
    for input in inputs {
        all.iter().for_each(|&op| builder.gate(input, op));
    }
    let graph = bind(&runtime, builder.finish().expect("four operations"), vec![count.body()]);
    for round in 0..50 {
        let events = inputs.map(|_| runtime.events().user());
        let run = launch_with(&graph, &events.map(|event| event.event()));
        for place in 0..6 {
            assert_eq!(count.get(), 4 * round, "something is missing still");
            let event = events[(place + round as usize) % 6];
            runtime.events().trigger(event).expect("it is triggered once");
        }
        assert_eq!(runtime.wait(run.finish), Ok(()));
        assert_eq!(count.get(), 4 * round + 4);
    }
}

#[test]
fn nothing_runs_before_the_start_even_if_all_inputs_are_there() {
    let runtime = runtime(2);
    let count = Count::default();
    let mut builder = Builder::new("start", 2);
    let input = builder.input("input");
    let first = nonblocking(&mut builder, 0, 0);
    let second = nonblocking(&mut builder, 1, 0);
    builder.edge(first, second);
    builder.gate(input, second);
    let graph = bind(&runtime, builder.finish().expect("a chain"), vec![count.body()]);
    for round in 0..100 {
        let start = runtime.events().user();
        let run =
            graph.launch(Launch { start: start.event(), ..Launch::default() }).expect("it takes launches");
        assert_eq!(count.get(), 2 * round);
        runtime.events().trigger(start).expect("it is triggered once");
        assert_eq!(runtime.wait(run.finish), Ok(()));
        assert_eq!(count.get(), 2 * round + 2);
    }
}
