//! Memories from outside: deferred allocation, releases in any order, cancelled ones, numbers used again.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use phalanx_immediate::{AccessError, Element, Instance, Layout, Memories, Memory, Rect, ReleaseError};
use phalanx_runtime::{Cause, Event, Events, Outcome};

/// A unit of the memories here.
const UNIT: u64 = 256;

fn memories(units: u64) -> (Memories, Memory, Arc<Events>) {
    let memories = Memories::new();
    let memory = memories.memory("system", units * UNIT);
    let events = Arc::clone(memories.events());
    (memories, memory, events)
}

fn unit(memory: &Memory, after: Event) -> (Instance, Event) {
    memory.allocate(UNIT, 64, after).unwrap()
}

/// Whether the instance has bytes that can be written.
fn is_usable(instance: &Instance) -> bool {
    instance.write(|bytes| bytes.fill(7)).is_ok()
}

fn refusal(outcome: Option<Outcome>) -> String {
    match outcome {
        Some(Err(fault)) => {
            assert!(matches!(fault.cause(), Cause::Refused(_)), "{fault}");
            fault.to_string()
        }
        other => panic!("{other:?} is no refusal"),
    }
}

#[test]
fn the_fourth_unit_of_three_fails_at_once() {
    let (_memories, memory, events) = memories(3);
    let held: Vec<_> = (0..3).map(|_| unit(&memory, Event::NONE)).collect();
    assert!(held.iter().all(|(instance, ready)| *ready == Event::NONE && is_usable(instance)));
    assert_eq!(memory.free(), 0);
    let (instance, ready) = unit(&memory, events.user().event());
    assert_eq!(
        refusal(events.outcome(ready)),
        "allocation of i3.1: memory system has 0 of 768 bytes free and no releases to come that make room for 256; \
         release instances first"
    );
    assert_eq!(instance.write(|_| ()), Err(AccessError::Released(instance.id())));
}

#[test]
fn an_allocation_waits_for_an_accepted_release_and_a_further_one_fails() {
    let (memories, memory, events) = memories(1);
    let (first, _) = unit(&memory, Event::NONE);
    let goes = events.user();
    memories.release(first.id(), goes.event()).unwrap();
    let (second, ready) = unit(&memory, Event::NONE);
    assert_eq!(events.outcome(ready), None);
    assert_eq!(second.write(|_| ()), Err(AccessError::NotReady(second.id())));
    let (_, failed) = unit(&memory, Event::NONE);
    assert!(refusal(events.outcome(failed)).contains("memory system has 0 of 256 bytes free"));
    assert!(is_usable(&first), "until its release happens");
    events.trigger(goes).unwrap();
    assert_eq!(events.outcome(ready), Some(Ok(())));
    assert!(is_usable(&second) && !is_usable(&first) && first.is_released());
}

#[test]
fn an_allocation_of_two_releases_is_ready_after_the_second_in_either_order() {
    for opposite in [false, true] {
        let (memories, memory, events) = memories(2);
        let both = [unit(&memory, Event::NONE).0, unit(&memory, Event::NONE).0];
        let mut go = [events.user(), events.user()];
        for (instance, go) in both.iter().zip(go) {
            memories.release(instance.id(), go.event()).unwrap();
        }
        let (wide, ready) = memory.allocate(2 * UNIT, 64, Event::NONE).unwrap();
        if opposite {
            go.reverse();
        }
        events.trigger(go[0]).unwrap();
        assert_eq!(events.outcome(ready), None);
        events.trigger(go[1]).unwrap();
        assert_eq!((events.outcome(ready), is_usable(&wide)), (Some(Ok(())), true));
    }
}

#[test]
fn what_fits_now_passes_those_who_wait() {
    let (memories, memory, events) = memories(4);
    let (first, _) = memory.allocate(3 * UNIT, 64, Event::NONE).unwrap();
    let goes = events.user();
    memories.release(first.id(), goes.event()).unwrap();
    let (waiting, ready) = memory.allocate(3 * UNIT, 64, Event::NONE).unwrap();
    let (small, now) = unit(&memory, Event::NONE);
    assert_eq!((now, is_usable(&small)), (Event::NONE, true));
    assert_eq!(events.outcome(ready), None);
    events.trigger(goes).unwrap();
    assert_eq!((events.outcome(ready), is_usable(&waiting)), (Some(Ok(())), true));
}

