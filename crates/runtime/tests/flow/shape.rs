//! What flows look like: segments, edges that are left, order across runs, arguments.

use phalanx_runtime::flow::{Builder, DIRECT, Flow, Interpolation, Mode, Patch, Task, TaskKind};

use crate::checker::check;
use crate::declared::{Declared, op};

fn checked(declared: &Declared) -> Flow {
    let flow = declared.flow();
    check(declared, &flow);
    flow
}

fn chain(n: usize) -> Declared {
    Declared::nonblocking(n, &(1..n).map(|at| (at - 1, at)).collect::<Vec<_>>())
}

fn lengths(flow: &Flow) -> Vec<u32> {
    flow.segments().iter().map(|segment| segment.end - segment.first).collect()
}

fn edges(flow: &Flow) -> usize {
    flow.early().items().len() + flow.late().items().len()
}

#[test]
fn an_empty_flow_is_a_flow() {
    let flow = Builder::new("empty", 3).finish().unwrap();
    assert_eq!((flow.steps().len(), flow.segments().len(), flow.functions()), (0, 0, 0));
    assert_eq!([0, 1, 2, 3].map(|owner| flow.owned(owner)), [0..0, 0..0, 0..0, 0..0]);
}

#[test]
fn a_chain_of_leaves_is_cut_every_64_steps() {
    let n = 150;
    let flow = chain(n).flow();
    assert_eq!(lengths(&flow), [64, 64, 22]);
    assert_eq!(edges(&flow), 2);
    assert_eq!(flow.roots(), [0]);
    assert!(flow.segments().iter().all(|segment| segment.private && segment.fan_in == 1));
}

#[test]
fn without_fusing_every_operation_is_a_segment() {
    let declared = Declared { fuse: false, ..chain(10) };
    let flow = checked(&declared);
    assert_eq!(lengths(&flow), [1; 10]);
    assert_eq!(edges(&flow), 9);
}

#[test]
fn only_nonblocking_tasks_of_the_same_processor_are_followed() {
    let mut declared = chain(8);
    declared.processors = 2;
    declared.ops[2].1 = TaskKind::Blocking;
    declared.ops[4].1 = TaskKind::Async;
    declared.ops[6].0 = Some(1);
    declared.ops[7].0 = None;
    let flow = checked(&declared);
    // 0 1 2 | 3 4 | 5 on processor 0, 6 on processor 1, 7 direct.
    assert_eq!(lengths(&flow), [3, 2, 1, 1, 1]);
    assert_eq!(flow.late().items(), [2]);
    let private: Vec<bool> = flow.segments().iter().map(|segment| segment.private).collect();
    assert_eq!(private, [true, false, false, false, false]);
}

#[test]
fn a_nonblocking_task_has_one_follower_and_frees_others_at_once() {
    let declared = Declared::nonblocking(4, &[(0, 1), (0, 2), (1, 3)]);
    let flow = checked(&declared);
    assert_eq!(lengths(&flow), [3, 1]);
    // The first step releases the second segment while its own segment goes on.
    assert_eq!(flow.early().of(0), [1]);
    assert_eq!(edges(&flow), 1);
}

#[test]
fn inputs_and_carried_edges_start_a_segment() {
    let mut declared = chain(5);
    declared.mode = Mode::Pipelined { depth: 2 };
    declared.n_inputs = 1;
    declared.gates = vec![(0, 2), (0, 2)];
    declared.carried = vec![(4, 3)];
    let flow = checked(&declared);
    assert_eq!(lengths(&flow), [2, 1, 2]);
    assert_eq!(flow.segments().iter().map(|segment| segment.fan_in).collect::<Vec<_>>(), [1, 2, 1]);
}

