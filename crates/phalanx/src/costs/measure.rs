//! Measures what a task graph needs and a cost table lacks.

use std::collections::BTreeMap;

use phalanx_ir::tasks::{TaskGraph, TaskId, TaskOp};

use super::bench::Bench;
use super::transfer::Transfer;
use super::{CostTable, CostTableError, Machine, Signature};

/// What came of measuring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// How many entries the cost table got.
    pub taken: usize,
    /// What could not be measured; estimates stand for it.
    pub fallbacks: Vec<Fallback>,
}

/// A kernel that could not be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// Its name.
    pub kernel: String,
    /// Why not.
    pub why: String,
}

impl CostTable {
    /// Measures what `tasks` needs on devices of `cores` cores and the cost table lacks.
    ///
    /// `progress` is told how many kernels are done, of how many, and which comes next. A cost table of another machine that lacks
    /// something is refused.
    pub fn measure(
        &mut self,
        tasks: &TaskGraph,
        cores: usize,
        progress: &mut dyn FnMut(usize, usize, &str),
    ) -> Result<Measured, CostTableError> {
        let (kernels, transfers) = (self.missing(tasks, cores), self.missing_transfers(tasks));
        let (mut measured, total) = (Measured::default(), kernels.len() + transfers.len());
        if total == 0 {
            return Ok(measured);
        }
        let this = Machine::this();
        if this != self.machine {
            return Err(CostTableError::OtherMachine {
                cost_table: Box::new(self.machine.clone()),
                this: Box::new(this),
            });
        }
        let mut bench = Bench::new(cores);
        for (done, (signature, task)) in kernels.into_iter().enumerate() {
            progress(done, total, &signature.kernel);
            match bench.time(tasks, task, &signature) {
                Ok(ns) => measured.take(self, [(signature, ns)]),
                Err(why) => measured.fallbacks.push(Fallback { kernel: signature.kernel, why }),
            }
        }
        for (done, transfer) in (total - transfers.len()..).zip(transfers) {
            progress(done, total, &transfer.kernel());
            match transfer.measure() {
                Ok(times) => {
                    measured.take(self, transfer.signatures().map(|(entry, which)| (entry, times[which])))
                }
                Err(why) => measured.fallbacks.push(Fallback { kernel: transfer.kernel(), why }),
            }
        }
        progress(total, total, "");
        Ok(measured)
    }

    /// The signatures that the cost table lacks, each with a task that has it.
    fn missing(&self, tasks: &TaskGraph, cores: usize) -> BTreeMap<Signature, TaskId> {
        let mut missing = BTreeMap::new();
        for task in tasks.tasks.ids() {
            let signature = Signature::of(tasks, task, cores);
            if let Some(signature) = signature.filter(|signature| !self.entries.contains_key(signature)) {
                missing.entry(signature).or_insert(task);
            }
        }
        missing
    }

    fn missing_transfers(&self, tasks: &TaskGraph) -> Vec<Transfer> {
        let moves = tasks.tasks.iter().any(|(_, task)| matches!(task.op, TaskOp::Receive { .. }));
        if moves { Transfer::missing(self) } else { Vec::new() }
    }
}

impl Measured {
    /// Puts times into the cost table that it lacks.
    fn take(&mut self, cost_table: &mut CostTable, times: impl IntoIterator<Item = (Signature, u64)>) {
        for (signature, ns) in times {
            if !cost_table.entries.contains_key(&signature) {
                cost_table.set(signature, ns);
                self.taken += 1;
            }
        }
    }
}
