//! Traces, checked event by event against the rules of the trace event format and of Perfetto's reader.

use std::collections::{BTreeMap, BTreeSet};

use phalanx::internals::timeline::{Timeline, TimelineReport, trace};
use serde_json::Value;

use super::example::{self, HOSTILE};

/// A process and one of its threads.
type Thread = (u64, u64);

/// What a valid trace contains.
#[derive(Default)]
struct Contents {
    processes: BTreeMap<u64, String>,
    threads: BTreeMap<Thread, String>,
    /// By thread: start, end and name, in nanoseconds and in the file's order.
    slices: BTreeMap<Thread, Vec<(u64, u64, String)>>,
    /// By flow: where and when it starts and ends.
    starts: BTreeMap<u64, (Thread, u64)>,
    ends: BTreeMap<u64, (Thread, u64)>,
    counters: usize,
}

fn written(report: &TimelineReport) -> Value {
    let mut bytes = Vec::new();
    trace::write(report, &mut bytes).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// Reads a trace and checks every rule.
fn check(trace: &Value) -> Contents {
    assert!(["ms", "ns"].contains(&text(trace, "displayTimeUnit")));
    let mut contents = Contents::default();
    for event in trace["traceEvents"].as_array().unwrap() {
        match text(event, "ph") {
            "M" => metadata(event, &mut contents),
            "X" => slice(event, &mut contents),
            "s" => drop(contents.starts.insert(flow(event), (thread(event), nanos(event, "ts")))),
            "f" => {
                assert_eq!(event["bp"], "e", "{event}");
                contents.ends.insert(flow(event), (thread(event), nanos(event, "ts")));
            }
            "C" => {
                assert!(contents.processes.contains_key(&number(event, "pid")), "{event}");
                nanos(event, "ts");
                assert!(event["args"].as_object().unwrap().values().all(Value::is_number), "{event}");
                contents.counters += 1;
            }
            other => panic!("unknown phase {other}: {event}"),
        }
    }
    check_threads(&contents);
    check_flows(&contents);
    contents
}

fn text<'a>(event: &'a Value, key: &str) -> &'a str {
    event[key].as_str().unwrap_or_else(|| panic!("no text `{key}` in {event}"))
}

fn number(event: &Value, key: &str) -> u64 {
    event[key].as_u64().unwrap_or_else(|| panic!("no number `{key}` in {event}"))
}

fn thread(event: &Value) -> Thread {
    (number(event, "pid"), number(event, "tid"))
}

/// A time, which is in microseconds, as Perfetto reads it: rounded to nanoseconds. Nothing may be lost by that.
fn nanos(event: &Value, key: &str) -> u64 {
    let micros = event[key].as_f64().unwrap_or_else(|| panic!("no time `{key}` in {event}"));
    let nanos = (micros * 1000.0).round();
    assert!(nanos >= 0.0 && (nanos / 1000.0 - micros).abs() < 1e-9 * micros.max(1.0), "{event}");
    nanos as u64
}

fn metadata(event: &Value, contents: &mut Contents) {
    let pid = number(event, "pid");
    assert_ne!(pid, 0, "Perfetto takes process 0 for the kernel: {event}");
    match text(event, "name") {
        "process_name" => {
            let known = contents.processes.insert(pid, text(&event["args"], "name").to_string());
            assert_eq!(known, None, "{event}");
        }
        "thread_name" => {
            let known = contents.threads.insert(thread(event), text(&event["args"], "name").to_string());
            assert_eq!(known, None, "{event}");
        }
        "process_sort_index" => drop(number(&event["args"], "sort_index")),
        "thread_sort_index" => drop((thread(event), number(&event["args"], "sort_index"))),
        other => panic!("unknown metadata {other}: {event}"),
    }
}

fn slice(event: &Value, contents: &mut Contents) {
    let (start, duration) = (nanos(event, "ts"), nanos(event, "dur"));
    assert!(!text(event, "cat").is_empty() && event["args"].is_object(), "{event}");
    let slices = contents.slices.entry(thread(event)).or_default();
    slices.push((start, start + duration, text(event, "name").to_string()));
}

/// The number of a flow. Viewers join events of the same number, category and name.
fn flow(event: &Value) -> u64 {
    assert_eq!((text(event, "cat"), text(event, "name")), ("movement", "movement"));
    number(event, "id")
}

