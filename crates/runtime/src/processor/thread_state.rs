//! What a thread knows of the body that runs on it: what that has promised, and where the worker core is meanwhile.
//!
//! A body that may wait runs with its processor's worker core in the thread-local state, from where a wait takes it. A
//! non-blocking task runs without: if it waits nevertheless, that is a broken promise, reported to the task as a fault
//! and to the graph that runs it by [`broken_promise`].

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::event::{Event, Events};
use crate::fault::{Cause, Fault, Outcome};
use crate::profile::Measured;
use crate::sync::{spin_loop, thread_local};

use super::Processor;
use super::worker::Worker;
use super::worker_core::WorkerCore;

/// What the body that runs on a thread may do.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Promise {
    /// No body of ours runs here.
    #[default]
    Outside,
    /// It may wait.
    None,
    /// It promised not to wait.
    NonBlocking,
    /// It promised not to, and did.
    Broken,
}

#[derive(Default)]
struct ThreadState {
    /// The worker that this thread is.
    worker: RefCell<Option<Arc<Worker>>>,
    priority: Cell<i32>,
    core: Cell<Option<Box<WorkerCore>>>,
    /// Where waits of the body are noted.
    measured: Cell<Option<Arc<Measured>>>,
}

thread_local! {
    static STATE: ThreadState = ThreadState::default();
}

std::thread_local! {
    /// Apart from the state and never dropped: graphs look at it after each body, and this is one load.
    static PROMISE: Cell<Promise> = const { Cell::new(Promise::Outside) };
    /// How often in a row polling for an event found nothing, at most [`MAX_BACKOFF`].
    static BACKOFF: Cell<u32> = const { Cell::new(0) };
}

/// Leaves a sixteenth.
const MAX_BACKOFF: u32 = 4;

/// Waits for `event`: a thread outside sleeps after `wait_polls` polls, a task gives its processor away.
pub(crate) fn wait(events: &Events, event: Event, wait_polls: u32) -> Outcome {
    if let Some(outcome) = events.outcome(event) {
        return outcome;
    }
    match PROMISE.get() {
        Promise::Outside => poll(events, event, wait_polls).unwrap_or_else(|| events.wait(event)),
        Promise::NonBlocking | Promise::Broken => {
            breaks_promise();
            Err(Fault::new(
                "a task of a graph",
                Cause::BrokenPromise("waited although it promised not to".into()),
            ))
        }
        Promise::None => {
            let worker = STATE.with(|state| state.worker.borrow().clone()).expect("a task runs on a worker");
            without_core(|core, priority| worker.block(core, priority, events, event))
        }
    }
}

/// Polls; half as often after polls that found nothing, for what is waited for may need this very CPU core.
fn poll(events: &Events, event: Event, wait_polls: u32) -> Option<Outcome> {
    let look = |_| {
        spin_loop();
        events.outcome(event)
    };
    let backoff = BACKOFF.get();
    let found = (0..wait_polls >> backoff).find_map(look);
    BACKOFF.set(if found.is_some() { backoff.saturating_sub(1) } else { MAX_BACKOFF.min(backoff + 1) });
    found
}

/// Lets the body that runs here wait: `wait` has the worker core and gives back what it has at the end.
fn without_core(wait: impl FnOnce(Box<WorkerCore>, i32) -> (Option<Box<WorkerCore>>, Outcome)) -> Outcome {
    let (core, priority) = STATE.with(|state| (state.core.take(), state.priority.get()));
    let Some(core) = core else { return Err(Worker::closed()) };
    let measured = STATE.with(|state| state.measured.take());
    let began = measured.as_ref().map(|measured| measured.now());
    let (core, outcome) = wait(core, priority);
    if let (Some(measured), Some(began)) = (&measured, began) {
        measured.waited(began);
    }
    STATE.with(|state| {
        state.priority.set(priority);
        state.core.set(core);
        state.measured.set(measured);
    });
    outcome
}

/// Whether no body of ours runs on this thread.
pub(crate) fn is_outside() -> bool {
    PROMISE.get() == Promise::Outside
}

/// Whether the body that runs here promised neither to wait nor to launch; it is noted that it has tried.
pub(crate) fn breaks_promise() -> bool {
    let nonblocking = matches!(PROMISE.get(), Promise::NonBlocking | Promise::Broken);
    if nonblocking {
        PROMISE.set(Promise::Broken);
    }
    nonblocking
}

/// Runs bodies that promised not to wait.
pub(crate) fn keep_promise<R>(bodies: impl FnOnce() -> R) -> R {
    under(Promise::NonBlocking, bodies)
}

/// Runs code of others between bodies that promised not to wait.
pub fn without_promise(code: impl FnOnce()) {
    under(Promise::Outside, || contain(code));
}

fn under<R>(promise: Promise, code: impl FnOnce() -> R) -> R {
    let before = PROMISE.replace(promise);
    let result = code();
    PROMISE.set(before);
    result
}

/// Whether a body since the last call has broken its promise.
pub(crate) fn broken_promise() -> bool {
    let broken = PROMISE.get() == Promise::Broken;
    if broken {
        PROMISE.set(Promise::NonBlocking);
    }
    broken
}

/// Runs a body that may wait; meanwhile the worker core is in the thread-local state. It may come back after others
/// have used it, or not at all if the processor has closed.
pub(crate) fn with_core(
    core: Box<WorkerCore>,
    priority: i32,
    body: impl FnOnce(),
) -> Option<Box<WorkerCore>> {
    STATE.with(|state| {
        state.priority.set(priority);
        state.core.set(Some(core));
    });
    under(Promise::None, body);
    STATE.with(|state| state.core.take())
}

/// Runs a body whose waits are noted.
pub(super) fn measuring<R>(measured: &Arc<Measured>, body: impl FnOnce() -> R) -> R {
    STATE.with(|state| state.measured.set(Some(Arc::clone(measured))));
    let result = body();
    STATE.with(|state| state.measured.set(None));
    result
}

/// Runs code of others on a thread of ours: a panic in it ends there, and the panic hook has reported it.
pub(super) fn contain(code: impl FnOnce()) {
    // Unwind safe: what the code shares with us lies behind locks, and `lock` says why that is never half changed.
    let _ = catch_unwind(AssertUnwindSafe(code));
}

/// Makes this thread a worker, as long as `work` takes.
pub(super) fn as_worker(worker: &Arc<Worker>, work: impl FnOnce()) {
    STATE.with(|state| *state.worker.borrow_mut() = Some(Arc::clone(worker)));
    work();
    STATE.with(|state| *state.worker.borrow_mut() = None);
}

/// Whether this thread is a worker of one of `processors`.
pub(crate) fn serves_one_of(processors: &[Arc<Processor>]) -> bool {
    STATE.with(|state| {
        let worker = state.worker.borrow();
        worker.as_ref().is_some_and(|worker| processors.iter().any(|processor| worker.serves(processor)))
    })
}
