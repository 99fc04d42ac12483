//! Barriers: generations, sums, alterations that wait, poison.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use crate::plain::Plain;
use phalanx_immediate::{Arrival, Barrier, BarrierError, Barriers, NoResult};
use phalanx_runtime::{Cause, Event, Events, Fault, UserEvent};
use phalanx_testkit::Rng;

fn table() -> (Arc<Events>, Arc<Barriers>) {
    let events = Arc::new(Events::default());
    let barriers = Arc::new(Barriers::new(&events));
    (events, barriers)
}

fn create(barriers: &Barriers, needs: u32) -> Barrier {
    barriers.create(NonZeroU32::new(needs).expect("a test needs arrivals"))
}

fn ahead(barrier: Barrier, generations: usize) -> Barrier {
    (0..generations).fold(barrier, |barrier, _| barrier.advance())
}

fn of(value: i64) -> Arrival {
    Arrival { value, ..Arrival::default() }
}

fn after(user: UserEvent) -> Arrival {
    Arrival { after: user.event(), ..Arrival::default() }
}

/// Generations of `barrier`, of the first `count`, that have triggered.
fn triggered(events: &Events, barriers: &Barriers, barrier: Barrier, count: usize) -> Vec<usize> {
    let event = |ago: usize| barriers.event(ahead(barrier, ago)).expect("the barrier exists");
    (0..count).filter(|ago| events.outcome(event(*ago)).is_some()).collect()
}

#[test]
fn arrivals_ahead_wait_and_generations_trigger_in_order_each_once() {
    let (events, barriers) = table();
    let barrier = create(&barriers, 2);
    let (send, seen) = channel();
    for generation in 0..4 {
        let (event, send) = (barriers.event(ahead(barrier, generation)).unwrap(), send.clone());
        events.subscribe(event, move |_| send.send(generation).unwrap());
    }
    for generation in [3, 1, 2, 1, 0, 2] {
        barriers.arrive(ahead(barrier, generation), Arrival::default()).unwrap();
        assert_eq!(seen.try_recv().ok(), None, "generation 0 lacks an arrival");
    }
    barriers.arrive(barrier, Arrival::default()).unwrap();
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(triggered(&events, &barriers, barrier, 4), [0, 1, 2]);
    barriers.arrive(ahead(barrier, 3), Arrival::default()).unwrap();
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), [3]);
}

#[test]
fn advancing_and_going_back_are_inverse_and_end_in_none() {
    let (events, barriers) = table();
    let barrier = create(&barriers, 1);
    assert_eq!(ahead(barrier, 7).previous(), ahead(barrier, 6));
    assert_eq!(barrier.advance().previous(), barrier);
    assert_eq!((barrier.previous(), Barrier::NONE.advance()), (Barrier::NONE, Barrier::NONE));
    assert_eq!(Barrier::NONE.previous(), Barrier::NONE);
    let none = barriers.event(Barrier::NONE).unwrap();
    assert_eq!((none, events.outcome(none)), (Event::NONE, Some(Ok(()))));
    assert_eq!(barriers.arrive(Barrier::NONE, Arrival::default()), Err(BarrierError::Unknown(Barrier::NONE)));
}

/// Four workers arrive for 200 generations, each in an order of its own; the last of them only after the others.
#[test]
fn sums_of_all_generations_are_right_and_readable_by_a_late_reader() {
    const GENERATIONS: usize = 200;
    let (events, barriers) = table();
    let barrier = create(&barriers, 4);
    let others_done = events.user();
    let last = barriers.event(ahead(barrier, GENERATIONS - 1)).unwrap();
    let work = &|worker: usize| {
        let mut order: Vec<_> = (0..GENERATIONS).collect();
        Rng::new(worker as u64).shuffle(&mut order);
        for generation in order {
            let value = (generation * 10 + worker) as i64;
            barriers.arrive(ahead(barrier, generation), of(value)).unwrap();
        }
    };
    thread::scope(|scope| {
        let others: Vec<_> = (0..3).map(|worker| scope.spawn(move || work(worker))).collect();
        scope.spawn(|| {
            events.wait(others_done.event()).unwrap();
            work(3);
        });
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(triggered(&events, &barriers, barrier, GENERATIONS), [0; 0]);
        events.trigger(others_done).unwrap();
        assert_eq!(events.wait(last), Ok(()));
    });
    let late = thread::spawn(move || {
        let sum = |generation| barriers.result(ahead(barrier, generation)).unwrap();
        (0..GENERATIONS).map(sum).collect::<Vec<_>>()
    });
    let expected: Vec<_> = (0..GENERATIONS as i64).map(|generation| 40 * generation + 6).collect();
    assert_eq!(late.join().unwrap(), expected);
}

