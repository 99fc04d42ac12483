//! What bodies promise: blocking ones may wait and launch, non-blocking ones that do so nevertheless get a fault, and
//! nothing hangs.

use std::sync::{Arc, OnceLock};

use phalanx_runtime::flow::Builder;
use phalanx_runtime::{Cause, Function, Graph, LaunchError, Options};

use crate::{Count, bind, blocking, function, launch, nonblocking, replay, runtime};

#[test]
fn a_general_task_waits_for_an_ordinary_one_on_its_own_processor() {
    let runtime = runtime(1);
    let only = runtime.processors().next().expect("there is one");
    let after = Count::default();
    let mut builder = Builder::new("waits", 1);
    let waits = blocking(&mut builder, 0, 0);
    let follows = nonblocking(&mut builder, 0, 1);
    builder.edge(waits, follows);
    let weak = runtime.clone();
    let body = function(move |context| {
        let (event, events) = (weak.events().user(), Arc::clone(weak.events()));
        weak.spawn(only, Options::default(), move |_| events.trigger(event).expect("it is triggered once"));
        assert_eq!(context.wait(event.event()), Ok(()));
    });
    let graph = bind(&runtime, builder.finish().expect("a chain"), vec![body, after.body()]);
    for _ in 0..200 {
        assert_eq!(replay(&runtime, &graph), Ok(()));
    }
    assert_eq!(after.get(), 200);
}

#[test]
fn a_task_launches_a_graph_on_its_only_processor_and_waits_a_thousand_times() {
    let runtime = runtime(1);
    let only = runtime.processors().next().expect("there is one");
    let count = Count::default();
    let mut builder = Builder::new("inner", 1);
    let first = nonblocking(&mut builder, 0, 0);
    let second = blocking(&mut builder, 0, 0);
    let third = nonblocking(&mut builder, 0, 0);
    builder.edge(first, second);
    builder.edge(second, third);
    let graph = bind(&runtime, builder.finish().expect("a chain"), vec![count.body()]);
    let task = runtime.spawn(only, Options::default(), move |context| {
        for _ in 0..1000 {
            assert_eq!(context.wait(launch(&graph).finish), Ok(()));
        }
    });
    assert_eq!(runtime.wait(task.finish()), Ok(()));
    assert_eq!(count.get(), 3000);
}

#[test]
fn a_general_task_of_a_graph_launches_another_and_waits() {
    let runtime = runtime(1);
    let count = Count::default();
    let mut builder = Builder::new("inner", 1);
    nonblocking(&mut builder, 0, 0);
    let inner = bind(&runtime, builder.finish().expect("one operation"), vec![count.body()]);
    let mut builder = Builder::new("outer", 1);
    blocking(&mut builder, 0, 0);
    let body = function(move |context| assert_eq!(context.wait(launch(&inner).finish), Ok(())));
    let outer = bind(&runtime, builder.finish().expect("one operation"), vec![body]);
    for _ in 0..200 {
        assert_eq!(replay(&runtime, &outer), Ok(()));
    }
    assert_eq!(count.get(), 200);
}

/// Replays a non-blocking task with the given body, between non-blocking tasks that behave; the fault, and how many of
/// the others ran.
fn misbehaves(body: impl Fn(&phalanx_runtime::Runtime) -> Function) {
    let runtime = runtime(1);
    let (before, after, aside) = (Count::default(), Count::default(), Count::default());
    let mut builder = Builder::new("flow", 1);
    let first = nonblocking(&mut builder, 0, 0);
    let second = nonblocking(&mut builder, 0, 1);
    let third = nonblocking(&mut builder, 0, 2);
    builder.edge(first, second);
    builder.edge(second, third);
    nonblocking(&mut builder, 0, 3);
    let functions = vec![before.body(), body(&runtime), after.body(), aside.body()];
    let graph = bind(&runtime, builder.finish().expect("a chain and one more"), functions);
    let mut builder = Builder::new("other", 1);
    nonblocking(&mut builder, 0, 0);
    let others = Count::default();
    let other = bind(&runtime, builder.finish().expect("one operation"), vec![others.body()]);
    for round in 1..=20 {
        let fault = replay(&runtime, &graph).expect_err("its second operation breaks its promise");
        assert_eq!(fault.operation(), "nonblocking (op1 of flow)");
        assert!(matches!(fault.cause(), Cause::BrokenPromise(_)), "{fault}");
        assert_eq!((before.get(), after.get(), aside.get()), (round, 0, round));
        assert_eq!(replay(&runtime, &other), Ok(()));
        assert_eq!(others.get(), round);
    }
}

#[test]
fn a_nonblocking_task_that_waits_is_told_and_named() {
    misbehaves(|runtime| {
        let never = runtime.events().user().event();
        function(move |context| {
            let told = context.wait(never).expect_err("it promised not to");
            assert!(matches!(told.cause(), Cause::BrokenPromise(_)), "{told}");
        })
    });
}

#[test]
fn a_nonblocking_task_that_completes_later_is_told_and_named() {
    misbehaves(|runtime| {
        let never = runtime.events().user().event();
        function(move |context| context.finish_after(never))
    });
}

#[test]
fn a_nonblocking_task_that_spawns_is_told_and_named() {
    misbehaves(|runtime| {
        let (runtime, spawned) = (runtime.clone(), Count::default());
        let only = runtime.processors().next().expect("there is one");
        function(move |context| {
            let ran = spawned.clone();
            let task = runtime.spawn(only, Options::default(), move |_| {
                ran.add();
            });
            let told = context.wait(task.finish()).expect_err("the task never runs");
            assert!(matches!(told.cause(), Cause::BrokenPromise(_)), "{told}");
            assert_eq!(spawned.get(), 0);
        })
    });
}

#[test]
fn a_nonblocking_task_that_launches_is_told_and_named() {
    misbehaves(|runtime| {
        let inner: OnceLock<Graph> = OnceLock::new();
        let runtime = runtime.clone();
        function(move |_| {
            let empty = || bind(&runtime, Builder::new("inner", 1).finish().expect("it is empty"), vec![]);
            let refused =
                inner.get_or_init(empty).launch(Default::default()).expect_err("it promised not to");
            assert_eq!(refused, LaunchError::BrokenPromise("inner".into()));
        })
    });
}

#[test]
fn a_nonblocking_task_may_look_at_what_has_happened() {
    let runtime = runtime(1);
    let done = runtime.events().user();
    runtime.events().trigger(done).expect("it is triggered once");
    let mut builder = Builder::new("looks", 1);
    nonblocking(&mut builder, 0, 0);
    let body = function(move |context| assert_eq!(context.wait(done.event()), Ok(())));
    let graph = bind(&runtime, builder.finish().expect("one operation"), vec![body]);
    assert_eq!(replay(&runtime, &graph), Ok(()));
}
