//! Reservations: exclusion, sharing, fairness, poison.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use crate::plain::Plain;
use phalanx_immediate::{Mode, NotHeld, Reservation};
use phalanx_runtime::{Event, Events};
use phalanx_testkit::Rng;

const READ: Mode = Mode::Shared(1);

fn table() -> (Arc<Events>, Reservation) {
    let events = Arc::new(Events::default());
    let reservation = Reservation::new(&events);
    (events, reservation)
}

fn granted(events: &Events, event: Event) -> bool {
    events.outcome(event) == Some(Ok(()))
}

/// Tasks of several threads, each a link of a random chain: acquire after the chain's last one, add one, release.
#[test]
fn a_plain_counter_under_an_exclusive_reservation_is_exact() {
    const CHAINS: usize = 5;
    let (events, reservation) = table();
    let counter = Arc::new(Plain::new(0));
    thread::scope(|scope| {
        for seed in 0..4 {
            let (events, reservation, counter) = (&events, &reservation, &counter);
            scope.spawn(move || {
                let mut chains = [Event::NONE; CHAINS];
                let mut links: Vec<_> = (0..2000).map(|link| link % CHAINS).collect();
                Rng::new(seed).shuffle(&mut links);
                for chain in links {
                    let chain = &mut chains[chain];
                    let finish = events.user();
                    let (task_events, counter) = (Arc::clone(events), Arc::clone(counter));
                    events.subscribe(reservation.acquire(Mode::Exclusive, *chain), move |_| {
                        counter.set(counter.get() + 1);
                        task_events.trigger(finish).unwrap();
                    });
                    reservation.release(finish.event()).unwrap();
                    *chain = finish.event();
                }
                events.wait(events.merge(&chains)).unwrap();
            });
        }
    });
    assert_eq!(counter.get(), 8000);
}

#[test]
fn threads_that_wait_for_their_turn_exclude_each_other() {
    let (events, reservation) = table();
    let counter = Plain::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    events.wait(reservation.acquire(Mode::Exclusive, Event::NONE)).unwrap();
                    counter.set(counter.get() + 1);
                    reservation.release(Event::NONE).unwrap();
                }
            });
        }
    });
    assert_eq!(counter.get(), 4000);
}

#[test]
fn holders_of_one_shared_mode_overlap_and_others_wait() {
    let (events, reservation) = table();
    let readers = [READ, READ, READ].map(|mode| reservation.acquire(mode, Event::NONE));
    assert_eq!(readers, [Event::NONE; 3], "all hold it now");
    let other = reservation.acquire(Mode::Shared(2), Event::NONE);
    let exclusive = reservation.acquire(Mode::Exclusive, Event::NONE);
    for _ in 0..3 {
        assert!(!granted(&events, other));
        reservation.release(Event::NONE).unwrap();
    }
    assert!(granted(&events, other) && !granted(&events, exclusive));
    reservation.release(Event::NONE).unwrap();
    assert!(granted(&events, exclusive));
}

/// Sharers come without end, each before the one before has gone: the exclusive request is next all the same.
#[test]
fn an_exclusive_request_waits_for_all_sharers_and_is_not_starved() {
    let (events, reservation) = table();
    for _ in 0..3 {
        reservation.acquire(READ, Event::NONE);
    }
    let exclusive = reservation.acquire(Mode::Exclusive, Event::NONE);
    let mut late = Vec::new();
    for _ in 0..3 {
        assert!(!granted(&events, exclusive));
        late.push(reservation.acquire(READ, Event::NONE));
        assert!(reservation.try_acquire(READ).is_err(), "a try does not overtake either");
        reservation.release(Event::NONE).unwrap();
    }
    assert!(granted(&events, exclusive));
    assert!(late.iter().all(|&reader| !granted(&events, reader)));
    reservation.release(Event::NONE).unwrap();
    assert!(late.iter().all(|&reader| granted(&events, reader)), "they share again");
}