#[test]
fn a_sum_is_readable_only_after_its_generation_and_not_for_ever() {
    let (_, barriers) = table();
    let barrier = create(&barriers, 2);
    barriers.arrive(barrier, of(5)).unwrap();
    assert_eq!(barriers.result(barrier), Err(NoResult::Pending(barrier)));
    barriers.arrive(barrier, of(-7)).unwrap();
    assert_eq!(barriers.result(barrier), Ok(-2));
    for generation in 1..=1000 {
        barriers.arrive(ahead(barrier, generation), Arrival { count: 2, ..of(generation as i64) }).unwrap();
    }
    assert_eq!(barriers.result(barrier.advance()), Ok(1));
    assert_eq!(barriers.result(ahead(barrier, 1000)), Ok(1000));
    assert_eq!(barriers.result(barrier), Err(NoResult::Forgotten { barrier, oldest: 2 }));
}

/// An increase that waits, and arrivals that it makes room for, delivered in every order of their events.
#[test]
fn an_arrival_made_with_an_altered_handle_waits_for_the_alteration() {
    let orders = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 2, 3, 0], [2, 0, 3, 1], [3, 0, 1, 2], [1, 3, 0, 2]];
    for order in orders {
        let (events, barriers) = table();
        let barrier = create(&barriers, 1);
        let event = barriers.event(barrier).unwrap();
        let gates: Vec<_> = (0..4).map(|_| events.user()).collect();
        let altered = barriers.alter(barrier, 2, gates[0].event()).unwrap();
        gates[1..].iter().for_each(|&gate| barriers.arrive(altered, after(gate)).unwrap());
        for (place, gate) in order.into_iter().enumerate() {
            assert_eq!(events.outcome(event), None, "order {order:?}, before {place}");
            events.trigger(gates[gate]).unwrap();
        }
        assert_eq!(events.outcome(event), Some(Ok(())), "order {order:?}");
        // Later generations need three arrivals too.
        let next = altered.advance();
        barriers.arrive(next, Arrival { count: 2, ..Arrival::default() }).unwrap();
        assert_eq!(triggered(&events, &barriers, next, 1), [0; 0]);
        barriers.arrive(next, Arrival::default()).unwrap();
        assert_eq!(triggered(&events, &barriers, next, 1), [0]);
    }
}

/// The first generation needs one arrival and five that an increase makes room for; the second, two less, which a
/// decrease that depends on the increase tells. Gates 0 and 7 let the alterations through, the others arrivals.
fn altered_twice(
    events: &Arc<Events>,
    barriers: &Arc<Barriers>,
) -> Result<([Barrier; 2], Vec<UserEvent>), BarrierError> {
    let barrier = create(barriers, 1);
    let gates: Vec<_> = (0..12).map(|_| events.user()).collect();
    let more = barriers.alter(barrier, 5, gates[0].event())?;
    let less = barriers.alter(more.advance(), -2, gates[7].event())?;
    for &gate in &gates[8..] {
        barriers.arrive(less, Arrival { value: 10, ..after(gate) })?;
    }
    for &gate in &gates[1..7] {
        barriers.arrive(more, Arrival { value: 1, ..after(gate) })?;
    }
    Ok(([barrier, barrier.advance()], gates))
}

#[test]
fn alterations_and_arrivals_in_any_order_never_trigger_early_and_never_hang() {
    let mut random = Rng::new(11);
    for _ in 0..300 {
        let (events, barriers) = table();
        let ([first, _], gates) = altered_twice(&events, &barriers).unwrap();
        let mut order: Vec<_> = (0..gates.len()).collect();
        random.shuffle(&mut order);
        let (mut of_first, mut of_second) = (0, 0);
        for &gate in &order {
            events.trigger(gates[gate]).unwrap();
            if gate < 7 {
                of_first += 1
            } else {
                of_second += 1
            };
            let complete = usize::from(of_first == 7) * (1 + usize::from(of_second == 5));
            let expected: Vec<_> = (0..complete).collect();
            assert_eq!(triggered(&events, &barriers, first, 3), expected, "{order:?} at {gate}");
        }
    }
}

