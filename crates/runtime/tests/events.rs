//! Events: generations, waiters, merges, cascades, faults.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::plain::Plain;
use phalanx_runtime::{AlreadyTriggered, Cause, Event, Events, Fault, Outcome, UserEvent};
use phalanx_testkit::Rng;

pub fn table() -> Arc<Events> {
    Arc::new(Events::default())
}

pub fn users(events: &Events, count: usize) -> Vec<UserEvent> {
    (0..count).map(|_| events.user()).collect()
}

pub fn handles(users: &[UserEvent]) -> Vec<Event> {
    users.iter().map(|user| user.event()).collect()
}

/// The operation whose fault poisons `event`.
fn culprit(events: &Events, event: Event) -> Option<String> {
    events.outcome(event)?.err().map(|fault| fault.operation().to_owned())
}

/// A waiter that sends `name`.
fn sends<T: Send + 'static>(send: &Sender<T>, name: T) -> impl FnOnce(&Outcome) + Send + 'static {
    let send = send.clone();
    move |_| send.send(name).expect("the test listens")
}

#[test]
fn waiters_run_once_at_the_trigger_and_at_once_after_it() {
    let (events, (send, seen)) = (table(), channel());
    let user = events.user();
    assert!(events.subscribe(user.event(), sends(&send, 1)).is_some());
    assert!(events.subscribe(user.event(), sends(&send, 2)).is_some());
    assert_eq!((seen.try_iter().count(), events.outcome(user.event())), (0, None));
    events.trigger(user).unwrap();
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(events.subscribe(user.event(), sends(&send, 3)), None);
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), [3]);
    assert_eq!(events.trigger(user), Err(AlreadyTriggered(user.event())));
    assert_eq!(events.cancel(user, "late"), Err(AlreadyTriggered(user.event())));
    assert_eq!((seen.try_iter().count(), events.outcome(user.event())), (0, Some(Ok(()))));
}

#[test]
fn a_waiter_taken_back_is_not_called_and_the_others_are() {
    let (events, (send, seen)) = (table(), channel());
    let user = events.user();
    let mut subscriptions: Vec<_> =
        (0..5).filter_map(|name| events.subscribe(user.event(), sends(&send, name))).collect();
    let third = subscriptions.remove(2);
    assert!(events.unsubscribe(third));
    assert!(!events.unsubscribe(third), "it is gone");
    events.trigger(user).unwrap();
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), [0, 1, 3, 4]);
    assert!(!events.unsubscribe(subscriptions[0]), "it has been called");
}

#[test]
fn a_subscription_to_an_older_generation_disturbs_no_later_one() {
    let (events, (send, seen)) = (table(), channel());
    let old = events.user();
    let subscription = events.subscribe(old.event(), sends(&send, "old")).unwrap();
    events.trigger(old).unwrap();
    let new = events.user();
    events.subscribe(new.event(), sends(&send, "new"));
    assert_eq!(events.capacity(), 1, "both generations are in one slot");
    assert!(!events.unsubscribe(subscription));
    events.trigger(new).unwrap();
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), ["old", "new"]);
}

#[test]
fn old_handles_read_as_triggered_and_poison_stays_with_its_generation() {
    let events = table();
    let mut old = Vec::new();
    for generation in 0..1000 {
        let user = events.user();
        match generation % 100 {
            50 => events.cancel(user, &format!("operation {generation}")).unwrap(),
            _ => events.trigger(user).unwrap(),
        }
        old.push(user.event());
    }
    assert_eq!(events.capacity(), 1);
    for (generation, event) in old.into_iter().enumerate() {
        let expected = (generation % 100 == 50).then(|| format!("operation {generation}"));
        assert!(events.outcome(event).is_some());
        assert_eq!(culprit(&events, event), expected);
    }
}

#[test]
fn a_slot_with_many_faults_retires_and_keeps_them() {
    let events = table();
    let failed: Vec<_> = (0..100)
        .map(|name| {
            let user = events.user();
            events.cancel(user, &name.to_string()).unwrap();
            user.event()
        })
        .collect();
    assert_eq!(events.capacity(), 7, "16 faults in each slot");
    for (name, event) in failed.into_iter().enumerate() {
        assert_eq!(culprit(&events, event), Some(name.to_string()));
    }
}

