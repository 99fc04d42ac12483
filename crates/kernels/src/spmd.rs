//! A team of cores that runs one closure on all its members at once.
//!
//! The caller is member 0; the others are threads that live as long as the team. Between launches a member spins
//! for a moment and then parks. A launch allocates nothing.
//!
//! Protocol: the caller writes `job`, then bumps `epoch` (Release). A worker that sees a new epoch (Acquire) runs
//! the job and decrements `running` (Release); the caller returns when `running` is zero (Acquire). So the job
//! outlives every use of it, and no worker can see a job of one epoch after the caller has left it.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::thread::{JoinHandle, Thread};

/// How often a member looks again before it parks: a few microseconds.
const SPINS: u32 = 2000;

/// Below this many elements a launch costs more than it saves.
pub const ALONE: usize = 16 * 1024;

/// One member's place in a launch.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Which member, from 0.
    pub index: usize,
    /// How many members.
    pub count: usize,
}

impl Block {
    /// This member's contiguous share of `0..n`; the shares of all members cover it exactly, in order.
    pub fn share(self, n: usize) -> Range<usize> {
        n * self.index / self.count..n * (self.index + 1) / self.count
    }
}

type Job = *const (dyn Fn(Block) + Sync);

struct Shared {
    job: UnsafeCell<Option<Job>>,
    epoch: AtomicU64,
    running: AtomicUsize,
    stop: AtomicBool,
    panicked: AtomicBool,
    caller: UnsafeCell<Option<Thread>>,
    count: usize,
}

// SAFETY: `job` and `caller` are written only by the launching thread while `running` is zero, and read by workers
// only between the epoch bump and their own decrement of `running` (see the protocol above).
unsafe impl Sync for Shared {}
// SAFETY: the job pointer is only dereferenced while the launch that owns it waits; `Thread` is `Send`.
unsafe impl Send for Shared {}

/// A device's cores: this thread and `cores - 1` workers.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held during a launch, so that a launch from another thread or from inside a launch runs alone instead.
    busy: AtomicBool,
}

