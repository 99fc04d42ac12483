//! Holding transfers back to a link, by the clock.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Link, Part, Traffic};

/// The links between devices of this process. A laptop with a wire is as slow as the network it is told to be.
#[derive(Debug)]
pub struct Wire {
    start: Instant,
    traffic: Mutex<Traffic>,
}

impl Wire {
    /// Every one of `devices` devices has such a link.
    pub fn new(link: Link, devices: usize) -> Wire {
        Wire { start: Instant::now(), traffic: Mutex::new(Traffic::new(link, devices)) }
    }

    /// The link.
    pub fn link(&self) -> Link {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner).link()
    }

    /// Starts a transfer to device `to` now and returns when it would be complete; the thread sleeps meanwhile.
    pub fn hold(&self, to: u32, parts: &[Part]) {
        let due = {
            let mut traffic = self.traffic.lock().unwrap_or_else(PoisonError::into_inner);
            traffic.transfer(self.start.elapsed(), to, parts)
        };
        // Parking may end early.
        while let Some(left) = due.checked_sub(self.start.elapsed()).filter(|left| *left > Duration::ZERO) {
            thread::park_timeout(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_are_held_back_at_least_as_long_as_the_link_takes() {
        let wire = Wire::new("2ms,1GB".parse().unwrap(), 3);
        let start = Instant::now();
        thread::scope(|scope| {
            // Both come from device 0, so the second waits for the first.
            for to in [1, 2] {
                let wire = &wire;
                scope.spawn(move || wire.hold(to, &[Part { from: 0, bytes: 3_000_000 }]));
            }
        });
        assert!(start.elapsed() >= Duration::from_millis(8));
        wire.hold(1, &[]);
    }
}
