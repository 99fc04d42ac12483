//! Waiting for events: blocked threads and completion queues.

use std::thread;
use std::time::Duration;

use phalanx_runtime::{Cause, CompletionQueue, Event, Fault, Full, UserEvent};
use phalanx_testkit::Rng;
use phalanx_testkit::allocations::{self, Counting};

use crate::events::{handles, table, users};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_timed_wait_ends_without_an_outcome_and_with_one_later() {
    let events = table();
    for poison in [false, true] {
        let user = events.user();
        assert_eq!(events.wait_timeout(user.event(), Duration::ZERO), None);
        assert_eq!(events.wait_timeout(user.event(), Duration::from_millis(1)), None);
        let outcome = thread::scope(|scope| {
            let waiter = scope.spawn(|| events.wait_timeout(user.event(), LONG));
            if poison { events.cancel(user, "t") } else { events.trigger(user) }.unwrap();
            waiter.join().unwrap()
        });
        let expected = if poison { Err(Fault::new("t", Cause::Cancelled)) } else { Ok(()) };
        assert_eq!(outcome, Some(expected.clone()));
        assert_eq!(events.wait_timeout(user.event(), Duration::ZERO), Some(expected.clone()));
        assert_eq!(events.wait(user.event()), expected);
    }
}

/// Limits around the time that a trigger takes: a wait that ends just before a notice reaches it does not end the next.
#[test]
fn waits_that_time_out_during_the_trigger_do_not_disturb_the_next_ones() {
    let events = table();
    let waited = users(&events, 3000);
    thread::scope(|scope| {
        scope.spawn(|| waited.iter().for_each(|&user| events.trigger(user).unwrap()));
        for (place, user) in waited.iter().enumerate() {
            let limit = Duration::from_nanos(place as u64 % 20 * 1000);
            while events.wait_timeout(user.event(), limit).is_none() {}
            assert_eq!(events.outcome(user.event()), Some(Ok(())));
        }
    });
}

/// Two threads wait for each other in turns, after every slot has had a waiter and every thread has run and been one.
#[test]
fn waiting_and_triggering_allocate_nothing_once_lists_have_grown() {
    let events = table();
    let run_a_waiter = |user: UserEvent| {
        assert_eq!(events.wait_timeout(user.event(), Duration::ZERO), None);
        events.subscribe(user.event(), |_| ());
        events.trigger(user).unwrap();
    };
    users(&events, 600).into_iter().for_each(run_a_waiter);
    let (ping, pong) = (users(&events, 299), users(&events, 299));
    let take_turns = |mine: &[UserEvent], theirs: &[UserEvent]| {
        run_a_waiter(events.user());
        let before = allocations::of_this_thread();
        for (&mine, &theirs) in mine.iter().zip(theirs) {
            events.trigger(mine).unwrap();
            assert_eq!(events.wait(theirs.event()), Ok(()));
            assert_eq!(events.wait_timeout(theirs.event(), LONG), Some(Ok(())));
        }
        allocations::of_this_thread() - before
    };
    let allocations = thread::scope(|scope| {
        let other = scope.spawn(|| take_turns(&pong, &ping));
        [take_turns(&ping, &pong), other.join().unwrap()]
    });
    assert_eq!((allocations, events.capacity()), ([0, 0], 600));
}

#[test]
fn a_completion_queue_gives_events_in_the_order_of_their_triggers() {
    let events = table();
    let queue = CompletionQueue::growable(&events);
    let mut inputs = users(&events, 100);
    inputs.iter().for_each(|user| queue.add(user.event()).unwrap());
    assert_eq!(queue.pop(10), []);
    Rng::new(3).shuffle(&mut inputs);
    inputs.iter().for_each(|&user| events.trigger(user).unwrap());
    let mut popped = queue.pop(30);
    assert_eq!(popped.len(), 30);
    popped.extend(queue.pop(usize::MAX));
    let popped: Vec<_> = popped.into_iter().map(|completed| completed.event).collect();
    assert_eq!(popped, handles(&inputs));
}

#[test]
fn a_completion_queue_shows_faults_to_those_who_ask() {
    let events = table();
    let queue = CompletionQueue::bounded(&events, 2);
    let (clean, failed) = (events.user(), events.user());
    queue.add(failed.event()).unwrap();
    queue.add_with_faults(failed.event()).unwrap();
    events.cancel(failed, "t3").unwrap();
    queue.add(clean.event()).expect("the fault that was not asked for has left its place");
    let popped = queue.pop(3);
    assert_eq!(popped.len(), 1);
    assert_eq!(popped[0].outcome, Err(Fault::new("t3", Cause::Cancelled)));
    events.trigger(clean).unwrap();
    assert_eq!(queue.pop(3)[0].outcome, Ok(()));
}

#[test]
fn a_bounded_completion_queue_refuses_what_does_not_fit() {
    let events = table();
    let queue = CompletionQueue::bounded(&events, 2);
    let inputs = users(&events, 3);
    queue.add(inputs[0].event()).unwrap();
    queue.add(inputs[1].event()).unwrap();
    let full = Full { event: inputs[2].event(), capacity: 2 };
    assert_eq!(queue.add(inputs[2].event()), Err(full));
    assert_eq!(
        full.to_string(),
        "no place for event e2.1: the queue has 2, all with events that are not popped yet; pop some or make the queue \
         growable"
    );
    events.trigger(inputs[0]).unwrap();
    assert_eq!(queue.add(inputs[2].event()), Err(full), "it has triggered but is not popped");
    assert_eq!(queue.pop(1)[0].event, inputs[0].event());
    queue.add(inputs[2].event()).unwrap();
}

#[test]
fn the_event_of_a_nonempty_queue_triggers_with_the_first_completion() {
    let events = table();
    let queue = CompletionQueue::growable(&events);
    let inputs = users(&events, 2);
    inputs.iter().for_each(|user| queue.add(user.event()).unwrap());
    let nonempty = queue.nonempty();
    assert_eq!((queue.nonempty(), events.outcome(nonempty)), (nonempty, None));
    events.trigger(inputs[0]).unwrap();
    assert_eq!((queue.nonempty(), events.outcome(nonempty)), (Event::NONE, Some(Ok(()))));
    assert_eq!(queue.pop(5).len(), 1);
    let again = queue.nonempty();
    assert_eq!(events.outcome(again), None);
    drop(queue);
    let fault = events.outcome(again).unwrap().unwrap_err();
    assert_eq!(fault.to_string(), "a completion queue that was dropped: cancelled");
    events.trigger(inputs[1]).unwrap();
}

#[test]
fn a_consumer_gets_every_event_of_several_producers_once() {
    let events = table();
    let queue = CompletionQueue::bounded(&events, 4000);
    let inputs = users(&events, 4000);
    let mut popped = Vec::new();
    thread::scope(|scope| {
        for part in inputs.chunks(1000) {
            let (events, queue) = (&events, &queue);
            scope.spawn(move || {
                for &user in part {
                    queue.add(user.event()).unwrap();
                    events.trigger(user).unwrap();
                }
            });
        }
        while popped.len() < inputs.len() {
            events.wait(queue.nonempty()).unwrap();
            popped.extend(queue.pop(64).into_iter().map(|completed| completed.event));
        }
    });
    let mut expected = handles(&inputs);
    expected.sort();
    popped.sort();
    assert_eq!(popped, expected);
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
