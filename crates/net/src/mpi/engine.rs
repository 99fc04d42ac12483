//! Which thread calls the library when.
//!
//! Invariant: only the thread that holds the lock on [`State`] is in the library, and no call made under it waits for
//! another rank. A thread that waits does so by polling: threads inside the network (*drivers*) do it themselves, and
//! when there is none the network's own thread does. A poll starts what was ordered, tests what is under way, and hands
//! back what happened; callbacks run after the lock is released, so that they may order and call whatever they like.
//!
//! Locks: a thread that polls only tries to get the lock, for if another thread has it that one makes the progress. A
//! thread that must have it (a *caller*) says so first, and polling threads let it pass. Orders do without it
//! (`orders`), so that starting a batch never waits for the library.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::abi::Handle;
use super::active::{Owner, Ticket};
use super::alerts::AlertListener;
use super::backoff::{ALERT_REST, Backoff, Contention, Load, Waiter};
use super::event_count::{Epoch, EventCount};
use super::library::Library;
use super::orders::Orders;
use super::state::{NetEvent, State};
use crate::{Advance, DriverWork, NetError};

/// How long alerts and aborts wait for a thread that is in the library. It may stay there forever: a library can wait
/// for a rank that was stopped in the middle of something.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// How often a driver polls before it asks whether it is still needed: about a microsecond's worth.
const POLLS_PER_TURN: usize = 8;

/// Communicators, one for each kind of thing, so that they never meet.
pub(crate) struct Comms {
    /// Of transfers.
    pub transfers: Handle,
    /// Of agreements.
    pub agreements: Handle,
    /// Of alerts.
    pub alerts: Handle,
}

/// What all threads of a rank share.
pub(crate) struct Engine {
    /// The library; to be called under the lock only.
    pub library: Library,
    /// Its communicators.
    pub comms: Comms,
    /// Which rank this is.
    pub rank: u32,
    /// How many there are.
    pub size: u32,
    /// The callback for alerts.
    pub alert_listener: AlertListener,
    state: Mutex<State>,
    /// Threads that must have the lock.
    callers: AtomicUsize,
    /// Batches to be started.
    orders: Orders,
    /// What is under way, for threads that rest.
    requests: AtomicUsize,
    bytes: AtomicUsize,
    contention: Contention,
    drivers: AtomicUsize,
    /// Where drivers rest.
    sleepers: EventCount,
    own: OnceLock<Thread>,
    stopping: AtomicBool,
    /// Whether the library was or is being ended.
    left: AtomicBool,
}

impl Engine {
    /// Nothing is under way yet but what `state` has.
    pub(crate) fn new(library: Library, comms: Comms, (rank, size): (u32, u32), state: State) -> Engine {
        Engine {
            library,
            comms,
            rank,
            size,
            alert_listener: AlertListener::default(),
            state: Mutex::new(state),
            callers: AtomicUsize::new(0),
            orders: Orders::default(),
            requests: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            contention: Contention::new(),
            drivers: AtomicUsize::new(0),
            sleepers: EventCount::new(),
            own: OnceLock::new(),
            stopping: AtomicBool::new(false),
            left: AtomicBool::new(false),
        }
    }

    /// Orders a batch to be started and wakes a thread that does it.
    ///
    /// # Safety
    /// The memory of the batch is left alone until it is complete.
    pub(crate) unsafe fn order(&self, connection: usize, batch: usize) {
        if self.orders.push((connection, batch)) {
            self.wake();
        }
    }

    /// Wakes a thread that polls.
    pub(crate) fn wake(&self) {
        if self.drivers.load(SeqCst) == 0 {
            if let Some(own) = self.own.get() {
                own.unpark();
            }
        } else {
            self.sleepers.notify_one();
        }
    }

    /// Calls the library through `state`; waits for other threads to leave it, which takes no longer than their call.
    pub(crate) fn call<R>(&self, call: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.enter();
        let result = call(&mut state);
        self.publish(&state);
        result
    }