#[test]
fn an_instance_is_ready_after_its_precondition_and_fails_with_it() {
    let (_memories, memory, events) = memories(1);
    let start = events.user();
    let (first, ready) = unit(&memory, start.event());
    assert_eq!((events.outcome(ready), memory.free()), (None, 0), "its bytes are kept for it");
    assert_eq!(first.read(|_| ()), Err(AccessError::NotReady(first.id())));
    events.cancel(start, "start").unwrap();
    let outcome = events.outcome(ready);
    assert!(matches!(&outcome, Some(Err(fault)) if fault.operation() == "start"), "{outcome:?}");
    assert_eq!(memory.free(), UNIT, "and given to others if it fails");
    assert!(is_usable(&unit(&memory, Event::NONE).0));
}

#[test]
fn a_cancelled_release_leaves_the_instance_and_fails_who_relied_on_it() {
    let (memories, memory, events) = memories(1);
    let (first, _) = unit(&memory, Event::NONE);
    first.write(|bytes| bytes.fill(42)).unwrap();
    let goes = events.user();
    memories.release(first.id(), goes.event()).unwrap();
    assert_eq!(memories.release(first.id(), Event::NONE), Err(ReleaseError::Twice(first.id())));
    let (second, ready) = unit(&memory, Event::NONE);
    // A further one relies on the second, which will not come about either.
    memories.release(second.id(), ready).unwrap();
    let (_, further) = unit(&memory, Event::NONE);
    events.cancel(goes, "somebody").unwrap();
    assert!(
        refusal(events.outcome(ready)).starts_with("allocation of i1.1: memory system has 0 of 256 bytes")
    );
    assert!(
        refusal(events.outcome(further)).starts_with("allocation of i2.1: memory system has 0 of 256 bytes")
    );
    assert_eq!(first.read(|bytes| bytes.to_vec()), Ok(vec![42; UNIT as usize]));
    memories.release(first.id(), Event::NONE).unwrap();
    assert_eq!(memory.free(), UNIT, "it may be released again");
}

#[test]
fn who_relied_on_a_cancelled_release_moves_to_other_space() {
    let (memories, memory, events) = memories(2);
    let both = [unit(&memory, Event::NONE).0, unit(&memory, Event::NONE).0];
    let go = [events.user(), events.user()];
    for (instance, go) in both.iter().zip(go) {
        memories.release(instance.id(), go.event()).unwrap();
    }
    let (moved, ready) = unit(&memory, Event::NONE);
    events.cancel(go[0], "somebody").unwrap();
    assert_eq!(events.outcome(ready), None);
    events.trigger(go[1]).unwrap();
    assert_eq!((events.outcome(ready), is_usable(&moved)), (Some(Ok(())), true));
    assert!(is_usable(&both[0]));
}

#[test]
fn chains_of_create_use_and_destroy_complete_once_the_blocker_goes() {
    for units in [1, 4, 5] {
        let (memories, memory, events) = memories(units);
        let (blocker, _) = memory.allocate(units * UNIT, 64, Event::NONE).unwrap();
        let goes = events.user();
        memories.release(blocker.id(), goes.event()).unwrap();
        let used = Arc::new(AtomicUsize::new(0));
        let mut last = [Event::NONE; 4];
        for link in 0..10 {
            for last in &mut last {
                let (instance, ready) = unit(&memory, *last);
                let done = events.user();
                let (seen, signal, count) = (instance.clone(), Arc::clone(&events), Arc::clone(&used));
                events.subscribe(ready, move |outcome| {
                    assert_eq!((outcome, is_usable(&seen)), (&Ok(()), true), "link {link}");
                    count.fetch_add(1, Ordering::Relaxed);
                    signal.trigger(done).unwrap();
                });
                memories.release(instance.id(), done.event()).unwrap();
                *last = done.event();
            }
        }
        assert_eq!(used.load(Ordering::Relaxed), 0);
        events.trigger(goes).unwrap();
        assert_eq!((used.load(Ordering::Relaxed), memory.free()), (40, units * UNIT), "{units} units");
    }
}

