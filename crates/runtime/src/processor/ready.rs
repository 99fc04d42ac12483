//! Work that is ready to run: tasks, and workers whose tasks waited and may go on.
//!
//! The higher priority goes first; of equal ones those that go on, then the older. Items that differ only in age lie in
//! one FIFO, so that adding and taking cost the same however many there are. `best` repeats the urgency of the first
//! FIFO: reading it takes no lock.
//!
//! A queue knows how many processors serve it. When the last one has left it takes no more: nothing waits in a queue
//! that no processor serves.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::sync::{AtomicI64, Mutex, Ordering, lock};

use super::task::Record;
use super::worker::Worker;

pub(super) enum Item {
    Task(Arc<Record>),
    /// The worker of a task that waited.
    Resume(Arc<Worker>),
}

/// What decides which item goes first; the greater one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Urgency {
    pub(super) priority: i32,
    resumes: bool,
}

/// No work; less than every urgency.
const EMPTY: i64 = i64::MIN;

pub(super) struct Ready {
    best: AtomicI64,
    queue: Mutex<Queue>,
}

struct Queue {
    /// The first one to serve last; none is empty.
    fifos: Vec<Fifo>,
    /// The items of a FIFO that is gone, for the next one to use its room.
    spare: VecDeque<Item>,
    servers: usize,
    /// Whether no items can be added any more.
    retired: bool,
}

/// Items of one urgency, the oldest first.
pub(super) struct Fifo {
    urgency: Urgency,
    items: VecDeque<Item>,
}

impl Ready {
    /// A queue that `servers` processors serve.
    pub(super) fn new(servers: usize) -> Ready {
        let queue = Queue { fifos: Vec::new(), spare: VecDeque::new(), servers, retired: false };
        Ready { best: AtomicI64::new(EMPTY), queue: Mutex::new(queue) }
    }

    /// Adds an item; the caller wakes the processors that serve the queue. If none does any more, the item comes back.
    pub(super) fn push(&self, priority: i32, item: Item) -> Result<(), Item> {
        let mut queue = lock(&self.queue);
        if queue.servers == 0 {
            return Err(item);
        }
        queue.fifo(Urgency { priority, resumes: matches!(item, Item::Resume(_)) }).items.push_back(item);
        self.remember(&queue);
        Ok(())
    }

    /// Takes the first item.
    pub(super) fn pop(&self) -> Option<(i32, Item)> {
        let mut queue = lock(&self.queue);
        let popped = queue.fifos.last_mut()?.pop();
        if queue.fifos.last().is_some_and(|fifo| fifo.items.is_empty()) {
            queue.spare = queue.fifos.pop()?.items;
        }
        self.remember(&queue);
        popped
    }

    /// Takes the whole first FIFO in exchange for `taken`, which is empty.
    pub(super) fn take(&self, taken: &mut Fifo) {
        let mut queue = lock(&self.queue);
        let Some(fifo) = queue.fifos.pop() else { return };
        queue.spare = std::mem::replace(taken, fifo).items;
        self.remember(&queue);
    }

    /// The urgency of the first item.
    pub(super) fn peek(&self) -> Option<Urgency> {
        // Acquire pairs with the store in `remember`, but only as a hint: items are taken under the lock.
        Urgency::decode(self.best.load(Ordering::Acquire))
    }

    /// One of the processors that serve the queue stops, unless it is the last one and there is work. Whether it may.
    pub(super) fn leave(&self) -> bool {
        let mut queue = lock(&self.queue);
        let may_leave = queue.servers > 1 || queue.fifos.is_empty();
        if may_leave {
            queue.servers -= 1;
        }
        may_leave
    }

    /// No items are added from now on.
    pub(super) fn retire(&self) {
        lock(&self.queue).retired = true;
    }

    /// Whether there is no work and never will be.
    pub(super) fn is_spent(&self) -> bool {
        let queue = lock(&self.queue);
        queue.retired && queue.fifos.is_empty()
    }

    fn remember(&self, queue: &Queue) {
        let best = queue.fifos.last().map_or(EMPTY, |fifo| fifo.urgency.encode());
        // Release pairs with the load in `peek`.
        self.best.store(best, Ordering::Release);
    }
}

impl Queue {
    /// The FIFO of `urgency`, a new one if need be.
    fn fifo(&mut self, urgency: Urgency) -> &mut Fifo {
        let place = match self.fifos.last() {
            Some(last) if last.urgency == urgency => self.fifos.len() - 1,
            _ => self.fifos.partition_point(|fifo| fifo.urgency < urgency),
        };
        if self.fifos.get(place).is_none_or(|fifo| fifo.urgency != urgency) {
            let items = std::mem::take(&mut self.spare);
            self.fifos.insert(place, Fifo { urgency, items });
        }
        &mut self.fifos[place]
    }
}

impl Fifo {
    /// The urgency of its items, if it has any.
    pub(super) fn peek(&self) -> Option<Urgency> {
        (!self.items.is_empty()).then_some(self.urgency)
    }

    /// Takes the oldest item.
    pub(super) fn pop(&mut self) -> Option<(i32, Item)> {
        self.items.pop_front().map(|item| (self.urgency.priority, item))
    }
}

impl Default for Fifo {
    fn default() -> Fifo {
        Fifo { urgency: Urgency { priority: 0, resumes: false }, items: VecDeque::new() }
    }
}

impl Urgency {
    fn encode(self) -> i64 {
        i64::from(self.priority) << 1 | i64::from(self.resumes)
    }

    fn decode(code: i64) -> Option<Urgency> {
        (code != EMPTY).then_some(Urgency { priority: (code >> 1) as i32, resumes: code & 1 == 1 })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn urgencies_order_by_priority_then_by_going_on_and_survive_the_word() {
        let urgency = |priority, resumes| Urgency { priority, resumes };
        let urgencies = [
            urgency(i32::MIN, false),
            urgency(-1, true),
            urgency(0, false),
            urgency(0, true),
            urgency(i32::MAX, true),
        ];
        assert!(urgencies.is_sorted());
        assert!(urgencies.map(Urgency::encode).is_sorted());
        assert_eq!(urgencies.map(|urgency| Urgency::decode(urgency.encode())), urgencies.map(Some));
        assert_eq!(Urgency::decode(EMPTY), None);
    }
}
