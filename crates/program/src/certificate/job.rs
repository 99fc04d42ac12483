//! All parts side by side: lanes and operations of all ranks in one count, and which operations share a message.

use std::collections::HashMap;

use super::CertificateError;
use crate::{ARRIVE, MessageEnd, Operation, Program, SEND, Wait};

/// Parts whose messages have two ends.
pub(super) struct Job<'a> {
    pub parts: &'a [Program],
    pub whole: u128,
    /// Every device and its rank, ascending.
    pub devices: Vec<(u32, u32)>,
    pub lanes: Vec<JobLane>,
    /// By rank: the number of its first lane.
    first_lane: Vec<u32>,
    /// By operation: its lane.
    pub lane_of: Vec<u32>,
    /// By operation: those that its messages go to or come from.
    pub partners: Vec<Vec<u32>>,
}

/// A lane among those of all ranks.
pub(super) struct JobLane {
    pub rank: u32,
    /// Its number on its rank.
    pub number: u32,
    /// Its operations: the first, and the one after the last.
    pub first: u32,
    pub end: u32,
}

/// One end of a message, and its operation.
struct End<'a> {
    op: u32,
    device: u32,
    end: &'a MessageEnd,
}

impl<'a> Job<'a> {
    pub fn new(parts: &'a [Program]) -> Result<Job<'a>, Vec<CertificateError>> {
        let whole = whole(parts).map_err(|error| vec![error])?;
        let devices = devices(parts).map_err(|error| vec![error])?;
        let (lanes, first_lane, lane_of) = (Vec::new(), Vec::new(), Vec::new());
        let mut job = Job { parts, whole, devices, lanes, first_lane, lane_of, partners: Vec::new() };
        for (rank, part) in (0..).zip(parts) {
            job.first_lane.push(job.lanes.len() as u32);
            for (number, lane) in (0..).zip(part.lanes()) {
                let (first, at) = (job.lane_of.len(), job.lanes.len() as u32);
                job.lane_of.resize(first + lane.operations.len(), at);
                let (first, end) = (first as u32, job.lane_of.len() as u32);
                job.lanes.push(JobLane { rank, number, first, end });
            }
        }
        job.partners = vec![Vec::new(); job.lane_of.len()];
        let errors = job.connect();
        if errors.is_empty() { Ok(job) } else { Err(errors) }
    }

    /// The lane of a rank, if it is there.
    pub fn lane(&self, rank: u32, lane: u32) -> Option<u32> {
        let part = self.parts.get(rank as usize)?;
        ((lane as usize) < part.lanes().len()).then(|| self.first_lane[rank as usize] + lane)
    }

    /// What an operation waits for on its rank.
    pub fn waits(&self, op: u32) -> impl Iterator<Item = u32> {
        let lane = &self.lanes[self.lane_of[op as usize] as usize];
        let first_lane = self.first_lane[lane.rank as usize];
        let waits = self.parts[lane.rank as usize].waits(self.operation(op));
        waits.iter().map(move |wait| self.lanes[(first_lane + wait.lane) as usize].first + wait.position)
    }

    /// An operation with its rank, for errors.
    pub fn what(&self, op: u32) -> String {
        let lane = &self.lanes[self.lane_of[op as usize] as usize];
        let at = Wait { lane: lane.number, position: op - lane.first };
        format!("rank {}: {}", lane.rank, self.parts[lane.rank as usize].what(at))
    }

    fn operation(&self, op: u32) -> &'a Operation {
        let lane = &self.lanes[self.lane_of[op as usize] as usize];
        let part = &self.parts[lane.rank as usize];
        &part.operations_of(&part.lanes()[lane.number as usize])[(op - lane.first) as usize]
    }

