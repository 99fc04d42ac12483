//! Measures what connects the ranks of a job, and writes it down as a cluster file.
//!
//! Pairs of ranks play ping-pong one after the other while all others wait: with a few bytes for the latency, with many for
//! the bandwidth. Half of the fastest round counts, since anything else that runs only makes it slower. Pairs are of two
//! classes, ranks of one host and ranks of two, and each class has the median of its pairs. Then all ranks of a host send to
//! those of another at the same time: what arrives in all is the host's uplink.

use std::fmt::Write;
use std::time::{Duration, Instant};

use phalanx_net::Network;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::job::{Host, Job, JobError, RankLayout};

/// Bytes of a message whose time is latency.
const SMALL: usize = 8;

/// Bytes of a message whose time is mostly bandwidth.
const LARGE: usize = 4 << 20;

/// What a class of pairs has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MeasuredLink {
    /// Pairs of ranks that were measured.
    pub pairs: usize,
    /// Seconds until the first byte arrives.
    pub latency_s: f64,
    /// Bytes a second, in each direction.
    pub bytes_per_s: f64,
    /// That of the slowest pair.
    pub slowest_bytes_per_s: f64,
}

/// What connects the ranks of a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasuredCluster {
    /// Ranks, each of which is a device.
    pub ranks: usize,
    /// How many ranks each host has.
    pub hosts: Vec<usize>,
    /// Cores of each rank.
    pub cores: usize,
    /// Ranks of one host.
    pub same_host: Option<MeasuredLink>,
    /// Ranks of different hosts.
    pub between_hosts: Option<MeasuredLink>,
    /// Bytes a second that all ranks of a host send to another one together, if it has several.
    pub uplink_bytes_per_s: Option<f64>,
}

/// A pair of ranks and what was measured between them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Pair {
    first: u32,
    second: u32,
    latency_s: f64,
    bytes_per_s: f64,
}

impl MeasuredCluster {
    /// Measures; all ranks of a job call it together, and get the same. Each size is sent `rounds` times.
    pub fn measure(job: &Job, rounds: usize) -> Result<MeasuredCluster, Error> {
        let network = &*job.network;
        let ranks = network.size() as usize;
        let layout = RankLayout::new(&job.hellos, network.rank(), ranks, None)?;
        let measure = |pairs: Vec<(u32, u32)>| -> Result<Option<MeasuredLink>, Error> {
            let mut all = Vec::new();
            for (first, second) in pairs {
                all.push(ping_pong(network, first, second, rounds)?);
            }
            Ok(MeasuredLink::of(&all))
        };
        let same_host = measure(inside(&layout.hosts))?;
        let between_hosts = measure(across(&layout.hosts))?;
        let uplink_bytes_per_s = uplink(network, &layout.hosts, rounds)?;
        let hosts = layout.hosts.iter().map(|host| host.ranks.len()).collect();
        let cores = layout.cores_per_device;
        Ok(MeasuredCluster { ranks, hosts, cores, same_host, between_hosts, uplink_bytes_per_s })
    }

    /// How many ranks every host has, if all have as many.
    fn per_host(&self) -> Option<usize> {
        let first = *self.hosts.first()?;
        self.hosts.iter().all(|ranks| *ranks == first).then_some(first)
    }

    /// The text of a cluster file; `--cluster` reads it. A device is a rank.
    pub fn to_text(&self) -> String {
        let count =
            |number: usize, noun: &str| format!("{number} {noun}{}", if number == 1 { "" } else { "s" });
        let (ranks, hosts) = (count(self.ranks, "rank"), count(self.hosts.len(), "host"));
        let mut text = format!("name = \"measured: {ranks} on {hosts}\"\ndevices = {}\n", self.ranks);
        let uneven = self.hosts.len() > 1 && self.per_host().is_none();
        // A level has units of one size: where hosts differ, the slower class stands for both.
        let inner = self.same_host.filter(|_| !uneven || self.between_hosts.is_none());
        let outer = self.between_hosts;
        if let Some(link) = inner {
            let size = self.per_host().filter(|_| outer.is_some());
            // An uplink is the bottleneck only if it is less than what its devices have together.
            let uplink = self.uplink_bytes_per_s.filter(|_| size.is_some());
            let most = outer.map_or(0.0, |outer| outer.bytes_per_s) * size.unwrap_or(1) as f64;
            link.write(&mut text, size, uplink.filter(|uplink| *uplink < 0.9 * most));
        }
        if let Some(link) = outer {
            link.write(&mut text, None, None);
        }
        // Writing to a string does not fail.
        _ = write!(text, "\n[device]\ncores = {}\n", self.cores);
        text
    }
}

