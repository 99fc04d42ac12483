//! Bytes that go to and fro between two ranks: the least that transfers cost.
//!
//! What is caught lands in another place than what is thrown, so that a receive is always posted before its message
//! comes.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use phalanx_net::{Done, Message, NetError, Network, Region, Transfers, Way};

/// The ball of ranks 0 and 1. Other ranks have one, too, which does not move.
pub struct Ball {
    network: Arc<dyn Network>,
    /// Dropped before the memory it moves.
    transfers: Box<dyn Transfers>,
    news: Arc<News>,
    /// What is thrown and what is caught.
    _memory: [Vec<u8>; 2],
}

#[derive(Default)]
struct News {
    /// How often each batch was completed.
    complete: [AtomicUsize; 2],
    failed: AtomicBool,
    error: Mutex<Option<NetError>>,
}

/// The batches: throwing and catching.
const THROW: usize = 0;
const CATCH: usize = 1;

impl Ball {
    /// A ball of `bytes` bytes; all ranks make one together.
    pub fn new(network: Arc<dyn Network>, bytes: usize) -> Result<Ball, NetError> {
        // Not zeros, which the system need not keep memory for until somebody writes.
        let mut memory = [vec![1; bytes], vec![1; bytes]];
        let peer = 1 - network.rank().min(1);
        let [thrown, caught] = memory.each_mut().map(|place| place.as_mut_ptr());
        let message = |way, start| {
            vec![Message { way, peer, tag: 0, region: Region { start, run: bytes, grid: Vec::new() } }]
        };
        let batches = match network.rank() {
            0 | 1 => vec![message(Way::Send, thrown), message(Way::Receive, caught)],
            _ => Vec::new(),
        };
        let news = Arc::new(News::default());
        let tells = Arc::clone(&news);
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
        Ok(Ball { network, transfers, news, _memory: memory })
    }

    /// Throws it to the other rank and catches it again, or the other way round, so many times.
    pub fn trips(&mut self, count: usize) -> Result<(), NetError> {
        let (rank, started) = (self.network.rank(), [Cell::new(0), Cell::new(0)]);
        if rank > 1 {
            return Ok(());
        }
        // Relaxed: nothing is under way.
        let before = self.news.complete.each_ref().map(|complete| complete.load(Ordering::Relaxed));
        let start = |batch: usize| {
            started[batch].set(started[batch].get() + 1);
            // SAFETY: nobody touches the memory until all moves are complete, and a batch is started again when it is.
            unsafe { self.transfers.start(batch) };
        };
        // Each move starts where what it waits for was seen to be complete: on the thread that drives.
        self.network.drive(&|| {
            // Acquire, pairs with the Release above.
            let complete = |batch: usize| self.news.complete[batch].load(Ordering::Acquire) - before[batch];
            let [thrown, caught] = [complete(THROW), complete(CATCH)];
            let idle = thrown == started[THROW].get() && caught == started[CATCH].get();
            if self.has_failed() || thrown == count && caught == count {
                return idle;
            }
            // Rank 0 throws first. A throw goes before the catch of its answer, which is posted long before that comes.
            let turn = if rank == 0 { caught + 1 } else { caught };
            if thrown == started[THROW].get() && thrown < turn.min(count) {
                start(THROW);
            }
            if caught == started[CATCH].get() && caught < count {
                start(CATCH);
            }
            false
        });
        let error = self.news.error.lock().unwrap_or_else(PoisonError::into_inner).take();
        error.map_or(Ok(()), Err)
    }

    fn has_failed(&self) -> bool {
        // Relaxed: set before the batch counts as complete.
        self.news.failed.load(Ordering::Relaxed)
    }
}
