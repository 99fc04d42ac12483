//! Where a task is in its life, and its priority, in one word.
//!
//! A task goes from waiting to ready to running to completed or failed, or leaves the first two as cancelled. A change
//! of priority leaves the old entry in the queue and adds one: an entry counts only if its priority is still the
//! task's, and only for the thread that starts the task, so that it runs once.

use crate::sync::{AtomicU64, Ordering};

/// Where a task is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// What it comes after has not happened.
    Waiting,
    /// It is in the queue of its processor or group.
    Ready,
    /// Its body has started, or has returned while events that it attached have not triggered.
    Running,
    /// It is complete.
    Completed,
    /// It ran and failed, or an event failed that it attached.
    Failed,
    /// It never ran: it was cancelled, or what it comes after failed.
    Cancelled,
}

const STATUSES: [Status; 6] =
    [Status::Waiting, Status::Ready, Status::Running, Status::Completed, Status::Failed, Status::Cancelled];

/// A new priority found the task in this place.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reprioritized {
    /// Not in a queue yet: it will be queued with the new one.
    Waiting,
    /// In a queue: the caller owes it a new entry.
    Ready,
    /// Started or over: nothing has changed.
    TooLate,
}

/// The status in the upper half, the priority in the lower one.
pub(super) struct Life(AtomicU64);

impl Life {
    pub(super) fn new(priority: i32) -> Life {
        Life(AtomicU64::new(pack(Status::Waiting, priority)))
    }

    pub(super) fn status(&self) -> Status {
        // Acquire pairs with the store in `end`: a thread that sees that a task is complete sees what it did.
        unpack(self.0.load(Ordering::Acquire)).0
    }

    /// What the task comes after has happened: its priority, unless it has been cancelled.
    pub(super) fn become_ready(&self) -> Option<i32> {
        let before =
            self.change(|status, priority| (status == Status::Waiting).then_some((Status::Ready, priority)));
        before.map(|(_, priority)| priority)
    }

    /// Whether an entry of `priority` is to run the task now.
    pub(super) fn start(&self, priority: i32) -> bool {
        let (ready, running) = (pack(Status::Ready, priority), pack(Status::Running, priority));
        // Relaxed: it only decides which thread goes on; what the body reads is published by the queue it came through.
        self.0.compare_exchange(ready, running, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Whether this call is the one that keeps the task from running.
    pub(super) fn withdraw(&self) -> bool {
        let waits = |status| matches!(status, Status::Waiting | Status::Ready);
        self.change(|status, priority| waits(status).then_some((Status::Cancelled, priority))).is_some()
    }

    pub(super) fn set_priority(&self, priority: i32) -> Reprioritized {
        let waits = |status| matches!(status, Status::Waiting | Status::Ready);
        match self.change(|status, _| waits(status).then_some((status, priority))) {
            Some((Status::Waiting, _)) => Reprioritized::Waiting,
            Some(_) => Reprioritized::Ready,
            None => Reprioritized::TooLate,
        }
    }

    /// The task that runs is over.
    pub(super) fn end(&self, status: Status) {
        // Release pairs with the load in `status`. The priority no longer matters.
        self.0.store(pack(status, 0), Ordering::Release);
    }

    /// What was there before, if `next` has something to follow it.
    fn change(&self, next: impl Fn(Status, i32) -> Option<(Status, i32)>) -> Option<(Status, i32)> {
        let next = |word| {
            let (status, priority) = unpack(word);
            next(status, priority).map(|(status, priority)| pack(status, priority))
        };
        // Relaxed: as in `start`.
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok().map(unpack)
    }
}

fn pack(status: Status, priority: i32) -> u64 {
    (status as u64) << 32 | u64::from(priority as u32)
}

fn unpack(word: u64) -> (Status, i32) {
    (STATUSES[(word >> 32) as usize], word as u32 as i32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_an_old_priority_does_not_start_the_task() {
        let life = Life::new(-3);
        assert!(!life.start(-3), "it is not ready");
        assert_eq!(life.become_ready(), Some(-3));
        assert_eq!(life.set_priority(5), Reprioritized::Ready);
        assert!(!life.start(-3));
        assert!(life.start(5));
        assert!(!life.start(5), "it starts once");
        assert_eq!(life.set_priority(6), Reprioritized::TooLate);
        assert!(!life.withdraw());
    }

    #[test]
    fn a_task_that_was_withdrawn_neither_becomes_ready_nor_starts() {
        let life = Life::new(i32::MIN);
        assert_eq!(life.set_priority(2), Reprioritized::Waiting);
        assert!(life.withdraw());
        assert_eq!((life.become_ready(), life.start(2), life.status()), (None, false, Status::Cancelled));
    }
}
