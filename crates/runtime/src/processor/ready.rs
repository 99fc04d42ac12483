//! Work that is ready to run: tasks, and workers whose tasks waited and may go on.
//!
//! The higher priority goes first; of equal ones those that go on, then the older. Items that only their age tells
//! apart lie in one lane, so that adding and taking cost the same however many there are. `best` repeats the rank of
//! the first lane: a look takes no lock.
//!
//! A queue knows how many processors serve it. When the last one has left it takes no more: nothing waits in a queue
//! that nobody looks at.

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
pub(super) struct Rank {
    pub(super) priority: i32,
    resumes: bool,
}

/// No work; less than every rank.
const EMPTY: i64 = i64::MIN;

pub(super) struct Ready {
    best: AtomicI64,
    queue: Mutex<Queue>,
}

struct Queue {
    /// The first one to serve last; none is empty.
    lanes: Vec<Lane>,
    /// The items of a lane that is gone, for the next one to use its room.
    spare: VecDeque<Item>,
    servers: usize,
    /// Whether nobody can add items any more.
    retired: bool,
}

/// Items of one rank, the oldest first.
pub(super) struct Lane {
    rank: Rank,
    items: VecDeque<Item>,
}

impl Ready {
    /// A queue that so many processors serve.
    pub(super) fn new(servers: usize) -> Ready {
        let queue = Queue { lanes: Vec::new(), spare: VecDeque::new(), servers, retired: false };
        Ready { best: AtomicI64::new(EMPTY), queue: Mutex::new(queue) }
    }

    /// Adds an item; the caller wakes those who serve the queue. If nobody does any more, the item comes back.
    pub(super) fn push(&self, priority: i32, item: Item) -> Result<(), Item> {
        let mut queue = lock(&self.queue);
        if queue.servers == 0 {
            return Err(item);
        }
        queue.lane(Rank { priority, resumes: matches!(item, Item::Resume(_)) }).items.push_back(item);
        self.remember(&queue);
        Ok(())
    }

    /// Takes the first item.
    pub(super) fn pop(&self) -> Option<(i32, Item)> {
        let mut queue = lock(&self.queue);
        let popped = queue.lanes.last_mut()?.pop();
        if queue.lanes.last().is_some_and(|lane| lane.items.is_empty()) {
            queue.spare = queue.lanes.pop()?.items;
        }
        self.remember(&queue);
        popped
    }

    /// Takes the whole first lane in exchange for `taken`, which is empty.
    pub(super) fn take(&self, taken: &mut Lane) {
        let mut queue = lock(&self.queue);
        let Some(lane) = queue.lanes.pop() else { return };
        queue.spare = std::mem::replace(taken, lane).items;
        self.remember(&queue);
    }

    /// The rank of the first item.
    pub(super) fn peek(&self) -> Option<Rank> {
        // Acquire pairs with the store in `remember`, but only as a hint: items are taken under the lock.
        Rank::decode(self.best.load(Ordering::Acquire))
    }

    /// One of those who serve the queue stops. Not if it is the last one and there is work.
    pub(super) fn leave(&self) -> bool {
        let mut queue = lock(&self.queue);
        let may_leave = queue.servers > 1 || queue.lanes.is_empty();
        if may_leave {
            queue.servers -= 1;
        }
        may_leave
    }

    /// Nobody adds items from now on.
    pub(super) fn retire(&self) {
        lock(&self.queue).retired = true;
    }

    /// Whether there is no work and never will be.
    pub(super) fn is_spent(&self) -> bool {
        let queue = lock(&self.queue);
        queue.retired && queue.lanes.is_empty()
    }

    fn remember(&self, queue: &Queue) {
        let best = queue.lanes.last().map_or(EMPTY, |lane| lane.rank.encode());
        // Release pairs with the load in `peek`.
        self.best.store(best, Ordering::Release);
    }
}

impl Queue {
    /// The lane of `rank`, a new one if need be.
    fn lane(&mut self, rank: Rank) -> &mut Lane {
        let place = match self.lanes.last() {
            Some(last) if last.rank == rank => self.lanes.len() - 1,
            _ => self.lanes.partition_point(|lane| lane.rank < rank),
        };
        if self.lanes.get(place).is_none_or(|lane| lane.rank != rank) {
            let items = std::mem::take(&mut self.spare);
            self.lanes.insert(place, Lane { rank, items });
        }
        &mut self.lanes[place]
    }
}

impl Lane {
    /// The rank of its items, if it has any.
    pub(super) fn peek(&self) -> Option<Rank> {
        (!self.items.is_empty()).then_some(self.rank)
    }

    /// Takes the oldest item.
    pub(super) fn pop(&mut self) -> Option<(i32, Item)> {
        self.items.pop_front().map(|item| (self.rank.priority, item))
    }
}

impl Default for Lane {
    fn default() -> Lane {
        Lane { rank: Rank { priority: 0, resumes: false }, items: VecDeque::new() }
    }
}

impl Rank {
    fn encode(self) -> i64 {
        i64::from(self.priority) << 1 | i64::from(self.resumes)
    }

    fn decode(code: i64) -> Option<Rank> {
        (code != EMPTY).then_some(Rank { priority: (code >> 1) as i32, resumes: code & 1 == 1 })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ranks_order_by_priority_then_by_going_on_and_survive_the_word() {
        let rank = |priority, resumes| Rank { priority, resumes };
        let ranks =
            [rank(i32::MIN, false), rank(-1, true), rank(0, false), rank(0, true), rank(i32::MAX, true)];
        assert!(ranks.is_sorted());
        assert!(ranks.map(Rank::encode).is_sorted());
        assert_eq!(ranks.map(|rank| Rank::decode(rank.encode())), ranks.map(Some));
        assert_eq!(Rank::decode(EMPTY), None);
    }
}
