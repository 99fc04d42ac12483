//! One end's progress along a ring.
//!
//! A cursor is one word: a count that only grows, and two bits that are only ever set, *closed* (this end is gone) and
//! *failed* (it went by a panic or an error). Only the half that owns the end writes it; the peer reads it. So one load
//! tells the peer both what it may touch and whether more will come.
//!
//! Every write is a Release and every read by the peer an Acquire: a thread that sees a count also sees the slots behind it.

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

const CLOSED: u64 = 1;
const FAILED: u64 = 2;
const STEP: u64 = 4;

/// A cursor and, on the same line, a count that only its owner and reports care for.
#[repr(C, align(128))]
#[derive(Default)]
pub(super) struct Line {
    pub cursor: Cursor,
    /// Slots taken but perhaps not freed: of a consumer only.
    pub taken: Count,
}

/// How far one end of a ring has come.
#[repr(transparent)]
#[derive(Default)]
pub(super) struct Cursor(AtomicU64);

/// What a cursor showed.
#[derive(Clone, Copy)]
pub(super) struct Reading(u64);

impl Reading {
    pub fn count(self) -> u64 {
        self.0 / STEP
    }

    pub fn closed(self) -> bool {
        self.0 & CLOSED != 0
    }

    pub fn failed(self) -> bool {
        self.0 & FAILED != 0
    }

    /// A number that grows with every change of the cursor.
    pub fn progress(self) -> u64 {
        self.0
    }
}

impl Cursor {
    /// For the peer: what the owner has published.
    #[inline]
    pub fn read(&self) -> Reading {
        self.read_with(Acquire)
    }

    /// For the owner: publishes one more slot, written or read.
    #[inline]
    pub fn advance(&self) {
        self.advance_with(Release);
    }

    /// For the owner: nothing more will come.
    pub fn close(&self) {
        self.set(CLOSED);
    }

    /// For the owner: nothing more will come, because of a failure.
    pub fn fail(&self) {
        self.set(CLOSED | FAILED);
    }

    fn set(&self, bits: u64) {
        // Relaxed: only the owner writes, and here the owner reads.
        let word = self.0.load(Relaxed);
        // Release: a thread that sees the bits sees what the owner did before.
        self.0.store(word | bits, Release);
    }

    /// Apart from `read` so that a model can show that a weaker ordering fails.
    #[inline]
    fn read_with(&self, ordering: Ordering) -> Reading {
        Reading(self.0.load(ordering))
    }

    /// Apart from `advance` for the same reason.
    #[inline]
    fn advance_with(&self, ordering: Ordering) {
        // Relaxed: as in `set`.
        let word = self.0.load(Relaxed);
        self.0.store(word + STEP, ordering);
    }
}

/// A number that its owner writes and others read only for reports, after the halves are joined or approximately.
#[repr(transparent)]
#[derive(Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub fn set(&self, count: u64) {
        // Relaxed: orders nothing, see the type.
        self.0.store(count, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::model;
    use loom::sync::Arc;
    use loom::thread::{spawn, yield_now};

    use super::*;

    const DEPTH: u64 = 1;
    const TILES: u64 = 2;

    #[derive(Default)]
    struct Ring {
        head: Line,
        tail: Line,
        slots: [UnsafeCell<u64>; DEPTH as usize],
    }

    fn produce(ring: &Ring, orderings: Orderings) {
        for pushed in 0..TILES {
            while pushed - ring.tail.cursor.read_with(orderings.tail.1).count() == DEPTH {
                yield_now();
            }
            // SAFETY: loom finds a thread that still reads the slot.
            ring.slots[(pushed % DEPTH) as usize].with_mut(|slot| unsafe { *slot = pushed + 1 });
            ring.head.cursor.advance_with(orderings.head.0);
        }
        ring.head.cursor.close();
    }

    fn consume(ring: &Ring, orderings: Orderings) {
        let mut popped = 0;
        loop {
            let head = ring.head.cursor.read_with(orderings.head.1);
            if popped < head.count() {
                // SAFETY: loom finds a thread that already writes the slot.
                let tile = ring.slots[(popped % DEPTH) as usize].with(|slot| unsafe { *slot });
                popped += 1;
                assert_eq!(tile, popped);
                ring.tail.cursor.advance_with(orderings.tail.0);
            } else if head.closed() {
                break;
            } else {
                yield_now();
            }
        }
        assert_eq!(popped, TILES);
    }

    /// Of either cursor: how it is advanced and how it is read.
    #[derive(Clone, Copy)]
    struct Orderings {
        head: (Ordering, Ordering),
        tail: (Ordering, Ordering),
    }

    const REAL: Orderings = Orderings { head: (Release, Acquire), tail: (Release, Acquire) };

    fn every_tile_arrives(orderings: Orderings) {
        model(move || {
            let ring = Arc::new(Ring::default());
            let peer = Arc::clone(&ring);
            let producer = spawn(move || produce(&peer, orderings));
            consume(&ring, orderings);
            producer.join().unwrap();
        });
    }

    fn fails(orderings: Orderings) -> bool {
        std::panic::catch_unwind(|| every_tile_arrives(orderings)).is_err()
    }

    #[test]
    fn tiles_arrive_whole_and_in_order_and_the_end_after_the_last() {
        every_tile_arrives(REAL);
    }

    #[test]
    fn a_head_without_release_or_acquire_shows_unwritten_slots() {
        assert!(fails(Orderings { head: (Relaxed, Acquire), ..REAL }));
        assert!(fails(Orderings { head: (Release, Relaxed), ..REAL }));
    }

    #[test]
    fn a_tail_without_release_or_acquire_gives_slots_still_read() {
        assert!(fails(Orderings { tail: (Relaxed, Acquire), ..REAL }));
        assert!(fails(Orderings { tail: (Release, Relaxed), ..REAL }));
    }
}