#[test]
fn alterations_and_arrivals_from_several_threads_never_hang() {
    for round in 0..100 {
        let (events, barriers) = table();
        let ([first, second], mut gates) = altered_twice(&events, &barriers).unwrap();
        Rng::new(round).shuffle(&mut gates);
        thread::scope(|scope| {
            for part in gates.chunks(4) {
                let events = &events;
                scope.spawn(move || part.iter().for_each(|&gate| events.trigger(gate).unwrap()));
            }
            assert_eq!(events.wait(barriers.event(second).unwrap()), Ok(()));
        });
        assert_eq!((barriers.result(first), barriers.result(second)), (Ok(6), Ok(40)));
    }
}

#[test]
fn lowering_the_number_triggers_a_generation_that_has_enough() {
    let (events, barriers) = table();
    let barrier = create(&barriers, 3);
    barriers.arrive(barrier, Arrival { count: 2, ..of(9) }).unwrap();
    let altered = barriers.alter(barrier, -1, Event::NONE).unwrap();
    assert_eq!(triggered(&events, &barriers, barrier, 2), [0]);
    assert_eq!(barriers.result(altered), Ok(9));
    barriers.arrive(altered.advance(), Arrival { count: 2, ..Arrival::default() }).unwrap();
    assert_eq!(triggered(&events, &barriers, barrier, 3), [0, 1]);
}

#[test]
fn an_alteration_ahead_leaves_earlier_generations_alone() {
    let (events, barriers) = table();
    let barrier = create(&barriers, 1);
    barriers.alter(ahead(barrier, 2), 1, Event::NONE).unwrap();
    for generation in 0..4 {
        barriers.arrive(ahead(barrier, generation), Arrival::default()).unwrap();
    }
    assert_eq!(triggered(&events, &barriers, barrier, 4), [0, 1]);
    barriers.arrive(ahead(barrier, 3), Arrival::default()).unwrap();
    barriers.arrive(ahead(barrier, 2), Arrival::default()).unwrap();
    assert_eq!(triggered(&events, &barriers, barrier, 5), [0, 1, 2, 3]);
}

#[test]
fn a_poisoned_arrival_poisons_its_generation_only() {
    let (events, barriers) = table();
    let barrier = create(&barriers, 2);
    let (bad, waited) = (events.user(), barriers.event(barrier.advance()).unwrap());
    barriers.arrive(barrier.advance(), after(bad)).unwrap();
    events.cancel(bad, "t4").unwrap();
    assert_eq!(events.outcome(waited), None, "the other arrival is missing");
    for generation in [0, 0, 1, 2, 2] {
        barriers.arrive(ahead(barrier, generation), Arrival::default()).unwrap();
    }
    let fault = Fault::new("t4", Cause::Cancelled);
    let outcome = |generation| events.outcome(barriers.event(ahead(barrier, generation)).unwrap());
    assert_eq!([outcome(0), outcome(1), outcome(2)], [Some(Ok(())), Some(Err(fault.clone())), Some(Ok(()))]);
    assert_eq!(events.outcome(waited), Some(Err(fault.clone())));
    assert_eq!(barriers.result(barrier.advance()), Err(NoResult::Poisoned(barrier.advance(), fault)));
    assert_eq!(barriers.result(ahead(barrier, 2)), Ok(0));
}

#[test]
fn a_poisoned_alteration_counts_and_poisons_its_generation() {
    let (events, barriers) = table();
    let barrier = create(&barriers, 1);
    let bad = events.user();
    let altered = barriers.alter(barrier, 1, bad.event()).unwrap();
    barriers.arrive(altered, Arrival { count: 2, ..Arrival::default() }).unwrap();
    events.cancel(bad, "t5").unwrap();
    let outcome = |barrier| events.outcome(barriers.event(barrier).unwrap());
    assert_eq!(outcome(barrier), Some(Err(Fault::new("t5", Cause::Cancelled))));
    barriers.arrive(altered.advance(), Arrival { count: 2, ..Arrival::default() }).unwrap();
    assert_eq!(outcome(barrier.advance()), Some(Ok(())));
}

