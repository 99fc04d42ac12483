//! Copies and arrivals at barriers as operations of graphs.
#![allow(clippy::unwrap_used)]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::mpsc;

use phalanx_immediate::{
    Barrier, Barriers, CopyError, CopyKind, Element, Initial, Instance, Layout, Memories, Memory, Rebound,
    Rect, Reduction, SharedPlan,
};
use phalanx_runtime::flow::{Builder, Direct, Flow, Mode, OpId, Patch, Task, TaskKind};
use phalanx_runtime::{Config, Event, Function, Graph, Launch, Outcome, Runtime};

fn runtime() -> Runtime {
    Runtime::new(Config::new(2, 0))
}

fn barriers(runtime: &Runtime) -> Arc<Barriers> {
    Arc::new(Barriers::new(runtime.events()))
}

/// The points from `lo` to `hi` of a line.
fn line(lo: i64, hi: i64) -> Rect {
    Rect::new(&[lo], &[hi]).unwrap()
}

/// Integers of a line, all of the same value.
fn integers(memory: &Memory, rect: Rect, value: i64) -> Instance {
    let (instance, ready) = memory.create(Layout::row_major(Element::I64, rect).unwrap(), Event::NONE);
    assert_eq!(ready, Event::NONE);
    set(&instance, value);
    instance
}

fn set(instance: &Instance, value: i64) {
    let write =
        |bytes: &mut [u8]| bytes.chunks_mut(8).for_each(|at| at.copy_from_slice(&value.to_ne_bytes()));
    instance.write(write).unwrap();
}

fn values(instance: &Instance) -> Vec<i64> {
    let number = |bytes: &[u8]| i64::from_ne_bytes(bytes.try_into().unwrap());
    instance.read(|bytes| bytes.chunks(8).map(number).collect()).unwrap()
}

fn plan(memories: &Memories, kind: CopyKind, rect: Rect, to: &Instance) -> SharedPlan {
    SharedPlan::new(memories.plan(kind, rect, to).unwrap())
}

fn fill(value: i64) -> CopyKind {
    CopyKind::Fill(value.to_ne_bytes().into())
}

fn nonblocking(builder: &mut Builder, processor: u32, function: u32) -> OpId {
    builder.task(Task { processor, function, kind: TaskKind::NonBlocking, name: "move", ..Task::default() })
}

fn bind(runtime: &Runtime, flow: Flow, functions: Vec<Function>) -> Graph {
    let processors: Vec<_> = runtime.processors().collect();
    runtime.graph(flow, functions, &processors).unwrap()
}

fn replay(runtime: &Runtime, graph: &Graph) -> Outcome {
    runtime.wait(graph.launch(Launch::default()).unwrap().finish)
}

/// A graph of one copy.
fn single(runtime: &Runtime, plan: &SharedPlan) -> Graph {
    let mut builder = Builder::new("single", 1);
    nonblocking(&mut builder, 0, 0);
    bind(runtime, builder.finish().unwrap(), vec![plan.function()])
}

#[test]
fn fills_a_sum_and_a_partial_copy_need_only_the_order_they_state() {
    let runtime = runtime();
    let memories = Memories::of(&runtime);
    let memory = memories.memory("host", 1 << 16);
    let whole = line(0, 99);
    let [a, b, sum, to] = [0; 4].map(|value| integers(&memory, whole, value));
    let add = CopyKind::Reduce {
        op: Reduction::Sum,
        start: Initial::FirstSource,
        sources: vec![a.clone(), b.clone()],
    };
    let functions = [
        plan(&memories, fill(3), whole, &a),
        plan(&memories, fill(4), whole, &b),
        plan(&memories, add, whole, &sum),
        plan(&memories, CopyKind::Copy(sum.clone()), line(20, 59), &to),
        plan(&memories, fill(-1), line(60, 79), &to),
    ];
    let mut builder = Builder::new("sum", 2);
    let ops: Vec<_> = (0..5).map(|function| nonblocking(&mut builder, function % 2, function)).collect();
    // The last fill writes to the destination of the copy, to other elements, and nothing orders the two.
    [(0, 2), (1, 2), (2, 3)].iter().for_each(|&(from, to)| builder.edge(ops[from], ops[to]));
    let graph = bind(&runtime, builder.finish().unwrap(), functions.map(|plan| plan.function()).into());
    let expected = [vec![0; 20], vec![7; 40], vec![-1; 20], vec![0; 20]].concat();
    for round in 0..500 {
        [&a, &b, &sum, &to].iter().for_each(|instance| set(instance, 0));
        assert_eq!(replay(&runtime, &graph), Ok(()), "round {round}");
        assert_eq!(values(&to), expected, "round {round}");
    }
}

