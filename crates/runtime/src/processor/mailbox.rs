//! Where a worker waits to be handed the worker core.
//!
//! What the giver did before happens before what the receiver does after. A mailbox that is closed still hands out what
//! is in it, then nothing.

use crate::sync::{Condvar, Mutex, lock, sleep};

pub(super) struct Mailbox<T> {
    mail: Mutex<Mail<T>>,
    condvar: Condvar,
}

struct Mail<T> {
    item: Option<T>,
    closed: bool,
}

impl<T> Mailbox<T> {
    pub(super) fn new() -> Mailbox<T> {
        Mailbox { mail: Mutex::new(Mail { item: None, closed: false }), condvar: Condvar::new() }
    }

    /// Hands over `item`; the owner has taken the one before.
    pub(super) fn give(&self, item: T) {
        lock(&self.mail).item = Some(item);
        self.condvar.notify_one();
    }

    /// Lets the owner wait no longer.
    pub(super) fn close(&self) {
        lock(&self.mail).closed = true;
        self.condvar.notify_one();
    }

    /// Waits for an item; nothing if there is none and the mailbox is closed.
    pub(super) fn receive(&self) -> Option<T> {
        let mut mail = lock(&self.mail);
        loop {
            if let Some(item) = mail.item.take() {
                return Some(item);
            }
            if mail.closed {
                return None;
            }
            mail = sleep(&self.condvar, mail);
        }
    }
}

#[cfg(all(loom, test))]
mod models {
    use std::panic::catch_unwind;

    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    fn write(data: &UnsafeCell<u32>) {
        // SAFETY: loom checks that no other thread has access.
        data.with_mut(|data| unsafe { *data += 1 });
    }

    /// Two workers hand one worker core to and fro, and each writes to what it guards; the second is then closed. A
    /// worker core that gets lost is a deadlock, two that hold it are a race; loom reports both.
    #[test]
    fn the_holder_of_the_worker_core_is_alone_and_it_never_gets_lost() {
        loom::model(|| {
            let boxes = Arc::new([Mailbox::<()>::new(), Mailbox::<()>::new()]);
            let data = Arc::new(UnsafeCell::new(0));
            let second = thread::spawn({
                let (boxes, data) = (Arc::clone(&boxes), Arc::clone(&data));
                move || {
                    while boxes[1].receive().is_some() {
                        write(&data);
                        boxes[0].give(());
                    }
                }
            });
            write(&data);
            boxes[1].give(());
            boxes[0].receive().expect("the first is not closed");
            write(&data);
            boxes[1].close();
            second.join().expect("the second does not panic");
            // SAFETY: loom checks that no other thread writes.
            assert_eq!(data.with(|data| unsafe { *data }), 3);
        });
    }

    /// A worker that goes on before it has received the worker core finds the other one at work.
    #[test]
    fn without_the_mailbox_two_are_at_work() {
        let model = || {
            let (mailbox, data) = (Arc::new(Mailbox::<()>::new()), Arc::new(UnsafeCell::new(0)));
            let first = thread::spawn({
                let (mailbox, data) = (Arc::clone(&mailbox), Arc::clone(&data));
                move || {
                    write(&data);
                    mailbox.give(());
                }
            });
            write(&data);
            first.join().expect("the first does not panic");
        };
        assert!(catch_unwind(|| loom::model(model)).is_err());
    }
}