#[test]
fn shortcuts_of_a_chain_are_dropped() {
    let n = 60;
    let pairs: Vec<_> = (0..n).flat_map(|to| (to.max(8) - 8..to).map(move |from| (from, to))).collect();
    let mut declared = Declared { fuse: false, ..Declared::nonblocking(n, &pairs) };
    assert_eq!(edges(&checked(&declared)), n - 1);
    declared.reduce = false;
    assert_eq!(edges(&checked(&declared)), pairs.len());
    declared.reduce = true;
    declared.fuse = true;
    assert_eq!(lengths(&checked(&declared)), [n as u32]);
}

#[test]
fn declaring_an_edge_twice_changes_nothing() {
    let once = Declared { fuse: false, reduce: false, ..chain(5) };
    let mut twice = once.clone();
    twice.edges.extend_from_slice(&once.edges);
    assert_eq!(once.flow(), twice.flow());
}

/// An ordered producer, something between, and a reader that waits for the producer's effects.
fn producer_to_reader(middle: TaskKind) -> Flow {
    let mut declared = Declared::nonblocking(3, &[(0, 1), (1, 2), (0, 2)]);
    declared.ops =
        [TaskKind::StreamOrdered, middle, TaskKind::NonBlocking].map(|kind| (Some(0), kind)).to_vec();
    checked(&declared)
}

#[test]
fn a_token_does_not_replace_waiting_for_effects() {
    let flow = producer_to_reader(TaskKind::StreamOrdered);
    assert_eq!(flow.early().of(0), [1]);
    assert_eq!(flow.tokens().of(1), [0]);
    assert_eq!(flow.late().of(0), [2]);
    let flow = producer_to_reader(TaskKind::Async);
    assert_eq!(flow.late().of(0), [1]);
    assert!(flow.tokens().items().is_empty());
}

#[test]
fn tokens_are_for_ordered_tasks_of_one_processor() {
    let mut declared = Declared { processors: 2, ..chain(4) };
    declared.ops = [Some(0), Some(0), Some(1), Some(1)].map(|at| (at, TaskKind::StreamOrdered)).to_vec();
    let flow = checked(&declared);
    assert_eq!([0, 1, 2, 3].map(|step| flow.tokens().of(step).to_vec()), [vec![], vec![0], vec![], vec![2]]);
    assert_eq!(flow.late().of(1), [2]);
}

/// Carried arrivals of all segments.
fn carried_in(declared: &Declared) -> Vec<u32> {
    checked(declared).segments().iter().map(|segment| segment.carried_in).collect()
}

#[test]
fn segments_of_a_pipeline_follow_themselves() {
    let mut declared = Declared::nonblocking(4, &[(0, 1), (2, 3)]);
    declared.mode = Mode::Pipelined { depth: 2 };
    declared.ops[3].0 = None;
    assert_eq!(carried_in(&declared), [1, 1, 1]);
    declared.mode = Mode::Concurrent;
    assert_eq!(carried_in(&declared), [0, 0, 0]);
}

#[test]
fn a_closed_chain_of_segments_needs_one_carried_edge() {
    let mut declared = Declared { fuse: false, ..chain(5) };
    declared.mode = Mode::Pipelined { depth: 2 };
    declared.carried = vec![(4, 0)];
    assert_eq!(carried_in(&declared), [1, 0, 0, 0, 0]);
    declared.ops[2].1 = TaskKind::Async;
    assert_eq!(carried_in(&declared), [1, 0, 0, 0, 0]);
    // Not closed at the very end, not a chain, or held together by a token only.
    assert_eq!(carried_in(&Declared { carried: vec![(3, 0)], ..declared.clone() }), [2, 1, 1, 1, 1]);
    let gap = declared.edges.iter().copied().filter(|edge| edge.0 != 2).collect();
    assert_eq!(carried_in(&Declared { edges: gap, ..declared.clone() }).iter().sum::<u32>(), 6);
    declared.ops[1].1 = TaskKind::StreamOrdered;
    declared.ops[2].1 = TaskKind::StreamOrdered;
    assert_eq!(carried_in(&declared), [2, 1, 1, 1, 1]);
}

