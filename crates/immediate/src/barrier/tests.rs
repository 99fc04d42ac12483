//! Ends of the row of generations, which no test from outside can reach.

use super::*;

#[test]
fn advancing_past_the_last_generation_gives_none() {
    let last = Barrier { index: 3, generation: Barrier::END - 1, stamp: 2 };
    assert_eq!(last.advance(), Barrier::NONE);
    assert_eq!(last.previous().advance(), last);
}

#[test]
fn the_last_generation_triggers_like_any_other() {
    let events = Arc::new(Events::default());
    let barriers = Arc::new(Barriers::new(&events));
    let index = barriers.create(NonZeroU32::MIN).index;
    let last = Barrier { index, generation: Barrier::END - 1, stamp: 0 };
    lock(barriers.tally(last)).skip_to(last.generation);
    let event = barriers.event(last).expect("the barrier exists");
    barriers.arrive(last, Arrival { value: 4, ..Arrival::default() }).expect("it is in flight");
    assert_eq!((events.outcome(event), barriers.result(last)), (Some(Ok(())), Ok(4)));
    assert!(barriers.arrive(last, Arrival::default()).is_err());
    barriers.destroy(last).expect("the barrier exists");
    assert_ne!(
        barriers.create(NonZeroU32::MIN).index,
        index,
        "a place without generations is not used again"
    );
}
