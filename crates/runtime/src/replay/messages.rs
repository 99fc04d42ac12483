//! Messages between the ranks of a job, for the operations that send and those that take in what arrives.
//!
//! Every such operation is a batch of transfers, set up once. Starting it leaves its completion in the batch's place
//! and returns; when the batch is complete, the network's thread takes the completion from there and reports it. An
//! operation runs again only after it was complete in the run before, so the place is empty then, and nothing is
//! allocated.
//!
//! Why nothing is freed too early: transfers end before arenas do. They are dropped when no run is in flight, and so no
//! batch, and when no thread is in `start`. After an error of the network a batch may be under way forever: then
//! neither is freed.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, PoisonError};

use phalanx_net::{Done, Message, NetError, Network, Region, Transfers, Way};
use phalanx_program::{ARRIVE, MessageEnd, Operation, Program, SEND};

use crate::Arena;
use crate::fault::{Fault, Outcome};
use crate::graph::Completion;
use crate::sync::{Mutex, RwLock, lock};

use super::throttle::MovementThrottle;
use super::watch::Progress;

/// Whether an operation is a batch of messages.
pub(super) fn is_message(program: &Program, operation: &Operation) -> bool {
    matches!(program.kernel(operation), SEND | ARRIVE)
}

/// Called with the position of an operation whose messages are complete, on the network's thread.
pub type MessageObserver = Arc<dyn Fn(usize) + Send + Sync>;

/// The messages of a program, connected.
pub(super) struct Messages {
    /// None when they have ended.
    connected: RwLock<Option<Connected>>,
    places: Arc<PendingBatches>,
    /// By operation: its batch, if it is one.
    batches: Vec<Option<usize>>,
}

struct Connected {
    transfers: Box<dyn Transfers>,
    /// Ends after its transfers.
    _network: Arc<dyn Network>,
}

/// What the network's thread needs to report the end of a batch.
struct PendingBatches {
    program: Arc<Program>,
    progress: Arc<Progress>,
    batches: Vec<PendingBatch>,
    throttle: OnceLock<Arc<MovementThrottle>>,
    observer: Mutex<Option<MessageObserver>>,
    /// Whether the network has failed on a batch.
    torn: AtomicBool,
}

/// An operation, and while its batch is under way its run and what completes it.
struct PendingBatch {
    lane: usize,
    operation: usize,
    under_way: Mutex<Option<(u64, Completion)>>,
}

impl Messages {
    /// Sets up all messages of `program` together with the other ranks.
    ///
    /// # Safety
    /// The memory of the arenas lives until these messages have ended, also if the arenas themselves move.
    pub(super) unsafe fn connect(
        program: &Arc<Program>,
        progress: &Arc<Progress>,
        arenas: &[Arena],
        network: &Arc<dyn Network>,
    ) -> Result<Messages, NetError> {
        let (mut messages, mut places, mut batches) = (Vec::new(), Vec::new(), Vec::new());
        for (lane, of_lane) in program.lanes().iter().enumerate() {
            for operation in program.operations_of(of_lane) {
                let number = batches.len();
                batches.push(is_message(program, operation).then_some(places.len()));
                if is_message(program, operation) {
                    messages.push(batch(program, operation, arenas));
                    places.push(PendingBatch { lane, operation: number, under_way: Mutex::new(None) });
                }
            }
        }
        let (program, progress) = (Arc::clone(program), Arc::clone(progress));
        let torn = AtomicBool::new(false);
        let (throttle, observer) = (OnceLock::new(), Mutex::new(None));
        let places =
            Arc::new(PendingBatches { program, progress, batches: places, throttle, observer, torn });
        let told = Arc::clone(&places);
        let done: Done = Arc::new(move |batch, result| PendingBatches::complete(&told, batch, result));
        // SAFETY: the memory lives long enough, by the caller's promise.
        let transfers = unsafe { network.connect(messages, done) }?;
        let connected = Connected { transfers, _network: Arc::clone(network) };
        Ok(Messages { connected: RwLock::new(Some(connected)), places, batches })
    }