#[test]
fn a_chain_that_leaves_a_segment_early_does_not_order_its_end() {
    // Segments 0 1 and 2; the carried edge comes after 2, which does not wait for 1.
    let mut declared = Declared::nonblocking(3, &[(0, 1), (0, 2)]);
    declared.mode = Mode::Pipelined { depth: 2 };
    declared.carried = vec![(2, 0)];
    assert_eq!(carried_in(&declared), [2, 1]);
}

#[test]
fn a_private_segment_hears_only_its_own_worker() {
    let mut declared = Declared { fuse: false, ..chain(2) };
    let private = |declared: &Declared| checked(declared).segments()[1].private;
    assert!(private(&declared));
    declared.ops = vec![(Some(0), TaskKind::StreamOrdered); 2];
    assert!(private(&declared), "a token's successor is released by the worker");
    declared.mode = Mode::Pipelined { depth: 2 };
    assert!(!private(&declared), "its own effects of the run before complete elsewhere");
    declared.ops = vec![(Some(0), TaskKind::NonBlocking); 2];
    assert!(private(&declared));
    declared.ops[0].1 = TaskKind::Blocking;
    assert!(!private(&declared), "what a blocking task attaches completes elsewhere");
}

#[test]
fn a_remote_operation_stands_alone_and_frees_its_successors_late() {
    // A lane's chain with a remote operation in its middle, closed from each run to the next.
    let mut declared = Declared { mode: Mode::Pipelined { depth: 2 }, ..chain(5) };
    declared.ops[2] = (None, TaskKind::Remote);
    declared.carried.push((4, 0));
    let flow = checked(&declared);
    // 0 1 | 3 4 on the processor, 2 on none.
    assert_eq!(lengths(&flow), [2, 2, 1]);
    assert_eq!(flow.segments().iter().map(|segment| segment.processor).collect::<Vec<_>>(), [0, 0, DIRECT]);
    assert_eq!((flow.early().of(1), flow.late().of(4)), (&[2][..], &[1][..]));
    let carried: Vec<_> = (0..5).map(|step| flow.carried().of(step).to_vec()).collect();
    assert_eq!(carried, [vec![], vec![0], vec![], vec![0, 1], vec![2]]);
    assert_eq!(
        flow.segments().iter().map(|segment| segment.private).collect::<Vec<_>>(),
        [true, false, false]
    );
}

#[test]
fn arguments_lie_in_the_order_of_steps() {
    let mut builder = Builder::new("args", 2);
    let bytes: [&[u8]; 3] = [&[1; 3], &[], &[2; 2048]];
    for (at, args) in bytes.into_iter().enumerate() {
        builder.task(Task {
            processor: 1 - at as u32 / 2,
            kind: TaskKind::NonBlocking,
            args,
            ..Task::default()
        });
    }
    builder.run_args(2048);
    builder.interpolate(op(0), 1, 3..5, Patch::Overwrite);
    builder.interpolate(op(2), 0, 0..2048, Patch::Overwrite);
    builder.interpolate(op(2), 2040, 1..9, Patch::AddF64);
    builder.interpolate(op(2), 2047, 4..5, Patch::Overwrite);
    let flow = builder.finish().unwrap();
    assert_eq!(flow.args(), [vec![2; 2048], vec![1; 3]].concat());
    assert_eq!(
        flow.steps().iter().map(|step| step.args).collect::<Vec<_>>(),
        [(0, 2048), (2048, 2051), (2051, 2051)]
    );
    let found = |from, bytes, to, patch| Interpolation { from, bytes, to, patch };
    assert_eq!(
        flow.interpolations(),
        [
            found(3, 2, 2049, Patch::Overwrite),
            found(0, 2048, 0, Patch::Overwrite),
            found(1, 8, 2040, Patch::AddF64),
            found(4, 1, 2047, Patch::Overwrite),
        ]
    );
    assert_eq!(flow.run_args(), 2048);
}
