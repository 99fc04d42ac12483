//! Runs of graphs and the operations in them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use phalanx_immediate::{Software, SoftwareConfig};
use phalanx_runtime::flow::{Builder, Direct, Flow, Mode, OpId, Task, TaskKind};
use phalanx_runtime::{
    Context, Device, Event, Function, Graph, Launch, Options, Profile, Report, Run, Runtime, Span,
};

use super::{P0, P1, profile, runtime};

/// What a test keeps of a span: the operation, its name, the run, the processor, and when.
type Seen = (OpId, String, u64, u32, [u64; 2]);

/// The same request, and where its spans arrive.
fn with_spans(profile: Profile) -> (Profile, Receiver<Seen>) {
    let (send, spans) = channel();
    let sink = move |Span { graph, name, op, run, processor, started, ended }: Span<'_>| {
        assert_eq!(graph, "watched");
        send.send((op, name.to_string(), run, processor, [started, ended])).expect("the test listens");
    };
    (profile.with_spans(sink), spans)
}

fn add(flow: &mut Builder, processor: u32, kind: TaskKind, name: &str) -> OpId {
    flow.task(Task { processor, kind, name, ..Task::default() })
}

/// Two non-blocking tasks, one after the other.
fn pair(mode: Mode) -> Flow {
    let mut flow = Builder::new("watched", 1);
    flow.mode(mode);
    let [first, second] = ["first", "second"].map(|name| add(&mut flow, 0, TaskKind::NonBlocking, name));
    flow.edge(first, second);
    flow.finish().unwrap()
}

fn bind(runtime: &Runtime, flow: Flow, body: impl Fn(&Context<'_>) + Send + Sync + 'static) -> Graph {
    let processors: Vec<_> = runtime.processors().collect();
    let body: Function = Box::new(body);
    runtime.graph(flow, vec![body], &processors).unwrap()
}

fn launch(graph: &Graph, start: Event, profile: Option<&Profile>) -> Run {
    graph.launch(Launch { start, profile, ..Launch::default() }).unwrap()
}

/// What a report says of a run.
fn times(report: &Report) -> (&str, u64, Option<u64>, u64) {
    (&report.name, report.created, report.started, report.completed)
}

#[test]
fn a_run_is_reported_once_before_it_finishes_and_each_operation_before_that() {
    let (runtime, (profile, reports)) = (runtime(1, counting_clock!()), profile());
    let (profile, spans) = with_spans(profile);
    let graph = bind(&runtime, pair(Mode::Ordered), |_| {});
    let ops: Vec<OpId> = graph.flow().steps().iter().map(|step| step.op).collect();
    let start = runtime.events().user();
    // The second waits in line with its request until the first is over; the third is not profiled.
    let asked = [Some(&profile), Some(&profile), None];
    let runs = asked.map(|profile| launch(&graph, start.event(), profile));
    runtime.events().trigger(start).unwrap();
    runtime.wait(runs[2].finish).unwrap();
    let seen = |op: usize, name: &str, run, times| (ops[op], name.to_string(), run, 0, times);
    let expected = [
        seen(0, "first", 0, [4, 5]),
        seen(1, "second", 0, [6, 7]),
        seen(0, "first", 1, [10, 11]),
        seen(1, "second", 1, [12, 13]),
    ];
    assert_eq!(spans.try_iter().collect::<Vec<_>>(), expected);
    let told: Vec<_> = reports.try_iter().collect();
    let expected = [("run 0 of watched", 1, Some(3), 8), ("run 1 of watched", 2, Some(9), 14)];
    assert_eq!(told.iter().map(times).collect::<Vec<_>>(), expected);
    assert!(told.iter().all(|report| report.outcome == Ok(()) && report.bytes.is_none()));
    drop((runtime, graph, profile));
    assert_eq!((reports.recv().ok(), spans.recv().ok()), (None, None), "nothing comes twice");
}

#[test]
fn only_runs_that_fail_are_reported_if_so_asked_and_skipped_operations_have_no_span() {
    let (runtime, (profile, reports)) = (runtime(1, counting_clock!()), profile());
    let (profile, spans) = with_spans(profile.only_abnormal());
    let fails = |context: &Context<'_>| {
        if context.run() == 1 {
            panic!("on purpose");
        }
    };
    let graph = bind(&runtime, pair(Mode::Concurrent), fails);
    let poisoned = runtime.events().user();
    let outcomes = [Event::NONE, Event::NONE, poisoned.event()].map(|start| {
        let run = launch(&graph, start, Some(&profile));
        if start != Event::NONE {
            runtime.events().cancel(poisoned, "before").unwrap();
        }
        runtime.wait(run.finish)
    });
    let told: Vec<_> = reports.try_iter().collect();
    // Five ticks more for the first run; the second has one operation, the third none and no start.
    let expected = [("run 1 of watched", 8, Some(9), 12), ("run 2 of watched", 13, None, 14)];
    assert_eq!(told.iter().map(times).collect::<Vec<_>>(), expected);
    assert_eq!(told.into_iter().map(|report| report.outcome).collect::<Vec<_>>(), outcomes[1..]);
    let seen: Vec<_> = spans.try_iter().map(|(_, name, run, ..)| (name, run)).collect();
    let expected = [("first", 0), ("second", 0), ("first", 1)];
    assert_eq!(seen, expected.map(|(name, run)| (name.to_string(), run)));
}

