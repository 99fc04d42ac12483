//! A buffer that goes to and fro between two ranks: the least that a transfer costs.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Done, Message, NetError, Network, Region, Transfers, Way};

/// The ball of ranks 0 and 1. Other ranks have one, too, which does not move.
pub struct Ball {
    network: Arc<dyn Network>,
    /// Dropped before the memory it moves.
    transfers: Box<dyn Transfers>,
    news: Arc<News>,
    memory: Vec<u8>,
}

#[derive(Default)]
struct News {
    /// Batches that are complete, so far.
    complete: AtomicUsize,
    failed: AtomicBool,
    error: Mutex<Option<NetError>>,
}

/// The batches: throwing and catching.
const THROW: usize = 0;
const CATCH: usize = 1;

impl Ball {
    /// A ball of `bytes` bytes; all ranks make one together.
    pub fn new(network: Arc<dyn Network>, bytes: usize) -> Result<Ball, NetError> {
        let mut memory = vec![0; bytes];
        let region = Region { start: memory.as_mut_ptr(), run: bytes, grid: Vec::new() };
        let peer = 1 - network.rank().min(1);
        let message = |way| Message { way, peer, tag: 0, region: region.clone() };
        let batches = match network.rank() {
            0 | 1 => vec![vec![message(Way::Send)], vec![message(Way::Receive)]],
            _ => Vec::new(),
        };
        let news = Arc::new(News::default());
        let tells = Arc::clone(&news);
        let done: Done = Arc::new(move |_, outcome| {
            if let Err(error) = outcome {
                *tells.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                // Relaxed: published by the count below.
                tells.failed.store(true, Ordering::Relaxed);
            }
            // Release, pairs with the Acquire of `trips`: what arrived is seen.
            tells.complete.fetch_add(1, Ordering::Release);
        });
        // SAFETY: the memory is dropped after the transfers, by the order of the fields.
        let transfers = unsafe { network.connect(batches, done) }?;
        Ok(Ball { network, transfers, news, memory })
    }

    /// Bytes of the ball.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// Throws it to the other rank and catches it again, or the other way round, so many times.
    pub fn trips(&mut self, count: usize) -> Result<(), NetError> {
        let order = match self.network.rank() {
            0 => [THROW, CATCH],
            1 => [CATCH, THROW],
            _ => return Ok(()),
        };
        // Relaxed: nothing is under way.
        let before = self.news.complete.load(Ordering::Relaxed);
        let (started, moves) = (Cell::new(0), 2 * count);
        // Each move starts where the one before was seen to be complete: on the thread that drives.
        self.network.drive(&|| {
            // Acquire, pairs with the Release above.
            let complete = self.news.complete.load(Ordering::Acquire) - before;
            if complete == started.get() && complete < moves && !self.has_failed() {
                started.set(complete + 1);
                // SAFETY: nobody touches the memory until all moves are complete, and no two are under way at once.
                unsafe { self.transfers.start(order[complete % 2]) };
            }
            complete == moves || complete == started.get() && self.has_failed()
        });
        let error = self.news.error.lock().unwrap_or_else(PoisonError::into_inner).take();
        error.map_or(Ok(()), Err)
    }

    fn has_failed(&self) -> bool {
        // Relaxed: set before the batch counts as complete.
        self.news.failed.load(Ordering::Relaxed)
    }
}
