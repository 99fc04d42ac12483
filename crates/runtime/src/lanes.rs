//! The threads of a program's lanes, and how they wait for each other.
//!
//! The caller of a run is lane 0; every other lane has a thread that lives as long as [`Lanes`]. One [`Counter`] starts
//! runs: it holds their number. One counter for each lane tells how far it is: run number in the upper half, operations
//! done in this run in the lower half, all ones when the lane has left the run. Both only ever grow, so nothing has to be
//! reset between runs, and a wait for operation p of run r is a wait for one number.
//!
//! A run, from the caller's side: write `job`; advance `start` to the run's number; do lane 0; wait until every other
//! lane has left. A lane's thread: wait for `start`; read `job`; run it; leave. So
//!
//! * `job` is written only while no lane is in a run: the caller has waited (Acquire) for all of them to leave (Release);
//! * it is read only after `start` (Acquire), which was advanced after it was written (Release), and before leaving;
//! * what a lane wrote up to its operation p is seen by whoever waited for p: [`Counter::advance`] releases, `wait`
//!   acquires. This chain, and the order within a lane, are the only orders between accesses to arenas; they are what
//!   the program's verifier works with when it shows that there is no race.
//!
//! A panic in a lane is kept in `failure`, and the lane sets `poisoned` and rings all counters before it leaves. A lane
//! that waits sees the flag and leaves too; one that finds its number reached only because the other has left sees it as
//! well, since leaving comes after setting. The caller waits for all to leave in any case, clears the flag and goes on
//! with the panic.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::counter::Counter;

/// In the lower half of a lane's counter: it has left the run.
const LEFT: u64 = u32::MAX as u64;

/// A wait that ended because another lane panicked.
pub(crate) struct Poisoned;

/// What every lane of a run executes.
type Job<'a> = dyn Fn(&Turn<'_>) -> Result<(), Poisoned> + Sync + 'a;

struct Shared {
    start: Counter,
    progress: Box<[Counter]>,
    job: UnsafeCell<Option<*const Job<'static>>>,
    failure: Mutex<Option<Box<dyn Any + Send>>>,
    poisoned: AtomicBool,
    /// Set before the last start: the threads end.
    stop: AtomicBool,
    /// How often a waiting lane looks again before it sleeps.
    spins: u32,
}

// SAFETY: `job` is written only by the caller while no lane is in a run and read only inside one (see the head); what it
// points to is `Sync`. Everything else is `Sync` by itself.
unsafe impl Sync for Shared {}
// SAFETY: the pointer is followed only while the run that owns it waits for all lanes to leave.
unsafe impl Send for Shared {}

/// One lane's part in one run.
pub(crate) struct Turn<'a> {
    shared: &'a Shared,
    /// Which lane.
    pub(crate) lane: usize,
    /// The run's number in the upper half.
    run: u64,
}

impl Turn<'_> {
    /// Waits until `lane` has done the operation at `position` in this run.
    pub(crate) fn wait(&self, lane: u32, position: u32) -> Result<(), Poisoned> {
        let shared = self.shared;
        let number = self.run | (u64::from(position) + 1);
        shared.progress[lane as usize].wait(number, shared.spins, &shared.poisoned);
        // Relaxed: a lane that left early set the flag before, and its leaving has been acquired.
        if shared.poisoned.load(Relaxed) { Err(Poisoned) } else { Ok(()) }
    }

    /// Tells that this lane has done the operation at `position`.
    pub(crate) fn done(&self, position: usize) {
        self.shared.progress[self.lane].advance(self.run | (position as u64 + 1));
    }
}

impl Shared {
    fn take_turn(&self, lane: usize, run: u64, job: &Job<'_>) {
        let turn = Turn { shared: self, lane, run: run << 32 };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(&turn))) {
            self.poison(panic);
        }
        self.progress[lane].advance(turn.run | LEFT);
    }

    fn poison(&self, panic: Box<dyn Any + Send>) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        // Relaxed: each counter's lock, taken after, publishes it to sleepers; leaving publishes it to the others.
        self.poisoned.store(true, Relaxed);
        self.progress.iter().for_each(Counter::ring);
    }

    fn work(&self, lane: usize) {
        for run in 1.. {
            self.start.wait(run, self.spins, &NEVER);
            // Relaxed: set before the start that has been acquired.
            if self.stop.load(Relaxed) {
                return;
            }
            // SAFETY: inside a run the cell is not written.
            let job = unsafe { *self.job.get() }.expect("a run has a job");
            // SAFETY: the caller keeps the job alive until all lanes have left, which this one does after using it.
            self.take_turn(lane, run, unsafe { &*job });
        }
    }
}

/// Waits for starts and ends are not stopped by a panic.
static NEVER: AtomicBool = AtomicBool::new(false);

/// The lanes of a program: the caller and a thread for every other one.
pub(crate) struct Lanes {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    runs: u64,
}

impl Lanes {
    /// Starts the threads of `lanes` lanes; a lane looks `spins` times for what it waits for before it sleeps.
    pub(crate) fn new(lanes: usize, spins: u32) -> Lanes {
        let shared = Arc::new(Shared {
            start: Counter::new(),
            progress: (0..lanes).map(|_| Counter::new()).collect(),
            job: UnsafeCell::new(None),
            failure: Mutex::new(None),
            poisoned: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            spins,
        });
        let spawn = |lane| {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("lane{lane}"));
            thread.spawn(move || shared.work(lane)).expect("the system can start one thread per lane")
        };
        let threads = (1..lanes).map(spawn).collect();
        Lanes { shared, threads, runs: 0 }
    }

    /// Runs `job` once for every lane and returns when all have left; goes on with the first panic of any.
    pub(crate) fn run(&mut self, job: &Job<'_>) {
        let shared = &*self.shared;
        // SAFETY: only lifetimes are erased; this call returns after all uses of the pointer and does not unwind before.
        let erased = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) };
        // SAFETY: no lane is in a run, so nobody else touches the cell.
        unsafe { *shared.job.get() = Some(erased) };
        self.runs += 1;
        shared.start.advance(self.runs);
        shared.take_turn(0, self.runs, job);
        for progress in &shared.progress[1..] {
            progress.wait(self.runs << 32 | LEFT, shared.spins, &NEVER);
        }
        // Relaxed: all lanes have left, which has been acquired.
        if shared.poisoned.swap(false, Relaxed) {
            let failure = shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
            resume_unwind(failure.expect("a poisoned run keeps its panic"));
        }
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        // Relaxed: the start publishes it.
        self.shared.stop.store(true, Relaxed);
        self.shared.start.advance(self.runs + 1);
        for thread in self.threads.drain(..) {
            thread.join().expect("a lane catches the panics of its jobs");
        }
    }
}