#[test]
fn a_copy_whose_instance_is_replaced_between_runs_fails_by_name_until_it_is_bound_again() {
    let runtime = runtime();
    let memories = Memories::of(&runtime);
    let memory = memories.memory("host", 16 * 8);
    let from = integers(&memory, line(0, 3), 5);
    let old = integers(&memory, line(0, 7), 0);
    let plan = plan(&memories, CopyKind::Copy(from.clone()), line(0, 3), &old);
    let graph = single(&runtime, &plan);
    assert_eq!(replay(&runtime, &graph), Ok(()));
    assert_eq!(values(&old), [5, 5, 5, 5, 0, 0, 0, 0]);

    memories.release(old.id(), Event::NONE).unwrap();
    let intruder = integers(&memory, line(0, 7), 9);
    let fault = replay(&runtime, &graph).unwrap_err().to_string();
    let gone = format!(
        "move (op0 of single): failed: {plan}: {} has been released; name the instance that took its place",
        old.id()
    );
    assert_eq!(fault, gone);
    assert_eq!(values(&intruder), [9; 8], "the bytes of the released instance belong to another one");

    assert_eq!(plan.rebind(old.id(), &intruder), Ok(Rebound::Rebased));
    assert_eq!(replay(&runtime, &graph), Ok(()));
    assert_eq!(values(&intruder), [5, 5, 5, 5, 9, 9, 9, 9]);

    memories.release(intruder.id(), Event::NONE).unwrap();
    let shifted = integers(&memory, line(-4, 3), 1);
    assert_eq!(plan.rebind(intruder.id(), &shifted), Ok(Rebound::Replanned));
    assert_eq!(replay(&runtime, &graph), Ok(()));
    assert_eq!(values(&shifted), [1, 1, 1, 1, 5, 5, 5, 5]);

    let bytes = memory.allocate(8, 8, Event::NONE).unwrap().0;
    assert!(matches!(plan.rebind(shifted.id(), &bytes), Err(CopyError::Elements { .. })));
    set(&from, 6);
    assert_eq!(replay(&runtime, &graph), Ok(()), "a refused instance leaves the plan as it was");
    assert_eq!(values(&shifted), [1, 1, 1, 1, 6, 6, 6, 6]);
}

#[test]
fn a_copy_that_nothing_orders_after_its_rival_fails_by_name_and_the_next_run_is_clean() {
    let runtime = runtime();
    let memories = Memories::of(&runtime);
    let memory = memories.memory("host", 1024);
    let to = integers(&memory, line(0, 3), 0);
    let plan = plan(&memories, fill(2), line(0, 3), &to);
    let graph = single(&runtime, &plan);
    let fault = to.write(|_| replay(&runtime, &graph).unwrap_err().to_string()).unwrap();
    let expected = format!(
        "move (op0 of single): failed: {plan}: writes {} while the host writes it; order one after the other by an event",
        to.id()
    );
    assert_eq!(fault, expected);
    assert_eq!((replay(&runtime, &graph), values(&to)), (Ok(()), vec![2; 4]));
}

/// What arrivals add to the value of each run.
const DECLARED: i64 = 100;

/// A copy, then a nested flow that arrives twice at the barrier that the run names, with the run's value added to the
/// declared one and, the second time, in its place.
fn copy_and_arrive() -> Flow {
    let declared = Barriers::args(Barrier::NONE, DECLARED);
    let mut inner = Builder::new("inner", 2);
    for (processor, patch) in [(0, Patch::AddI64), (1, Patch::Overwrite)] {
        let arrival =
            Task { processor, function: 1, kind: TaskKind::NonBlocking, name: "arrive", args: &declared };
        let arrival = inner.task(arrival);
        inner.interpolate(arrival, Barriers::HANDLE_AT, 0..16, Patch::Overwrite);
        inner.interpolate(arrival, Barriers::VALUE_AT, 16..24, patch);
    }
    let mut outer = Builder::new("outer", 2);
    outer.mode(Mode::Ordered).run_args(24);
    let copy = nonblocking(&mut outer, 0, 0);
    let nested = outer.nest(&inner, 0);
    nested.roots().iter().for_each(|&root| outer.edge(copy, root));
    outer.finish().unwrap()
}

