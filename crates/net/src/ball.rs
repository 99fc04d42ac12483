//! A buffer that goes to and fro between two ranks: the least that a transfer costs.

use std::sync::atomic::{AtomicUsize, Ordering};
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
            }
            // Release, pairs with the Acquire of `wait`: what arrived is seen.
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

    /// Throws it to the other rank and catches it again, or the other way round.
    pub fn trip(&mut self) -> Result<(), NetError> {
        match self.network.rank() {
            0 => self.moves(THROW).and_then(|()| self.moves(CATCH)),
            1 => self.moves(CATCH).and_then(|()| self.moves(THROW)),
            _ => Ok(()),
        }
    }

    fn moves(&mut self, batch: usize) -> Result<(), NetError> {
        // Relaxed: this thread counts alone.
        let before = self.news.complete.load(Ordering::Relaxed);
        // SAFETY: nobody touches the memory until the batch is complete, which is waited for below.
        unsafe { self.transfers.start(batch) };
        let news = &self.news;
        self.network.drive(&|| news.complete.load(Ordering::Acquire) > before);
        let error = news.error.lock().unwrap_or_else(PoisonError::into_inner).take();
        error.map_or(Ok(()), Err)
    }
}
