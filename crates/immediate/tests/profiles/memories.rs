//! Copies and instances: one report each, before their events trigger.

use std::sync::Arc;

use phalanx_immediate::{
    CopyKind, CopyPlan, Element, External, Instance, Layout, MAX_INLINE_COPY, Memories, Memory, Rect,
};
use phalanx_runtime::{Event, Fault, Profile, Report};

use super::{profile, runtime};

/// A copy between two instances of `bytes` bytes that are not profiled.
fn copy_of(memories: &Memories, bytes: usize) -> (Arc<CopyPlan>, [Instance; 2]) {
    let memory = memories.memory("system", 4 * bytes as u64);
    let [from, to] = [(); 2].map(|()| memory.allocate(bytes as u64, 1, Event::NONE).unwrap().0);
    let plan = memories.plan(CopyKind::Copy(from.clone()), *from.rect(), &to).unwrap();
    (Arc::new(plan), [from, to])
}

/// The report of a copy that was done.
fn copied(name: &str, bytes: usize, [created, ready, started, ended, completed]: [u64; 5]) -> Report {
    let (ready, started, ended) = (Some(ready), Some(started), Some(ended));
    let (processor, waits) = (None, vec![]);
    let (name, bytes, outcome) = (name.into(), Some(bytes), Ok(()));
    Report { name, created, ready, started, ended, completed, waits, processor, bytes, outcome }
}

/// The report of an instance of 256 bytes that was ready.
fn held(name: &str, [created, ready, completed]: [u64; 3]) -> Report {
    Report { started: None, ended: None, ..copied(name, 256, [created, ready, 0, 0, completed]) }
}

fn block(memory: &Memory, after: Event) -> (Instance, Event) {
    memory.allocate(256, 64, after).unwrap()
}

#[test]
fn copies_are_reported_before_their_events_trigger_small_or_large_at_once_or_later() {
    let (runtime, (profile, reports)) = (runtime(1, counting_clock!()), profile());
    let (silent, events) = (Memories::of(&runtime), runtime.events());
    let memories = silent.profiled(&profile);
    let (small, [_, small_to]) = copy_of(&silent, 100);
    let (large, [_, large_to]) = copy_of(&silent, MAX_INLINE_COPY + 1);
    let [of_small, of_large] = [&small_to, &large_to].map(|to| to.id());
    let mut ticks = 0;
    for (number, plan, to) in [(0, &small, of_small), (1, &large, of_large)] {
        let name = format!("copy c{number} into {to}");
        for later in [false, true] {
            let start = events.user();
            let done = memories.copy(plan, if later { start.event() } else { Event::NONE });
            if later {
                assert_eq!(reports.try_recv().ok(), None, "it has not started");
                events.trigger(start).unwrap();
            }
            runtime.wait(done).unwrap();
            let times = [1, 2, 3, 4, 5].map(|tick| ticks + tick);
            assert_eq!(reports.try_iter().collect::<Vec<_>>(), [copied(&name, plan.bytes(), times)]);
            ticks += 5;
        }
    }
    runtime.wait(silent.copy(&small, Event::NONE)).unwrap();
    assert_eq!(reports.try_iter().count(), 0, "this one is not profiled");
}

#[test]
fn copies_that_cannot_be_done_are_reported_with_why() {
    let (runtime, (profile, reports)) = (runtime(1, counting_clock!()), profile());
    let (silent, events) = (Memories::of(&runtime), runtime.events());
    let memories = silent.profiled(&profile.only_abnormal());
    let (plan, [_, to]) = copy_of(&silent, 100);
    assert_eq!(memories.copy(&plan, Event::NONE), Event::NONE, "done, and so not reported");
    let poisoned = events.user();
    memories.copy(&plan, poisoned.event());
    events.cancel(poisoned, "before").unwrap();
    memories.copy(&plan, poisoned.event());
    memories.release(to.id(), Event::NONE).unwrap();
    let refused = runtime.wait(memories.copy(&plan, Event::NONE)).unwrap_err();
    let found: Vec<_> = reports
        .try_iter()
        .map(|report| (report.created, report.started, report.completed, report.outcome.unwrap_err()))
        .collect();
    // The copy that is done takes five ticks, those that are not started two.
    let before = events.outcome(poisoned.event()).unwrap().unwrap_err();
    assert_eq!(found, [(6, None, 7, before.clone()), (8, None, 9, before), (10, Some(12), 14, refused)]);
}

