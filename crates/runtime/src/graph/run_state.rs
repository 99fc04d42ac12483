//! What changes during one run of a graph: everything else is frozen in the flow.
//!
//! A run state is *clean* (all gates closed, all queues empty) or belongs to one run. It is used again and again.
//! A thread that touches the state of a run holds a part of its `work`: a segment or a completion that is not complete,
//! an input that has not been delivered, or the start. So when `work` is zero no thread touches it, and the thread that
//! made it zero cleans the run state.
//!
//! In a pipelined flow, operations of the run before arrive at gates of a run state that is clean: its run has not
//! started yet, or not even been launched. They cannot open a gate, since every segment also waits for the start of its
//! own run or for a segment that does.

use std::cell::UnsafeCell;
use std::sync::Arc;

use crate::device::{Device, Lane, Token};
use crate::event::Event;
use crate::fault::{Fault, Outcome};
use crate::flow::{Flow, Lists, TaskKind};
use crate::profile::Measured;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, lock};

use super::device::is_on_device;
use super::gate::Gate;
use super::pending::OfRun;
use super::queue::{Slot, Tail};
use super::serial;

pub(crate) struct RunState {
    /// Its place in a pipelined graph's ring.
    pub(super) place: u32,
    pub(super) gates: Box<[Gate]>,
    /// What the gates count in a run that follows another.
    owed: Box<[u32]>,
    pub(super) slots: Box<[Slot]>,
    pub(super) tails: Box<[Tail]>,
    work: Work,
    /// What `work` is at the start of a run.
    units: u32,
    /// Whether any segment of the run is poisoned, and which.
    poisoned: AtomicBool,
    poison: Box<[AtomicBool]>,
    posts: Box<[Post]>,
    /// By step, if the flow has any on a device: the token recorded after it.
    tokens: Box<[AtomicU64]>,
    /// By processor: the lane that the run has there.
    lanes: Box<[Mutex<Option<Lane>>]>,
    number: AtomicU64,
    /// Whether each operation of the run is reported to a profile.
    observed: AtomicBool,
    run: Mutex<Running>,
    args: UnsafeCell<Box<[u8]>>,
}

// SAFETY: `args` is written only by the thread that starts a run on a clean run state (`set_args`) and read only by
// operations of that run, which the start precedes. Everything else is `Sync` by itself.
unsafe impl Sync for RunState {}

/// On a cache line of its own: all processors change it at their end of a run.
#[repr(align(128))]
struct Work(AtomicU32);

struct Post {
    owed: AtomicU32,
    poisoned: AtomicBool,
    event: Mutex<Event>,
}

/// The run that a run state belongs to.
#[derive(Clone, Default)]
pub(super) struct Running {
    pub(super) finish: Event,
    pub(super) priority: i32,
    pub(super) measured: Option<Arc<Measured>>,
    fault: Option<Fault>,
}

impl OfRun for Arc<RunState> {
    fn events(&self) -> Vec<Event> {
        let posts = self.posts.iter().map(|post| *lock(&post.event));
        posts.chain([lock(&self.run).finish]).collect()
    }
}

