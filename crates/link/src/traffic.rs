//! Which transfers delay which when several share links.
//!
//! On every level of the topology a device has one link with two directions, each of which carries one transfer at a time,
//! first come, first served. A transfer takes the incoming direction of its device for all its bytes of a level, and at
//! the same time the outgoing direction of each device they come from for those from there, and both directions of the
//! uplinks on the way. It is complete a latency after the slowest of them. So an exchange between all devices takes as long
//! as one device's share of it, and a broadcast as long as its source sends.

use std::time::Duration;

use crate::{NetworkLevel, Topology};

/// Bytes that come from one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The device.
    pub from: u32,
    /// The device whose link and uplinks they take: `from`, or where one device stands for several the one that stands
    /// for it.
    pub over: u32,
    /// How many bytes.
    pub bytes: u64,
}

impl Part {
    /// Bytes that come from `from` over its own link.
    pub fn new(from: u32, bytes: u64) -> Part {
        Part { from, over: from, bytes }
    }
}

/// When each direction of something is free again.
#[derive(Clone, Copy, Debug, Default)]
struct Directions {
    outgoing: Duration,
    incoming: Duration,
}

/// When each direction of each device's links, and of each unit's uplink, is free again.
#[derive(Clone, Debug)]
pub struct Traffic {
    topology: Topology,
    /// By level and device.
    links: Vec<Vec<Directions>>,
    /// By level and unit.
    uplinks: Vec<Vec<Directions>>,
}

impl Traffic {
    /// No traffic yet between `devices` devices.
    pub fn new(topology: Topology, devices: usize) -> Traffic {
        let free = |count: usize| vec![Directions::default(); count];
        let levels = 0..topology.levels().len();
        Traffic {
            links: levels.clone().map(|_| free(devices)).collect(),
            uplinks: levels.map(|level| free(topology.units(level, devices))).collect(),
            topology,
        }
    }

    /// How devices are connected.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// A transfer to device `to` starts at `now`; when it is complete. Transfers must be given in the order they start.
    /// What `to` has itself takes no time.
    pub fn transfer(&mut self, now: Duration, to: u32, parts: &[Part]) -> Duration {
        let mut done = now;
        let topology = self.topology.clone();
        for (level, NetworkLevel { link, per_message, .. }) in topology.levels().iter().enumerate() {
            let crosses =
                |part: &&Part| part.from != to && part.bytes > 0 && topology.level(part.from, to) == level;
            let (mut last, mut bytes, mut messages) = (now, 0, 0);
            for part in parts.iter().filter(crosses) {
                let outgoing = &mut self.links[level][part.over as usize].outgoing;
                *outgoing = now.max(*outgoing) + link.occupancy(part.bytes);
                last = last.max(*outgoing).max(self.cross_uplinks(now, level, to, part));
                bytes += part.bytes;
                messages += 1;
            }
            if messages > 0 {
                let own = &mut self.links[level][to as usize].incoming;
                *own = now.max(*own) + link.occupancy(bytes);
                done = done.max(last.max(*own) + link.latency + *per_message * messages);
            }
        }
        done
    }

    /// Takes the uplinks between the units inside `level` that hold both ends; when the slowest has carried the part.
    fn cross_uplinks(&mut self, now: Duration, level: usize, to: u32, part: &Part) -> Duration {
        let mut last = now;
        for (inner, NetworkLevel { size, uplink, .. }) in self.topology.levels()[..level].iter().enumerate() {
            let Some(rate) = uplink else { continue };
            let occupancy = Duration::from_secs_f64(part.bytes as f64 / rate);
            let unit = |device: u32| device as usize / size;
            let outgoing = &mut self.uplinks[inner][unit(part.over)].outgoing;
            *outgoing = now.max(*outgoing) + occupancy;
            last = last.max(*outgoing);
            let incoming = &mut self.uplinks[inner][unit(to)].incoming;
            *incoming = now.max(*incoming) + occupancy;
            last = last.max(*incoming);
        }
        last
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
        Part::new(from, megabytes * 1_000_000)
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

    /// Nodes of `size` devices, with a latency of 1 ms and 4 MB a ms inside and 2 ms and 1 MB a ms beyond.
    fn nodes(size: usize, uplink: Option<f64>, devices: usize) -> Traffic {
        let level = |link: &str, uplink| NetworkLevel {
            size,
            link: link.parse().unwrap(),
            uplink,
            per_message: Duration::ZERO,
        };
        let topology = Topology::new(vec![level("1ms,4GB", uplink), level("2ms,1GB", None)]).unwrap();
        Traffic::new(topology, devices)
    }

    #[test]
    fn traffic_of_one_node_does_not_delay_that_of_another() {
        let mut traffic = nodes(2, None, 4);
        assert_eq!(traffic.transfer(Duration::ZERO, 0, &[part(1, 8)]), 3 * MS);
        assert_eq!(traffic.transfer(Duration::ZERO, 2, &[part(3, 8)]), 3 * MS, "the other node");
        assert_eq!(traffic.transfer(Duration::ZERO, 0, &[part(2, 8)]), 10 * MS, "another level");
        let both = [part(1, 8), part(3, 1)];
        assert_eq!(nodes(2, None, 4).transfer(Duration::ZERO, 0, &both), 3 * MS, "the slower of both levels");
    }

    #[test]
    fn an_uplink_of_eight_carries_eight_flows_in_eight_times_the_time_of_one() {
        let mut shared = nodes(8, Some(1e9), 16);
        for flow in 0..8 {
            let arrival = shared.transfer(Duration::ZERO, 8 + flow, &[part(flow, 1)]);
            assert_eq!(arrival, (flow + 1) * MS + 2 * MS, "flow {flow}");
        }
        let mut own = nodes(8, None, 16);
        let arrivals: Vec<_> =
            (0..8).map(|flow| own.transfer(Duration::ZERO, 8 + flow, &[part(flow, 1)])).collect();
        assert_eq!(arrivals, vec![3 * MS; 8], "without one every device has its own");
    }

    #[test]
    fn every_message_of_a_level_costs_its_time() {
        let level =
            NetworkLevel { size: 1, link: "1ms,1GB".parse().unwrap(), uplink: None, per_message: MS / 2 };
        let mut traffic = Traffic::new(Topology::new(vec![level]).unwrap(), 3);
        assert_eq!(traffic.transfer(Duration::ZERO, 0, &[part(1, 1), part(2, 1)]), 4 * MS);
    }
}