#[test]
fn instances_are_reported_when_they_have_given_their_bytes_to_the_next() {
    let (runtime, (profile, reports)) = (runtime(1, counting_clock!()), profile());
    let (memories, events) = (Memories::of(&runtime), runtime.events());
    let memory = memories.memory("system", 256).profiled(&profile);
    let (first, ready) = block(&memory, Event::NONE);
    assert_eq!(ready, Event::NONE);
    let release = events.user();
    memories.release(first.id(), release.event()).unwrap();
    let (second, ready) = block(&memory, Event::NONE);
    assert_eq!(reports.try_iter().count(), 0, "the release is yet to come");
    events.trigger(release).unwrap();
    runtime.wait(ready).unwrap();
    assert_eq!(reports.try_iter().collect::<Vec<_>>(), [held("i0.1", [1, 2, 4])]);
    let during = second.read(|_| {
        memories.release(second.id(), Event::NONE).unwrap();
        reports.try_iter().count()
    });
    assert_eq!(during, Ok(0), "it is in use");
    assert_eq!(reports.try_iter().collect::<Vec<_>>(), [held("i1.1", [3, 5, 6])]);
}

#[test]
fn an_instance_that_is_refused_is_reported_before_it_is_poisoned() {
    let (runtime, (profile, reports)) = (runtime(1, counting_clock!()), profile());
    let (memories, events) = (Memories::of(&runtime), runtime.events());
    let memory = memories.memory("system", 256).profiled(&profile.only_abnormal());
    let poisoned = events.user();
    let mut refused = vec![];
    refused.push(memory.allocate(257, 1, Event::NONE).unwrap().1);
    refused.push(block(&memory, poisoned.event()).1);
    events.cancel(poisoned, "before").unwrap();
    let (early, ready) = block(&memory, events.user().event());
    refused.push(ready);
    memories.release(early.id(), Event::NONE).unwrap();
    let (fine, _) = block(&memory, Event::NONE);
    memories.release(fine.id(), Event::NONE).unwrap();
    let expected: Vec<Fault> =
        refused.iter().map(|&ready| events.outcome(ready).unwrap().unwrap_err()).collect();
    let reports: Vec<_> = reports.try_iter().collect();
    assert_eq!(
        reports.iter().map(|report| report.outcome.clone().unwrap_err()).collect::<Vec<_>>(),
        expected
    );
    let times = |report: &Report| (report.created, report.ready, report.completed);
    assert_eq!(reports.iter().map(times).collect::<Vec<_>>(), [(1, None, 2), (3, None, 4), (5, None, 6)]);
}

#[test]
fn bytes_of_the_caller_are_ready_at_once_and_what_is_never_released_goes_with_its_memories() {
    let (profile, reports) = profile();
    let runtime = runtime(1, counting_clock!());
    let silent = Memories::of(&runtime);
    let memories = silent.profiled(&profile);
    let bytes = || External::writable(vec![0; 256].into());
    let layout = || Layout::row_major(Element::Bytes(1), Rect::new(&[0], &[255]).unwrap()).unwrap();
    let released = memories.attach(&bytes(), layout()).unwrap();
    memories.release(released.id(), Event::NONE).unwrap();
    assert_eq!(reports.try_iter().collect::<Vec<_>>(), [held("i0.1", [1, 2, 3])]);
    let kept = block(&memories.memory("system", 256), Event::NONE).0;
    drop((memories, kept, released));
    assert_eq!(reports.try_iter().count(), 0, "another handle still has it");
    drop(silent);
    assert_eq!(reports.try_iter().collect::<Vec<_>>(), [held("i0.2", [4, 5, 6])]);
}

#[test]
fn a_sink_may_ask_the_memory_it_hears_of() {
    let memories = Memories::new();
    let memory = memories.memory("system", 256);
    let (send, free) = std::sync::mpsc::channel();
    let asked = memory.clone();
    let profile = Profile::new(move |report| send.send((report.completed, asked.free())).unwrap());
    let (instance, _) = block(&memory.profiled(&profile), Event::NONE);
    memory.profiled(&profile).allocate(1, 1, Event::NONE).unwrap();
    memories.release(instance.id(), Event::NONE).unwrap();
    assert_eq!(free.try_iter().collect::<Vec<_>>(), [(0, 0), (0, 256)], "without a runtime it is always 0");
}