impl RunState {
    /// A clean run state for the run `first`, which no run precedes, or for any other. Steps arrive where `arrivals`
    /// says.
    pub(super) fn new(flow: &Flow, arrivals: &Lists, place: u32, first: bool) -> RunState {
        let segments = flow.segments();
        let carried = |segment: usize| segments[segment].carried_in;
        let counts = serial::counts(flow, arrivals);
        let owed: Box<[u32]> = (0..).zip(counts).map(|(segment, in_run)| in_run + carried(segment)).collect();
        let n_post = |post: u32| flow.posts().items().iter().filter(|&&other| other == post).count() as u32;
        let on_device = flow.steps().iter().any(|step| is_on_device(step.kind));
        RunState {
            place,
            gates: (0..)
                .zip(&owed)
                .map(|(segment, &owed)| Gate::new(owed - if first { carried(segment) } else { 0 }))
                .collect(),
            owed,
            slots: segments.iter().map(|_| Slot::new()).collect(),
            tails: (0..flow.processors()).map(|_| Tail::new()).collect(),
            work: Work(AtomicU32::new(units(flow))),
            units: units(flow),
            poisoned: AtomicBool::new(false),
            poison: segments.iter().map(|_| AtomicBool::new(false)).collect(),
            posts: (0..flow.n_posts())
                .map(|post| Post {
                    owed: AtomicU32::new(n_post(post)),
                    poisoned: AtomicBool::new(false),
                    event: Mutex::new(Event::NONE),
                })
                .collect(),
            tokens: flow.steps().iter().filter(|_| on_device).map(|_| AtomicU64::new(0)).collect(),
            lanes: (0..flow.processors()).map(|_| Mutex::new(None)).collect(),
            number: AtomicU64::new(0),
            observed: AtomicBool::new(false),
            run: Mutex::default(),
            args: UnsafeCell::new(flow.args().into()),
        }
    }

    /// Makes the run state clean, when its run has no work left.
    pub(super) fn reset(&self, n_post: &[u32]) {
        for (gate, &owed) in self.gates.iter().zip(&self.owed) {
            gate.reset(owed);
        }
        self.slots.iter().for_each(Slot::reset);
        self.tails.iter().for_each(Tail::reset);
        // Relaxed, here and below: the next user of the run state gets it through the lock that hands it out.
        self.work.0.store(self.units, Ordering::Relaxed);
        for (post, &owed) in self.posts.iter().zip(n_post) {
            post.owed.store(owed, Ordering::Relaxed);
            post.poisoned.store(false, Ordering::Relaxed);
        }
        self.forget_poison();
    }

    /// Forgets poison that a run left behind for its successor.
    pub(super) fn forget_poison(&self) {
        // Relaxed: no other thread touches the run state; see `reset`.
        if self.poisoned.swap(false, Ordering::Relaxed) {
            self.poison.iter().for_each(|segment| segment.store(false, Ordering::Relaxed));
            lock(&self.run).fault = None;
        }
    }

    /// Takes the run state for a run. `posts` are the events of its posts.
    pub(super) fn claim(&self, number: u64, finish: Event, priority: i32, posts: &[Event]) {
        let mut run = lock(&self.run);
        // Relaxed: see `number`.
        self.number.store(number, Ordering::Relaxed);
        run.finish = finish;
        run.priority = priority;
        for (post, &event) in self.posts.iter().zip(posts) {
            *lock(&post.event) = event;
        }
    }

    /// The run's number.
    pub(super) fn number(&self) -> u64 {
        // Relaxed: set before the start of the run, which every operation follows.
        self.number.load(Ordering::Relaxed)
    }

    /// Sets the profile that the run is reported to; before it starts.
    pub(super) fn measure(&self, measured: Option<Arc<Measured>>) {
        let Some(measured) = measured else { return };
        // Relaxed: see `observer`.
        self.observed.store(measured.has_spans(), Ordering::Relaxed);
        lock(&self.run).measured = Some(measured);
    }

    /// Removes the profile, when the run has no work left.
    pub(super) fn forget_measured(&self) {
        // Relaxed: no other thread touches the run state; see `reset`.
        self.observed.store(false, Ordering::Relaxed);
        lock(&self.run).measured = None;
    }

    /// The profile that each operation of the run is reported to.
    #[inline]
    pub(super) fn observer(&self) -> Option<Arc<Measured>> {
        // Relaxed: set before the start of the run, which every operation follows.
        let observed = self.observed.load(Ordering::Relaxed);
        if observed { self.run().measured } else { None }
    }

    /// The run's finish event and priority, and its profile.
    pub(super) fn run(&self) -> Running {
        lock(&self.run).clone()
    }