#[test]
fn what_cannot_be_done_is_refused_with_the_numbers() {
    let (_, barriers) = table();
    let barrier = create(&barriers, 2);
    let three = Arrival { count: 3, ..Arrival::default() };
    let error = barriers.arrive(barrier, three).unwrap_err();
    assert_eq!(
        error.to_string(),
        "3 more arrivals at barrier0.1, which needs 2 and has 0; alter its number first"
    );
    barriers.arrive(barrier, Arrival::default()).unwrap();
    let error = barriers.alter(barrier, -2, Event::NONE).unwrap_err();
    assert_eq!(
        error.to_string(),
        "altering barrier0.1 by -2 leaves generation 1 needing 0 arrivals; it has 1, and needs at least one"
    );
    barriers.arrive(barrier, Arrival::default()).unwrap();
    let error = barriers.arrive(barrier, Arrival::default()).unwrap_err();
    assert_eq!(error, BarrierError::Triggered { barrier, current: 2 });
    assert_eq!(
        error.to_string(),
        "barrier0.1 has triggered and generation 2 is in flight; use a handle advanced to that"
    );
}

#[test]
fn a_late_arrival_too_many_poisons_the_generation_in_flight() {
    let (events, barriers) = table();
    let barrier = create(&barriers, 1);
    let gate = events.user();
    barriers.arrive(barrier, after(gate)).unwrap();
    barriers.arrive(barrier, Arrival::default()).unwrap();
    events.trigger(gate).unwrap();
    barriers.arrive(barrier.advance(), Arrival::default()).unwrap();
    let outcome = |barrier| events.outcome(barriers.event(barrier).unwrap());
    assert_eq!(outcome(barrier), Some(Ok(())));
    let fault = outcome(barrier.advance()).unwrap().unwrap_err();
    assert!(fault.to_string().starts_with("barrier0.1: barrier0.1 has triggered"), "{fault}");
}

#[test]
fn destroying_a_barrier_poisons_who_waits_and_its_place_is_used_again() {
    let (events, barriers) = table();
    let barrier = create(&barriers, 2);
    let (gate, waited) = (events.user(), barriers.event(barrier.advance()).unwrap());
    barriers.arrive(barrier, after(gate)).unwrap();
    barriers.destroy(barrier).unwrap();
    let fault = events.outcome(waited).unwrap().unwrap_err();
    assert_eq!(fault.to_string(), "barrier0.1, which was destroyed: cancelled");
    assert_eq!(barriers.destroy(barrier), Err(BarrierError::Unknown(barrier)));
    let next = create(&barriers, 1);
    assert_eq!(next.to_string(), "barrier0.3");
    // An arrival on its way to the old barrier is nothing to the new one.
    events.trigger(gate).unwrap();
    assert_eq!(barriers.arrive(barrier, Arrival::default()), Err(BarrierError::Unknown(barrier)));
    barriers.arrive(next, Arrival::default()).unwrap();
    assert_eq!(events.outcome(barriers.event(next).unwrap()), Some(Ok(())));
    assert_eq!(barriers.event(barrier.advance()), Ok(waited), "its fault is not forgotten");
}

#[test]
fn what_was_written_before_an_arrival_is_seen_after_the_barrier() {
    let (events, barriers) = table();
    let (mut barrier, data) = (create(&barriers, 3), [(); 3].map(|_| Plain::new(0)));
    thread::scope(|scope| {
        for worker in 0..3 {
            let (events, barriers, data) = (&events, &barriers, &data);
            scope.spawn(move || {
                for step in 1..=1000 {
                    data[worker].set(step);
                    barriers.arrive(barrier, Arrival::default()).unwrap();
                    events.wait(barriers.event(barrier).unwrap()).unwrap();
                    assert_eq!([0, 1, 2].map(|other: usize| data[other].get()), [step; 3]);
                    // No thread writes before all have read.
                    barriers.arrive(barrier.advance(), Arrival::default()).unwrap();
                    events.wait(barriers.event(barrier.advance()).unwrap()).unwrap();
                    barrier = ahead(barrier, 2);
                }
            });
        }
    });
}
