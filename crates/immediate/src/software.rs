//! A device without hardware: FIFO queues, and a thread that drains them.
//!
//! It keeps every promise of [`Device`] and as little else as possible: lanes can be made to share queues, and which
//! queue goes next is a seed's choice, so that code which relies on more than the promises fails in a test. With
//! [`DrainMode::Stepped`] nothing happens until [`Software::step`] is called, and every order of steps can be
//! reproduced. A device with a thread lets a token fire as soon as what it stands for is done: the work of another lane
//! never begins between the two.
//!
//! Work on a poisoned lane is dropped, not done. A lane that is not leased does nothing, and its tokens fire
//! poisoned. It does not know tokens of other devices from its own.

mod queues;
mod tokens;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use phalanx_runtime::sync::{Condvar, Mutex, lock, sleep};
use phalanx_runtime::{Device, Lane, Outcome, Token};

use self::queues::{Queues, TakenStep};

/// How a [`Software`] device behaves.
#[derive(Default)]
pub struct SoftwareConfig {
    /// How many queues the lanes share: lane `l` is on queue `l % n`. Every lane has its own if `None`.
    pub queues: Option<NonZeroU32>,
    /// Which queue goes next.
    pub order: QueueOrder,
    /// When a queue goes on.
    pub drain: DrainMode,
}

/// Which of the queues that can go on goes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueOrder {
    /// They take turns.
    #[default]
    RoundRobin,
    /// One chosen at random; the same seed chooses alike.
    Seeded(u64),
}

/// When a device does what is enqueued.
#[derive(Default)]
pub enum DrainMode {
    /// As soon as it can, on a thread of its own.
    #[default]
    Prompt,
    /// Like `Prompt`, but the thread rests before each work, about as long as this says of the work's number. Works are
    /// numbered from 0 as they are enqueued.
    Delayed(Box<dyn Fn(u64) -> Duration + Send + Sync>),
    /// When [`Software::step`] is called, on the thread that calls it.
    Stepped,
}

/// A device without hardware.
///
/// Dropping it lets its thread finish what is enqueued. What a [`DrainMode::Stepped`] device has not done by then is
/// dropped, callbacks included.
pub struct Software {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Rung when the thread may find something to do.
    condvar: Condvar,
    drain: DrainMode,
}

struct State {
    queues: Queues,
    closed: bool,
}

impl Software {
    /// A device with nothing to do.
    pub fn new(config: SoftwareConfig) -> Arc<Software> {
        let SoftwareConfig { queues, order, drain } = config;
        let prompt = !matches!(drain, DrainMode::Stepped);
        let state = State { queues: Queues::new(queues, order, prompt), closed: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), condvar: Condvar::new(), drain });
        let thread = match shared.drain {
            DrainMode::Stepped => None,
            DrainMode::Prompt | DrainMode::Delayed(_) => Some(Shared::start(Arc::clone(&shared))),
        };
        Arc::new(Software { shared, thread })
    }

    /// Takes one step on a queue that can go on, and says whether there was one: a work is done, a token recorded on
    /// its lane is reached, or a wait ends.
    pub fn step(&self) -> bool {
        let Some(taken) = self.with(Queues::take) else { return false };
        self.shared.serve(taken);
        self.shared.condvar.notify_one();
        true
    }

    /// Tokens that have been recorded and have not fired.
    pub fn unfired(&self) -> usize {
        self.with(|queues| queues.tokens.n_unfired())
    }

    /// Calls `act` with the lock held. What it returns is dropped without: the owner of a work may use the device.
    fn with<R>(&self, act: impl FnOnce(&mut Queues) -> R) -> R {
        act(&mut lock(&self.shared.state).queues)
    }

    /// Like `with`, for what gives the thread something to do.
    fn issue<R>(&self, act: impl FnOnce(&mut Queues) -> R) -> R {
        let issued = self.with(act);
        self.shared.condvar.notify_one();
        issued
    }
}

impl Device for Software {
    fn lease(&self) -> Lane {
        self.with(Queues::lease)
    }

    fn give_back(&self, lane: Lane) {
        self.with(|queues| queues.give_back(lane));
    }

    fn enqueue(&self, lane: Lane, work: Box<dyn FnOnce() + Send>) {
        drop(self.issue(|queues| queues.enqueue(lane, work)));
    }

    fn record(&self, lane: Lane) -> Token {
        self.issue(|queues| queues.record(lane))
    }

    fn record_all(&self) -> Token {
        self.issue(Queues::record_all)
    }

    /// Waiting for a token that has not been recorded poisons the lane instead.
    fn wait(&self, lane: Lane, token: Token) {
        self.issue(|queues| queues.wait(lane, token));
    }

    /// For a token that has not been recorded, `then` is called with that error at once.
    fn when_fired(&self, token: Token, then: Box<dyn FnOnce(Outcome) + Send>) {
        if let Some(fired) = self.with(|queues| queues.tokens.when_fired(token, then)) {
            fired.tell();
        }
    }
}

impl Shared {
    fn start(shared: Arc<Shared>) -> JoinHandle<()> {
        let thread = std::thread::Builder::new().name("device".into());
        thread.spawn(move || shared.drain()).expect("the system has room for one more thread")
    }

    /// Serves the queues until the device is closed and nothing is left.
    fn drain(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(taken) = state.queues.take() {
                drop(state);
                self.serve(taken);
                state = lock(&self.state);
            } else if state.closed {
                return;
            } else {
                state = sleep(&self.condvar, state);
            }
        }
    }

    /// Does what a step asks for.
    fn serve(&self, taken: TakenStep) {
        match taken {
            TakenStep::Nothing => {}
            TakenStep::Tell(fired) => fired.tell(),
            TakenStep::Run(job) => {
                if let DrainMode::Delayed(delay) = &self.drain {
                    std::thread::park_timeout(delay(job.number));
                }
                let lane = job.lane;
                let outcome = job.run();
                lock(&self.state).queues.finish(lane, outcome);
            }
        }
    }
}

impl Drop for Software {
    fn drop(&mut self) {
        lock(&self.shared.state).closed = true;
        self.shared.condvar.notify_one();
        // The last owner may be a work on the thread itself, which cannot wait for its own end.
        let thread = self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id());
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}
