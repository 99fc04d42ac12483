//! What the operations of a program share, and how one is executed.
//!
//! An operation builds its slices on the stack and calls its kernel: no allocation, no lookup. Movements, feeds and
//! fetches the runtime executes itself (see `transfer`), and messages it starts (see `messages`): they touch their
//! bytes until they are complete.
//!
//! Why accesses are sound, whatever the program: there is none that its verifier has not accepted. Inside an operation,
//! written slices overlap nothing else of it. Between operations of a lane, they run one after the other. Between
//! lanes, lane orders, waits and carried waits put of two operations that touch the same bytes, one of them writing,
//! one before the other, whichever runs they belong to. Arguments are only read during a run, and every byte of the
//! results has one fetch that writes it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use arrayvec::ArrayVec;
use phalanx_link::Topology;
use phalanx_net::{NetError, Network};
use phalanx_program::{FEED, FETCH, MAX_SLICES, Program, RECEIVE, Slice};

use crate::Arena;
use crate::graph::Completion;
use crate::ports::PortBlock;
use crate::sync::{Mutex, lock};
use crate::transfer::{self, Operands};

use super::messages::{MessageObserver, Messages};
use super::throttle::MovementThrottle;
use super::watch::Progress;

/// What a kernel gets for one operation.
pub struct Args<'a> {
    /// How many blocks it runs on.
    pub blocks: u32,
    /// The kernel's parameters.
    pub params: &'a [u64],
    /// Slices only read.
    pub reads: ArrayVec<&'a [u8], MAX_SLICES>,
    /// Slices written.
    pub writes: ArrayVec<&'a mut [u8], MAX_SLICES>,
    /// Working memory with arbitrary content.
    pub scratch: &'a mut [u8],
}

/// The kernels of a program on one device, by their position in its kernel list. Those of
/// [`TRANSFERS`](phalanx_program::TRANSFERS) are never asked for.
pub trait Kernels {
    /// Executes kernel number `kernel`.
    fn execute(&self, kernel: usize, args: Args<'_>);
}

/// Runs around every operation: it is given the operation's position in the program and the number of the run, and must
/// call the closure. All lanes call it at the same time.
pub type Observer = Arc<dyn Fn(usize, u64, &mut dyn FnMut()) + Send + Sync>;

/// A program's memory and kernels.
pub(super) struct Memory<K> {
    pub(super) program: Arc<Program>,
    pub(super) progress: Arc<Progress>,
    /// Those of a part on a network. They end before the arenas.
    messages: Option<Messages>,
    pub(super) arenas: Vec<Arena>,
    /// One set for each lane with an arena, in order.
    pub(super) kernels: Vec<K>,
    /// By lane: its kernels, as a position above.
    kernels_of: Vec<u32>,
    /// By operation: its lane.
    lanes: Vec<u32>,
    throttle: OnceLock<Arc<MovementThrottle>>,
    /// For each of the program's kernels, what executes it.
    executors: Vec<Executor>,
    io_slots: Vec<IoSlot>,
    /// Runs so far that were not replayed, which the graph does not count.
    elsewhere: AtomicU64,
    observed: AtomicBool,
    observer: Mutex<Option<Observer>>,
}

/// What goes in and out of one run.
struct IoSlot {
    arguments: PortBlock,
    results: PortBlock,
}

/// What executes an operation.
#[derive(Clone, Copy)]
enum Executor {
    Kernels,
    Receive,
    Feed,
    Fetch,
}

impl Executor {
    fn of(kernel: &str) -> Executor {
        match kernel {
            RECEIVE => Executor::Receive,
            FEED => Executor::Feed,
            FETCH => Executor::Fetch,
            _ => Executor::Kernels,
        }
    }
}

impl<K> Memory<K> {
    pub(super) fn new(program: Program, kernels: Vec<K>, io_slots: usize) -> Memory<K> {
        assert_eq!(kernels.len(), program.homes().count(), "every device has its kernels");
        let program = Arc::new(program);
        let io_slot = || IoSlot {
            arguments: PortBlock::new(&program.arguments()),
            results: PortBlock::new(&program.results()),
        };
        Memory {
            progress: Arc::new(Progress::new(&program)),
            messages: None,
            arenas: program.lanes().iter().map(|lane| Arena::new(lane.arena)).collect(),
            kernels,
            kernels_of: (0..)
                .zip(program.lanes())
                .scan(0, |homes, (number, lane)| {
                    *homes += u32::from(lane.home == number);
                    Some(*homes - 1)
                })
                .collect(),
            throttle: OnceLock::new(),
            lanes: (0..)
                .zip(program.lanes())
                .flat_map(|(number, lane)| program.operations_of(lane).iter().map(move |_| number))
                .collect(),
            executors: program.kernels().iter().map(|name| Executor::of(name)).collect(),
            io_slots: (0..io_slots).map(|_| io_slot()).collect(),
            elsewhere: AtomicU64::new(0),
            observed: AtomicBool::new(false),
            observer: Mutex::new(None),
            program,
        }
    }

