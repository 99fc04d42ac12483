//! How often a waiting thread polls for progress: all the time for a while after something happened, then less and
//! less.
//!
//! Libraries make no progress unless called, so polling seldom costs bandwidth; polling all the time takes a core from
//! the processors that compute. A rest is asked for in microseconds, to which the system may add some fifty.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// After something happened, more is likely to follow soon. The network's own thread polls all the time for about as
/// long as falling asleep and waking up takes.
const SPIN: Duration = Duration::from_micros(50);

/// A driver on a core that no other thread wants spins for longer: if this were shorter than a rest of the peer plus a
/// round trip, two ranks that answer each other would make each other rest.
const FREE_SPIN: Duration = Duration::from_micros(2000);

/// A poll after a rest that takes this long has moved bytes, which nothing else shows before a message is complete. One
/// that finds nothing takes a few microseconds, even with cold caches and where it asks the system.
const MOVED_GAP: Duration = Duration::from_micros(8);

/// Two readings of the clock this far apart mean that another thread had the core.
const CONTENDED_GAP: Duration = Duration::from_millis(1);

/// For how long a core counts as wanted by others. Finding out again costs those others about a time slice.
const CONTENDED_FOR: Duration = Duration::from_secs(1);

/// A thread that has nothing else to do polls all the time for as long as the bytes under way take at this speed, that
/// of memory: where processes copy them themselves, they move only while a thread polls.
const BYTES_PER_MICROSECOND: usize = 4_000;

/// The least speed at which a poll moves what it finds.
const SLOW_BYTES_PER_MICROSECOND: usize = 1_000;

/// The longest such spin: a peer may be far from ready.
const LONGEST_SPIN: Duration = Duration::from_millis(5);

/// The first rest; each is twice as long as the one before.
const FIRST_REST: Duration = Duration::from_micros(50);

/// The longest rest while something is under way: what a network moves in it still fits its buffers. Also the shortest
/// of a driver while all processors compute.
const MOVING_REST: Duration = Duration::from_micros(200);

/// The longest rest when nothing has happened for [`LIVELY`], as when a peer computes: waking up takes a sixth of a
/// core with rests of 50 us, a twentieth with 200 us and next to nothing with these. Also that of a driver with nothing
/// under way, which others cannot wake.
const WAITING_REST: Duration = Duration::from_micros(2000);

/// For how long after something happened the peers count as lively.
const LIVELY: Duration = Duration::from_millis(1);

/// How often the network's own thread polls for alerts when nothing is under way: they are rare and for people.
pub(crate) const ALERT_REST: Duration = Duration::from_millis(10);

/// Polls between two readings of the clock, each of which takes about as long as a short poll.
const POLLS: u32 = 4;

/// Which thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// The network's own thread, on a core that belongs to a processor that computes.
    Own,
    /// A thread that has nothing else to do.
    Driver {
        /// Whether a processor of this process is idle until messages arrive. If not, the core belongs to the
        /// processors that compute.
        idle_compute: bool,
    },
}

/// What is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Requests.
    pub requests: usize,
    /// Bytes of transfers.
    pub bytes: usize,
}

/// Whether other threads want the cores that drivers poll on.
#[derive(Debug)]
pub(crate) struct Contention {
    start: Instant,
    /// In microseconds since the start.
    until: AtomicU64,
}

impl Contention {
    /// None so far.
    pub(crate) fn new() -> Contention {
        Contention { start: Instant::now(), until: AtomicU64::new(0) }
    }

    fn noticed(&self, now: Instant) {
        // Relaxed: a hint, about nothing else.
        self.until.store((now - self.start + CONTENDED_FOR).as_micros() as u64, Relaxed);
    }

    fn is_current(&self, now: Instant) -> bool {
        self.until.load(Relaxed) > (now - self.start).as_micros() as u64
    }
}

/// Decides when to poll again.
#[derive(Debug)]
pub(crate) struct Backoff {
    waiter: Waiter,
    polls: u32,
    /// When it read the clock for the first and for the last time since something happened; a rest counts as a reading.
    since: Option<Instant>,
    last: Option<Instant>,
    rest: Duration,
}

