//! A device's cores: threads that live as long as the team and run the blocks of one launch after another.
//!
//! The caller is member 0; the others spin for a moment between launches and then park. A launch allocates nothing and
//! waits for no member that has not begun: a member that comes late finds its blocks taken by the others.
//!
//! Protocol: the caller writes `job` and opens the gate with a new epoch (Release). A worker that finds it open joins by
//! a compare-exchange (Acquire) that counts it in the same word; from then until it has left (Release) the caller may
//! not return. When no block is left the caller closes the gate, so that no member joins any more, learns from the same
//! word how many did, and waits until as many have left (Acquire). So the job outlives every use of it.

use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::thread::{JoinHandle, Thread};

use super::{pin, share};

/// How often a member looks again before it parks: a few microseconds.
const SPINS: u32 = 2000;

/// In the gate's word: no member may join.
const CLOSED: u64 = 1 << 15;
/// In the gate's word: how many have joined.
const JOINED: u64 = CLOSED - 1;
/// In the gate's word: one epoch.
const EPOCH: u64 = 1 << 16;

type Job = *const (dyn Fn(usize) + Sync);

/// What lies on a line of its own, with its neighbour that the processor fetches along.
#[repr(align(128))]
#[derive(Default)]
struct Line<T>(T);

struct Shared {
    gate: Line<AtomicU64>,
    left: Line<AtomicUsize>,
    job: UnsafeCell<Option<(Job, Thread)>>,
    stop: AtomicBool,
    panicked: AtomicBool,
}

// SAFETY: `job` is written only by the launching thread while the gate is closed and all members that joined have left, and read
// by workers only between joining and leaving (see the protocol above).
unsafe impl Sync for Shared {}
// SAFETY: the job pointer is only dereferenced while the launch that owns it waits; `Thread` is `Send`.
unsafe impl Send for Shared {}

/// A device's cores: the thread that launches and `cores - 1` workers.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// For every member the first of its blocks that no member has taken.
    taken: Box<[Line<AtomicUsize>]>,
    /// Held during a launch, so that a launch from another thread or from inside a launch runs alone instead.
    busy: AtomicBool,
    /// The core of the launching thread.
    home: Option<usize>,
}

thread_local! {
    /// The core that the thread was last told to stay on.
    static HOME: Cell<Option<usize>> = const { Cell::new(None) };
}

impl Team {
    /// A team of `cores` members (at least one), each where the system puts it.
    pub fn new(cores: usize) -> Team {
        Team::start(cores, None)
    }

    /// A team with a member on each of `cores`, which stays there if the system allows it; so does every thread that
    /// launches: on the first of them, from then on.
    pub fn pinned(cores: &[usize]) -> Team {
        Team::start(cores.len(), Some(cores))
    }

    fn start(cores: usize, homes: Option<&[usize]>) -> Team {
        let count = cores.clamp(1, JOINED as usize);
        let shared = Arc::new(Shared {
            gate: Line(AtomicU64::new(CLOSED)),
            left: Line::default(),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
        });
        let worker = |index| {
            let shared = Arc::clone(&shared);
            let home = homes.map(|homes| homes[index]);
            let thread = std::thread::Builder::new().name(format!("core{index}"));
            let work = move || {
                home.into_iter().for_each(stay_on);
                work(&shared, index)
            };
            thread.spawn(work).expect("the system can start one thread per core")
        };
        let workers = (1..count).map(worker).collect();
        let taken = (0..count).map(|_| Line::default()).collect();
        let home = homes.and_then(|homes| homes.first().copied());
        Team { shared, workers, taken, busy: AtomicBool::new(false), home }
    }

    /// How many members take part in a launch.
    pub fn cores(&self) -> usize {
        self.taken.len()
    }

