//! Whether a step fits: into what the user allows, and into this machine. Asking first gives an error where allocating
//! would end the process.

use std::collections::BTreeMap;

use phalanx_ir::bytes_text;
use phalanx_ir::parallel::DeviceId;
use phalanx_ir::tasks::{Buffer, Role, TaskGraph};
use phalanx_schedule::live::curves;
use phalanx_schedule::simulate::{SimRuns, simulate};
use phalanx_schedule::{Owner, Schedule, ScheduledLane, TaskCosts, overlap};

use crate::Error;

/// Checks that `need` bytes can be had.
pub fn check(need: u64) -> Result<(), Error> {
    let have = available().unwrap_or(isize::MAX as u64);
    let fits = need <= have && Vec::<u8>::new().try_reserve_exact(need as usize).is_ok();
    if fits { Ok(()) } else { Err(Error::Memory { need, have }) }
}

/// Bytes that can be allocated without swapping, where the system tells.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// How much of each device's weights and state is copied for checkpoints: every tile once, from the first device.
#[derive(Default)]
pub struct Snapshots(BTreeMap<DeviceId, u64>);

impl Snapshots {
    /// The copies of what lives across steps, if there are to be any.
    pub fn new(tasks: &TaskGraph, wanted: bool) -> Snapshots {
        let kept =
            |buffer: &Buffer| matches!(buffer.role, Role::Param | Role::State) && buffer.view_of.is_none();
        let mut first: BTreeMap<(&str, &[usize]), (DeviceId, u64)> = BTreeMap::new();
        for (_, buffer) in tasks.buffers.iter().filter(|(_, buffer)| wanted && kept(buffer)) {
            let origin = buffer.tile.as_ref().map_or(&[][..], |tile| &tile.origin);
            let copied = (buffer.device, buffer.ty.bytes() as u64);
            let holder = first.entry((&buffer.name, origin)).or_insert(copied);
            *holder = copied.min(*holder);
        }
        let mut bytes = BTreeMap::new();
        first.into_values().for_each(|(device, copied)| *bytes.entry(device).or_default() += copied);
        Snapshots(bytes)
    }

    /// The bytes of one device.
    fn of(&self, device: DeviceId) -> u64 {
        self.0.get(&device).copied().unwrap_or(0)
    }

    /// The bytes of all devices.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// The bytes of the device that has most.
    pub fn largest(&self) -> u64 {
        self.0.values().copied().max().unwrap_or(0)
    }
}