impl Backoff {
    /// Polls at once.
    pub(crate) fn new(waiter: Waiter) -> Backoff {
        Backoff { waiter, polls: 0, since: None, last: None, rest: FIRST_REST }
    }

    /// Waits as `waiter` from now on. When a processor becomes idle, it is as if something had happened.
    pub(crate) fn wait_as(&mut self, waiter: Waiter) {
        if waiter == (Waiter::Driver { idle_compute: true }) && self.waiter != waiter {
            *self = Backoff::new(waiter);
        }
        self.waiter = waiter;
    }

    /// Something happened.
    pub(crate) fn moved(&mut self) {
        *self = Backoff::new(self.waiter);
    }

    /// Nothing happened: how long to rest, if at all.
    pub(crate) fn idle(&mut self, load: Load, contention: &Contention) -> Option<Duration> {
        self.polls += 1;
        // Once resting, a thread rests after every poll.
        if !self.is_resting() && !self.polls.is_multiple_of(POLLS) {
            return None;
        }
        self.decide(Instant::now(), load, contention)
    }

    fn decide(&mut self, now: Instant, load: Load, contention: &Contention) -> Option<Duration> {
        let gap = self.last.map_or(Duration::ZERO, |last| now - last);
        // What is under way may have been moved by this poll alone. That a processor that computes had the core is as
        // it should be.
        let idle_compute = self.waiter == (Waiter::Driver { idle_compute: true });
        if idle_compute && gap > CONTENDED_GAP + moving(load, SLOW_BYTES_PER_MICROSECOND) {
            contention.noticed(now);
        }
        if self.is_resting() && load.bytes > 0 && gap > MOVED_GAP {
            self.moved();
        }
        self.last = Some(now);
        let since = *self.since.get_or_insert(now);
        let contended = contention.is_current(now);
        if now - since < self.spin(load, contended) {
            return None;
        }
        let rest = self.rest.clamp(self.shortest(), self.longest(load, now - since, contended));
        self.rest = (rest * 2).min(ALERT_REST);
        Some(rest)
    }

    /// A rest is over.
    pub(crate) fn rested(&mut self) {
        self.last = Some(Instant::now());
    }

    /// Whether every poll that finds nothing is followed by a rest.
    pub(crate) fn is_resting(&self) -> bool {
        self.rest > FIRST_REST
    }

    fn spin(&self, load: Load, contended: bool) -> Duration {
        match self.waiter {
            Waiter::Own if load.requests == 0 => Duration::ZERO,
            Waiter::Driver { idle_compute: false } => Duration::ZERO,
            Waiter::Driver { .. } if !contended => {
                FREE_SPIN + moving(load, BYTES_PER_MICROSECOND).min(LONGEST_SPIN)
            }
            _ => SPIN,
        }
    }

    fn shortest(&self) -> Duration {
        if self.waiter == (Waiter::Driver { idle_compute: false }) { MOVING_REST } else { FIRST_REST }
    }

    fn longest(&self, load: Load, idle: Duration, contended: bool) -> Duration {
        match self.waiter {
            Waiter::Own if load.requests == 0 => ALERT_REST,
            Waiter::Driver { idle_compute: true } if load.requests > 0 && !contended => MOVING_REST,
            _ if load.requests > 0 && idle < LIVELY => MOVING_REST,
            _ => WAITING_REST,
        }
    }
}

