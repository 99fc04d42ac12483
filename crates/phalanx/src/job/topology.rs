//! Which devices and which cores each rank has: a pure function of what all ranks said, the same on all of them.
//!
//! Devices are dealt in order, in blocks as even as can be. Cores are those the launcher bound a rank to; ranks of a
//! host that were bound to the same cores, or to none, share them evenly. All devices have the same number of cores,
//! because the program that all ranks compile depends on it.

mod print;

use std::collections::BTreeSet;
use std::ops::Range;

use phalanx_program::Placement;

use super::{Hello, JobError};

/// The ranks of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its ranks, ascending.
    pub ranks: Vec<u32>,
}

/// Where everything of a job is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankLayout {
    /// This rank.
    pub rank: u32,
    /// The rank of each device.
    pub placement: Placement,
    /// Cores of each device, on all ranks.
    pub cores_per_device: usize,
    /// Cores of each rank, ascending.
    pub cores: Vec<Vec<usize>>,
    /// The hosts, in the order of their first ranks.
    pub hosts: Vec<Host>,
    /// What a user should know, a sentence each.
    pub notes: Vec<String>,
}

impl RankLayout {
    /// The topology of `devices` devices as rank `rank` sees it; `per_rank` devices are on each rank, if that is given.
    pub fn new(
        hellos: &[Hello],
        rank: u32,
        devices: usize,
        per_rank: Option<usize>,
    ) -> Result<RankLayout, JobError> {
        let of_device = deal_devices(devices, hellos.len(), per_rank)?;
        let hosts = hosts(hellos);
        let mut notes = Vec::new();
        let mut cores = vec![Vec::new(); hellos.len()];
        for host in &hosts {
            for (rank, dealt) in deal_cores(hellos, host, &mut notes) {
                cores[rank as usize] = dealt;
            }
        }
        let placement = Placement { ranks: hellos.len() as u32, of_device };
        let mut topology = RankLayout { rank, placement, cores_per_device: 1, cores, hosts, notes };
        topology.choose_cores_per_device(hellos);
        Ok(topology)
    }

    /// The devices of a rank, ascending.
    pub fn devices_of(&self, rank: u32) -> impl Iterator<Item = usize> {
        let of_device = self.placement.of_device.iter().enumerate();
        of_device.filter(move |(_, at)| **at == rank).map(|(device, _)| device)
    }

    /// The cores of this rank.
    pub fn own_cores(&self) -> &[usize] {
        &self.cores[self.rank as usize]
    }

    /// The cores of a device of this rank: its own ones, or all of the rank's if there are too few.
    pub fn cores_of_device(&self, device: usize) -> &[usize] {
        let nth = self.devices_of(self.rank).take_while(|at| *at < device).count();
        let cores = nth * self.cores_per_device..(nth + 1) * self.cores_per_device;
        self.own_cores().get(cores).unwrap_or(self.own_cores())
    }

    /// The least that any rank can or wants to give its devices.
    fn choose_cores_per_device(&mut self, hellos: &[Hello]) {
        let devices: Vec<usize> = (0..).zip(hellos).map(|(rank, _)| self.devices_of(rank).count()).collect();
        let of_rank = |rank: usize| match hellos[rank].options.cores_per_device {
            0 => (self.cores[rank].len() / devices[rank]).max(1),
            told => told,
        };
        let all: Vec<usize> = (0..hellos.len()).map(of_rank).collect();
        let (least, most) = all.iter().fold((usize::MAX, 0), |(low, high), n| (low.min(*n), high.max(*n)));
        if least < most {
            self.notes.push(format!(
                "ranks have {least} to {most} cores for a device; all devices use {least}, since they run one program"
            ));
        }
        let short = (0..hellos.len()).find(|&rank| devices[rank] * least > self.cores[rank].len());
        if let Some(rank) = short {
            let (devices, own) = (count(devices[rank], "device"), count(self.cores[rank].len(), "core"));
            let each = count(least, "core");
            self.notes.push(format!("rank {rank} has {devices} of {each} on {own}: they take turns"));
        }
        self.cores_per_device = least;
    }
}

