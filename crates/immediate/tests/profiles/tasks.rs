//! Tasks: one report each, before they finish.

use std::sync::mpsc::channel;

use phalanx_runtime::{Cause, Fault, Options, Profile, Report};

use super::{P0, P1, profile, runtime};

#[test]
fn a_task_that_completes_is_reported_once_before_it_finishes() {
    let (runtime, (profile, reports)) = (runtime(2, counting_clock!()), profile());
    let options = Options { name: "watched", profile: Some(&profile), ..Options::default() };
    let task = runtime.spawn(P1, options, |_| {});
    runtime.wait(task.finish()).expect("it does not fail");
    let expected = Report {
        name: "watched".into(),
        created: 1,
        ready: Some(2),
        started: Some(3),
        ended: Some(4),
        completed: 5,
        waits: vec![],
        processor: Some(1),
        bytes: None,
        outcome: Ok(()),
    };
    assert_eq!(reports.try_iter().collect::<Vec<_>>(), [expected]);
    drop((runtime, profile, task));
    assert_eq!(reports.recv().ok(), None, "no second report");
}

#[test]
fn waits_are_intervals_and_attached_events_delay_completion() {
    let (runtime, (profile, reports)) = (runtime(1, counting_clock!()), profile());
    let [start, first, second, attached] = [(); 4].map(|()| runtime.events().user());
    let (tell, told) = channel();
    let options = Options { after: start.event(), profile: Some(&profile), ..Options::default() };
    let task = runtime.spawn(P0, options, move |context| {
        for event in [first, second] {
            tell.send(()).expect("the test listens");
            context.wait(event.event()).expect("it does not fail");
        }
        context.wait(first.event()).expect("it has triggered, so this is no wait");
        context.finish_after(attached.event());
    });
    runtime.events().trigger(start).expect("once");
    for event in [first, second] {
        told.recv().expect("the task runs");
        // What runs on the processor now runs because the task waits.
        let meanwhile = runtime.spawn(P0, Options::default(), |_| {});
        runtime.wait(meanwhile.finish()).expect("it does not fail");
        runtime.events().trigger(event).expect("once");
    }
    let after = runtime.spawn(P0, Options { priority: -1, ..Options::default() }, |_| {});
    runtime.wait(after.finish()).expect("it does not fail");
    assert_eq!(reports.try_iter().count(), 0, "it is not complete");
    runtime.events().trigger(attached).expect("once");
    runtime.wait(task.finish()).expect("it does not fail");
    let report = reports.try_recv().expect("it is complete");
    assert_eq!((report.created, report.ready, report.started), (1, Some(2), Some(3)));
    assert_eq!(report.waits, [4..5, 6..7]);
    assert_eq!((report.ended, report.completed), (Some(8), 9));
}

#[test]
fn a_task_that_never_ran_is_reported_without_times_of_running() {
    let (runtime, (profile, reports)) = (runtime(1, counting_clock!()), profile());
    let [never, poisoned] = [(); 2].map(|()| runtime.events().user());
    let options = Options { name: "unlucky", profile: Some(&profile), ..Options::default() };
    let cancelled = runtime.spawn(P0, Options { after: never.event(), ..options }, |_| {});
    assert!(cancelled.cancel());
    runtime.spawn(P0, Options { after: poisoned.event(), ..options }, |_| {});
    runtime.events().cancel(poisoned, "what it came after").expect("once");
    let report = |created, completed, fault| Report {
        name: "unlucky".into(),
        created,
        ready: None,
        started: None,
        ended: None,
        completed,
        waits: vec![],
        processor: None,
        bytes: None,
        outcome: Err(fault),
    };
    let expected = [
        report(1, 2, Fault::new("unlucky", Cause::Cancelled)),
        report(3, 4, Fault::new("what it came after", Cause::Cancelled)),
    ];
    assert_eq!(reports.try_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn only_abnormal_ones_are_reported_if_so_asked() {
    let (profile, reports) = profile();
    let profile = profile.only_abnormal();
    let runtime = runtime(1, || 0);
    let options = Options { profile: Some(&profile), ..Options::default() };
    let tasks = [
        runtime.spawn(P0, Options { name: "fine", ..options }, |_| {}),
        runtime.spawn(P0, Options { name: "failing", ..options }, |context| context.fail("on purpose")),
        runtime.spawn(P0, Options { name: "panicking", ..options }, |_| panic!("on purpose")),
    ];
    // Some of them fail: what counts is that they are over.
    tasks.iter().for_each(|task| drop(runtime.wait(task.finish())));
    let reported: Vec<_> = reports.try_iter().map(|report| (report.name, report.outcome)).collect();
    let failed = |name: &str| (name.into(), Err(Fault::failed(name, "on purpose")));
    assert_eq!(reported, [failed("failing"), failed("panicking")]);
}

#[test]
fn many_tasks_are_reported_once_each_with_ordered_times() {
    let (runtime, (profile, reports)) = (runtime(2, counting_clock!()), profile());
    let group = runtime.group(&[P0, P1]).expect("it has members");
    let names: Vec<_> = (0..1000).map(|number| number.to_string()).collect();
    let mut last = Default::default();
    for name in &names {
        let options = Options { name, after: last, profile: Some(&profile), ..Options::default() };
        last = runtime.spawn_any(&group, options, |_| {}).finish();
    }
    runtime.wait(last).expect("no task fails");
    let reports: Vec<_> = reports.try_iter().collect();
    assert_eq!(reports.iter().map(|report| &*report.name).collect::<Vec<_>>(), names);
    for report in reports {
        let times =
            [Some(report.created), report.ready, report.started, report.ended, Some(report.completed)];
        assert!(times.is_sorted() && times.iter().all(Option::is_some), "{report:?}");
    }
}

#[test]
fn a_sink_that_panics_keeps_nothing_from_finishing() {
    let profile = Profile::new(|_| panic!("on purpose"));
    let runtime = runtime(1, || 0);
    let task = runtime.spawn(P0, Options { profile: Some(&profile), ..Options::default() }, |_| {});
    assert_eq!(runtime.wait(task.finish()), Ok(()));
}

#[test]
fn a_task_that_never_becomes_ready_is_reported_when_the_runtime_forgets_it() {
    let (runtime, (profile, reports)) = (runtime(1, counting_clock!()), profile());
    let options = Options { name: "waiting", profile: Some(&profile), ..Options::default() };
    let never = runtime.events().user();
    runtime.spawn(P0, Options { after: never.event(), ..options }, |_| {});
    assert_eq!(reports.try_iter().count(), 0, "it may still become ready");
    drop((runtime, profile));
    let report = reports.recv().expect("it will not");
    assert_eq!((report.created, report.ready, report.completed), (1, None, 2));
    let fault = report.outcome.expect_err("it did not run");
    assert!(fault.to_string().starts_with("waiting: forgotten"), "{fault}");
    assert_eq!(reports.recv().ok(), None, "no second report");
}
