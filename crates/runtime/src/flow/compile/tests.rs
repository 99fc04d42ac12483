//! The work of compiling, counted, and limits that no machine reaches.

use crate::flow::builder::{Builder, Task};
use crate::flow::{OpId, TaskKind};

use super::{check, declared, order, reduce};

/// A flow of `n` operations whose predecessors are given by number.
fn flow(n: u32, before: impl Fn(u32) -> Vec<u32>) -> Builder {
    let mut builder = Builder::new("work", 1);
    for to in 0..n {
        builder.task(Task { kind: TaskKind::NonBlocking, ..Task::default() });
        before(to).into_iter().for_each(|from| builder.edge(OpId(from), OpId(to)));
    }
    builder
}

fn chain(to: u32) -> Vec<u32> {
    to.checked_sub(1).into_iter().collect()
}

fn stencil(to: u32) -> Vec<u32> {
    (99..=101).filter_map(|back| to.checked_sub(back)).collect()
}

/// Three predecessors anywhere before, all over the place but always the same.
fn scattered(to: u32) -> Vec<u32> {
    (1..4).filter_map(|salt| (to + salt).wrapping_mul(2_654_435_761).checked_rem(to)).collect()
}

/// Predecessors of predecessors looked at, the only work that a fixed number of walks over the edges does not bound.
fn looked_at(n: u32, before: impl Fn(u32) -> Vec<u32>) -> usize {
    let builder = flow(n, before);
    let successors = declared(&builder);
    let order = order::topological(&successors).expect("edges lead forward");
    reduce::reduce(&builder.ops, &successors.transposed(&order, builder.ops.len())).looked_at
}

#[test]
fn work_grows_like_the_flow() {
    for n in [1_000, 10_000, 100_000] {
        assert_eq!(looked_at(n, chain), 0, "one predecessor implies nothing");
        // Three predecessors have three each, except in the first rows.
        assert!(looked_at(n, stencil).abs_diff(9 * n as usize) < 2000);
        assert!(looked_at(n, scattered) <= 10 * n as usize);
    }
}

/// Rows of eight, each reading its neighbors in the row before; two processors have four columns each and run row after
/// row.
#[test]
fn processors_in_a_fixed_order_wait_only_for_each_other() {
    const WIDTH: u32 = 8;
    let mut builder = Builder::new("rows", 2);
    let mut last = [None; 2];
    for to in 0..100 * WIDTH {
        let processor = to % WIDTH / 4;
        builder.task(Task { processor, kind: TaskKind::NonBlocking, ..Task::default() });
        let before = last[processor as usize].replace(to);
        let reads = (WIDTH - 1..=WIDTH + 1).filter_map(|back| to.checked_sub(back));
        let reads = reads.filter(|read| read / WIDTH + 1 == to / WIDTH);
        before.into_iter().chain(reads).for_each(|from| builder.edge(OpId(from), OpId(to)));
    }
    let flow = builder.finish().expect("edges lead forward");
    // The columns at the border, one a processor, wait for the other side in every row but the first.
    let waiting = |segment: &&crate::flow::Segment| segment.fan_in > 1;
    assert_eq!(flow.segments().iter().filter(waiting).count(), 2 * 99);
    assert!(flow.segments().len() <= 2 * 100, "what lies between is one segment");
    assert!(flow.segments().iter().all(|segment| segment.fan_in <= 2));
}

#[test]
fn work_is_bounded_where_everything_precedes_everything() {
    let (n, all) = (400, |to| (0..to).collect());
    assert!(looked_at(n, all) <= 64 * n as usize);
}

#[test]
fn things_beyond_the_limit_are_counted_and_refused() {
    let mut builder = flow(3, chain);
    builder.post("a", &[OpId(0), OpId(1), OpId(2)]);
    assert_eq!(check::sizes(&builder, 3), Ok(()));
    let errors = check::sizes(&builder, 2).expect_err("three operations are more than two");
    let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let end = "at most 2 can be numbered; split it into several flows";
    assert_eq!(
        messages,
        [
            format!("flow `work` has 3 operations, {end}"),
            format!("flow `work` has 3 carried edges, {end}"),
            format!("flow `work` has 3 posting operations, {end}"),
        ]
    );
}