    /// Runs `body(block, member)` once for every block of `0..n` and returns when all are done.
    ///
    /// Every member begins with its contiguous share of the blocks and goes on with what others have not begun. No member
    /// runs two blocks at once. A launch inside a launch, or beside one from another thread, runs on the calling thread.
    pub fn run(&self, n: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        self.home.into_iter().for_each(stay_on);
        let members = self.cores().min(n);
        // Acquire pairs with the Release below: this launch sees the previous one finished.
        if members <= 1 || self.busy.swap(true, Acquire) {
            return (0..n).for_each(|block| body(block, 0));
        }
        for (member, taken) in self.taken[..members].iter().enumerate() {
            // Relaxed: opening the gate publishes it.
            taken.0.store(share(member, members, n).start, Relaxed);
        }
        let blocks = |member: usize| {
            for whose in (member..members).chain(0..member) {
                let end = share(whose, members, n).end;
                loop {
                    // Relaxed: a thread that takes a block has joined the launch; the count only deals blocks out.
                    let block = self.taken[whose].0.fetch_add(1, Relaxed);
                    if block >= end {
                        break;
                    }
                    body(block, member);
                }
            }
        };
        // A worker beyond the members has no slice of its own to work in.
        let own = self.with_workers(&|member| {
            if member < members {
                blocks(member)
            }
        });
        // Relaxed: `with_workers` has acquired every worker's leaving, which follows its store. Taken back in any case: the
        // next launch has nothing to do with it.
        let worker_panicked = self.shared.panicked.swap(false, Relaxed);
        // Release: the next launch sees this one's writes to the shared cells.
        self.busy.store(false, Release);
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        assert!(!worker_panicked, "a team member panicked in a kernel");
    }

    /// Runs `job(0)` here and lets workers run it with their numbers until that has ended.
    fn with_workers(&self, job: &(dyn Fn(usize) + Sync)) -> std::thread::Result<()> {
        let shared = &*self.shared;
        // SAFETY: only the lifetime is erased; every use of the pointer is over when this function returns.
        let erased = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        // SAFETY: `busy` is ours, the gate is closed and all have left, so no other thread touches the cell.
        unsafe { *shared.job.get() = Some((erased, std::thread::current())) };
        shared.left.0.store(0, Relaxed);
        // Relaxed load: only launches change the epoch, and this is the only one.
        let epoch = shared.gate.0.load(Relaxed) / EPOCH + 1;
        // Release: publishes the job, `left` and what the caller has prepared to the members that join.
        shared.gate.0.store(epoch * EPOCH, Release);
        self.workers.iter().for_each(|worker| worker.thread().unpark());
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        // Relaxed: what the members that joined have done is acquired below, when they have left.
        let joined = shared.gate.0.fetch_or(CLOSED, Relaxed) & JOINED;
        let mut spins = 0;
        // Acquire pairs with the Release of leaving: the workers' writes are visible after the launch.
        while (shared.left.0.load(Acquire) as u64) < joined {
            pause(&mut spins);
        }
        own
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        // Release pairs with the Acquire of the worker that looks.
        self.shared.stop.store(true, Release);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            worker.join().expect("a worker catches the panics of its jobs");
        }
    }
}

/// Keeps this thread on `core`, if the system allows it; asks only once.
fn stay_on(core: usize) {
    if HOME.replace(Some(core)) != Some(core) {
        pin::keep_on(&[core]);
    }
}

fn work(shared: &Shared, index: usize) {
    let (mut done, mut spins) = (0, 0);
    // Acquire pairs with the Release in `drop`.
    while !shared.stop.load(Acquire) {
        let gate = shared.gate.0.load(Relaxed);
        let is_open = gate / EPOCH != done && gate & CLOSED == 0;
        // Acquire pairs with the Release of the opening: this thread sees the job.
        if !is_open || shared.gate.0.compare_exchange(gate, gate + 1, Acquire, Relaxed).is_err() {
            pause(&mut spins);
            continue;
        }
        (done, spins) = (gate / EPOCH, 0);
        // SAFETY: between joining and leaving the cell is not written.
        let (job, caller) = unsafe { (*shared.job.get()).clone() }.expect("an open gate comes with a job");
        // SAFETY: the launching thread keeps the closure alive until all members that joined have left.
        let job = unsafe { &*job };
        if catch_unwind(AssertUnwindSafe(|| job(index))).is_err() {
            shared.panicked.store(true, Relaxed);
        }
        // Release pairs with the Acquire of the caller that counts the members that left.
        shared.left.0.fetch_add(1, Release);
        caller.unpark();
    }
}

