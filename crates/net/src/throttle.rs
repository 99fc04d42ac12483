//! Throttling transfers to a link, by the clock.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_link::{Part, Topology, Traffic};

use crate::timer::Timer;

/// The links between devices of this process. Transfers through it take as long as they would on the given topology.
#[derive(Debug)]
pub struct Throttle {
    start: Instant,
    traffic: Mutex<Traffic>,
    /// Makes the calls of transfers that no thread sleeps for; there is none before the first of them.
    timer: OnceLock<Timer>,
}

impl Throttle {
    /// `devices` devices are connected like this.
    pub fn new(topology: Topology, devices: usize) -> Throttle {
        let traffic = Mutex::new(Traffic::new(topology, devices));
        Throttle { start: Instant::now(), traffic, timer: OnceLock::new() }
    }

    /// How devices are connected.
    pub fn topology(&self) -> Topology {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner).topology().clone()
    }

    /// Starts a transfer to device `to` now and returns when it would be complete; the thread sleeps meanwhile.
    pub fn delay(&self, to: u32, parts: &[Part]) {
        let due = self.due(to, parts);
        // Parking may end early.
        while let Some(left) = due.checked_sub(self.start.elapsed()).filter(|left| *left > Duration::ZERO) {
            thread::park_timeout(left);
        }
    }

    /// Starts a transfer to device `to` now and calls `then` when it would be complete, on a thread of the throttle's
    /// own; `then` must be quick.
    pub fn delay_then(&self, to: u32, parts: &[Part], then: impl FnOnce() + Send + 'static) {
        let due = self.start + self.due(to, parts);
        self.timer.get_or_init(Timer::new).at(due, Box::new(then));
    }

    /// When a transfer that starts now is complete.
    fn due(&self, to: u32, parts: &[Part]) -> Duration {
        let mut traffic = self.traffic.lock().unwrap_or_else(PoisonError::into_inner);
        traffic.transfer(self.start.elapsed(), to, parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_are_delayed_at_least_as_long_as_the_link_takes() {
        let throttle = Throttle::new("2ms,1GB".parse().unwrap(), 3);
        let start = Instant::now();
        thread::scope(|scope| {
            // Both come from device 0, so the second waits for the first.
            for to in [1, 2] {
                let throttle = &throttle;
                scope.spawn(move || throttle.delay(to, &[Part::new(0, 3_000_000)]));
            }
        });
        assert!(start.elapsed() >= Duration::from_millis(8));
        throttle.delay(1, &[]);
    }

    #[test]
    fn calls_are_made_when_their_transfers_are_due_and_before_the_throttle_is_dropped() {
        let throttle = Throttle::new("1ms,1GB".parse().unwrap(), 3);
        let (start, (told, tells)) = (Instant::now(), std::sync::mpsc::channel());
        // The second one takes longer and the third comes from elsewhere, with no bytes to wait for.
        for (number, (from, bytes)) in [(0, 2_000_000), (0, 6_000_000), (1, 0)].into_iter().enumerate() {
            let told = told.clone();
            throttle.delay_then(2, &[Part::new(from, bytes)], move || {
                told.send((number, start.elapsed())).unwrap();
            });
        }
        drop((throttle, told));
        let calls: Vec<(usize, Duration)> = tells.iter().collect();
        let [third, first, second] = calls[..] else { panic!("{calls:?}") };
        assert_eq!([third.0, first.0, second.0], [2, 0, 1]);
        assert!(first.1 >= Duration::from_millis(3) && second.1 >= Duration::from_millis(9), "{calls:?}");
    }
}