#[test]
fn operations_of_every_kind_have_a_span_with_their_processor() {
    let (runtime, (profile, reports)) = (runtime(2, counting_clock!()), profile());
    let (profile, spans) = with_spans(profile);
    let device = Software::new(SoftwareConfig::default());
    assert!(runtime.attach(P1, device as Arc<dyn Device>, 8));
    let mut flow = Builder::new("watched", 2);
    flow.mode(Mode::Pipelined { depth: 2 });
    let kinds = [
        (0, TaskKind::NonBlocking, "nonblocking"),
        (0, TaskKind::Blocking, "blocking"),
        (1, TaskKind::StreamOrdered, "ordered"),
        (1, TaskKind::Async, "opaque"),
    ];
    let mut ops: Vec<_> = kinds.map(|(processor, kind, name)| add(&mut flow, processor, kind, name)).into();
    ops.push(flow.direct(Direct { name: "direct", ..Direct::default() }));
    ops.windows(2).for_each(|pair| flow.edge(pair[0], pair[1]));
    let graph = bind(&runtime, flow.finish().unwrap(), |_| {});
    let runs: Vec<_> = (0..100).map(|_| launch(&graph, Event::NONE, Some(&profile)).finish).collect();
    runtime.wait(runtime.events().merge(&runs)).unwrap();
    let (mut reports, spans): (Vec<_>, Vec<_>) = (reports.try_iter().collect(), spans.try_iter().collect());
    reports.sort_by_key(|report| report.created);
    assert_eq!((reports.len(), spans.len()), (100, 500));
    for (number, report) in (0..).zip(&reports) {
        assert_eq!(*report.name, format!("run {number} of watched"));
        let of_run: Vec<_> = spans.iter().filter(|span| span.2 == number).collect();
        assert_eq!(of_run.iter().map(|span| span.0).collect::<Vec<_>>(), ops);
        assert_eq!(of_run[4].1, "direct");
        for (&(processor, _, name), span) in kinds.iter().zip(&of_run) {
            assert_eq!((&*span.1, span.3), (name, processor));
        }
        let mut all = vec![report.created, report.started.unwrap()];
        all.extend(of_run.iter().flat_map(|span| span.4));
        all.push(report.completed);
        assert!(all.is_sorted_by(|a, b| a < b), "{all:?}");
    }
}

#[test]
fn sinks_that_panic_or_do_what_nonblocking_tasks_must_not_keep_nothing_from_finishing() {
    let runtime = runtime(1, || 0);
    let (send, tasks) = channel();
    let spawner = runtime.clone();
    let profile = Profile::new(|_| panic!("on purpose")).with_spans(move |_| {
        send.send(spawner.spawn(P0, Options::default(), |_| {}).finish()).unwrap();
        panic!("on purpose");
    });
    let graph = bind(&runtime, pair(Mode::Ordered), |_| {});
    assert_eq!(runtime.wait(launch(&graph, Event::NONE, Some(&profile)).finish), Ok(()));
    let tasks: Vec<_> = tasks.try_iter().collect();
    assert_eq!(tasks.len(), 2);
    assert_eq!(runtime.wait(runtime.events().merge(&tasks)), Ok(()));
}