#[test]
fn numbers_are_used_again_and_old_names_find_nothing() {
    let (memories, memory, _) = memories(8);
    let mut held = Vec::new();
    let mut old = Vec::new();
    for cycle in 0..5000_i64 {
        let rect = Rect::sized(&[cycle], &[1 + cycle as u64 % 8]).unwrap();
        let layout = Layout::row_major(Element::I32, rect).unwrap();
        let (instance, ready) = memory.create(layout, Event::NONE);
        assert_eq!(ready, Event::NONE);
        assert_eq!(memories.instance(instance.id()).unwrap().rect(), &rect, "the bounds of this owner");
        held.push(instance);
        if held.len() == 5 {
            let instance = held.swap_remove(cycle as usize % 5);
            memories.release(instance.id(), Event::NONE).unwrap();
            old.push(instance);
        }
    }
    assert_eq!(memories.ids_used(), 5);
    for instance in &old {
        assert!(instance.is_released());
        let stale = memories.instance(instance.id()).unwrap_err();
        assert_eq!(
            stale.to_string(),
            format!("{} has been released; name the instance that took its place", instance.id())
        );
        assert_eq!(memories.release(instance.id(), Event::NONE), Err(ReleaseError::Stale(stale)));
        assert_eq!(instance.read(|_| ()), Err(AccessError::Released(instance.id())));
    }
}

#[test]
fn a_release_that_meets_a_reader_waits_for_it() {
    let (memories, memory, events) = memories(1);
    let (first, _) = unit(&memory, Event::NONE);
    let ready = first.read(|_| {
        memories.release(first.id(), Event::NONE).unwrap();
        let (second, ready) = unit(&memory, Event::NONE);
        assert_eq!((events.outcome(ready), is_usable(&second)), (None, false));
        assert!(first.is_released(), "no other user gets in");
        ready
    });
    assert_eq!(events.outcome(ready.unwrap()), Some(Ok(())));
}

#[test]
fn an_instance_released_before_it_is_ready_never_is() {
    let (memories, memory, events) = memories(1);
    let (first, _) = unit(&memory, Event::NONE);
    let goes = events.user();
    memories.release(first.id(), goes.event()).unwrap();
    let (second, ready) = unit(&memory, Event::NONE);
    memories.release(second.id(), Event::NONE).unwrap();
    assert_eq!(
        refusal(events.outcome(ready)),
        "allocation of i1.1: released before it was ready; release it after its ready event"
    );
    events.trigger(goes).unwrap();
    assert_eq!((memory.free(), memories.ids_used()), (UNIT, 2));
}

#[test]
fn nothing_fits_a_full_memory_and_too_much_fits_none() {
    let (_memories, memory, events) = memories(1);
    let _all = unit(&memory, Event::NONE);
    let (empty, ready) = memory.allocate(0, 64, Event::NONE).unwrap();
    assert_eq!((ready, empty.read(|bytes| bytes.len())), (Event::NONE, Ok(0)));
    let (_, failed) = memory.allocate(i64::MAX as u64, 64, Event::NONE).unwrap();
    assert!(refusal(events.outcome(failed)).contains("make room for 9223372036854775807"));
}

#[test]
fn threads_that_create_and_release_leave_the_memory_as_it_was() {
    let (memories, memory, events) = memories(4);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let (memories, memory, events) = (&memories, &memory, &events);
            scope.spawn(move || {
                for _ in 0..2000 {
                    let (instance, ready) = unit(memory, Event::NONE);
                    // With as many units as threads there is always one, though maybe only once a release has ended.
                    while events.outcome(ready).is_none() {
                        std::thread::yield_now();
                    }
                    assert_eq!(events.outcome(ready), Some(Ok(())));
                    instance.write(|bytes| bytes.fill(thread)).unwrap();
                    instance.read(|bytes| assert!(bytes.iter().all(|byte| *byte == thread))).unwrap();
                    memories.release(instance.id(), Event::NONE).unwrap();
                }
            });
        }
    });
    assert_eq!(memory.free(), 4 * UNIT);
    assert!(memories.ids_used() <= 4);
}