#[test]
fn readers_and_writers_on_threads_see_no_half_written_pair() {
    let (events, reservation) = table();
    let (pair, readers) = ([Plain::new(0), Plain::new(0)], AtomicUsize::new(0));
    thread::scope(|scope| {
        for worker in 0..4 {
            let (events, reservation, pair, readers) = (&events, &reservation, &pair, &readers);
            scope.spawn(move || {
                for step in 0..500 {
                    let write = (worker + step) % 4 == 0;
                    let mode = if write { Mode::Exclusive } else { READ };
                    events.wait(reservation.acquire(mode, Event::NONE)).unwrap();
                    if write {
                        assert_eq!(readers.load(SeqCst), 0);
                        pair.iter().for_each(|half| half.set(half.get() + 1));
                    } else {
                        readers.fetch_add(1, SeqCst);
                        assert_eq!(pair[0].get(), pair[1].get());
                        readers.fetch_sub(1, SeqCst);
                    }
                    reservation.release(Event::NONE).unwrap();
                }
            });
        }
    });
    assert_eq!(pair[0].get(), 500);
}

#[test]
fn requests_queue_in_the_order_in_which_their_events_trigger() {
    let (events, reservation) = table();
    let gates = [events.user(), events.user()];
    let requests = gates.map(|gate| reservation.acquire(Mode::Exclusive, gate.event()));
    events.trigger(gates[1]).unwrap();
    assert_eq!(requests.map(|request| granted(&events, request)), [false, true]);
    events.trigger(gates[0]).unwrap();
    assert_eq!(requests.map(|request| granted(&events, request)), [false, true]);
    reservation.release(Event::NONE).unwrap();
    assert_eq!(requests.map(|request| granted(&events, request)), [true, true]);
}

#[test]
fn a_try_takes_the_reservation_now_or_tells_when_to_try_again() {
    let (events, reservation) = table();
    assert_eq!(reservation.try_acquire(Mode::Exclusive), Ok(()));
    let retry = reservation.try_acquire(READ).unwrap_err();
    assert_eq!(reservation.try_acquire(READ), Err(retry), "one event for all that try");
    let queued = reservation.acquire(Mode::Exclusive, Event::NONE);
    reservation.release(Event::NONE).unwrap();
    assert!(granted(&events, queued) && !granted(&events, retry), "the queue comes first");
    reservation.release(Event::NONE).unwrap();
    assert!(granted(&events, retry));
    assert_eq!((reservation.try_acquire(READ), reservation.try_acquire(READ)), (Ok(()), Ok(())));
}

#[test]
fn an_acquisition_behind_a_poisoned_event_takes_nothing() {
    let (events, reservation) = table();
    let bad = events.user();
    let early = reservation.acquire(Mode::Exclusive, bad.event());
    events.cancel(bad, "t1").unwrap();
    let late = reservation.acquire(Mode::Exclusive, bad.event());
    for request in [early, late] {
        assert_eq!(events.outcome(request).unwrap().unwrap_err().operation(), "t1");
    }
    assert_eq!(reservation.release(Event::NONE), Err(NotHeld));
    assert_eq!(reservation.try_acquire(Mode::Exclusive), Ok(()));
}

#[test]
fn a_release_behind_a_poisoned_event_is_dropped() {
    let (events, reservation) = table();
    let bad = events.user();
    reservation.acquire(Mode::Exclusive, Event::NONE);
    let next = reservation.acquire(Mode::Exclusive, Event::NONE);
    reservation.release(bad.event()).unwrap();
    events.cancel(bad, "t2").unwrap();
    reservation.release(bad.event()).unwrap();
    assert_eq!(events.outcome(next), None);
    reservation.release(Event::NONE).unwrap();
    assert!(granted(&events, next));
}

#[test]
fn releasing_what_nobody_holds_is_an_error() {
    let (events, reservation) = table();
    assert_eq!(reservation.release(Event::NONE), Err(NotHeld));
    let gate = events.user();
    reservation.release(gate.event()).unwrap();
    events.trigger(gate).unwrap();
    reservation.acquire(Mode::Exclusive, Event::NONE);
    assert!(reservation.try_acquire(READ).is_err(), "the late release has released nothing");
}
