//! A device that a processor issues work to, and how far ahead of it the host may run.

use std::sync::Arc;

use crate::device::Device;
use crate::sync::{AtomicUsize, Ordering};

/// A device and how far ahead of it the host may run.
pub(crate) struct Attached {
    pub(crate) device: Arc<dyn Device>,
    /// Tokens of graphs that may be recorded and not have fired, and how many are.
    credits: usize,
    unfired: AtomicUsize,
}

impl Attached {
    pub(crate) fn new(device: Arc<dyn Device>, credits: usize) -> Attached {
        Attached { device, credits, unfired: AtomicUsize::new(0) }
    }

    /// Whether more work may be issued.
    pub(crate) fn has_credit(&self) -> bool {
        // Relaxed: the processor alone counts up; a thread that counts down wakes it, through a fence.
        self.unfired.load(Ordering::Relaxed) < self.credits
    }

    /// A token has been recorded.
    pub(crate) fn take_credit(&self) {
        // Relaxed: see above.
        self.unfired.fetch_add(1, Ordering::Relaxed);
    }

    /// A token has fired; the caller wakes the processor, which may wait for that.
    pub(crate) fn give_credit(&self) {
        // Relaxed: see above.
        self.unfired.fetch_sub(1, Ordering::Relaxed);
    }
}