    /// Holds what arrives back from now on, while no run is in flight.
    pub(super) fn throttle(&self, throttle: &Arc<MovementThrottle>) {
        self.places.throttle.get_or_init(|| Arc::clone(throttle));
    }

    /// Lets `observer` be called from now on, while no run is in flight.
    pub(super) fn observe(&self, observer: &MessageObserver) {
        *lock(&self.places.observer) = Some(Arc::clone(observer));
    }

    /// Starts the messages of an operation.
    ///
    /// # Safety
    /// The operation sends or takes in what arrives. Until its completion is reported, nothing writes what it reads and
    /// nothing else touches what it writes.
    pub(super) unsafe fn start(&self, operation: usize, run: u64, completion: Completion) {
        let batch = self.batches[operation].expect("the flow starts operations that are messages");
        let before = lock(&self.places.batches[batch].under_way).replace((run, completion));
        debug_assert!(before.is_none(), "an operation follows itself in the run before");
        let connected = self.connected.read().unwrap_or_else(PoisonError::into_inner);
        let Connected { transfers, .. } = connected.as_ref().expect("messages end after all runs");
        // SAFETY: the batch is not under way, since its operation was complete in the run before; the rest is the
        // caller's promise.
        unsafe { transfers.start(batch) };
    }

    /// Whether the network has failed: then a transfer may still write into the arenas.
    pub(super) fn is_torn(&self) -> bool {
        // Relaxed: set before the failure was reported to the run, whose end the caller has seen.
        self.places.torn.load(Relaxed)
    }

    /// Ends the messages, when no run is in flight. Waits for threads that are about to leave `start`.
    pub(super) fn disconnect(&self) {
        let connected = self.connected.write().unwrap_or_else(PoisonError::into_inner).take();
        drop(connected);
    }
}

impl PendingBatches {
    /// A batch is complete, or never will be.
    fn complete(places: &Arc<PendingBatches>, batch: usize, result: Result<(), NetError>) {
        match places.throttle.get().filter(|_| result.is_ok()) {
            None => places.tell(batch, result),
            Some(throttle) => {
                let told = Arc::clone(places);
                throttle.delay_then(places.batches[batch].operation, move || told.tell(batch, result));
            }
        }
    }

    fn tell(&self, batch: usize, result: Result<(), NetError>) {
        let PendingBatch { lane, operation, under_way } = &self.batches[batch];
        // Messages of one batch may fail one by one.
        let Some((run, completion)) = lock(under_way).take() else { return };
        completion.done(match result {
            Ok(()) => {
                lock(&self.observer).iter().for_each(|observer| observer(*operation));
                self.progress.complete(*lane, *operation, run);
                Ok(())
            }
            Err(error) => self.failed(*operation, &error),
        });
    }

    /// The fault of an operation whose messages failed.
    fn failed(&self, operation: usize, error: &NetError) -> Outcome {
        // Relaxed: see `is_torn`.
        self.torn.store(true, Relaxed);
        let program = &self.program;
        let what = &program.operations()[operation];
        let mut peers: Vec<_> = program.messages(what).iter().map(|end| end.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        let peers: Vec<_> = peers.iter().map(u32::to_string).collect();
        let (name, peers) = (program.describe(what), peers.join(", "));
        let way = if program.kernel(what) == SEND { "to" } else { "from" };
        let operation = format!("{name} (op{operation} of {}), {way} rank {peers}", program.name());
        Err(Fault::failed(operation, error))
    }
}

/// The messages of an operation.
fn batch(program: &Program, operation: &Operation, arenas: &[Arena]) -> Vec<Message> {
    let (way, slices) = match program.kernel(operation) {
        SEND => (Way::Send, program.slices(&operation.reads)),
        _ => (Way::Receive, program.slices(&operation.writes)),
    };
    let message = |end: &MessageEnd| {
        let slice = slices[end.slice as usize];
        let (base, runs) = (arenas[slice.lane as usize].address(slice), end.runs.clone());
        Message { way, peer: end.peer, tag: end.tag, region: Region { base, runs } }
    };
    program.messages(operation).iter().map(message).collect()
}
