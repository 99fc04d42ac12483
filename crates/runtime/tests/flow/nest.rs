//! A nested flow is copied in, and its parts are found again.

use phalanx_runtime::flow::{
    Builder, Direct, Flow, Interpolation, Mode, Nested, OpId, Patch, Task, TaskKind,
};

use crate::declared::{Declared, op};
use crate::machine::execute;

fn nonblocking(builder: &mut Builder, name: &str) -> OpId {
    builder.task(Task { kind: TaskKind::NonBlocking, name, args: &[1; 8], ..Task::default() })
}

/// Two operations in order and one beside them, with everything that a flow can have.
fn inner() -> Builder {
    let mut inner = Builder::new("inner", 1);
    let (a, b) = (nonblocking(&mut inner, "a"), nonblocking(&mut inner, "b"));
    inner.direct(Direct { name: "c", ..Direct::default() });
    inner.edge(a, b);
    inner.mode(Mode::Pipelined { depth: 1 });
    inner.carried(b, a);
    let go = inner.input("go");
    inner.gate(go, b);
    inner.post("done", &[b]);
    inner.run_args(16);
    inner.interpolate(b, 0, 8..16, Patch::AddI64);
    inner
}

fn nested() -> (Flow, Nested, [OpId; 2]) {
    let mut outer = Builder::new("outer", 1);
    outer.mode(Mode::Pipelined { depth: 2 }).run_args(32);
    let first = nonblocking(&mut outer, "first");
    outer.input("unused");
    outer.post("early", &[first]);
    let nested = outer.nest(&inner(), 16);
    let last = nonblocking(&mut outer, "last");
    nested.roots().iter().for_each(|&root| outer.edge(first, root));
    nested.sinks().iter().for_each(|&sink| outer.edge(sink, last));
    (outer.finish().expect("both flows are sound"), nested, [first, last])
}

#[test]
fn ids_roots_and_sinks_are_told() {
    let (_, nested, [first, last]) = nested();
    assert_eq!([first, last], [op(0), op(4)]);
    assert_eq!([0, 1, 2].map(|at| nested.op(op(at))), [1, 2, 3].map(op));
    assert_eq!(nested.roots(), [1, 3].map(op));
    assert_eq!(nested.sinks(), [2, 3].map(op));
    let id = |text: &dyn ToString| text.to_string();
    let (mut other, some) = (Builder::new("other", 1), op(0));
    assert_eq!(id(&nested.input(other.input("first"))), "in1");
    assert_eq!(id(&nested.post(other.post("first", &[some]))), "post1");
}

#[test]
fn everything_is_copied_and_shifted() {
    let (flow, nested, _) = nested();
    let step = |op| flow.steps().iter().position(|step| step.op == op).unwrap() as u32;
    let (a, b) = (nested.op(op(0)), nested.op(op(1)));
    assert_eq!(flow.label(a), "inner/a");
    assert_eq!(flow.label(nested.op(op(2))), "inner/c");
    assert_eq!(flow.n_posts(), 2);
    assert_eq!(flow.posts().of(step(b)), [1]);
    let segment_of =
        |op| flow.segments().iter().position(|s| (s.first..s.end).contains(&step(op))).unwrap() as u32;
    assert!(flow.inputs().of(0).is_empty());
    assert_eq!(flow.inputs().of(1), [segment_of(b)]);
    assert!(flow.carried().of(step(b)).contains(&segment_of(a)));
    let to = flow.steps()[step(b) as usize].args.0;
    assert_eq!(flow.interpolations(), [Interpolation { from: 24, bytes: 8, to, patch: Patch::AddI64 }]);
}

#[test]
fn a_nested_flow_runs_between_what_it_is_ordered_between() {
    let (flow, ..) = nested();
    let nonblocking = |n| vec![(Some(0), TaskKind::NonBlocking); n];
    let mut declared = Declared::nonblocking(0, &[(0, 1), (0, 3), (1, 2), (2, 4), (3, 4)]);
    declared.ops = [nonblocking(3), vec![(None, TaskKind::NonBlocking)], nonblocking(1)].concat();
    declared.mode = Mode::Pipelined { depth: 2 };
    declared.carried = vec![(2, 1)];
    declared.n_inputs = 2;
    declared.gates = vec![(1, 2)];
    for seed in 0..100 {
        execute(&declared, &flow, &mut phalanx_testkit::Rng::new(seed), 4);
    }
}

#[test]
fn names_add_up_when_nested_twice() {
    let mut middle = Builder::new("middle", 1);
    let in_middle = middle.nest(&inner(), 0);
    let mut outer = Builder::new("outer", 1);
    outer.mode(Mode::Pipelined { depth: 1 }).run_args(16);
    let in_outer = outer.nest(&middle, 0);
    let again = outer.nest(&inner(), 0);
    let flow = outer.finish().unwrap();
    assert_eq!(flow.label(in_outer.op(in_middle.op(op(1)))), "middle/inner/b");
    assert_eq!(flow.label(again.op(op(1))), "inner/b");
}

#[test]
fn errors_inside_are_errors_outside() {
    let mut inner = inner();
    inner.edge(op(0), op(5));
    inner.task(Task { processor: 1, name: "far", ..Task::default() });
    let mut outer = Builder::new("outer", 1);
    // The wrong id of the inner flow would be a right one after shifting.
    let nested = outer.nest(&inner, 8);
    for _ in 0..10 {
        nonblocking(&mut outer, "more");
    }
    outer.edge(nested.op(op(4)), op(0));
    let errors: Vec<String> = outer.finish().unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        [
            "edge op0 `a` -> op5: flow `inner` has 3 operations and no op5; use ids that its own builder gave",
            "edge op4294967295 -> op0 `inner/a`: flow `outer` has 14 operations and no op4294967295; \
             use ids that its own builder gave",
            "carried edge op1 `inner/b` -> op0 `inner/a` in a flow of mode Ordered; \
             only Pipelined ones have them: set the mode or drop it",
            "op3 `inner/far` is on processor 1, but flow `outer` has 1, counted from 0; \
             place it on one of them or start the flow with more",
            "interpolation into op1 `inner/b` reads bytes 16..24 of the run's arguments, which have 0; \
             shift it or declare more with `run_args`",
        ]
    );
}
