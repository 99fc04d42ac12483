//! Polls halves until they end, on one thread or two, and sees when they never will.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::task::{Context, Poll, Waker};

use super::super::pipe::{Half, Ledger, PipeError};

/// How a half ended.
pub type Outcome = Result<(), Stop>;

/// Why a half did not reach its end.
#[derive(Debug)]
pub enum Stop {
    /// A pipe told it to.
    Error(PipeError),
    /// It panicked, with this message.
    Panicked(String),
    /// It waits for its peer, which waits for it.
    Stuck,
}

/// Runs both halves in turn on this thread: each goes on until it has to wait for the other.
pub(super) fn in_turn(
    matrix: impl Future<Output = Result<(), PipeError>>,
    vector: impl Future<Output = Result<(), PipeError>>,
    ledger: &Ledger<'_>,
) -> [Outcome; 2] {
    let mut matrix = Running { half: Half::Matrix, future: pin!(Some(matrix)), ledger };
    let mut vector = Running { half: Half::Vector, future: pin!(Some(vector)), ledger };
    let (mut first, mut second) = (None, None);
    let mut seen = ledger.progress();
    loop {
        first = first.or_else(|| matrix.step());
        second = second.or_else(|| vector.step());
        let now = ledger.progress();
        if now == seen {
            // Neither half has changed anything since both were last polled, so neither ever will.
            first = first.or_else(|| Some(matrix.end(Err(Stop::Stuck))));
            second = second.or_else(|| Some(vector.end(Err(Stop::Stuck))));
        }
        match (first, second) {
            (Some(first), Some(second)) => return [first, second],
            unfinished => (first, second) = unfinished,
        }
        seen = now;
    }
}

/// Runs one half on this thread while its peer runs on another.
pub fn alone(
    half: Half,
    future: impl Future<Output = Result<(), PipeError>>,
    ledger: &Ledger<'_>,
    watch: &Watch,
) -> Outcome {
    let mut running = Running { half, future: pin!(Some(future)), ledger };
    let mut seen = ledger.progress();
    let mut turns = 0;
    let outcome = loop {
        if let Some(outcome) = running.step() {
            break outcome;
        }
        let now = ledger.progress();
        if now != seen {
            (seen, turns) = (now, 0);
            continue;
        }
        // While the peer is about to go on, the watch would only slow it down.
        if turns == SPINS && watch.is_stuck(half, ledger, now) {
            break running.end(Err(Stop::Stuck));
        }
        pause(&mut turns);
    };
    watch.done(half);
    outcome
}

/// Where each half of a pair tells the other that it waits.
///
/// A half that could not go on although it knew all progress up to `p` writes `p`. Progress only grows, and a half goes
/// on only if its peer has made progress. So if both have written the same `p` and there is no more progress, both
/// knew everything the other had done, and neither will ever go on.
#[derive(Default)]
pub struct Watch {
    waiting: [Place; 2],
}

/// On a line of its own: the halves write theirs often.
#[repr(align(128))]
struct Place(AtomicU64);

const GOING: u64 = u64::MAX;
const ENDED: u64 = u64::MAX - 1;

impl Default for Place {
    fn default() -> Self {
        Place(AtomicU64::new(GOING))
    }
}

impl Watch {
    /// Readies the watch for another block; the pair is not running.
    pub fn reset(&self) {
        // Relaxed: the peer gets its next half after this, by a lock.
        self.waiting.iter().for_each(|place| place.0.store(GOING, Relaxed));
    }

    /// Notes that `half` could not go on at `progress`; whether it never will.
    fn is_stuck(&self, half: Half, ledger: &Ledger<'_>, progress: u64) -> bool {
        let [matrix, vector] = &self.waiting;
        let (own, peer) = if half == Half::Matrix { (matrix, vector) } else { (vector, matrix) };
        // Release and Acquire: a thread that sees a place written sees all progress its writer made before.
        own.0.store(progress, Release);
        let peer = peer.0.load(Acquire);
        (peer == progress || peer == ENDED) && ledger.progress() == progress
    }

    fn done(&self, half: Half) {
        // Release: as in `is_stuck`.
        self.waiting[half as usize].0.store(ENDED, Release);
    }
}

/// A half between its start and its end.
struct Running<'p, F> {
    half: Half,
    future: Pin<&'p mut Option<F>>,
    ledger: &'p Ledger<'p>,
}

impl<F: Future<Output = Result<(), PipeError>>> Running<'_, F> {
    /// Lets the half go on until it ends or waits; its outcome if it ended.
    fn step(&mut self) -> Option<Outcome> {
        let future = self.future.as_mut().as_pin_mut()?;
        let poll = || future.poll(&mut Context::from_waker(Waker::noop()));
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(Poll::Pending) => None,
            Ok(Poll::Ready(result)) => Some(self.end(result.map_err(Stop::Error))),
            Err(panic) => Some(self.end(Err(Stop::Panicked(message(&*panic))))),
        }
    }

    /// Ends the half. If it failed, so do its ends, also those it has closed.
    fn end(&mut self, outcome: Outcome) -> Outcome {
        if outcome.is_err() {
            self.ledger.fail(self.half);
        }
        self.future.set(None);
        outcome
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message").to_string()
}

/// How often a waiting half looks again before it lets other threads run: a few microseconds.
const SPINS: u32 = 64;

/// Waits a little: spins at first, then gives the core to another thread.
pub(super) fn pause(turns: &mut u32) {
    if *turns < SPINS {
        *turns += 1;
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}