/// How long the bytes under way take at a speed.
fn moving(load: Load, bytes_per_microsecond: usize) -> Duration {
    Duration::from_micros((load.bytes / bytes_per_microsecond) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);
    const BUSY: Load = Load { requests: 1, bytes: 8000 };
    const IDLE: Load = Load { requests: 0, bytes: 0 };
    const IDLE_COMPUTE: Waiter = Waiter::Driver { idle_compute: true };
    const BUSY_COMPUTE: Waiter = Waiter::Driver { idle_compute: false };

    #[test]
    fn rests_grow_up_to_what_the_load_allows() {
        let contention = Contention::new();
        let micros = |waiter, load, idle| {
            let (mut backoff, mut now) = (Backoff::new(waiter), contention.start);
            backoff.since = Some(now);
            now += idle;
            [0; 6].map(|_| {
                let rest = backoff.decide(now, load, &contention).expect("nothing has happened for long");
                now += rest;
                backoff.last = Some(now);
                now += MICRO;
                rest.as_micros()
            })
        };
        assert_eq!(micros(Waiter::Own, BUSY, SPIN), [50, 100, 200, 200, 200, 200]);
        assert_eq!(micros(Waiter::Own, BUSY, LIVELY), [50, 100, 200, 400, 800, 1600]);
        assert_eq!(micros(IDLE_COMPUTE, IDLE, 2 * FREE_SPIN), [50, 100, 200, 400, 800, 1600]);
        assert_eq!(micros(IDLE_COMPUTE, BUSY, 2 * FREE_SPIN), [50, 100, 200, 200, 200, 200]);
        assert_eq!(micros(BUSY_COMPUTE, BUSY, MICRO), [200, 200, 200, 200, 200, 400]);
        assert_eq!(micros(Waiter::Own, IDLE, 2 * FREE_SPIN), [50, 100, 200, 400, 800, 1600]);
    }

    #[test]
    fn a_poll_that_takes_long_has_moved_bytes() {
        let (contention, mut backoff) = (Contention::new(), Backoff::new(Waiter::Own));
        let start = contention.start;
        assert_eq!(backoff.decide(start, BUSY, &contention), None);
        assert_eq!(backoff.decide(start + SPIN, BUSY, &contention), Some(FIRST_REST));
        backoff.last = Some(start + 2 * SPIN);
        assert_eq!(backoff.decide(start + 2 * SPIN + 2 * MOVED_GAP, BUSY, &contention), None, "bytes move");
    }

    #[test]
    fn a_driver_for_idle_compute_that_stood_still_notices_contention() {
        for (waiter, noticed) in [(IDLE_COMPUTE, true), (BUSY_COMPUTE, false), (Waiter::Own, false)] {
            let (contention, mut backoff) = (Contention::new(), Backoff::new(waiter));
            backoff.last = Some(contention.start);
            backoff.decide(contention.start + 2 * CONTENDED_GAP, BUSY, &contention);
            assert_eq!(contention.is_current(contention.start + 2 * CONTENDED_GAP), noticed, "{waiter:?}");
        }
    }

    #[test]
    fn a_driver_whose_compute_becomes_idle_polls_at_once() {
        let (contention, mut backoff) = (Contention::new(), Backoff::new(BUSY_COMPUTE));
        assert_eq!(backoff.decide(contention.start, BUSY, &contention), Some(MOVING_REST));
        backoff.wait_as(BUSY_COMPUTE);
        assert!(backoff.is_resting());
        backoff.wait_as(IDLE_COMPUTE);
        assert!(!backoff.is_resting());
        assert_eq!(backoff.decide(contention.start + MOVING_REST, BUSY, &contention), None);
    }

    #[test]
    fn a_driver_spins_for_longer_while_bytes_move_without_contention() {
        let backoff = Backoff::new(IDLE_COMPUTE);
        let load = |bytes| Load { requests: 1, bytes };
        assert_eq!(backoff.spin(load(0), false), FREE_SPIN);
        assert_eq!(backoff.spin(load(4_000_000), false), FREE_SPIN + Duration::from_millis(1));
        assert_eq!(backoff.spin(load(1 << 40), false), FREE_SPIN + LONGEST_SPIN);
        assert_eq!(backoff.spin(load(4_000_000), true), SPIN);
        let contention = Contention::new();
        assert!(!contention.is_current(contention.start));
        contention.noticed(contention.start + CONTENDED_GAP);
        assert!(contention.is_current(contention.start + CONTENDED_FOR));
        assert!(!contention.is_current(contention.start + CONTENDED_FOR + 2 * CONTENDED_GAP));
    }
}