/// Threads have names and numbers of their own, and slices that neither overlap nor go back in time.
fn check_threads(contents: &Contents) {
    let mut numbers: BTreeSet<u64> = contents.processes.keys().copied().collect();
    for &(pid, tid) in contents.threads.keys() {
        assert!(contents.processes.contains_key(&pid), "thread {tid} of no process");
        assert!(numbers.insert(tid), "number {tid} given twice");
    }
    for (thread, slices) in &contents.slices {
        assert!(contents.threads.contains_key(thread), "{thread:?} has no name");
        for pair in slices.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "slices overlap: {pair:?}");
        }
    }
}

/// Every flow starts and ends once, forward in time, and inside a slice on each side.
fn check_flows(contents: &Contents) {
    let numbers = |sides: &BTreeMap<u64, (Thread, u64)>| sides.keys().copied().collect::<Vec<_>>();
    assert_eq!(numbers(&contents.starts), numbers(&contents.ends));
    for (flow, &(thread, at)) in &contents.starts {
        let (end_thread, end) = contents.ends[flow];
        assert!(at <= end && thread.0 != end_thread.0, "flow {flow}");
        for (thread, at) in [(thread, at), (end_thread, end)] {
            let around = |slice: &&(u64, u64, String)| slice.0 <= at && at <= slice.1;
            assert!(
                contents.slices[&thread].iter().any(|slice| around(&slice)),
                "flow {flow} binds to nothing"
            );
        }
    }
}

#[test]
fn the_example_keeps_every_rule() {
    let report = example::report(12);
    let contents = check(&written(&report));
    let names: Vec<&str> = contents.processes.values().map(String::as_str).collect();
    let groups =
        ["predicted", "measured"].map(|name| [0, 1, 2, 3].map(|device| format!("{name} dev{device}")));
    assert_eq!(names[..8], *groups.concat());
    assert_eq!(names[8..], ["memory"]);
    let spans = report.timelines.iter().flat_map(|timeline| &timeline.lanes).map(|lane| lane.spans.len());
    assert_eq!(contents.slices.values().map(Vec::len).sum::<usize>(), spans.sum::<usize>());
    // A gather and a reduction for each of twelve layers, received on four devices, twice.
    assert_eq!(contents.starts.len(), 2 * 12 * 4 * 2);
    assert_eq!(contents.counters, report.memory.iter().map(|curve| curve.points.len()).sum::<usize>());
}

#[test]
fn times_names_and_verdicts_arrive_unchanged() {
    let report = example::report(2);
    let trace = written(&report);
    assert_eq!(trace["otherData"]["title"], "GPT-2 small, one training step");
    assert_eq!(trace["otherData"]["before"]["step"], report.before.step);
    let events = trace["traceEvents"].as_array().unwrap();
    let sent = events.iter().find(|event| event["cat"] == "receive").unwrap();
    let lane = &report.timelines[0].lanes[1];
    let span = &lane.spans[1];
    assert_eq!((nanos(sent, "ts"), nanos(sent, "dur")), (span.start, span.end - span.start));
    assert_eq!(sent["args"]["movement"], 0);
    assert_eq!(sent["args"]["bytes"], 1900 * 9_000);
    assert_eq!(sent["args"]["limit"], "nothing left");
    assert!(events.iter().any(|event| event["args"]["layer"] == HOSTILE));
}

#[test]
fn spans_that_overlap_get_threads_of_their_own() {
    let mut report = example::report(1);
    let lane = &mut report.timelines[0].lanes[1];
    let mut late = lane.spans[1].clone();
    late.start += 1;
    late.end += 1;
    lane.spans.push(late);
    let contents = check(&written(&report));
    let names: Vec<&str> = contents.threads.values().map(String::as_str).take(3).collect();
    assert_eq!(names, ["compute", "transfers", "transfers 2"]);
}

#[test]
fn a_report_of_nothing_is_a_trace() {
    let empty = Timeline { name: "predicted".to_string(), lanes: Vec::new() };
    for timelines in [vec![], vec![empty]] {
        let contents = check(&written(&TimelineReport { timelines, ..TimelineReport::default() }));
        assert!(contents.processes.is_empty());
    }
}
