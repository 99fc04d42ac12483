//! Waiting for a run whose messages go over a network, and doing what is ready meanwhile.
//!
//! Whoever waits drives the network, so it is the first to know what has arrived. It does what follows itself where
//! that only moves bytes, as a guest of the lanes that do (`processor/guest.rs`): no thread is woken between an arrival
//! and its sum, nor between the sum and sending it on. Lanes that compute keep their own threads, which may be tied to
//! cores; while all of them do, they need the cores more than the network does.

use phalanx_net::{Turn, Turns};

use crate::processor::{Guest, Lull};

/// Turns of a thread that waits until `over`.
pub(super) struct Attendance<'a, F> {
    pub(super) guests: &'a mut [Guest],
    /// Of the lanes that compute.
    pub(super) lull: &'a Lull,
    pub(super) over: F,
}

impl<F: FnMut() -> bool> Turns for Attendance<'_, F> {
    fn turn(&mut self) -> Turn {
        // Before anything is asked: what a launch has for these lanes then wakes nobody.
        self.guests.iter_mut().for_each(Guest::take);
        if (self.over)() {
            return Turn::Over;
        }
        let Some(ready) = self.guests.iter_mut().position(Guest::is_ready) else { return Turn::Idle };
        // What becomes ready elsewhere meanwhile does not wait for this.
        let others = self.guests.iter_mut().enumerate().filter(|(guest, _)| *guest != ready);
        others.for_each(|(_, guest)| _ = guest.leave());
        self.guests[ready].work();
        Turn::Worked
    }

    fn is_pressing(&self) -> bool {
        self.lull.is_there()
    }

    fn rest(&mut self) -> bool {
        self.guests.iter_mut().all(Guest::leave)
    }
}

impl<F> Drop for Attendance<'_, F> {
    /// Nobody else can serve these lanes while a guest does.
    fn drop(&mut self) {
        self.guests.iter_mut().for_each(|guest| _ = guest.leave());
    }
}
