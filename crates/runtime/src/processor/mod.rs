//! Processors: each runs one task at a time, the most urgent first.
//!
//! A processor is served by one worker thread at a time, the one that holds its *worker core*. A task that waits hands
//! the worker core to another worker, so the processor goes on; when what it waited for has happened, it is queued like
//! a task that is ready, and the worker that takes it from the queue hands the worker core back (see `worker`). While a
//! processor has nothing to do, a thread outside may take the worker core, too (see `helper`). Work comes from three
//! places: the processor's own queue, those of its groups, and the runs of graphs (see `graph`), which it knows only as
//! [`Executor`].

mod attached;
mod context;
mod group;
mod helper;
mod idle_monitor;
mod life;
mod mailbox;
mod queue;
mod ready;
mod sleep;
mod task;
mod thread_state;
mod worker;
mod worker_core;

pub use context::Context;
pub use group::{Group, GroupError};
pub use life::Status;
pub use task::{Options, Task, panic_message};
pub use thread_state::without_promise;

pub(crate) use attached::Attached;
pub(crate) use context::{Extra, Means};
pub(crate) use helper::HelperThread;
pub(crate) use idle_monitor::IdleMonitor;
pub(crate) use thread_state::{
    breaks_promise, broken_promise, is_outside, keep_promise, serves_one_of, wait, with_core,
};
pub(crate) use worker_core::WorkerCore;

use std::io;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use crate::event::Events;
use crate::graph::{Announced, EXPECTED};
use crate::profile::Clock;
use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, lock};
use queue::Queue;
use ready::Ready;
use sleep::Sleep;
use worker::Worker;

/// Bodies of a graph that a worker runs before it looks at other work.
pub(crate) const BUDGET: u32 = 64;

/// One processor of a runtime.
pub(crate) struct Processor {
    pub(crate) number: u32,
    pub(crate) events: Arc<Events>,
    /// What it issues work to, if it is not a mere thread; set once.
    pub(crate) device: OnceLock<Attached>,
    pub(crate) own: Arc<Queue>,
    /// Queues shared with other processors, and how often the list has changed.
    groups: Mutex<Vec<Arc<Ready>>>,
    changes: AtomicUsize,
    /// Runs of graphs that begin here, and how many they are.
    inbox: Mutex<Vec<Announced>>,
    inboxed: AtomicUsize,
    sleep: Arc<Sleep>,
    /// Whether a thread outside would rather serve it than wake its worker again.
    asked_for: AtomicBool,
    /// Notified when it has nothing to do; set once.
    idle_monitor: OnceLock<Arc<IdleMonitor>>,
    /// How often a worker looks for work again before it sleeps.
    polls: u32,
    closed: AtomicBool,
    /// Workers without a task.
    idle: Mutex<Vec<Arc<Worker>>>,
    workers: Mutex<Vec<Arc<Worker>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Processor {
    /// Starts a processor.
    pub(crate) fn start(number: u32, events: &Arc<Events>, polls: u32, clock: Clock) -> Arc<Processor> {
        let sleep = Arc::new(Sleep::new());
        let processor = Arc::new(Processor {
            number,
            events: Arc::clone(events),
            device: OnceLock::new(),
            own: Arc::new(Queue::own(&sleep, events, clock)),
            groups: Mutex::default(),
            changes: AtomicUsize::new(0),
            inbox: Mutex::new(Vec::with_capacity(EXPECTED)),
            inboxed: AtomicUsize::new(0),
            sleep,
            asked_for: AtomicBool::new(false),
            idle_monitor: OnceLock::new(),
            polls,
            closed: AtomicBool::new(false),
            idle: Mutex::default(),
            workers: Mutex::default(),
            threads: Mutex::default(),
        });
        let first = processor.idle_worker().expect("the system has room for one thread a processor");
        first.mailbox.give(Box::default());
        processor
    }

    /// Lets the processor take part in a run. What it has to do there may be queued before or after.
    pub(crate) fn announce(&self, run: Announced) {
        let mut inbox = lock(&self.inbox);
        inbox.push(run);
        // Release pairs with the load in `has_mail`, as a hint: the inbox is read under its lock.
        self.inboxed.store(inbox.len(), Ordering::Release);
        drop(inbox);
        self.sleep.wake();
    }

    /// Wakes the processor for work that is visible.
    pub(crate) fn wake(&self) {
        self.sleep.wake();
    }

    /// Wakes the processor for work that is visible, after a sequentially consistent fence.
    pub(crate) fn wake_fenced(&self) {
        self.sleep.wake_fenced();
    }

    /// How often it may look again for work that is about to come; never where others need its core.
    pub(crate) fn polls(&self) -> u32 {
        self.polls
    }

    fn has_mail(&self) -> bool {
        // Acquire pairs with the store in `announce`.
        self.inboxed.load(Ordering::Acquire) != 0
    }

    fn change_groups(&self, change: impl FnOnce(&mut Vec<Arc<Ready>>)) {
        change(&mut lock(&self.groups));
        // Release pairs with the load of the worker that then reads the list under its lock.
        self.changes.fetch_add(1, Ordering::Release);
        self.sleep.wake();
    }

    /// A worker to hand the worker core to, a new one if none is idle.
    fn idle_worker(self: &Arc<Self>) -> io::Result<Arc<Worker>> {
        if let Some(worker) = lock(&self.idle).pop() {
            return Ok(worker);
        }
        let (worker, thread) = Worker::start(self)?;
        lock(&self.workers).push(Arc::clone(&worker));
        lock(&self.threads).push(thread);
        Ok(worker)
    }

    /// Ends the processor once it has run what is ready. Tasks that still wait then fail.
    pub(crate) fn close(&self) {
        // Relaxed: the sleeper is woken through a fence; one that is awake sees it in time.
        self.closed.store(true, Ordering::Relaxed);
        self.sleep.wake();
    }

    /// Waits until all threads of a processor that was closed have ended.
    pub(crate) fn join(&self) {
        loop {
            let Some(thread) = lock(&self.threads).pop() else { return };
            // A worker does not panic, so there is nothing to report.
            let _ = thread.join();
        }
    }

    /// Stops serving its queues. Not if one of them has work that no other processor serves.
    fn leave_queues(&self) -> bool {
        let mut groups = lock(&self.groups);
        while groups.pop_if(|group| group.leave()).is_some() {}
        // Release as in `change_groups`: the worker core forgets what has been left.
        self.changes.fetch_add(1, Ordering::Release);
        groups.is_empty() && self.own.ready.leave()
    }

    /// Ends all workers. Tasks that wait hear of it at once, and again whenever they wait: there is no worker core any
    /// more.
    fn end(&self) {
        lock(&self.idle).clear();
        for worker in lock(&self.workers).drain(..) {
            worker.mailbox.close();
        }
    }
}
