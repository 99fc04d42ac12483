//! One thread for work that must not delay the thread that causes it: callbacks beyond a trigger's budget, large
//! copies.
//!
//! The thread starts with the first job. Dropping the queue lets it finish the jobs it has, then ends it. A job that
//! panics ends alone: the panic hook has reported it, and the next job runs.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::sync::{Condvar, Mutex, lock, sleep};

type Job = Box<dyn FnOnce() + Send>;

/// A queue of jobs and the thread that does them.
pub(crate) struct Background {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    queue: Mutex<Queue>,
    condvar: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl Background {
    pub(crate) fn new() -> Background {
        let shared = Shared { queue: Mutex::new(Queue::default()), condvar: Condvar::new() };
        Background { shared: Arc::new(shared), thread: Mutex::new(None) }
    }

    /// Does `job` soon, on another thread, after the ones before.
    pub(crate) fn submit(&self, job: impl FnOnce() + Send + 'static) {
        lock(&self.shared.queue).jobs.push_back(Box::new(job));
        self.shared.condvar.notify_one();
        lock(&self.thread).get_or_insert_with(|| {
            let shared = Arc::clone(&self.shared);
            std::thread::Builder::new()
                .name("background".into())
                .spawn(move || shared.work())
                .expect("the system has room for one more thread")
        });
    }
}

impl Shared {
    fn work(&self) {
        while let Some(job) = self.next() {
            // Unwind safe: a job shares only what locks guard, and `lock` says why that is never half changed.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }

    /// The next job; nothing once the queue is closed and empty.
    fn next(&self) -> Option<Job> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            if queue.closed {
                return None;
            }
            queue = sleep(&self.condvar, queue);
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        lock(&self.shared.queue).closed = true;
        self.shared.condvar.notify_one();
        let thread = lock(&self.thread).take();
        // The last owner may be a job on the thread itself, which cannot wait for its own end.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn jobs_run_in_order_past_one_that_panics_and_before_the_end() {
        let background = Background::new();
        let (send, received) = channel();
        for job in 0..8 {
            let send = send.clone();
            background.submit(move || {
                assert_ne!(job, 3, "this job panics on purpose");
                send.send(job).expect("the test listens");
            });
        }
        drop((background, send));
        assert_eq!(received.iter().collect::<Vec<_>>(), [0, 1, 2, 4, 5, 6, 7]);
    }
}