/// Waits a little: spins at first, then parks until another thread unparks this one.
fn pause(spins: &mut u32) {
    if *spins < SPINS {
        *spins += 1;
        std::hint::spin_loop();
    } else {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spmd::Parts;

    #[test]
    fn every_block_runs_exactly_once_for_any_team() {
        for cores in 1..5 {
            let team = Team::new(cores);
            for n in [0, 1, 2, 3, 7, 64] {
                let mut hits = vec![0u32; n];
                let parts = Parts::new(&mut hits);
                team.run(n, &|block, member| {
                    assert!(member < cores.min(n));
                    // SAFETY: each block is its own part.
                    let own = unsafe { parts.part(block..block + 1) };
                    own[0] += 1;
                });
                assert_eq!(hits, vec![1; n], "{n} blocks on {cores} cores");
            }
        }
    }

    #[test]
    fn blocks_of_members_that_do_not_come_are_run_by_the_others() {
        let team = Team::new(2);
        let released = AtomicBool::new(false);
        let by = [const { AtomicUsize::new(usize::MAX) }; 8];
        // The member that runs block 0 stays there until all others are done: its share is taken by the other member.
        team.run(8, &|block, member| {
            by[block].store(member, Relaxed);
            if block == 0 {
                while !released.load(Relaxed) {
                    std::thread::yield_now();
                }
            } else if by.iter().skip(1).all(|by| by.load(Relaxed) != usize::MAX) {
                released.store(true, Relaxed);
            }
        });
        let stuck = by[0].load(Relaxed);
        let others = by.iter().filter(|by| by.load(Relaxed) != stuck).count();
        assert!(others >= 7, "member {stuck} ran {} more blocks while it ran one", 7 - others);
    }

    #[test]
    fn a_launch_inside_a_launch_still_covers_everything() {
        let team = Team::new(3);
        let total = AtomicUsize::new(0);
        team.run(3, &|_, _| team.run(10, &|i, _| _ = total.fetch_add(i, Relaxed)));
        assert_eq!(total.load(Relaxed), 3 * 45);
    }

    #[test]
    fn many_launches_one_after_another_lose_nothing() {
        let (team, total) = (Team::new(4), AtomicUsize::new(0));
        for n in 0..2000 {
            team.run(n % 7, &|_, _| _ = total.fetch_add(1, Relaxed));
        }
        assert_eq!(total.load(Relaxed), (0..2000).map(|n| n % 7).sum::<usize>());
    }

    #[test]
    fn a_panic_in_a_block_reaches_the_caller_and_the_team_survives() {
        let team = Team::new(2);
        let result = catch_unwind(AssertUnwindSafe(|| team.run(2, &|i, _| assert_eq!(i, 0, "planted"))));
        assert!(result.is_err());
        let total = AtomicUsize::new(0);
        team.run(2, &|_, _| _ = total.fetch_add(1, Relaxed));
        assert_eq!(total.load(Relaxed), 2);
    }

    #[test]
    fn a_launch_after_one_in_which_all_members_panicked_is_clean() {
        let team = Team::new(2);
        let begun = AtomicUsize::new(0);
        // Each member waits for the other one, so that both have begun when they panic.
        let both_panic = |_, _| {
            begun.fetch_add(1, Relaxed);
            while begun.load(Relaxed) < 2 {
                std::thread::yield_now();
            }
            panic!("planted");
        };
        assert!(catch_unwind(AssertUnwindSafe(|| team.run(2, &both_panic))).is_err());
        team.run(2, &|_, _| ());
    }
}