    /// The lock, for a thread that must have it.
    pub(crate) fn enter(&self) -> MutexGuard<'_, State> {
        // Relaxed: a hint that polling threads follow sooner or later.
        self.callers.fetch_add(1, Relaxed);
        let state = lock(&self.state);
        self.callers.fetch_sub(1, Relaxed);
        state
    }

    /// Calls the library through `state`, unless another thread does not leave it in time.
    pub(crate) fn call_soon<R>(&self, call: impl FnOnce(&mut State) -> R) -> Option<R> {
        // Relaxed: see `enter`.
        self.callers.fetch_add(1, Relaxed);
        let start = Instant::now();
        let state = loop {
            match try_lock(&self.state) {
                None if start.elapsed() < LEAVE_TIMEOUT => thread::yield_now(),
                state => break state,
            }
        };
        self.callers.fetch_sub(1, Relaxed);
        let mut state = state?;
        let result = call(&mut state);
        self.publish(&state);
        Some(result)
    }

    /// Begins something with `begin` that gives a request, and drives until it is complete.
    pub(crate) fn complete(
        &self,
        begin: impl FnOnce(&Library, &mut Handle) -> Result<(), NetError>,
    ) -> Result<(), NetError> {
        let _driver = Driver::new(self);
        let ticket = Arc::new(Ticket::new());
        self.call(|state| {
            state.usable()?;
            let mut request = 0;
            begin(&self.library, &mut request)?;
            state.active.push(request, Owner::Ticket(ticket.clone()));
            Ok(())
        })?;
        self.drive_with(&mut || ticket.get().is_some());
        ticket.get().cloned().unwrap_or(Ok(()))
    }

    /// Polls on this thread, alternating with `work`, until that is over.
    pub(crate) fn drive_with(&self, work: &mut dyn DriverWork) {
        let _driver = Driver::new(self);
        let mut backoff = Backoff::new(Waiter::Driver { idle_compute: work.has_idle_compute() });
        let mut events = Vec::new();
        loop {
            let epoch = self.sleepers.epoch();
            match work.advance() {
                Advance::Over => return,
                Advance::Worked => backoff.moved(),
                Advance::Idle => {}
            }
            backoff.wait_as(Waiter::Driver { idle_compute: work.has_idle_compute() });
            let polls = if backoff.is_resting() { 1 } else { POLLS_PER_TURN };
            let polled = self.poll(polls, &mut events);
            if polled == PollResult::Moved {
                backoff.moved();
                self.deliver(&mut events);
            } else if let Some(rest) = backoff.idle(self.load(), &self.contention) {
                if work.may_sleep() {
                    self.rest(rest, epoch, polled);
                }
                backoff.rested();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// The loop of the network's own thread.
    pub(crate) fn serve(&self) {
        let mut backoff = Backoff::new(Waiter::Own);
        let mut events = Vec::new();
        while !self.stopping.load(Acquire) {
            let driven = self.drivers.load(SeqCst) > 0;
            if driven {
                // Drivers poll all the time, but what one does between two polls may take long; alerts do not wait for
                // that.
                thread::park_timeout(ALERT_REST);
                // Or it would take its own sleep for contention.
                backoff.rested();
            }
            if self.poll(1, &mut events) == PollResult::Moved {
                backoff.moved();
                self.deliver(&mut events);
            } else if driven {
                continue;
            } else if let Some(rest) = backoff.idle(self.load(), &self.contention) {
                // Ends at once if it was unparked since it last rested.
                thread::park_timeout(rest);
                backoff.rested();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Says which thread is the network's own.
    pub(crate) fn employ(&self, own: Thread) {
        let _ = self.own.set(own);
    }

    /// Ends the network's own thread.
    pub(crate) fn stop(&self) {
        // Release, pairs with `serve`: whatever came before is seen by it.
        self.stopping.store(true, Release);
        if let Some(own) = self.own.get() {
            own.unpark();
        }
    }

    /// Frees a connection; once the library is ended, it is gone anyway.
    pub(crate) fn disconnect(&self, number: usize) {
        if !self.left.load(Acquire) {
            self.call(|state| state.remove(&self.library, number));
        }
    }

    /// Ends the library if `farewell` says so; in any case it is not called again.
    pub(crate) fn leave(&self, farewell: bool) {
        // Release, pairs with `disconnect`, for the order alone.
        self.left.store(true, Release);
        self.call(|state| {
            if farewell && !state.active.alerts_out() {
                state.end(&self.library);
            }
            state.close(NetError::Library("this rank has left its job".into()));
        });
    }

    /// Ends all ranks. A thread that does not leave the library in time is not waited for: the launcher notices the end
    /// of this process too.
    pub(crate) fn abort(&self, code: i32) -> ! {
        // SAFETY: called under the lock.
        self.call_soon(|_| unsafe { _ = self.library.abort(self.library.abi.world, code) });
        std::process::exit(code)
    }

    /// Polls everything up to `polls` times. What happened is in `events`.
    fn poll(&self, polls: usize, events: &mut Vec<NetEvent>) -> PollResult {
        if self.callers.load(Relaxed) > 0 {
            thread::yield_now();
            return PollResult::Busy;
        }
        let Some(mut state) = try_lock(&self.state) else { return PollResult::Busy };
        for _ in 0..polls {
            let ordered = self.orders.take(|orders| state.take_orders(orders));
            if ordered {
                state.start(self, events);
            }
            if state.test(self, events) || ordered {
                self.publish(&state);
                return PollResult::Moved;
            }
        }
        PollResult::Nothing
    }

    /// Calls back, without the lock.
    fn deliver(&self, events: &mut Vec<NetEvent>) {
        for event in events.drain(..) {
            match event {
                NetEvent::Done { done, batch, result } => done(batch, result.map_err(|error| *error)),
                NetEvent::Alert { from, text } => self.alert_listener.deliver(from, text),
            }
        }
    }

    fn publish(&self, state: &State) {
        // Relaxed: a thread that leaves or rests with something under way has started or seen it itself, or another
        // thread that has is still there.
        self.requests.store(state.active.awaited, Relaxed);
        self.bytes.store(state.bytes, Relaxed);
    }

    fn load(&self) -> Load {
        Load { requests: self.requests.load(Relaxed), bytes: self.bytes.load(Relaxed) }
    }

    /// A driver sleeps until something is ordered, and no longer than this. Orders that it has just failed to carry out
    /// do not keep it awake: the thread that is in the library may need this very core to leave it.
    fn rest(&self, longest: Duration, epoch: Epoch, polled: PollResult) {
        if polled == PollResult::Busy || !self.orders.any_pending() {
            self.sleepers.wait(epoch, longest);
        }
    }
}

/// What a poll of the library found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PollResult {
    /// Something happened.
    Moved,
    /// Nothing did.
    Nothing,
    /// Another thread is in there.
    Busy,
}

/// A thread that polls, so that the own thread need not.
struct Driver<'a> {
    engine: &'a Engine,
    /// What the thread drove before.
    before: usize,
}

impl Driver<'_> {
    fn new(engine: &Engine) -> Driver<'_> {
        // SeqCst here and where threads rest and leave: either they see an order, or the ordering thread sees them.
        engine.drivers.fetch_add(1, SeqCst);
        Driver { engine, before: engine.orders.begin_to_drive() }
    }
}

impl Drop for Driver<'_> {
    /// The own thread goes on with what is left. With nothing left it polls for alerts soon enough by itself.
    fn drop(&mut self) {
        let Driver { engine, before } = *self;
        engine.orders.stop_driving(before);
        let last = engine.drivers.fetch_sub(1, SeqCst) == 1;
        if last && (engine.orders.any_pending() || engine.load().requests > 0) {
            engine.wake();
        }
    }
}

/// A panic elsewhere leaves nothing half-done that matters: the library is called one call at a time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