impl Team {
    /// A team of `cores` members (at least one).
    pub fn new(cores: usize) -> Team {
        let count = cores.max(1);
        let shared = Arc::new(Shared {
            job: UnsafeCell::new(None),
            epoch: AtomicU64::new(0),
            running: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            caller: UnsafeCell::new(None),
            count,
        });
        let workers = (1..count)
            .map(|index| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("core{index}"))
                    .spawn(move || work(&shared, index))
                    .expect("the system can start one thread per core")
            })
            .collect();
        Team { shared, workers, busy: AtomicBool::new(false) }
    }

    /// How many members take part in a launch.
    pub fn cores(&self) -> usize {
        self.shared.count
    }

    /// Runs `body` once for every member and returns when all are done.
    ///
    /// A launch inside a launch runs its blocks one after the other on the calling thread.
    pub fn launch(&self, body: &(dyn Fn(Block) + Sync)) {
        let count = self.shared.count;
        // Acquire pairs with the Release below: this launch sees the previous one finished.
        if count == 1 || self.busy.swap(true, Acquire) {
            (0..count).for_each(|index| body(Block { index, count }));
            return;
        }
        self.start(body);
        let own = catch_unwind(AssertUnwindSafe(|| body(Block { index: 0, count })));
        self.finish();
        // Release: the next launch sees this one's writes to the shared cells.
        self.busy.store(false, Release);
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        // Relaxed: `finish` has acquired every worker's decrement, which follows its store.
        assert!(!self.shared.panicked.swap(false, Relaxed), "a team member panicked in a kernel");
    }

    /// As [`Team::launch`], but fewer than [`ALONE`] elements of `work` are run by the caller as the only member.
    pub fn launch_for(&self, work: usize, body: &(dyn Fn(Block) + Sync)) {
        if work < ALONE {
            body(Block { index: 0, count: 1 });
        } else {
            self.launch(body);
        }
    }

    /// Runs `body(i)` for every `i` in `0..n`, split over the members in contiguous shares.
    pub fn for_each(&self, n: usize, body: impl Fn(usize) + Sync) {
        self.launch(&|block| block.share(n).for_each(&body));
    }

    /// Splits `rows` rows over the members: `body` gets its range of rows, those rows of every output in `outs`
    /// (each given with its elements per row), and its own equal part of `scratch`.
    ///
    /// Fewer than [`ALONE`] elements of `work` are run by the caller alone.
    pub fn split_rows<const N: usize>(
        &self,
        work: usize,
        rows: usize,
        outs: [(&mut [f32], usize); N],
        scratch: &mut [f32],
        body: impl Fn(Range<usize>, [&mut [f32]; N], &mut [f32]) + Sync,
    ) {
        let outs = outs.map(|(out, width)| (Parts::new(out), width));
        let scratch = Parts::new(scratch);
        let run = |block: Block| {
            let range = block.share(rows);
            // SAFETY: the shares of the members are disjoint, and so are the rows of one output.
            let parts = outs
                .each_ref()
                .map(|(out, width)| unsafe { out.part(range.start * width..range.end * width) });
            let per_member = scratch.len() / block.count;
            // SAFETY: every member has its own part.
            let own = unsafe { scratch.part(block.index * per_member..(block.index + 1) * per_member) };
            body(range, parts, own);
        };
        self.launch_for(work, &run);
    }

    /// Runs `body(first, part)` on contiguous parts that cover `out` exactly, one part per member.
    ///
    /// `first` is the position of the part in `out`, a multiple of `unit`; only the last part may end off a multiple.
    /// A slice of fewer than [`ALONE`] elements is one part, run by the caller.
    pub fn for_each_part<T: Send>(&self, out: &mut [T], unit: usize, body: impl Fn(usize, &mut [T]) + Sync) {
        let len = out.len();
        if self.shared.count == 1 || len < ALONE {
            return body(0, out);
        }
        let parts = Parts::new(out);
        self.launch(&|block| {
            let share = block.share(len.div_ceil(unit));
            let range = share.start * unit..(share.end * unit).min(len);
            // SAFETY: the members' shares are disjoint, and so are their multiples.
            body(range.start, unsafe { parts.part(range) });
        });
    }

    fn start(&self, body: &(dyn Fn(Block) + Sync)) {
        // SAFETY: only the lifetime is erased; `finish` waits for every use of the pointer before `body` ends.
        let job = unsafe { std::mem::transmute::<&(dyn Fn(Block) + Sync), Job>(body) };
        // SAFETY: `busy` is ours and no worker runs, so nobody else touches the cell.
        unsafe { *self.shared.job.get() = Some(job) };
        // SAFETY: as above.
        unsafe { *self.shared.caller.get() = Some(std::thread::current()) };
        self.shared.running.store(self.shared.count - 1, Relaxed);
        // Release: publishes job, caller and running to the workers' Acquire load of the epoch.
        self.shared.epoch.fetch_add(1, Release);
        self.workers.iter().for_each(|worker| worker.thread().unpark());
    }

    fn finish(&self) {
        let mut spins = 0;
        // Acquire pairs with the workers' Release decrement: their writes are visible after the launch.
        while self.shared.running.load(Acquire) != 0 {
            pause(&mut spins);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        // Release: a worker that sees the new epoch also sees `stop`.
        self.shared.epoch.fetch_add(1, Release);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            worker.join().expect("a worker catches the panics of its jobs");
        }
    }
}

fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        let mut spins = 0;
        // Acquire pairs with the Release bump in `start` and `drop`.
        while shared.epoch.load(Acquire) == seen {
            pause(&mut spins);
        }
        seen += 1;
        if shared.stop.load(Relaxed) {
            return;
        }
        // SAFETY: between the epoch bump and our decrement below the cell is not written.
        let job = unsafe { *shared.job.get() }.expect("an epoch comes with a job");
        // SAFETY: the launching thread keeps the closure alive until `running` is zero.
        let body = unsafe { &*job };
        if catch_unwind(AssertUnwindSafe(|| body(Block { index, count: shared.count }))).is_err() {
            shared.panicked.store(true, Relaxed);
        }
        // SAFETY: as for the job.
        let caller = unsafe { (*shared.caller.get()).clone() }.expect("an epoch comes with a caller");
        // Release pairs with the Acquire in `finish`.
        if shared.running.fetch_sub(1, Release) == 1 {
            caller.unpark();
        }
    }
}