    /// Holds movements back to a link from now on, while no run is in flight. Only the first link counts.
    pub(super) fn throttle(&self, topology: Topology) {
        let throttle = self.throttle.get_or_init(|| Arc::new(MovementThrottle::new(&self.program, topology)));
        self.messages.iter().for_each(|messages| messages.throttle(throttle));
    }

    /// Sets up the messages of a part, together with the other ranks.
    pub(super) fn connect(&mut self, network: &Arc<dyn Network>) -> Result<(), NetError> {
        // SAFETY: the messages end in `disconnect` or with `self`, before its arenas.
        let messages = unsafe { Messages::connect(&self.program, &self.progress, &self.arenas, network) }?;
        self.messages = Some(messages);
        Ok(())
    }

    /// Its messages, if it has a network.
    pub(super) fn messages(&self) -> Option<&Messages> {
        self.messages.as_ref()
    }

    /// A run goes in another mode than the replay; no other one is in flight that does not.
    pub(super) fn not_replayed(&self) {
        // Relaxed, here and below: no replayed run is in flight, and later ones are launched after this.
        self.elsewhere.fetch_add(1, Relaxed);
    }

    /// The number of the run that is number `run` of the graph.
    #[inline]
    pub(super) fn replayed(&self, run: u64) -> u64 {
        run + self.elsewhere.load(Relaxed)
    }

    fn io_slot(&self, run: u64) -> &IoSlot {
        &self.io_slots[run as usize % self.io_slots.len()]
    }

    /// Puts the arguments of `run` into its I/O slot.
    ///
    /// # Safety
    /// No run with this I/O slot is in flight.
    pub(super) unsafe fn set_arguments(&self, run: u64, arguments: &PortBlock) {
        // SAFETY: nothing else touches the I/O slot, by the caller's promise.
        unsafe { self.io_slot(run).arguments.copy_from(arguments) };
    }

    /// A result of `run`, if it is one.
    ///
    /// # Safety
    /// As long as the result lives, no run with this I/O slot is in flight.
    pub(super) unsafe fn result(&self, run: u64, port: usize) -> Option<&[u8]> {
        self.io_slot(run).results.get(port)
    }

    /// Replaces a result of `run`, if it is one.
    ///
    /// # Safety
    /// No run with this I/O slot is in flight, and nothing reads the result meanwhile.
    pub(super) unsafe fn set_result(&self, run: u64, port: usize, bytes: &[u8]) {
        // SAFETY: nothing else touches the I/O slot, by the caller's promise.
        unsafe { self.io_slot(run).results.set(port, bytes) };
    }

    /// Bytes of an arena, to be written.
    ///
    /// # Safety
    /// As long as the result lives, no run is in flight and nothing else touches these bytes.
    #[allow(clippy::mut_from_ref, reason = "exclusive by the caller's promise")]
    pub(super) unsafe fn part(&self, slice: Slice) -> &mut [u8] {
        // SAFETY: nothing else holds these bytes, by the caller's promise.
        unsafe { self.arenas[slice.lane as usize].part(slice) }
    }

    /// The slices that an operation writes, as they are now.
    ///
    /// # Safety
    /// As long as the result lives, nothing writes to them.
    pub(super) unsafe fn written(&self, operation: usize) -> Vec<&[u8]> {
        let writes = &self.program.operations()[operation].writes;
        // SAFETY: nothing writes there, by the caller's promise.
        let bytes = |slice: &Slice| unsafe { self.arenas[slice.lane as usize].shared(*slice) };
        self.program.slices(writes).iter().map(bytes).collect()
    }

