//! Calls at given times, on a thread of their own.
//!
//! A call must be quick: the ones behind it wait. Those that are not due when the timer is dropped are still made.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

type Call = Box<dyn FnOnce() + Send>;

/// Makes calls when they are due.
pub(crate) struct Timer(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// By the time they are due, and in the order in which they came.
    calls: BTreeMap<(Instant, u64), Call>,
    /// Calls so far.
    came: u64,
    closed: bool,
}

impl Timer {
    pub(crate) fn new() -> Timer {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        thread::spawn(move || own.serve());
        Timer(shared)
    }

    /// Lets `call` be made at `due`, or soon after.
    pub(crate) fn at(&self, due: Instant, call: Call) {
        let mut state = self.0.state();
        state.came += 1;
        let place = (due, state.came);
        state.calls.insert(place, call);
        drop(state);
        self.0.changed.notify_one();
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // The thread is not joined: the last owner may be a call that it makes.
        self.0.state().closed = true;
        self.0.changed.notify_one();
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Timer").field(&self.0.state().calls.len()).finish()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut state = self.state();
        loop {
            let now = Instant::now();
            let next = state.calls.first_key_value().map(|(&(due, _), _)| due.saturating_duration_since(now));
            state = match next {
                None if state.closed => return,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => {
                    let call = state.calls.pop_first();
                    drop(state);
                    call.into_iter().for_each(|(_, call)| call());
                    self.state()
                }
                Some(left) => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}