#[test]
fn runs_arrive_at_the_barrier_and_with_the_value_that_their_launch_gives() {
    let runtime = runtime();
    let barriers = barriers(&runtime);
    let memories = Memories::of(&runtime);
    let memory = memories.memory("host", 1024);
    let [from, to] = [7, 0].map(|value| integers(&memory, line(0, 3), value));
    let copy = plan(&memories, CopyKind::Copy(from), line(0, 3), &to);
    let graph = bind(&runtime, copy_and_arrive(), vec![copy.function(), barriers.function()]);
    // Two arrivals of each of two runs.
    let mut barrier = barriers.create(NonZeroU32::new(4).unwrap());
    for generation in 0..50_i64 {
        let pair = [generation, -3 * generation];
        let finishes = pair.map(|value| {
            let args = [&barrier.to_bytes()[..], &value.to_ne_bytes()].concat();
            graph.launch(Launch { args: &args, ..Launch::default() }).unwrap().finish
        });
        assert_eq!(runtime.wait(barriers.event(barrier).unwrap()), Ok(()));
        assert_eq!(barriers.result(barrier), Ok(2 * DECLARED + 2 * pair.iter().sum::<i64>()));
        finishes.iter().for_each(|&finish| assert_eq!(runtime.wait(finish), Ok(())));
        barrier = barrier.advance();
    }
    assert_eq!(values(&to), [7; 4]);
}

#[test]
fn who_waits_for_an_arrival_of_a_nonblocking_task_may_launch() {
    let runtime = runtime();
    let barriers = barriers(&runtime);
    let barrier = barriers.create(NonZeroU32::MIN);
    let args = Barriers::args(barrier, 1);
    let mut builder = Builder::new("arrival", 1);
    builder.task(Task {
        function: 0,
        kind: TaskKind::NonBlocking,
        name: "arrive",
        args: &args,
        ..Task::default()
    });
    let first = bind(&runtime, builder.finish().unwrap(), vec![barriers.function()]);
    let mut builder = Builder::new("behind", 1);
    builder.direct(Direct { name: "nothing", ..Direct::default() });
    let behind = bind(&runtime, builder.finish().unwrap(), vec![Box::new(|_| {})]);
    let (send, launched) = mpsc::channel();
    runtime.events().subscribe(barriers.event(barrier).unwrap(), move |_| {
        send.send(behind.launch(Launch::default()).map(|run| run.finish)).unwrap();
    });
    assert_eq!(replay(&runtime, &first), Ok(()));
    assert_eq!(runtime.wait(launched.recv().unwrap().unwrap()), Ok(()));
    let again = replay(&runtime, &first).unwrap_err().to_string();
    assert!(
        again.starts_with(&format!("arrive (op0 of arrival): failed: {barrier} has triggered")),
        "{again}"
    );
}

#[test]
fn arguments_that_are_no_arrival_fail_by_name() {
    let runtime = runtime();
    let fault = |args: &[u8]| {
        let mut builder = Builder::new("arrival", 1);
        builder.task(Task {
            function: 0,
            kind: TaskKind::NonBlocking,
            name: "arrive",
            args,
            ..Task::default()
        });
        let graph = bind(&runtime, builder.finish().unwrap(), vec![barriers(&runtime).function()]);
        replay(&runtime, &graph).unwrap_err().to_string()
    };
    let unknown = "arrive (op0 of arrival): failed: barrier4294967295.4294967295 does not exist or has been destroyed; \
                   create one first";
    assert_eq!(fault(&[0xff; 24]), unknown);
    for bytes in [0, 15, 23, 25] {
        let short = format!(
            "arrive (op0 of arrival): failed: {bytes} bytes of arguments for an arrival; use `Barriers::args`"
        );
        assert_eq!(fault(&vec![0; bytes]), short);
    }
}
