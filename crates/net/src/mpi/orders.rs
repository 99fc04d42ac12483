//! Batches that are to be started.
//!
//! A thread outside the library leaves them in a list that all threads share, under a lock of its own. A thread that
//! drives the engine is about to look anyway: what it orders itself, in its work between polls and in callbacks, it
//! keeps to itself until then, which costs no more than a push. What is left when it stops driving goes to the others.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Mutex, PoisonError};

/// A batch, as connection and number.
pub(crate) type Order = (usize, usize);

thread_local! {
    /// Which engine this thread drives, by the address of its orders.
    static DRIVES: Cell<usize> = const { Cell::new(0) };
    /// What it has ordered itself.
    static OWN: RefCell<Vec<Order>> = const { RefCell::new(Vec::new()) };
}

/// Orders of all threads.
#[derive(Default)]
pub(crate) struct Orders {
    shared: Mutex<Vec<Order>>,
    /// Whether there are any in the list.
    any: AtomicBool,
}

impl Orders {
    /// Adds one; whether a thread has to be woken.
    pub(crate) fn push(&self, order: Order) -> bool {
        if DRIVES.get() == self.address() {
            OWN.with_borrow_mut(|own| own.push(order));
            return false;
        }
        self.share(|shared| shared.push(order));
        true
    }

    /// Whether there are some that this thread could carry out.
    pub(crate) fn any_pending(&self) -> bool {
        // SeqCst, pairs with `share`: threads that are about to rest, drive or leave see an order, or the ordering
        // thread sees them.
        self.any.load(SeqCst) || self.has_own()
    }

    /// Hands all that this thread can carry out to `take`; whether there were any.
    pub(crate) fn take(&self, mut take: impl FnMut(&mut Vec<Order>)) -> bool {
        // Relaxed at first: an exchange at every look would cost more than the rest of it. SeqCst as in `any_pending`.
        let shared = self.any.load(Relaxed) && self.any.swap(false, SeqCst);
        if shared {
            take(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner));
        }
        let own = self.has_own();
        if own {
            OWN.with_borrow_mut(take);
        }
        shared || own
    }

    /// From now on this thread drives; what it drove before.
    pub(crate) fn begin_to_drive(&self) -> usize {
        DRIVES.replace(self.address())
    }

    /// It goes on with what it drove before, and leaves its own orders to all.
    pub(crate) fn stop_driving(&self, before: usize) {
        if self.has_own() {
            OWN.with_borrow_mut(|own| self.share(|shared| shared.append(own)));
        }
        DRIVES.set(before);
    }

    fn share(&self, add: impl FnOnce(&mut Vec<Order>)) {
        add(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner));
        // SeqCst: see `any_pending`.
        self.any.store(true, SeqCst);
    }

    fn has_own(&self) -> bool {
        DRIVES.get() == self.address() && OWN.with_borrow(|own| !own.is_empty())
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(orders: &Orders) -> Vec<Order> {
        let mut all = Vec::new();
        let any = orders.take(|some| all.append(some));
        assert_eq!(any, !all.is_empty());
        all
    }

    #[test]
    fn a_driver_keeps_its_own_orders_until_it_stops() {
        let (orders, others) = (Orders::default(), Orders::default());
        assert!(orders.push((0, 1)), "no thread drives");
        let before = orders.begin_to_drive();
        assert!(!orders.push((0, 2)));
        assert!(others.push((0, 3)), "another engine's");
        let elsewhere = std::thread::scope(|scope| scope.spawn(|| taken(&orders)).join().expect("no panic"));
        assert_eq!(elsewhere, [(0, 1)]);
        assert!(orders.any_pending());
        orders.stop_driving(before);
        assert!(orders.push((0, 4)));
        assert_eq!(taken(&orders), [(0, 2), (0, 4)]);
        assert!(!orders.any_pending());
        assert_eq!(taken(&others), [(0, 3)]);
    }
}
