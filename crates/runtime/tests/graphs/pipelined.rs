//! Pipelined runs overlap, no further than their depth, and never overtake on an operation.

use std::sync::{Arc, Mutex};

use phalanx_ir::Id;
use phalanx_runtime::flow::{Builder, Mode, OpId};
use phalanx_runtime::{Function, Launch};

use crate::{bind, function, launch, launch_with, nonblocking, runtime};

/// What ran, as (operation, run), in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(usize, u64)>>>);

impl Log {
    fn body(&self) -> Function {
        let log = self.clone();
        function(move |context| {
            let op = context.op().expect("it runs in a graph").index();
            log.0.lock().expect("no thread panics with it").push((op, context.run()));
        })
    }

    fn has(&self, op: OpId, run: u64) -> bool {
        self.0.lock().expect("no thread panics with it").contains(&(op.index(), run))
    }

    fn place(&self, op: OpId, run: u64) -> usize {
        let log = self.0.lock().expect("no thread panics with it");
        log.iter().position(|&at| at == (op.index(), run)).expect("it has run")
    }
}

/// A head on one processor and a tail on another that waits for an input.
fn head_and_tail(depth: u32) -> (Builder, OpId, OpId) {
    let mut builder = Builder::new("pipeline", 2);
    builder.mode(Mode::Pipelined { depth });
    let gate = builder.input("gate");
    let head = nonblocking(&mut builder, 0, 0);
    let tail = nonblocking(&mut builder, 1, 0);
    builder.edge(head, tail);
    builder.gate(gate, tail);
    builder.post("head", &[head]);
    (builder, head, tail)
}

#[test]
fn a_run_overtakes_the_tail_of_the_one_before() {
    let runtime = runtime(2);
    let log = Log::default();
    let (builder, head, tail) = head_and_tail(2);
    let graph = bind(&runtime, builder.finish().expect("a chain"), vec![log.body()]);
    let gates = [0; 3].map(|_| runtime.events().user());
    let runs = gates.map(|gate| launch_with(&graph, &[gate.event()]));
    // It would never happen if runs did not overlap: the first one's tail has to wait for us.
    assert_eq!(runtime.wait(runs[1].posts[0]), Ok(()));
    assert!(!log.has(tail, 0));
    // Gates that open in reverse order let no run overtake on the tail.
    for gate in gates.into_iter().rev() {
        runtime.events().trigger(gate).expect("it is triggered once");
    }
    for run in &runs {
        assert_eq!(runtime.wait(run.finish), Ok(()));
    }
    assert!(log.place(tail, 0) < log.place(tail, 1) && log.place(tail, 1) < log.place(tail, 2));
    assert!(log.place(tail, 0) < log.place(head, 2), "at most two runs at a time");
}

#[test]
fn a_pipeline_of_depth_one_does_not_overlap() {
    let runtime = runtime(2);
    let log = Log::default();
    let (builder, head, tail) = head_and_tail(1);
    let graph = bind(&runtime, builder.finish().expect("a chain"), vec![log.body()]);
    let runs: Vec<_> = (0..100).map(|_| launch(&graph)).collect();
    for run in &runs {
        assert_eq!(runtime.wait(run.finish), Ok(()));
    }
    assert!((1..100).all(|run| log.place(tail, run - 1) < log.place(head, run)));
}

#[test]
fn a_carried_edge_holds_back_the_next_run() {
    let runtime = runtime(2);
    let log = Log::default();
    let (mut builder, head, tail) = head_and_tail(4);
    builder.carried(tail, head);
    let graph = bind(&runtime, builder.finish().expect("a chain"), vec![log.body()]);
    let runs: Vec<_> = (0..1000).map(|_| launch(&graph)).collect();
    for run in &runs {
        assert_eq!(runtime.wait(run.finish), Ok(()));
    }
    let expected: Vec<_> = (0..1000).flat_map(|run| [(head.index(), run), (tail.index(), run)]).collect();
    assert_eq!(*log.0.lock().expect("no thread panics with it"), expected);
}

#[test]
fn later_runs_wait_for_an_earlier_start() {
    let runtime = runtime(2);
    let log = Log::default();
    let (builder, head, tail) = head_and_tail(3);
    let graph = bind(&runtime, builder.finish().expect("a chain"), vec![log.body()]);
    for round in 0..100 {
        let start = runtime.events().user();
        let first =
            graph.launch(Launch { start: start.event(), ..Launch::default() }).expect("it takes launches");
        let others = [launch(&graph), launch(&graph), launch(&graph), launch(&graph)];
        assert!(!log.has(head, first.number), "round {round}");
        runtime.events().trigger(start).expect("it is triggered once");
        for run in others.iter().chain([&first]) {
            assert_eq!(runtime.wait(run.finish), Ok(()));
        }
        let places: Vec<_> = (first.number..=others[3].number).map(|run| log.place(head, run)).collect();
        assert!(places.is_sorted(), "round {round}: {places:?}");
        assert!(log.has(tail, others[3].number));
    }
}