impl MeasuredLink {
    /// The median of some pairs.
    fn of(pairs: &[Pair]) -> Option<MeasuredLink> {
        let middle = |value: fn(&Pair) -> f64| {
            let mut all: Vec<f64> = pairs.iter().map(value).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).copied()
        };
        let slowest = pairs.iter().map(|pair| pair.bytes_per_s).min_by(f64::total_cmp)?;
        Some(MeasuredLink {
            pairs: pairs.len(),
            latency_s: middle(|pair| pair.latency_s)?,
            bytes_per_s: middle(|pair| pair.bytes_per_s)?,
            slowest_bytes_per_s: slowest,
        })
    }

    /// Appends a level of a cluster file.
    fn write(&self, text: &mut String, size: Option<usize>, uplink: Option<f64>) {
        let rate = |bytes_per_s: f64| format!("{:.0}kB", (bytes_per_s / 1e3).max(1.0));
        let size = size.map_or(String::new(), |size| format!("size = {size}\n"));
        let uplink = uplink.map_or(String::new(), |uplink| format!("uplink = \"{}\"\n", rate(uplink)));
        let (latency, bandwidth) = ((self.latency_s * 1e9).round().max(1.0), rate(self.bytes_per_s));
        // Writing to a string does not fail.
        _ = write!(
            text,
            "\n[[level]]\n{size}latency = \"{latency}ns\"\nbandwidth = \"{bandwidth}\"\n{uplink}"
        );
    }
}

/// Pairs of one host: its first rank and each of the others.
fn inside(hosts: &[Host]) -> Vec<(u32, u32)> {
    let pairs = |host: &Host| {
        let first = host.ranks[0];
        host.ranks[1..].iter().map(|&other| (first, other)).collect::<Vec<_>>()
    };
    hosts.iter().flat_map(pairs).collect()
}

/// The first ranks of neighboring hosts.
fn across(hosts: &[Host]) -> Vec<(u32, u32)> {
    hosts.windows(2).map(|pair| (pair[0].ranks[0], pair[1].ranks[0])).collect()
}

/// Latency and bandwidth between two ranks, told to all.
fn ping_pong(network: &dyn Network, first: u32, second: u32, rounds: usize) -> Result<Pair, Error> {
    network.barrier()?;
    let is_player = [first, second].contains(&network.rank());
    let (mut latency, mut long) = (Duration::MAX, Duration::MAX);
    for (bytes, fastest) in [(SMALL, &mut latency), (LARGE, &mut long)] {
        let mut buffer = vec![0; bytes];
        for _ in 0..rounds.max(1) {
            if is_player {
                let start = Instant::now();
                network.carry(first, second, &mut buffer)?;
                network.carry(second, first, &mut buffer)?;
                *fastest = start.elapsed().min(*fastest);
            }
        }
    }
    let latency_s = latency.as_secs_f64() / 2.0;
    let seconds = (long.as_secs_f64() / 2.0 - latency_s).max(1e-9);
    let own = Pair { first, second, latency_s, bytes_per_s: LARGE as f64 / seconds };
    tell(network, first, &own)
}

/// What rank `teller` has measured, on all ranks.
fn tell(network: &dyn Network, teller: u32, own: &Pair) -> Result<Pair, Error> {
    let garbled = JobError::Garbled { rank: teller, what: "measurement" };
    let mut text = serde_json::to_vec(own).unwrap_or_default();
    network.broadcast(teller, &mut text)?;
    Ok(serde_json::from_slice(&text).map_err(|_| garbled)?)
}