/// Waits a little: spins at first, then parks until somebody unparks this thread.
fn pause(spins: &mut u32) {
    if *spins < SPINS {
        *spins += 1;
        std::hint::spin_loop();
    } else {
        std::thread::park();
    }
}

/// A mutable slice that the members of a launch write in disjoint parts.
pub struct Parts<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: parts handed to different threads are disjoint by the contract of `part`.
unsafe impl<T: Send> Sync for Parts<'_, T> {}
// SAFETY: a `Parts` is a mutable slice in disguise.
unsafe impl<T: Send> Send for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    /// Opens `slice` for disjoint writes.
    pub fn new(slice: &'a mut [T]) -> Self {
        Parts { start: slice.as_mut_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// The whole slice's length.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the slice is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part `range` of the slice.
    ///
    /// # Safety
    /// While the part is alive nobody else may hold a part that overlaps it.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "part {range:?} of {} elements", self.len);
        // SAFETY: in bounds by the assertion.
        let start = unsafe { self.start.add(range.start) };
        // SAFETY: in bounds, alive for 'a, and unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(start, range.len()) }
    }

    /// The address of the first element, for kernels that compute their own disjoint tiles.
    pub fn as_mut_ptr(&self) -> *mut T {
        self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_runs_exactly_once_for_any_team() {
        for cores in 1..5 {
            let team = Team::new(cores);
            for n in [0, 1, 2, 3, 7, 64] {
                let mut hits = vec![0u32; n];
                let parts = Parts::new(&mut hits);
                // SAFETY: each index is its own part.
                team.for_each(n, |i| unsafe { parts.part(i..i + 1) }[0] += 1);
                assert_eq!(hits, vec![1; n], "{n} indices on {cores} cores");
            }
        }
    }

    #[test]
    fn parts_cover_a_slice_exactly_and_start_on_units() {
        for (cores, unit) in [(1, 1), (2, 16), (3, 7), (4, 50_000)] {
            for len in [0, 1, ALONE - 1, ALONE, ALONE + 5] {
                let mut hits = vec![0u32; len];
                Team::new(cores).for_each_part(&mut hits, unit, |first, part| {
                    assert_eq!(first % unit, 0);
                    part.iter_mut().enumerate().for_each(|(i, hit)| *hit += (first + i) as u32 + 1);
                });
                assert!(
                    hits.iter().enumerate().all(|(i, &hit)| hit == i as u32 + 1),
                    "{len} on {cores} cores"
                );
            }
        }
    }

    #[test]
    fn every_row_of_every_output_is_given_once() {
        for cores in 1..5 {
            for (work, rows) in [(0, 3), (ALONE, 1), (ALONE, 7)] {
                let (mut wide, mut narrow, mut scratch) =
                    (vec![0.0; rows * 3], vec![0.0; rows], vec![0.0; 8]);
                let outs = [(&mut wide[..], 3), (&mut narrow[..], 1)];
                Team::new(cores).split_rows(work, rows, outs, &mut scratch, |range, [wide, narrow], own| {
                    assert!(own.len() >= 8 / cores);
                    wide.iter_mut().enumerate().for_each(|(i, x)| *x += (range.start + i / 3) as f32);
                    narrow.iter_mut().zip(range).for_each(|(x, row)| *x += row as f32);
                });
                assert!(wide.iter().enumerate().all(|(i, &x)| x == (i / 3) as f32));
                assert!(narrow.iter().enumerate().all(|(row, &x)| x == row as f32));
            }
        }
    }

    #[test]
    fn a_launch_inside_a_launch_still_covers_everything() {
        let team = Team::new(3);
        let total = AtomicUsize::new(0);
        team.launch(&|_| team.for_each(10, |i| _ = total.fetch_add(i, Relaxed)));
        assert_eq!(total.load(Relaxed), 3 * 45);
    }

    #[test]
    fn a_panic_in_a_member_reaches_the_caller_and_the_team_survives() {
        let team = Team::new(2);
        let result = catch_unwind(AssertUnwindSafe(|| team.for_each(2, |i| assert_eq!(i, 0, "planted"))));
        assert!(result.is_err());
        team.for_each(2, |_| ());
    }
}
