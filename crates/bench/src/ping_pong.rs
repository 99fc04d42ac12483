//! Ping-pong of one message between two ranks: the least that transfers cost.
//!
//! Sends and receives use different buffers, so that a receive is always posted before its message comes.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use phalanx_net::{Done, Message, NetError, Network, Region, Transfers, Way};

/// Ping-pong between ranks 0 and 1. Other ranks create one, too, which sends nothing.
pub struct PingPong {
    network: Arc<dyn Network>,
    /// Dropped before the memory it moves.
    transfers: Box<dyn Transfers>,
    completions: Arc<Completions>,
    /// The buffers to send from and to receive into.
    _memory: [Vec<u8>; 2],
}

#[derive(Default)]
struct Completions {
    /// How often each batch was completed.
    complete: [AtomicUsize; 2],
    failed: AtomicBool,
    error: Mutex<Option<NetError>>,
}

/// The batches: sending and receiving.
const SEND: usize = 0;
const RECEIVE: usize = 1;

impl PingPong {
    /// With messages of `bytes` bytes; all ranks create one together.
    pub fn new(network: Arc<dyn Network>, bytes: usize) -> Result<PingPong, NetError> {
        // Not zeros, which the system need not keep memory for until they are written.
        let mut memory = [vec![1; bytes], vec![1; bytes]];
        let peer = 1 - network.rank().min(1);
        let [sent, received] = memory.each_mut().map(|place| place.as_mut_ptr());
        let message =
            |way, start| vec![Message { way, peer, tag: 0, region: Region::new(start, bytes, &[]) }];
        let batches = match network.rank() {
            0 | 1 => vec![message(Way::Send, sent), message(Way::Receive, received)],
            _ => Vec::new(),
        };
        let completions = Arc::new(Completions::default());
        let tells = Arc::clone(&completions);
        let done: Done = Arc::new(move |batch, outcome| {
            if let Err(error) = outcome {
                *tells.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                // Relaxed: published by the count below.
                tells.failed.store(true, Ordering::Relaxed);
            }
            // Release, pairs with the Acquire of `trips`: what arrived is seen.
            tells.complete[batch].fetch_add(1, Ordering::Release);
        });
        // SAFETY: the memory is dropped after the transfers, by the order of the fields.
        let transfers = unsafe { network.connect(batches, done) }?;
        Ok(PingPong { network, transfers, completions, _memory: memory })
    }

    /// Sends the message to the other rank and receives it back, or the other way round, `count` times.
    pub fn trips(&mut self, count: usize) -> Result<(), NetError> {
        let (rank, started) = (self.network.rank(), [Cell::new(0), Cell::new(0)]);
        if rank > 1 {
            return Ok(());
        }
        // Relaxed: nothing is under way.
        let before = self.completions.complete.each_ref().map(|complete| complete.load(Ordering::Relaxed));
        let start = |batch: usize| {
            started[batch].set(started[batch].get() + 1);
            // SAFETY: the memory is not touched until all transfers are complete, and a batch is started again when it
            // is.
            unsafe { self.transfers.start(batch) };
        };
        // Each transfer starts where what it waits for was seen to be complete: on the thread that drives.
        self.network.drive(&|| {
            // Acquire, pairs with the Release above.
            let complete =
                |batch: usize| self.completions.complete[batch].load(Ordering::Acquire) - before[batch];
            let [sent, received] = [complete(SEND), complete(RECEIVE)];
            let idle = sent == started[SEND].get() && received == started[RECEIVE].get();
            if self.has_failed() || sent == count && received == count {
                return idle;
            }
            // Rank 0 sends first. A send goes before the receive of its answer, which is posted long before that comes.
            let turn = if rank == 0 { received + 1 } else { received };
            if sent == started[SEND].get() && sent < turn.min(count) {
                start(SEND);
            }
            if received == started[RECEIVE].get() && received < count {
                start(RECEIVE);
            }
            false
        });
        let error = self.completions.error.lock().unwrap_or_else(PoisonError::into_inner).take();
        error.map_or(Ok(()), Err)
    }

    fn has_failed(&self) -> bool {
        // Relaxed: set before the batch counts as complete.
        self.completions.failed.load(Ordering::Relaxed)
    }
}