/// A device that would need more memory than it may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverBudget {
    /// The device that needs most.
    pub device: DeviceId,
    /// Bytes of its arena and of its part of a snapshot.
    pub need: u64,
    /// Bytes it may have.
    pub budget: u64,
    /// What is alive at its fullest moment, largest first: name, what it is, and bytes.
    pub alive: Vec<(String, &'static str, u64)>,
    /// Options with which its arena would be smaller, and by how many bytes.
    pub savings: Vec<(&'static str, u64)>,
}

/// How many tensors an error names.
const NAMED: usize = 8;

impl OverBudget {
    /// Checks that every device has at most `budget` bytes, together with its part of a snapshot. `others` are options and
    /// the schedules that come of them.
    pub fn check(
        tasks: &TaskGraph,
        schedule: &Schedule,
        budget: Option<u64>,
        snapshots: &Snapshots,
        others: impl FnOnce() -> Vec<(&'static str, Schedule)>,
    ) -> Result<(), Box<OverBudget>> {
        let need = |lane: &ScheduledLane| lane.peak + snapshots.of(lane.device);
        let fullest = schedule.devices().iter().enumerate().max_by_key(|(_, lane)| need(lane));
        match (budget, fullest) {
            (Some(budget), Some((at, lane))) if need(lane) > budget => {
                let mut alive = alive(tasks, schedule, at);
                if snapshots.of(lane.device) > 0 {
                    alive.insert(0, ("for checkpoints".into(), "snapshot", snapshots.of(lane.device)));
                }
                let saved = |other: &Schedule| lane.peak.saturating_sub(other.devices()[at].peak);
                let savings = others().into_iter().map(|(option, other)| (option, saved(&other)));
                let savings = savings.filter(|(_, saved)| *saved > 0).collect();
                Err(Box::new(OverBudget { device: lane.device, need: need(lane), budget, alive, savings }))
            }
            _ => Ok(()),
        }
    }
}

/// What is alive at the fullest moment of a device.
fn alive(tasks: &TaskGraph, schedule: &Schedule, device: usize) -> Vec<(String, &'static str, u64)> {
    let costs = TaskCosts::modelled(tasks, None);
    let lines = overlap::lines(tasks, &costs, schedule);
    let run = simulate(&lines, None, SimRuns { count: 1, depth: 1 }).remove(0);
    let curve = curves(tasks, schedule, &run).swap_remove(device);
    curve.alive.into_iter().map(|(owner, bytes)| describe(tasks, owner, bytes)).collect()
}

/// Name and kind of some bytes, for people.
pub fn describe(tasks: &TaskGraph, owner: Owner, bytes: u64) -> (String, &'static str, u64) {
    match owner {
        Owner::Workspace(task) => (tasks.tasks[task].layer.to_string(), "workspace", bytes),
        Owner::Buffer(buffer) => {
            let kind = match tasks.buffers[buffer].role {
                Role::Input => "input",
                Role::Param => "parameter",
                Role::Table => "table",
                Role::State => "optimizer state",
                Role::Output => "output",
                Role::Temp => "temporary",
            };
            (tasks.buffers[buffer].name.to_string(), kind, bytes)
        }
    }
}

impl std::fmt::Display for OverBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let OverBudget { device, need, budget, alive, .. } = self;
        write!(f, "{device} needs {} of memory, but it may have {}. ", size(*need), size(*budget))?;
        let named = alive.iter().take(NAMED);
        let mut largest: Vec<String> =
            named.map(|(name, kind, bytes)| format!("{} {kind} {name}", size(*bytes))).collect();
        if alive.len() > NAMED {
            let rest: u64 = alive[NAMED..].iter().map(|entry| entry.2).sum();
            largest.push(format!("{} in {} others", size(rest), alive.len() - NAMED));
        }
        write!(f, "Largest at its fullest moment: {}. ", largest.join(", "))?;
        write!(f, "To need less: {}", self.advice().join("; "))
    }
}

impl OverBudget {
    /// What would help, with the bytes that it is about.
    fn advice(&self) -> Vec<String> {
        let of = |kinds: &[&str]| -> u64 {
            self.alive.iter().filter(|(_, kind, _)| kinds.contains(kind)).map(|(_, _, bytes)| bytes).sum()
        };
        let savings = self.savings.iter().map(|(option, saved)| format!("{option} saves {}", size(*saved)));
        let (kept, step) = (of(&["parameter", "optimizer state"]), of(&["temporary", "workspace", "input"]));
        let batch = format!(
            "a smaller --batch or more parts of it (--accumulate) makes most of {} of activations and gradients smaller",
            size(step)
        );
        let shards = format!(
            "more shards (--plan fsdp with more --devices) divide {} of parameters and optimizer state",
            size(kept)
        );
        let copies = format!("without --checkpoint there is no snapshot of {}", size(of(&["snapshot"])));
        let others = [(step, batch), (kept, shards), (of(&["snapshot"]), copies)];
        let others = others.into_iter().filter(|(bytes, _)| *bytes > 0).map(|(_, advice)| advice);
        savings.chain(others).collect()
    }
}

impl std::error::Error for OverBudget {}

/// A number of bytes in messages, where two of them may be close to each other.
pub fn size(bytes: u64) -> String {
    bytes_text(bytes, 2)
}