/// `1 device`, `2 devices`.
fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Part `index` of `items` cut into `parts`, the first ones one larger where it does not come out even.
fn part(items: usize, parts: usize, index: usize) -> Range<usize> {
    let start = |index: usize| index * (items / parts) + index.min(items % parts);
    start(index)..start(index + 1)
}

/// The rank of each device.
pub(crate) fn deal_devices(
    devices: usize,
    ranks: usize,
    per_rank: Option<usize>,
) -> Result<Vec<u32>, JobError> {
    if devices < ranks {
        return Err(JobError::TooManyRanks { devices, ranks });
    }
    let Some(per_rank) = per_rank else {
        let block = |rank| std::iter::repeat_n(rank as u32, part(devices, ranks, rank).len());
        return Ok((0..ranks).flat_map(block).collect());
    };
    let wanted = devices.div_ceil(per_rank.max(1));
    if wanted != ranks {
        let rank = ranks - 1;
        let left = devices.saturating_sub(per_rank * rank);
        return Err(JobError::DevicesPerRank { devices, ranks, per_rank, rank, left, wanted });
    }
    Ok((0..devices).map(|device| (device / per_rank) as u32).collect())
}

fn hosts(hellos: &[Hello]) -> Vec<Host> {
    let mut hosts: Vec<Host> = Vec::new();
    for (rank, hello) in (0..).zip(hellos) {
        match hosts.iter_mut().find(|host| host.name == hello.host) {
            Some(host) => host.ranks.push(rank),
            None => hosts.push(Host { name: hello.host.clone(), ranks: vec![rank] }),
        }
    }
    hosts
}

/// The cores of each rank of a host.
fn deal_cores(hellos: &[Hello], host: &Host, notes: &mut Vec<String>) -> Vec<(u32, Vec<usize>)> {
    let hello = |rank: u32| &hellos[rank as usize];
    let mut dealt = Vec::new();
    for (cores, ranks) in shares(hellos, host, notes) {
        if cores.len() < ranks.len() {
            let (have, need) = (count(cores.len(), "core"), count(ranks.len(), "rank"));
            notes.push(format!("{} has {have} for {need}, which take turns: start fewer there", host.name));
        }
        for (index, &rank) in ranks.iter().enumerate() {
            let own = match cores.len() < ranks.len() {
                true => index % cores.len()..index % cores.len() + 1,
                false => part(cores.len(), ranks.len(), index),
            };
            let wanted = match hello(rank).options.cores {
                0 => own.len(),
                wanted => wanted.min(own.len()),
            };
            dealt.push((rank, cores[own][..wanted].to_vec()));
        }
    }
    dealt
}

/// Cores and the ranks that share them: no core is in two shares.
fn shares(hellos: &[Hello], host: &Host, notes: &mut Vec<String>) -> Vec<(Vec<usize>, Vec<u32>)> {
    let mut shares: Vec<(Vec<usize>, Vec<u32>)> = Vec::new();
    for &rank in &host.ranks {
        let cores = &hellos[rank as usize].cores;
        match shares.iter_mut().find(|(of_share, _)| of_share == cores) {
            Some((_, ranks)) => ranks.push(rank),
            None => shares.push((cores.clone(), vec![rank])),
        }
    }
    let all: BTreeSet<usize> = shares.iter().flat_map(|(cores, _)| cores).copied().collect();
    let (name, host_cores) = (&host.name, hellos[host.ranks[0] as usize].host_cores);
    if shares.iter().map(|(cores, _)| cores.len()).sum::<usize>() > all.len() {
        notes.push(format!(
            "{name}: the launcher bound ranks to cores that partly overlap; they share all evenly"
        ));
        return vec![(all.into_iter().collect(), host.ranks.clone())];
    }
    if shares.len() > 1 && all.len() < host_cores {
        notes.push(format!(
            "{name}: the launcher bound ranks to {} of {host_cores} cores; with `--bind-to none` they share all",
            all.len()
        ));
    }
    shares
}

#[cfg(test)]
mod tests;