    /// All ends in operations of a kernel, with the rank they are on.
    fn ends(&self, kernel: &'static str) -> impl Iterator<Item = (u32, End<'a>)> {
        (0..self.lane_of.len() as u32).flat_map(move |op| {
            let lane = &self.lanes[self.lane_of[op as usize] as usize];
            let (part, operation) = (&self.parts[lane.rank as usize], self.operation(op));
            let ends = if part.kernel(operation) == kernel { part.messages(operation) } else { &[] };
            let device = part.lanes()[lane.number as usize].device;
            ends.iter().map(move |end| (lane.rank, End { op, device, end }))
        })
    }

    /// Finds the partners of all operations; messages that have none or do not fit.
    fn connect(&mut self) -> Vec<CertificateError> {
        let sends = self.ends(SEND).map(|(rank, send)| ((rank, send.end.peer, send.end.tag), send));
        let mut sends: HashMap<(u32, u32, u32), End<'_>> = sends.collect();
        let (mut pairs, mut errors) = (Vec::new(), Vec::new());
        for (rank, arrival) in self.ends(ARRIVE) {
            match sends.remove(&(arrival.end.peer, rank, arrival.end.tag)) {
                Some(send) if fit(&send, &arrival) => pairs.push((send.op, arrival.op)),
                Some(send) => errors.push(self.mismatch(&send, &arrival)),
                None => errors.push(self.unmatched(&arrival, "from")),
            }
        }
        let mut left: Vec<End<'_>> = sends.into_values().collect();
        left.sort_unstable_by_key(|send| (send.op, send.end.tag));
        errors.extend(left.iter().map(|send| self.unmatched(send, "to")));
        pairs.sort_unstable();
        pairs.dedup();
        for (send, arrival) in pairs {
            self.partners[send as usize].push(arrival);
            self.partners[arrival as usize].push(send);
        }
        errors
    }

    fn unmatched(&self, End { op, end, .. }: &End<'_>, way: &'static str) -> CertificateError {
        CertificateError::Unmatched { what: self.what(*op), tag: end.tag, way, peer: end.peer }
    }

    fn mismatch(&self, send: &End<'_>, arrival: &End<'_>) -> CertificateError {
        let bytes = |end: &End<'_>| format!("{} bytes of dev{}", end.end.bytes(), end.device);
        CertificateError::Mismatch {
            tag: send.end.tag,
            send: self.what(send.op),
            sent: bytes(send),
            to: send.end.device,
            arrival: self.what(arrival.op),
            taken: bytes(arrival),
            from: arrival.end.device,
        }
    }
}

fn fit(send: &End<'_>, arrival: &End<'_>) -> bool {
    let devices = send.end.device == arrival.device && arrival.end.device == send.device;
    devices && send.end.bytes() == arrival.end.bytes()
}

/// What all are parts of.
fn whole(parts: &[Program]) -> Result<u128, CertificateError> {
    let ranks = parts.len() as u32;
    let expected = parts.first().and_then(Program::whole).unwrap_or_default();
    for (rank, part) in (0..).zip(parts) {
        if part.part() != Some((rank, ranks)) {
            let found = match part.part() {
                Some((rank, ranks)) => format!("part {rank} of {ranks} of `{}`", part.name()),
                None => format!("all of `{}`", part.name()),
            };
            return Err(CertificateError::Part { rank, ranks, found });
        }
        if let Some(found) = part.whole().filter(|&found| found != expected) {
            return Err(CertificateError::Whole { rank, found, expected });
        }
    }
    Ok(expected)
}

/// Where the devices are.
fn devices(parts: &[Program]) -> Result<Vec<(u32, u32)>, CertificateError> {
    let homes = (0..).zip(parts).flat_map(|(rank, part)| part.homes().map(move |lane| (lane.device, rank)));
    let mut devices: Vec<(u32, u32)> = homes.collect();
    devices.sort_unstable();
    devices.dedup();
    match devices.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(CertificateError::Device { device: pair[0].0, one: pair[0].1, other: pair[1].1 }),
        None => Ok(devices),
    }
}
