//! The segments of a run that are ready on one processor, in the order in which they became so.
//!
//! A queue has one slot for each segment of its processor and each segment enters at most once a run, so it neither
//! wraps nor overflows, and no slot is written twice. Producers draw a slot from `tail` and store the segment there;
//! the consumer, the thread that holds the processor's worker core, reads slot after slot and finds the next one empty
//! until it is stored.

use crate::sync::{AtomicU32, Ordering};

/// On a cache line of its own: producers on all processors change it.
#[repr(align(128))]
pub(crate) struct Tail(AtomicU32);

pub(crate) struct Slot(AtomicU32);

/// Nothing here yet.
const EMPTY: u32 = u32::MAX;

impl Tail {
    pub(crate) fn new() -> Tail {
        Tail(AtomicU32::new(0))
    }

    /// Starts over, while no thread pushes.
    pub(crate) fn reset(&self) {
        // Relaxed: published with the run.
        self.0.store(0, Ordering::Relaxed);
    }

    /// Adds `segment` to the queue that `slots` belong to.
    pub(crate) fn push(&self, slots: &[Slot], segment: u32) {
        // Release pairs with the load in `get`.
        self.push_with(slots, segment, Ordering::Release);
    }

    /// Apart so that a model can show that a weaker ordering is not enough.
    #[inline]
    fn push_with(&self, slots: &[Slot], segment: u32, ordering: Ordering) {
        // Relaxed: it only deals out slots; what the segment needs to see is published by the store that follows.
        let place = self.0.fetch_add(1, Ordering::Relaxed);
        slots[place as usize].0.store(segment, ordering);
    }
}

impl Slot {
    pub(crate) fn new() -> Slot {
        Slot(AtomicU32::new(EMPTY))
    }

    /// Empties the slot, while no thread pushes or reads.
    pub(crate) fn reset(&self) {
        // Relaxed: published with the run.
        self.0.store(EMPTY, Ordering::Relaxed);
    }

    /// The segment in the slot, with all that its predecessors wrote; nothing if it is not there yet.
    pub(crate) fn get(&self) -> Option<u32> {
        // Acquire pairs with the store in `push`.
        self.get_with(Ordering::Acquire)
    }

    /// Apart for the same reason as `push_with`.
    #[inline]
    fn get_with(&self, ordering: Ordering) -> Option<u32> {
        let segment = self.0.load(ordering);
        (segment != EMPTY).then_some(segment)
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::model;
    use loom::sync::Arc;
    use loom::thread::{spawn, yield_now};

    use super::*;
    use crate::sync::Ordering::{Acquire, Relaxed, Release};

    const PRODUCERS: usize = 2;

    struct Queue {
        tail: Tail,
        slots: [Slot; PRODUCERS],
        /// By segment: what its predecessor has written. The writes themselves order nothing.
        written: [AtomicU32; PRODUCERS],
    }

    /// Every producer writes and pushes its segment; the consumer gets each segment once, with what was written before.
    fn everything_arrives_once(store: Ordering, load: Ordering) {
        model(move || {
            let queue = Arc::new(Queue {
                tail: Tail::new(),
                slots: std::array::from_fn(|_| Slot::new()),
                written: std::array::from_fn(|_| AtomicU32::new(0)),
            });
            for segment in 0..PRODUCERS {
                let queue = Arc::clone(&queue);
                spawn(move || {
                    queue.written[segment].store(1, Relaxed);
                    queue.tail.push_with(&queue.slots, segment as u32, store);
                });
            }
            let mut seen = [0; PRODUCERS];
            for slot in &queue.slots {
                let segment = loop {
                    match slot.get_with(load) {
                        Some(segment) => break segment as usize,
                        None => yield_now(),
                    }
                };
                assert_eq!(queue.written[segment].load(Relaxed), 1);
                seen[segment] += 1;
            }
            assert_eq!(seen, [1; PRODUCERS]);
        });
    }

    fn fails(store: Ordering, load: Ordering) -> bool {
        std::panic::catch_unwind(|| everything_arrives_once(store, load)).is_err()
    }

    #[test]
    fn a_segment_arrives_once_with_what_was_written_before() {
        everything_arrives_once(Release, Acquire);
    }

    #[test]
    fn a_weaker_store_does_not_publish() {
        assert!(fails(Relaxed, Acquire));
    }

    #[test]
    fn a_weaker_load_does_not_see() {
        assert!(fails(Release, Relaxed));
    }
}
