//! A gate counts the arrivals that a segment of a run still needs. The last one opens it.

use crate::sync::{AtomicU32, Ordering};

pub(crate) struct Gate(AtomicU32);

/// What an arrival means for the thread that arrives.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Others are still to come.
    Early,
    /// It was the last: the segment is the caller's to pass on, and all that the others wrote is visible.
    Last,
}

impl Gate {
    pub(crate) fn new(owed: u32) -> Gate {
        Gate(AtomicU32::new(owed))
    }

    /// Makes the gate count `owed` arrivals, while no thread can arrive.
    pub(crate) fn reset(&self, owed: u32) {
        // Relaxed: a thread that arrives has learnt of the run through words that publish this one.
        self.0.store(owed, Ordering::Relaxed);
    }

    /// One arrival, at the same time as others'.
    pub(crate) fn arrive(&self) -> Arrival {
        // AcqRel, pairs with itself: Release publishes what this predecessor wrote; Acquire lets the last one see what
        // all of them wrote.
        self.arrive_with(Ordering::AcqRel)
    }

    /// Apart, like the other ones `_with` an ordering, so that a model can show that a weaker one is not enough.
    #[inline]
    fn arrive_with(&self, ordering: Ordering) -> Arrival {
        Self::verdict(self.0.fetch_sub(1, ordering))
    }

    /// One arrival where all come from one thread after the other, each having seen what the one before did.
    pub(crate) fn arrive_alone(&self) -> Arrival {
        // Relaxed: see above.
        let owed = self.0.load(Ordering::Relaxed);
        self.0.store(owed - 1, Ordering::Relaxed);
        Self::verdict(owed)
    }

    /// The only arrival there is.
    pub(crate) fn arrive_only(&self) -> Arrival {
        // Release pairs with the load in `is_open`.
        self.arrive_only_with(Ordering::Release)
    }

    #[inline]
    fn arrive_only_with(&self, ordering: Ordering) -> Arrival {
        self.0.store(0, ordering);
        Arrival::Last
    }

    /// Whether all arrivals have come; then what they wrote before is visible.
    pub(crate) fn is_open(&self) -> bool {
        // Acquire pairs with every `arrive`, or with `arrive_only`.
        self.is_open_with(Ordering::Acquire)
    }

    #[inline]
    fn is_open_with(&self, ordering: Ordering) -> bool {
        self.0.load(ordering) == 0
    }

    fn verdict(owed: u32) -> Arrival {
        debug_assert_ne!(owed, 0, "more arrivals than predecessors");
        if owed == 1 { Arrival::Last } else { Arrival::Early }
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::model;
    use loom::sync::Arc;
    use loom::thread::{spawn, yield_now};

    use super::*;
    use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};

    const PREDECESSORS: usize = 3;

    /// Every predecessor writes and arrives; exactly one is the last, and it reads what all of them wrote. The writes
    /// themselves order nothing.
    fn last_reads_all(ordering: Ordering) {
        model(move || {
            let gate = Arc::new(Gate::new(PREDECESSORS as u32));
            let written: Arc<[AtomicU32; PREDECESSORS]> =
                Arc::new(std::array::from_fn(|_| AtomicU32::new(0)));
            let arrive = move |place: usize| {
                written[place].store(1, Relaxed);
                let last = gate.arrive_with(ordering) == Arrival::Last;
                assert!(!last || written.iter().all(|written| written.load(Relaxed) == 1));
                u32::from(last)
            };
            let others = [1, 2].map(|place| {
                let arrive = arrive.clone();
                spawn(move || arrive(place))
            });
            let mut lasts = arrive(0);
            others.into_iter().for_each(|other| lasts += other.join().expect("it does not panic"));
            assert_eq!(lasts, 1);
        });
    }

    /// Predecessors write and arrive; a thread that loads only the gate and finds it open reads what all of them wrote.
    fn looker_reads_all(predecessors: usize, arrive: fn(&Gate) -> Arrival, look: Ordering) {
        model(move || {
            let gate = Arc::new(Gate::new(predecessors as u32));
            let written: Arc<[AtomicU32; 2]> = Arc::new(std::array::from_fn(|_| AtomicU32::new(0)));
            for place in 0..predecessors {
                let (gate, written) = (Arc::clone(&gate), Arc::clone(&written));
                spawn(move || {
                    written[place].store(1, Relaxed);
                    let _ = arrive(&gate);
                });
            }
            while !gate.is_open_with(look) {
                yield_now();
            }
            assert!(written[..predecessors].iter().all(|written| written.load(Relaxed) == 1));
        });
    }

    fn fails(ordering: Ordering) -> bool {
        std::panic::catch_unwind(|| last_reads_all(ordering)).is_err()
    }

    fn looker_fails(predecessors: usize, arrive: fn(&Gate) -> Arrival, look: Ordering) -> bool {
        std::panic::catch_unwind(|| looker_reads_all(predecessors, arrive, look)).is_err()
    }

    #[test]
    fn who_finds_a_gate_open_reads_what_was_written_before() {
        looker_reads_all(2, Gate::arrive, Acquire);
        looker_reads_all(1, Gate::arrive_only, Acquire);
    }

    #[test]
    fn a_weaker_look_does_not_see() {
        assert!(looker_fails(2, Gate::arrive, Relaxed));
        assert!(looker_fails(1, Gate::arrive_only, Relaxed));
    }

    #[test]
    fn a_weaker_only_arrival_does_not_publish() {
        assert!(looker_fails(1, |gate| gate.arrive_only_with(Relaxed), Acquire));
    }

    #[test]
    fn the_last_arrival_reads_what_the_others_wrote() {
        last_reads_all(AcqRel);
    }

    #[test]
    fn a_weaker_arrival_does_not_publish() {
        assert!(fails(Acquire));
    }

    #[test]
    fn a_weaker_arrival_does_not_see() {
        assert!(fails(Release));
    }

    #[test]
    fn an_arrival_without_order_is_not_enough() {
        assert!(fails(Relaxed));
    }
}