    /// Lets `write` set the operations' arguments.
    ///
    /// # Safety
    /// The run state is claimed by the caller and its run has not started.
    pub(super) unsafe fn set_args(&self, write: impl FnOnce(&mut [u8])) {
        // SAFETY: by the caller's promise no other thread touches the run state.
        write(unsafe { &mut *self.args.get() });
    }

    /// Arguments of an operation.
    ///
    /// # Safety
    /// The caller runs an operation of the run state's run.
    pub(super) unsafe fn args(&self, (first, end): (u32, u32)) -> &[u8] {
        // SAFETY: written before the start of the run, which the operation follows, and not before its end again.
        let args = unsafe { &*self.args.get() };
        &args[first as usize..end as usize]
    }

    /// Whether `segment` must be skipped.
    pub(super) fn is_poisoned(&self, segment: u32) -> bool {
        // Relaxed: set before the arrivals that opened the segment's gate.
        self.poisoned.load(Ordering::Relaxed) && self.poison[segment as usize].load(Ordering::Relaxed)
    }

    /// Lets `segment` be skipped; the caller arrives at it afterwards.
    pub(super) fn poison(&self, segment: u32) {
        // Relaxed: published by the arrival.
        self.poisoned.store(true, Ordering::Relaxed);
        self.poison[segment as usize].store(true, Ordering::Relaxed);
    }

    /// Keeps the first fault of the run.
    pub(super) fn keep(&self, fault: &Fault) {
        // Relaxed: read after the run, or by segments poisoned after this; both see it through arrivals.
        self.poisoned.store(true, Ordering::Relaxed);
        lock(&self.run).fault.get_or_insert_with(|| fault.clone());
    }

    /// What became of the run so far.
    pub(super) fn outcome(&self) -> Outcome {
        lock(&self.run).fault.clone().map_or(Ok(()), Err)
    }

    /// One step of `post` is complete, or `poisoned`. If it was the last: the post's event and its outcome.
    pub(super) fn arrive_at_post(&self, post: u32, poisoned: bool) -> Option<(Event, Outcome)> {
        let post = &self.posts[post as usize];
        if poisoned {
            // Relaxed: published by the arrival.
            post.poisoned.store(true, Ordering::Relaxed);
        }
        // AcqRel, pairs with itself: the last one sees what all steps of the post wrote.
        if post.owed.fetch_sub(1, Ordering::AcqRel) > 1 {
            return None;
        }
        // Relaxed: see above.
        let outcome = if post.poisoned.load(Ordering::Relaxed) { self.outcome() } else { Ok(()) };
        Some((*lock(&post.event), outcome))
    }

    /// The token recorded after `step`.
    pub(super) fn token(&self, step: u32) -> Token {
        // Relaxed: stored before the early release that the caller follows.
        Token(self.tokens[step as usize].load(Ordering::Relaxed))
    }

    pub(super) fn set_token(&self, step: u32, token: Token) {
        // Relaxed: published by the early release that comes next.
        self.tokens[step as usize].store(token.0, Ordering::Relaxed);
    }

    /// The run's own lane on the device of a processor.
    pub(super) fn lane(&self, processor: u32, device: &dyn Device) -> Lane {
        *lock(&self.lanes[processor as usize]).get_or_insert_with(|| device.lease())
    }

    /// The lane of a processor, if the run had one; it has it no more.
    pub(super) fn take_lane(&self, processor: u32) -> Option<Lane> {
        lock(&self.lanes[processor as usize]).take()
    }

    /// `units` of work are complete. Whether none is left: then the run state is the caller's to clean.
    #[must_use]
    pub(super) fn complete(&self, units: u32) -> bool {
        // AcqRel, pairs with itself: the last one sees all that the run wrote, and that no other thread touches the run
        // state.
        self.work.0.fetch_sub(units, Ordering::AcqRel) == units
    }
}

/// Segments, completions of remote steps, inputs and the start.
fn units(flow: &Flow) -> u32 {
    let remote = flow.steps().iter().filter(|step| step.kind == TaskKind::Remote).count();
    (flow.segments().len() + remote) as u32 + flow.n_inputs() + 1
}