    /// Lets `observer`, if there is one, run around every operation; while no run is in flight.
    pub(super) fn observe(&self, observer: Option<Observer>) {
        // Relaxed: runs are launched after this.
        self.observed.store(observer.is_some(), Relaxed);
        *lock(&self.observer) = observer;
    }

    /// Lets `observer` be called with every operation whose messages are complete; while no run is in flight.
    pub(super) fn observe_messages(&self, observer: MessageObserver) {
        self.messages.iter().for_each(|messages| messages.observe(&observer));
    }
}

impl<K: Kernels> Memory<K> {
    /// Executes an operation, by its position in the program.
    ///
    /// # Safety
    /// All operations of this run before it in the program's order are complete, and those of other runs that conflict
    /// with it are complete or not started: lane orders, waits and carried waits have been kept.
    pub(super) unsafe fn execute(&self, operation: usize, run: u64) {
        // SAFETY: the caller's promise.
        self.observe_one(operation, run, || unsafe { self.execute_unobserved(operation, run) });
        self.progress.complete(self.lanes[operation] as usize, operation, run);
    }

    /// Starts the messages of an operation, which is complete when the network reports `completion`.
    ///
    /// # Safety
    /// As for `execute`, until then.
    pub(super) unsafe fn start(&self, operation: usize, run: u64, completion: Completion) {
        let messages = self.messages.as_ref().expect("a program with messages is on a network");
        let mut completion = Some(completion);
        self.observe_one(operation, run, || {
            if let Some(completion) = completion.take() {
                // SAFETY: verified: no other operation that may run meanwhile touches these bytes, if one of the two
                // writes them (see the head); and the caller's promise.
                unsafe { messages.start(operation, run, completion) };
            }
        });
    }

    /// Does `work`, with the observer around it if there is one.
    #[inline]
    fn observe_one(&self, operation: usize, run: u64, mut work: impl FnMut()) {
        // Relaxed: set before the run was launched.
        if !self.observed.load(Relaxed) {
            return work();
        }
        // Not in the match: lanes would wait for each other's operations.
        let observer = lock(&self.observer).clone();
        match observer {
            Some(observer) => observer(operation, run, &mut work),
            None => work(),
        }
    }

    /// # Safety
    /// As for `execute`.
    unsafe fn execute_unobserved(&self, operation: usize, run: u64) {
        let program = &self.program;
        let lane = self.lanes[operation] as usize;
        if let Some(throttle) = self.throttle.get() {
            throttle.delay(operation);
        }
        let operation = &program.operations()[operation];
        let (reads, writes) = (program.slices(&operation.reads), program.slices(&operation.writes));
        let (from, to) = ((&self.arenas[..], reads), (&self.arenas[..], writes));
        let operands = match self.executors[operation.kernel as usize] {
            Executor::Kernels => None,
            Executor::Receive => Some((from, to)),
            Executor::Feed => Some((self.io_slot(run).arguments.slices(), to)),
            Executor::Fetch => Some((from, self.io_slot(run).results.slices())),
        };
        if let Some((from, to)) = operands {
            // SAFETY: verified: reads and writes do not overlap, and whatever else touches these bytes is ordered
            // before or after, if one of the two writes (see the head). Nothing writes arguments during a run, and no
            // other fetch touches the results that this one does.
            let mut operands = unsafe { Operands::new(from, to) };
            // SAFETY: verified: the pieces of a receive lie in its slices, and a feed or fetch is that of the ports.
            return unsafe { transfer::execute(program.pieces(operation), &mut operands) };
        }
        let arena = &self.arenas[lane];
        let mut args = Args {
            blocks: operation.blocks.get(),
            params: program.params(operation),
            reads: ArrayVec::new(),
            writes: ArrayVec::new(),
            // SAFETY: verified: scratch overlaps no other slice of the operation, and whatever else touches these bytes
            // is ordered before or after (see the head).
            scratch: unsafe { arena.part(operation.scratch) },
        };
        for &slice in reads {
            // SAFETY: verified: it overlaps nothing that the operation writes; whatever else writes there is ordered
            // before or after (see the head).
            args.reads.push(unsafe { arena.shared(slice) });
        }
        for &slice in writes {
            // SAFETY: verified: a written slice overlaps no other slice of the operation; otherwise as for scratch.
            args.writes.push(unsafe { arena.part(slice) });
        }
        self.kernels[self.kernels_of[lane] as usize].execute(operation.kernel as usize, args);
    }
}
