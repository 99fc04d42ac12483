//! Where tasks are handed to processors: a queue and those to wake.
//!
//! Each processor has one of its own and each group has one; to a task they are the same. A queue holds neither the
//! processors nor the events that lead to it, so tasks that wait in the table of events keep nothing alive but queues.

use std::sync::{Arc, Weak};

use crate::event::Events;
use crate::fault::Fault;
use crate::profile::Clock;
use crate::sync::{Ordering, fence};

use super::Processor;
use super::ready::{Item, Ready};
use super::sleep::Sleep;

/// The producers' side of a queue. When the last producer is gone, its processors forget the queue once it is empty.
pub(crate) struct Queue {
    pub(super) ready: Arc<Ready>,
    sleeps: Vec<Arc<Sleep>>,
    /// Processors that serve the queue beside their own.
    members: Vec<Weak<Processor>>,
    pub(super) events: Weak<Events>,
    pub(crate) clock: Clock,
}

impl Queue {
    /// A processor's own queue.
    pub(super) fn own(sleep: &Arc<Sleep>, events: &Arc<Events>, clock: Clock) -> Queue {
        let (ready, sleeps) = (Arc::new(Ready::new(1)), vec![Arc::clone(sleep)]);
        Queue { ready, sleeps, members: Vec::new(), events: Arc::downgrade(events), clock }
    }

    /// A queue that `members` serve beside their own, for tasks like those of `like`.
    pub(super) fn shared(members: &[Arc<Processor>], like: &Queue) -> Queue {
        let queue = Queue {
            ready: Arc::new(Ready::new(members.len())),
            sleeps: members.iter().map(|member| Arc::clone(&member.sleep)).collect(),
            members: members.iter().map(Arc::downgrade).collect(),
            events: Weak::clone(&like.events),
            clock: like.clock,
        };
        for member in members {
            member.change_groups(|groups| groups.push(Arc::clone(&queue.ready)));
        }
        queue
    }

    /// Whether its tasks' finish events are in the table `events`.
    pub(crate) fn belongs_to(&self, events: &Arc<Events>) -> bool {
        std::ptr::eq(self.events.as_ptr(), Arc::as_ptr(events))
    }

    /// Queues an item and wakes the processors that may take it. If all of them have closed, a task is withdrawn.
    pub(super) fn push(&self, priority: i32, item: Item) {
        match self.ready.push(priority, item) {
            Ok(()) => {
                // One fence for all of them; pairs with that of each sleeper.
                fence(Ordering::SeqCst);
                self.sleeps.iter().for_each(|sleep| sleep.wake_fenced());
            }
            Err(Item::Task(task)) => {
                task.withdraw(self, Fault::refused(task.name(), "its processor has been shut down"));
            }
            // Its processor has closed the worker's mailbox.
            Err(Item::Resume(_)) => {}
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.ready.retire();
        for member in self.members.iter().filter_map(Weak::upgrade) {
            member.change_groups(|_| {});
        }
    }
}
