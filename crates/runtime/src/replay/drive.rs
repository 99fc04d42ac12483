//! Waiting for a run whose messages go over a network, and doing what is ready meanwhile.
//!
//! A thread that waits drives the network, so it is the first to know what has arrived. It executes what follows itself
//! where that only moves bytes, as a helper thread of the lanes that do (`processor/helper.rs`): no thread is woken
//! between an arrival and its sum, nor between the sum and sending it on. Lanes that compute keep their own threads,
//! which may be tied to cores; while all of them do, they need the cores more than the network does.

use phalanx_net::{Advance, DriverWork};

use crate::processor::{HelperThread, IdleMonitor};

/// What a thread that waits until `over` does between polls of the network.
pub(super) struct ReplayWork<'a, F> {
    pub(super) helpers: &'a mut [HelperThread],
    /// Of the lanes that compute.
    pub(super) idle_monitor: &'a IdleMonitor,
    pub(super) over: F,
}

impl<F: FnMut() -> bool> DriverWork for ReplayWork<'_, F> {
    fn advance(&mut self) -> Advance {
        // Before `over` is asked, which may launch: a launch then wakes no thread for these lanes.
        self.helpers.iter_mut().for_each(HelperThread::take);
        if (self.over)() {
            return Advance::Over;
        }
        let Some(ready) = self.helpers.iter_mut().position(HelperThread::poll_ready) else {
            return Advance::Idle;
        };
        // What becomes ready elsewhere meanwhile does not wait for this.
        let others = self.helpers.iter_mut().enumerate().filter(|(helper, _)| *helper != ready);
        others.for_each(|(_, helper)| _ = helper.leave());
        self.helpers[ready].work();
        Advance::Worked
    }

    fn has_idle_compute(&self) -> bool {
        self.idle_monitor.any_idle()
    }

    fn may_sleep(&mut self) -> bool {
        self.helpers.iter_mut().all(HelperThread::leave)
    }
}

impl<F> Drop for ReplayWork<'_, F> {
    /// No other thread can serve these lanes while a helper thread does.
    fn drop(&mut self) {
        self.helpers.iter_mut().for_each(|helper| _ = helper.leave());
    }
}
