//! Graphs on some of a runtime's processors: each sees those it was bound to as 0, 1, ..., and they do not meet.

use std::sync::{Arc, Barrier, Mutex};

use phalanx_runtime::flow::{Builder, Flow};
use phalanx_runtime::{Function, Graph, ProcessorId, Runtime};

use crate::{blocking, function, launch, replay, runtime};

/// Who called, by name of the graph and processor of the runtime.
type Calls = Arc<Mutex<Vec<(&'static str, u32)>>>;

/// Two operations one after the other, on the first and the second of two processors.
fn pair() -> Flow {
    let mut flow = Builder::new("pair", 2);
    let (first, second) = (blocking(&mut flow, 0, 0), blocking(&mut flow, 1, 1));
    flow.edge(first, second);
    flow.finish().expect("an edge leads forward")
}

/// The pair on two processors; its first operation waits until `parties` threads have come to `meet`.
fn bound(runtime: &Runtime, name: &'static str, on: [u32; 2], meet: &Arc<Barrier>, calls: &Calls) -> Graph {
    let says = |waits: bool| -> Function {
        let (meet, calls) = (Arc::clone(meet), Arc::clone(calls));
        function(move |context| {
            if waits {
                meet.wait();
            }
            calls.lock().expect("no thread panics with it").push((name, context.processor()));
        })
    };
    runtime.graph(pair(), vec![says(true), says(false)], &on.map(ProcessorId)).expect("the flow fits")
}

/// Each run's first operation waits for that of the other: one after the other they would wait forever.
#[test]
fn two_graphs_run_side_by_side_on_disjoint_processors() {
    let (runtime, calls, meet) = (runtime(4), Calls::default(), Arc::new(Barrier::new(2)));
    let graphs =
        [bound(&runtime, "left", [0, 1], &meet, &calls), bound(&runtime, "right", [3, 2], &meet, &calls)];
    for _ in 0..20 {
        let runs = graphs.each_ref().map(launch);
        assert_eq!(runs.map(|run| runtime.wait(run.finish)), [Ok(()), Ok(())]);
        let made = std::mem::take(&mut *calls.lock().expect("no thread panics with it"));
        let of =
            |name: &str| made.iter().filter(|call| call.0 == name).map(|call| call.1).collect::<Vec<_>>();
        assert_eq!((of("left"), of("right")), (vec![0, 1], vec![3, 2]), "in order, each on its own");
    }
}

/// A graph of all processors and one of some of them are ordered like any two: by events.
#[test]
fn a_graph_of_all_processors_may_follow_those_of_some() {
    let (runtime, calls, meet) = (runtime(3), Calls::default(), Arc::new(Barrier::new(1)));
    let graphs = [[0, 1], [2, 1], [1, 0]].map(|on| bound(&runtime, "part", on, &meet, &calls));
    graphs.iter().for_each(|graph| assert_eq!(replay(&runtime, graph), Ok(())));
    let made: Vec<u32> = calls.lock().expect("no thread panics with it").iter().map(|call| call.1).collect();
    assert_eq!(made, [0, 1, 2, 1, 1, 0]);
}
