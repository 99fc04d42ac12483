//! Runs the waiters of triggered events without recursion and within a budget.
//!
//! Triggering an event only moves its waiters to a list of the thread. The outermost trigger then runs the list; a
//! waiter that triggers further events appends to it. So a chain of events costs no stack, and waiters run in the order
//! of the triggers. What the budget leaves, or what a panicking waiter leaves, goes to the background.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::background::Background;
use crate::fault::Outcome;
use crate::sync::thread_local;

use super::Waiter;

/// Waiters that one trigger runs itself before the rest go to the background.
const BUDGET: usize = 1024;

thread_local! {
    static THREAD: RefCell<Cascade> = RefCell::new(Cascade::default());
}

/// The waiters that a thread has yet to run.
#[derive(Default)]
pub(super) struct Cascade {
    waiters: VecDeque<(Waiter, Outcome)>,
    /// Whether a call further up this thread's stack runs them.
    running: bool,
}

impl Cascade {
    /// Adds a waiter whose event has triggered.
    pub(super) fn push(&mut self, waiter: Waiter, outcome: &Outcome) {
        self.waiters.push_back((waiter, outcome.clone()));
    }
}

/// Makes room for this thread's list, so that triggering allocates nothing later.
pub(crate) fn prepare_thread() {
    collect(|cascade| cascade.waiters.reserve(16));
}

/// Lets `collect` add to this thread's list. It must not trigger or run anything itself.
pub(super) fn collect<R>(collect: impl FnOnce(&mut Cascade) -> R) -> R {
    THREAD.with(|cascade| collect(&mut cascade.borrow_mut()))
}

/// Runs this thread's list and what is added meanwhile. Nothing if a waiter calls: the run below it goes on.
pub(super) fn run(background: &Arc<Background>) {
    let start =
        |cascade: &mut Cascade| !cascade.waiters.is_empty() && !std::mem::replace(&mut cascade.running, true);
    if !collect(start) {
        return;
    }
    let _end = End { background };
    for _ in 0..BUDGET {
        let Some((waiter, outcome)) = collect(|cascade| cascade.waiters.pop_front()) else { break };
        waiter.run(&outcome);
    }
}

/// Ends a run, also one that a panic ends, and hands what is left to the background.
struct End<'a> {
    background: &'a Arc<Background>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        let rest = collect(|cascade| {
            cascade.running = false;
            if cascade.waiters.is_empty() { None } else { Some(std::mem::take(&mut cascade.waiters)) }
        });
        let Some(rest) = rest else { return };
        let background = Arc::clone(self.background);
        self.background.submit(move || {
            collect(|cascade| cascade.waiters = rest);
            run(&background);
        });
    }
}