#[test]
fn a_merge_of_nothing_pending_is_none_or_the_poisoned_input() {
    let events = table();
    let (done, failed) = (events.user(), events.user());
    events.trigger(done).unwrap();
    events.cancel(failed, "bad").unwrap();
    let capacity = events.capacity();
    assert_eq!(events.merge(&[]), Event::NONE);
    assert_eq!(events.merge(&[Event::NONE, done.event()]), Event::NONE);
    assert_eq!(events.merge(&[done.event(), failed.event()]), failed.event());
    assert_eq!(events.merge_ignoring_poison(&[done.event(), failed.event()]), Event::NONE);
    assert_eq!(events.capacity(), capacity, "no event was needed");
}

#[test]
fn a_merge_of_one_pending_event_is_that_event() {
    let events = table();
    let live = events.user().event();
    assert_eq!(events.merge(&[Event::NONE, live]), live);
    assert_eq!(events.merge(&[live, live]), live, "the same one twice");
    assert_eq!(events.capacity(), 1);
}

#[test]
fn a_merge_triggers_with_its_last_input_in_any_order() {
    let (events, mut random) = (table(), Rng::new(5));
    for count in [2, 3, 8, 100, 5000] {
        let mut inputs = users(&events, count);
        let merged = events.merge(&handles(&inputs));
        let tolerant = events.merge_ignoring_poison(&handles(&inputs));
        random.shuffle(&mut inputs);
        let last = inputs.pop().unwrap();
        inputs.into_iter().for_each(|user| events.trigger(user).unwrap());
        assert_eq!((events.outcome(merged), events.outcome(tolerant)), (None, None), "{count} inputs");
        events.trigger(last).unwrap();
        assert_eq!((events.outcome(merged), events.outcome(tolerant)), (Some(Ok(())), Some(Ok(()))));
    }
}

#[test]
fn a_merge_is_poisoned_before_its_other_inputs_trigger() {
    let (events, (send, seen)) = (table(), channel());
    let inputs = users(&events, 4);
    let merged = events.merge(&handles(&inputs));
    events.subscribe(merged, sends(&send, ()));
    events.trigger(inputs[0]).unwrap();
    events.cancel(inputs[2], "first").unwrap();
    assert_eq!(culprit(&events, merged).as_deref(), Some("first"));
    assert_eq!(events.merge(&handles(&inputs)), inputs[2].event(), "a merge made now knows at once");
    // The slot of the merge is used again while inputs of it are still to come.
    let next = events.user();
    events.cancel(inputs[1], "second").unwrap();
    events.trigger(inputs[3]).unwrap();
    assert_eq!(culprit(&events, merged).as_deref(), Some("first"));
    assert_eq!((events.outcome(next.event()), seen.try_iter().count()), (None, 1));
}

#[test]
fn a_merge_ignoring_poison_waits_for_all_and_is_clean() {
    let events = table();
    let inputs = users(&events, 3);
    let merged = events.merge_ignoring_poison(&handles(&inputs));
    events.cancel(inputs[1], "bad").unwrap();
    events.trigger(inputs[0]).unwrap();
    assert_eq!(events.outcome(merged), None);
    let one = events.merge_ignoring_poison(&handles(&inputs));
    events.cancel(inputs[2], "worse").unwrap();
    assert_eq!((events.outcome(merged), events.outcome(one)), (Some(Ok(())), Some(Ok(()))));
}

#[test]
fn merges_whose_inputs_trigger_on_several_threads_trigger_once() {
    let events = table();
    for _ in 0..300 {
        let (inputs, runs) = (users(&events, 4), Arc::new(AtomicUsize::new(0)));
        thread::scope(|scope| {
            let events = &events;
            inputs.iter().for_each(|&user| drop(scope.spawn(move || events.trigger(user).unwrap())));
            let merged = events.merge(&handles(&inputs));
            let count = Arc::clone(&runs);
            events.subscribe(merged, move |_| {
                count.fetch_add(1, Relaxed);
            });
            assert_eq!(events.wait(merged), Ok(()));
        });
        // All threads have ended, and with them the trigger that ran the waiter.
        assert_eq!(runs.load(Relaxed), 1);
    }
}

#[test]
fn a_cascade_of_a_hundred_thousand_events_neither_recurses_nor_holds_its_caller() {
    let (events, (send, seen)) = (table(), channel());
    let chain = users(&events, 100_000);
    for pair in chain.windows(2) {
        events.subscribe(pair[0].event(), sends(&send, ()));
        events.trigger_after(pair[1], pair[0].event());
    }
    let here = thread::current().id();
    let elsewhere = chain[50_000].event();
    let (tell, told) = channel();
    events.subscribe(elsewhere, move |_| tell.send(thread::current().id()).unwrap());
    events.trigger(chain[0]).unwrap();
    assert_ne!(told.recv().unwrap(), here, "the caller has run more than its budget");
    assert_eq!(events.wait(chain.last().unwrap().event()), Ok(()));
    assert_eq!(seen.iter().take(chain.len() - 1).count(), chain.len() - 1);
}

