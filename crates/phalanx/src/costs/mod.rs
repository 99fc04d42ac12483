//! What tasks cost: times of kernels measured on this machine, kept in a file, and estimates for the rest.
//!
//! A [`CostTable`] maps [`Signature`]s to nanoseconds. [`CostTable::measure`] fills in what a task graph needs and the cost table lacks;
//! [`CostTable::costs`] gives every task of a graph its time. Times are whole numbers and a file is sorted, so that what is
//! decided from them is the same wherever the same cost table is read. They are the times of kernels that run alone: how
//! devices of one process disturb each other is not told here.
//!
//! Besides kernels a cost table has three kinds of entries for movements, a few sizes of each: `copy` and `sum2`, `sum4`, … are
//! the work of a receiving device for bytes that are there, and `link` is the time from the moment when one device has
//! written bytes to the moment when another one has copied them.

mod bench;
mod device_model;
mod file;
mod machine;
mod measure;
mod signature;
#[cfg(test)]
mod tests;
mod transfer;
mod work;

pub use device_model::{DeviceModel, DeviceModelError};
pub use file::CostTableError;
pub use machine::Machine;
pub use measure::{Fallback, Measured};
pub use signature::Signature;
pub use transfer::LinkTable;
pub use work::{Work, movement_work};

use std::collections::BTreeMap;
use std::ops::Index;
use std::path::PathBuf;

use phalanx_ir::IdVec;
use phalanx_ir::parallel::DeviceId;
use phalanx_ir::tasks::{TaskGraph, TaskId, TaskOp};
use phalanx_schedule::modelled;

use transfer::Moves;

/// Nanoseconds by signature, of one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostTable {
    machine: Machine,
    entries: BTreeMap<Signature, u64>,
    /// Where it is kept.
    path: Option<PathBuf>,
    /// Whether it has entries that its file lacks.
    grown: bool,
}

impl CostTable {
    /// An empty cost table that is kept nowhere.
    pub fn new(machine: Machine) -> CostTable {
        CostTable { machine, entries: BTreeMap::new(), path: None, grown: false }
    }

    /// Whose times they are.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// All entries, sorted.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (&Signature, u64)> {
        self.entries.iter().map(|(signature, &ns)| (signature, ns))
    }

    /// Sets the time of a signature; in a file that has one already, [`CostTable::save`] keeps that.
    pub fn set(&mut self, signature: Signature, ns: u64) {
        self.grown |= self.entries.insert(signature, ns) != Some(ns);
    }

    /// Nanoseconds of a task on a device of `cores` cores, if the cost table tells.
    pub fn of(&self, tasks: &TaskGraph, task: TaskId, cores: usize) -> Option<u64> {
        self.time(&Moves::of(self), tasks, task, cores)
    }

    /// Nanoseconds of every task on devices of `cores` cores; estimated where the cost table does not tell.
    pub fn costs(&self, tasks: &TaskGraph, cores: usize) -> Costs {
        let (moves, mut estimated) = (Moves::of(self), Vec::new());
        let time = |task| {
            self.time(&moves, tasks, task, cores).unwrap_or_else(|| {
                estimated.push(task);
                modelled(tasks, task)
            })
        };
        let ns = tasks.tasks.ids().map(time).collect();
        Costs { ns, estimated }
    }

    fn time(&self, moves: &Moves, tasks: &TaskGraph, task: TaskId, cores: usize) -> Option<u64> {
        match tasks.tasks[task].op {
            TaskOp::Send { .. } => Some(0),
            TaskOp::Receive { .. } => moves.receive(tasks, task),
            _ => self.entries.get(&Signature::of(tasks, task, cores)?).copied(),
        }
    }

    /// How long bytes take from one device of this process to another; estimated if the cost table does not tell.
    pub fn link(&self) -> LinkTable {
        LinkTable::of(self)
    }

    /// What several machines or processes agree on: of every signature the median of the times that some cost table has, of an
    /// even number of them the lower middle one. The order of the tables plays no part.
    pub fn median(tables: &[CostTable]) -> CostTable {
        let mut times: BTreeMap<&Signature, Vec<u64>> = BTreeMap::new();
        for (signature, ns) in tables.iter().flat_map(CostTable::entries) {
            times.entry(signature).or_default().push(ns);
        }
        let entries = times.into_iter().map(|(signature, mut times)| (signature.clone(), middle(&mut times)));
        let machine = Machine::together(tables.iter().map(CostTable::machine));
        CostTable { entries: entries.collect(), ..CostTable::new(machine) }
    }
}

/// The median of some times, the lower one of two.
fn middle(times: &mut [u64]) -> u64 {
    times.sort_unstable();
    times[(times.len() - 1) / 2]
}

/// Nanoseconds of every task of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    ns: IdVec<TaskId, u64>,
    estimated: Vec<TaskId>,
}

impl Costs {
    /// The tasks whose times are estimates, ascending.
    pub fn estimated(&self) -> &[TaskId] {
        &self.estimated
    }

    /// As a scheduler wants them.
    pub fn into_tasks(self) -> IdVec<TaskId, u64> {
        self.ns
    }

    /// Nanoseconds of all tasks of each device.
    pub fn by_device(&self, tasks: &TaskGraph) -> BTreeMap<DeviceId, u64> {
        let mut sums = BTreeMap::new();
        for (id, task) in tasks.tasks.iter() {
            *sums.entry(task.device).or_default() += self.ns[id];
        }
        sums
    }
}

impl Index<TaskId> for Costs {
    type Output = u64;

    fn index(&self, task: TaskId) -> &u64 {
        &self.ns[task]
    }
}
