//! Which transfers delay which when several share links.
//!
//! A device has one link with two directions, each of which carries one transfer at a time, first come, first served. A
//! transfer takes the incoming direction of its device for all its bytes, and at the same time the outgoing direction
//! of each device they come from for those from there. It is complete a latency after the slowest of them. So an
//! exchange between all devices takes as long as one device's share of it, and a broadcast as long as its source sends.

use std::time::Duration;

use crate::Link;

/// Bytes that come from one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The device.
    pub from: u32,
    /// How many bytes.
    pub bytes: u64,
}

/// When each direction of each device's link is free again.
#[derive(Clone, Debug)]
pub struct Traffic {
    link: Link,
    outgoing: Vec<Duration>,
    incoming: Vec<Duration>,
}

impl Traffic {
    /// No traffic yet between `devices` devices.
    pub fn new(link: Link, devices: usize) -> Traffic {
        Traffic { link, outgoing: vec![Duration::ZERO; devices], incoming: vec![Duration::ZERO; devices] }
    }

    /// The link of every device.
    pub fn link(&self) -> Link {
        self.link
    }

    /// A transfer to device `to` starts at `now`; when it is complete. Transfers must be given in the order they start.
    /// What `to` has itself takes no time.
    pub fn transfer(&mut self, now: Duration, to: u32, parts: &[Part]) -> Duration {
        let mut done = now;
        let mut incoming = 0;
        for part in parts.iter().filter(|part| part.from != to && part.bytes > 0) {
            let outgoing = &mut self.outgoing[part.from as usize];
            *outgoing = now.max(*outgoing) + self.link.occupancy(part.bytes);
            done = done.max(*outgoing);
            incoming += part.bytes;
        }
        if incoming == 0 {
            return now;
        }
        let own = &mut self.incoming[to as usize];
        *own = now.max(*own) + self.link.occupancy(incoming);
        done.max(*own) + self.link.latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A latency of 1 ms, 1 MB a ms.
    fn traffic(devices: usize) -> Traffic {
        Traffic::new("1ms,1GB".parse().unwrap(), devices)
    }

    fn part(from: u32, megabytes: u64) -> Part {
        Part { from, bytes: megabytes * 1_000_000 }
    }

    #[test]
    fn a_transfer_takes_its_latency_and_its_bytes() {
        assert_eq!(traffic(2).transfer(MS, 0, &[part(1, 3)]), 5 * MS);
        assert_eq!(traffic(2).transfer(MS, 0, &[]), MS);
    }

    #[test]
    fn each_direction_carries_one_transfer_at_a_time() {
        let mut both_ways = traffic(2);
        assert_eq!(both_ways.transfer(Duration::ZERO, 0, &[part(1, 3)]), 4 * MS);
        assert_eq!(
            both_ways.transfer(Duration::ZERO, 1, &[part(0, 3)]),
            4 * MS,
            "the other direction is free"
        );
        let mut from_one = traffic(3);
        assert_eq!(from_one.transfer(Duration::ZERO, 1, &[part(0, 3)]), 4 * MS);
        assert_eq!(
            from_one.transfer(Duration::ZERO, 2, &[part(0, 3)]),
            7 * MS,
            "device 0 sends one after the other"
        );
        let mut to_one = traffic(3);
        assert_eq!(to_one.transfer(Duration::ZERO, 0, &[part(1, 2), part(2, 2)]), 5 * MS);
        assert_eq!(
            to_one.transfer(Duration::ZERO, 0, &[part(1, 2)]),
            7 * MS,
            "device 0 gets one after the other"
        );
    }

    #[test]
    fn an_exchange_between_all_takes_as_long_as_one_share() {
        let mut all = traffic(4);
        let parts: Vec<_> = (0..4).map(|from| part(from, 1)).collect();
        for to in 0..4 {
            assert_eq!(
                all.transfer(Duration::ZERO, to, &parts),
                4 * MS,
                "three from others, and the latency"
            );
        }
    }
}