#[test]
fn a_user_event_triggers_after_another_one_as_clean_as_that() {
    let events = table();
    for (cancel, expected) in [(false, None), (true, Some("bad"))] {
        let source = events.user();
        let (faithful, tolerant, late) = (events.user(), events.user(), events.user());
        events.trigger_after(faithful, source.event());
        events.trigger_after_ignoring_poison(tolerant, source.event());
        assert_eq!((events.outcome(faithful.event()), events.outcome(tolerant.event())), (None, None));
        if cancel { events.cancel(source, "bad") } else { events.trigger(source) }.unwrap();
        events.trigger_after(late, source.event());
        assert_eq!(culprit(&events, faithful.event()).as_deref(), expected);
        assert_eq!(culprit(&events, late.event()).as_deref(), expected);
        assert_eq!(events.outcome(tolerant.event()), Some(Ok(())));
    }
}

#[test]
fn cancelling_a_user_event_poisons_everything_downstream_with_its_fault() {
    let events = table();
    let (source, side) = (events.user(), events.user());
    let mut last = source.event();
    for _ in 0..500 {
        let next = events.user();
        events.trigger_after(next, last);
        last = events.merge(&[next.event(), side.event()]);
    }
    events.cancel(source, "copy 7").unwrap();
    let fault = events.wait(last).unwrap_err();
    assert_eq!(fault, Fault::new("copy 7", Cause::Cancelled));
    assert_eq!(fault.to_string(), "copy 7: cancelled");
}

#[test]
fn what_was_written_before_a_trigger_is_seen_after() {
    let events = table();
    for round in 0..500 {
        let (left, right) = (events.user(), events.user());
        let merged = events.merge(&[left.event(), right.event()]);
        let data = [Plain::new(0), Plain::new(0)];
        thread::scope(|scope| {
            for (user, data) in [left, right].into_iter().zip(&data) {
                let events = &events;
                scope.spawn(move || {
                    data.set(round + 1);
                    events.trigger(user).unwrap();
                });
            }
            scope.spawn(|| {
                events.wait(merged).unwrap();
                assert_eq!([data[0].get(), data[1].get()], [round + 1; 2], "after a wait");
            });
            while events.outcome(left.event()).is_none() {
                std::hint::spin_loop();
            }
            assert_eq!(data[0].get(), round + 1, "after a test");
        });
    }
}

#[test]
fn a_panicking_waiter_ends_its_trigger_and_no_other_waiter() {
    let (events, (send, seen)) = (table(), channel());
    let (user, next) = (events.user(), events.user());
    events.subscribe(user.event(), sends(&send, "before"));
    events.subscribe(user.event(), |_| panic!("on purpose"));
    events.trigger_after(next, user.event());
    events.subscribe(next.event(), sends(&send, "after"));
    let panic = catch_unwind(AssertUnwindSafe(|| events.trigger(user))).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    assert_eq!(seen.iter().take(2).collect::<Vec<_>>(), ["before", "after"]);
    // The thread runs waiters as before.
    let (again, last) = (events.user(), events.user());
    events.trigger_after(last, again.event());
    events.trigger(again).unwrap();
    assert_eq!(events.outcome(last.event()), Some(Ok(())));
}

/// Threads share a ring of cells: each trigger is met by waits, waiters and merges on other threads.
#[test]
fn events_in_flight_on_many_threads_are_neither_lost_nor_doubled() {
    let (events, (send, seen)) = (table(), channel());
    let ring: Vec<_> = (0..4).map(|_| Mutex::new(events.user())).collect();
    thread::scope(|scope| {
        for place in 0..4 {
            let (events, send, ring) = (&events, send.clone(), &ring);
            scope.spawn(move || {
                for round in 0..2000 {
                    let fresh = events.user();
                    let next = ring[(place + 1) % 4].lock().unwrap().event();
                    events
                        .subscribe(events.merge(&[next, fresh.event()]), sends(&send, 2000 * place + round));
                    let old = std::mem::replace(&mut *ring[place].lock().unwrap(), fresh);
                    events.trigger(old).unwrap();
                }
            });
        }
    });
    ring.into_iter().for_each(|last| events.trigger(last.into_inner().unwrap()).unwrap());
    let mut calls: Vec<_> = seen.iter().take(8000).collect();
    calls.sort();
    assert_eq!(calls, (0..8000).collect::<Vec<_>>());
}
