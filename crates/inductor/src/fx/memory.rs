//! How many bytes are alive, step by step.
//!
//! A value lives from its node to the last of its readers. A wait returns the storage of its collective. Inputs are
//! there from the start; what no node reads, what the graph returns and inputs that are not releasable stay to the end.

use phalanx_ir::{Id, IdVec};

use super::case::{FxCase, Params};
use super::graph::{FxNodeId, Graph, Role};
use crate::mode::PassMode;

/// Which storages a node makes and reads.
pub(super) struct Storages {
    /// Bytes that a node allocates.
    made: IdVec<FxNodeId, u64>,
    /// Bytes freed once all readers of a storage have run.
    freed: IdVec<FxNodeId, u64>,
    /// The storages that a node reads, without repetition, named by the nodes that made them.
    reads: IdVec<FxNodeId, Vec<FxNodeId>>,
    n_readers: IdVec<FxNodeId, usize>,
    inputs: u64,
}

impl Storages {
    pub(super) fn new(case: &FxCase, graph: &Graph) -> Self {
        let sizes = case.graph_inputs.iter().map(|input| (0, if input.releasable { input.size } else { 0 }));
        let sizes = sizes.chain(case.nodes.iter().map(|node| (node.size, node.size))).chain([(0, 0)]);
        let (mut made, freed): (Vec<u64>, Vec<u64>) = sizes.unzip();
        let owner = |node: FxNodeId| match graph.roles[node] {
            Role::Wait(collective) => graph.collectives[collective].start,
            _ => node,
        };
        let mut n_readers: IdVec<FxNodeId, usize> = graph.roles.ids().map(|_| 0).collect();
        let mut reads = IdVec::new();
        for (node, values) in graph.reads.iter() {
            if owner(node) != node {
                made[node.index()] = 0;
            }
            let mut storages: Vec<FxNodeId> = values.iter().map(|&value| owner(value)).collect();
            storages.sort_unstable();
            storages.dedup();
            storages.iter().for_each(|&storage| n_readers[storage] += 1);
            reads.push(storages);
        }
        let inputs = case.graph_inputs.iter().map(|input| input.size).sum();
        let (made, freed) = (made.into_iter().collect(), freed.into_iter().collect());
        Storages { made, freed, reads, n_readers, inputs }
    }

    /// Bytes that a node allocates; 0 for an input, which is there from the start.
    pub(super) fn made(&self, node: FxNodeId) -> u64 {
        self.made[node]
    }

    /// Bytes freed once all readers of the storage of a node have run; none: it has no readers, or the output is one.
    pub(super) fn freed(&self, node: FxNodeId) -> Option<u64> {
        let output = FxNodeId::from_index(self.reads.len() - 1);
        let is_released = self.n_readers[node] > 0 && !self.reads[output].contains(&node);
        is_released.then_some(self.freed[node])
    }

    /// The storages that a node reads, without repetition, named by the nodes that made them.
    pub(super) fn reads(&self, node: FxNodeId) -> &[FxNodeId] {
        &self.reads[node]
    }
}

/// The memory of a growing schedule.
pub(super) struct Memory<'a> {
    storages: &'a Storages,
    readers_left: IdVec<FxNodeId, usize>,
    output: FxNodeId,
    /// Bytes alive after the last step.
    pub(super) level: u64,
    /// The most bytes alive during a step, its releases not yet done.
    pub(super) peak: u64,
}

impl<'a> Memory<'a> {
    pub(super) fn new(storages: &'a Storages) -> Self {
        let readers_left: IdVec<FxNodeId, usize> =
            storages.n_readers.iter().map(|(_, &count)| count).collect();
        let output = FxNodeId::from_index(readers_left.len() - 1);
        Memory { storages, readers_left, output, level: storages.inputs, peak: storages.inputs }
    }

    /// Runs `node` and gives the bytes alive before its releases.
    pub(super) fn step(&mut self, node: FxNodeId) -> u64 {
        // The output reads what the graph returns and never runs, so that these values stay.
        if node == self.output {
            return self.level;
        }
        let allocated = self.level + self.storages.made[node];
        self.level = allocated;
        self.peak = self.peak.max(allocated);
        for &storage in &self.storages.reads[node] {
            self.readers_left[storage] -= 1;
            if self.readers_left[storage] == 0 {
                self.level -= self.storages.freed[storage];
            }
        }
        allocated
    }
}

/// The memory of the original order, and what the schedule may use.
pub(super) struct Baseline {
    pub(super) peak: u64,
    /// For each compute node the most bytes alive since the one before.
    pub(super) at_compute: Vec<u64>,
    /// The peak that prefetching respects; none: memory is not limited.
    pub(super) allowed: Option<u64>,
}

impl Baseline {
    pub(super) fn new(graph: &Graph, storages: &Storages, params: &Params, mode: PassMode) -> Self {
        let mut memory = Memory::new(storages);
        let (mut peak, mut since, mut at_compute) = (memory.level, memory.level, Vec::new());
        for (node, &role) in graph.roles.iter() {
            let allocated = memory.step(node);
            // Defect E6: the reference takes levels after releases here but compares them with a new peak that is
            // taken before. The repaired mode takes all levels before releases.
            let level = match mode {
                PassMode::Reference | PassMode::Newer => memory.level,
                PassMode::Fixed => allocated,
            };
            peak = peak.max(level);
            since = since.max(level);
            if role == Role::Gemm {
                at_compute.push(since);
                since = level;
            }
        }
        Baseline { peak, at_compute, allowed: allowed(peak, params) }
    }
}

/// The peak with the larger of the two permitted increases.
fn allowed(peak: u64, params: &Params) -> Option<u64> {
    let by_ratio = params.max_memory_increase_ratio.map(|ratio| (peak as f64 * ratio) as u64);
    let increase = params.max_memory_increase_bytes.max(by_ratio)?;
    Some(peak.saturating_add(increase))
}
