//! Whether a step fits: into what the user allows, and into this machine. Asking first gives an error where allocating
//! would end the process.

use phalanx_ir::parallel::DeviceId;
use phalanx_ir::tasks::{Role, TaskGraph};
use phalanx_schedule::live::curves;
use phalanx_schedule::simulate::{Runs, simulate};
use phalanx_schedule::{Costs, Owner, Schedule, overlap};

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

/// A device that would need more memory than it may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverBudget {
    /// The device that needs most.
    pub device: DeviceId,
    /// Bytes of its arena.
    pub need: u64,
    /// Bytes it may have.
    pub budget: u64,
    /// What is alive at its fullest moment, largest first: name, what it is, and bytes.
    pub alive: Vec<(String, &'static str, u64)>,
}

/// How many tensors an error names.
const NAMED: usize = 8;

impl OverBudget {
    /// Checks that every device has at most `budget` bytes.
    pub fn check(tasks: &TaskGraph, schedule: &Schedule, budget: Option<u64>) -> Result<(), Box<OverBudget>> {
        let fullest = schedule.devices().iter().enumerate().max_by_key(|(_, lane)| lane.peak);
        match (budget, fullest) {
            (Some(budget), Some((at, lane))) if lane.peak > budget => Err(Box::new(OverBudget {
                device: lane.device,
                need: lane.peak,
                budget,
                alive: alive(tasks, schedule, at),
            })),
            _ => Ok(()),
        }
    }
}

/// What is alive at the fullest moment of a device.
fn alive(tasks: &TaskGraph, schedule: &Schedule, device: usize) -> Vec<(String, &'static str, u64)> {
    let costs = Costs::modelled(tasks, None);
    let lines = overlap::lines(tasks, &costs, schedule);
    let run = simulate(&lines, None, Runs { count: 1, depth: 1 }).remove(0);
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
        let OverBudget { device, need, budget, alive } = self;
        write!(f, "{device} needs {} of memory, but it may have {}. ", size(*need), size(*budget))?;
        let named = alive.iter().take(NAMED);
        let mut largest: Vec<String> =
            named.map(|(name, kind, bytes)| format!("{} {kind} {name}", size(*bytes))).collect();
        if alive.len() > NAMED {
            let rest: u64 = alive[NAMED..].iter().map(|entry| entry.2).sum();
            largest.push(format!("{} in {} others", size(rest), alive.len() - NAMED));
        }
        write!(f, "Largest at its fullest moment: {}. ", largest.join(", "))?;
        write!(
            f,
            "To need less: more shards (--plan fsdp with more --devices), --recompute full, a smaller --batch or more \
             parts of it (--accumulate), or no overlap (--overlap off)"
        )
    }
}

impl std::error::Error for OverBudget {}

/// A number of bytes, for people.
fn size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.2} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}