/// Bytes a second from all ranks of the first host to as many of the second, all at once; none if there is only one of each.
fn uplink(network: &dyn Network, hosts: &[Host], rounds: usize) -> Result<Option<f64>, Error> {
    let [one, other, ..] = hosts else { return Ok(None) };
    let pairs: Vec<(u32, u32)> = one.ranks.iter().copied().zip(other.ranks.iter().copied()).collect();
    if pairs.len() < 2 {
        return Ok(None);
    }
    let own = pairs.iter().find(|(from, to)| [*from, *to].contains(&network.rank()));
    let (mut buffer, mut fastest) = (vec![0; LARGE], f64::MAX);
    for _ in 0..rounds.max(1) {
        network.barrier()?;
        let start = Instant::now();
        if let Some(&(from, to)) = own {
            network.carry(from, to, &mut buffer)?;
        }
        // It is over when the last one is.
        let all = network.all_gather(&start.elapsed().as_secs_f64().to_le_bytes())?;
        let seconds = |bytes: &Vec<u8>| bytes.first_chunk().map_or(0.0, |bytes| f64::from_le_bytes(*bytes));
        let involved = pairs.iter().flat_map(|(from, to)| [*from, *to]);
        let slowest = involved.map(|rank| seconds(&all[rank as usize])).fold(0.0, f64::max);
        fastest = fastest.min(slowest);
    }
    Ok(Some(pairs.len() as f64 * LARGE as f64 / fastest.max(1e-9)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cluster;

    fn link(latency_s: f64, bytes_per_s: f64) -> Option<MeasuredLink> {
        Some(MeasuredLink { pairs: 1, latency_s, bytes_per_s, slowest_bytes_per_s: bytes_per_s })
    }

    fn read(measured: &MeasuredCluster) -> (usize, Vec<(usize, String, Option<f64>)>) {
        let cluster = Cluster::parse(&measured.to_text()).unwrap();
        let levels = cluster.topology.levels().iter();
        let levels = levels.map(|level| (level.size, level.link.to_string(), level.uplink)).collect();
        assert_eq!(cluster.cores, Some(measured.cores));
        (cluster.devices, levels)
    }

    #[test]
    fn what_is_written_is_read_as_levels() {
        let (near, far) = (link(2e-6, 8e9), link(3e-5, 1e9));
        let one = MeasuredCluster {
            ranks: 4,
            hosts: vec![4],
            cores: 2,
            same_host: near,
            between_hosts: None,
            uplink_bytes_per_s: None,
        };
        let inner = |size| (size, "2us,64Gbit".to_string(), None);
        // The outermost level holds all.
        assert_eq!(read(&one), (4, vec![inner(usize::MAX)]));
        let two = MeasuredCluster { hosts: vec![2, 2], between_hosts: far, ..one.clone() };
        let outer = (usize::MAX, "30us,8Gbit".to_string(), None);
        assert_eq!(read(&two), (4, vec![inner(2), outer.clone()]));
        let shared = MeasuredCluster { uplink_bytes_per_s: Some(1.1e9), ..two.clone() };
        assert_eq!(read(&shared).1[0].2, Some(1.1e9));
        let free = MeasuredCluster { uplink_bytes_per_s: Some(1.9e9), ..two.clone() };
        assert_eq!(read(&free).1[0].2, None);
        let uneven = MeasuredCluster { hosts: vec![3, 1], ..two };
        assert_eq!(read(&uneven), (4, vec![outer]));
    }

    #[test]
    fn pairs_are_inside_of_hosts_and_between_neighbors() {
        let host = |ranks: &[u32]| Host { name: String::new(), ranks: ranks.to_vec() };
        let hosts = [host(&[0, 1, 2]), host(&[3]), host(&[4, 5])];
        assert_eq!(inside(&hosts), [(0, 1), (0, 2), (4, 5)]);
        assert_eq!(across(&hosts), [(0, 3), (3, 4)]);
    }
}
