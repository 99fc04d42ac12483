//! Random lists for the overlap passes, determined by a seed: groups, blocking collectives, new names for old bytes,
//! results with parts, inputs that are released, orderings without data, times of 0, several process groups.

use phalanx_inductor::cases::ListConfig;
use phalanx_inductor::model::{InputSpec, LaunchGraph, LaunchKind, NodeSpec, OutputSpec, Spec};
use phalanx_testkit::Rng;

/// A list of up to `most` nodes, with random knobs.
pub fn list(seed: u64, most: usize) -> (LaunchGraph, ListConfig) {
    let mut rng = Rng::new(seed);
    let n_nodes = 1 + rng.below(most);
    let times = rng.below(3);
    let mut maker =
        Maker { rng, times, names: Vec::new(), n_bufs: 0, running: Vec::new(), parts: Vec::new() };
    let inputs: Vec<_> = (0..1 + maker.rng.below(4)).map(|input| maker.input(input)).collect();
    let nodes: Vec<_> = (0..n_nodes).map(|node| maker.node(&format!("op{node}"))).collect();
    let outputs = maker.names.iter().filter(|_| maker.rng.once_in(8)).cloned().collect();
    let global_ordering = maker.rng.once_in(4);
    let spec = Spec { inputs, outputs, nodes, global_ordering };
    let graph = LaunchGraph::build(&spec).expect("names are made before they are used");
    (graph, config(&mut maker.rng))
}

fn config(rng: &mut Rng) -> ListConfig {
    let is_limited = rng.once_in(8);
    let mut limit = || is_limited.then(|| rng.below(5));
    ListConfig {
        reorder_iterative_debug_limit_to_reorder: limit(),
        sink_waits_iterative_debug_limit_to_sink: limit(),
        reorder_iterative_use_runtime_estimations: rng.once_in(2),
        sink_iterative_use_runtime_estimations: rng.once_in(2),
        reorder_sink_runtime_estimations_comm_mult: rng.choose(&[2.0, 1.0, 0.5, 0.3]),
        reorder_sink_runtime_estimations_non_comm_mult: rng.choose(&[1.0, 1.0, 2.0, 0.7]),
        reorder_iterative_extra_comm_comp_overlap: rng.choose(&[0.5, 0.0, 1.0, 4.0]),
        sink_iterative_extra_comm_comp_overlap: rng.choose(&[0.5, 0.0, 1.0, 4.0]),
        reorder_iterative_peak_memory_budget: rng.choose(&[0.2, 0.0, 0.05, 10.0]),
        sink_iterative_peak_memory_budget: rng.choose(&[0.2, 0.0, 0.05, 10.0]),
        reorder_iterative_unsafe_collectives_reorder: !rng.once_in(4),
        sink_waits_iterative_unsafe_collectives_reorder: !rng.once_in(4),
        reorder_iterative_group_with_collectives: rng.once_in(2),
        sink_waits_iterative_swap_with_collectives: rng.once_in(2),
    }
}

struct Maker {
    rng: Rng,
    /// Whether times are whole, small and often equal, or not whole.
    times: usize,
    /// Everything that may be read.
    names: Vec<String>,
    n_bufs: usize,
    /// Input and output of collectives that nobody waits for yet.
    running: Vec<(String, String)>,
    /// Parts of a result that nobody has taken yet, with their bytes.
    parts: Vec<(String, u64)>,
}

impl Maker {
    fn input(&mut self, number: usize) -> InputSpec {
        let name = format!("in{number}");
        self.names.push(name.clone());
        InputSpec { name, size: self.size(), freeable: !self.rng.once_in(3) }
    }

    fn node(&mut self, name: &str) -> NodeSpec {
        if !self.rng.once_in(8) {
            return self.leaf(name);
        }
        let members: Vec<_> =
            (0..2 + self.rng.below(2)).map(|member| self.leaf(&format!("{name}.{member}"))).collect();
        let cost = if self.rng.once_in(2) { members.iter().map(|member| member.cost).sum() } else { 7.0 };
        NodeSpec { name: name.into(), cost, members, ..NodeSpec::default() }
    }

    fn leaf(&mut self, name: &str) -> NodeSpec {
        let mut leaf = NodeSpec { name: name.into(), cost: self.time(), ..NodeSpec::default() };
        leaf.gemm_like = self.rng.once_in(4);
        if self.rng.once_in(6) {
            leaf.fakes.push(self.rng.choose(&self.names));
        }
        match self.rng.below(10) {
            0..3 => self.collective(&mut leaf),
            3..6 if !self.running.is_empty() => self.wait(&mut leaf),
            6 if !self.parts.is_empty() => self.part(&mut leaf),
            7 => self.rename(&mut leaf),
            8 => self.whole(&mut leaf),
            _ => self.compute(&mut leaf),
        }
        self.names.extend(leaf.outputs.iter().map(|output| output.name.clone()));
        leaf
    }

    fn collective(&mut self, leaf: &mut NodeSpec) {
        let is_sync = self.rng.once_in(4);
        leaf.kind = Some(if is_sync { LaunchKind::SyncCollective } else { LaunchKind::Collective });
        leaf.group = self.rng.below(3) as u32;
        let (input, size) = (self.rng.choose(&self.names), self.size());
        leaf.reads.push(input.clone());
        let output = self.output(leaf, size, size, None);
        if !is_sync {
            self.running.push((input, output));
        }
    }

    fn wait(&mut self, leaf: &mut NodeSpec) {
        leaf.kind = Some(LaunchKind::Wait);
        leaf.cost = if self.rng.once_in(4) { leaf.cost } else { 0.0 };
        let at = self.rng.below(self.running.len());
        let (input, output) = self.running.swap_remove(at);
        leaf.reads.extend([input, output.clone()]);
        self.output(leaf, 0, 0, Some(output));
    }

    fn compute(&mut self, leaf: &mut NodeSpec) {
        leaf.kind = Some(LaunchKind::Compute);
        leaf.reads = (0..self.rng.below(4)).map(|_| self.rng.choose(&self.names)).collect();
        for _ in 0..self.rng.below(3) {
            let size = self.size();
            self.output(leaf, size, size, None);
        }
    }

    fn rename(&mut self, leaf: &mut NodeSpec) {
        self.compute(leaf);
        let root = self.rng.choose(&self.names);
        leaf.reads.push(root.clone());
        self.output(leaf, 0, 0, Some(root));
    }

    /// A result with parts.
    fn whole(&mut self, leaf: &mut NodeSpec) {
        leaf.kind = Some(LaunchKind::Compute);
        let sizes: Vec<u64> = (0..1 + self.rng.below(3)).map(|_| self.size()).collect();
        let name = self.output(leaf, sizes.iter().sum(), 0, None);
        self.parts.extend(sizes.into_iter().map(|size| (name.clone(), size)));
    }

    fn part(&mut self, leaf: &mut NodeSpec) {
        leaf.kind = Some(LaunchKind::Compute);
        let at = self.rng.below(self.parts.len());
        let (whole, size) = self.parts.swap_remove(at);
        leaf.reads.push(whole);
        self.output(leaf, 0, size, None);
    }

    fn output(&mut self, leaf: &mut NodeSpec, alloc: u64, free: u64, renames: Option<String>) -> String {
        let name = format!("buf{}", self.n_bufs);
        self.n_bufs += 1;
        leaf.outputs.push(OutputSpec { name: name.clone(), alloc, free, renames });
        name
    }

    fn size(&mut self) -> u64 {
        self.rng.choose(&[0, 1, 8, 64, 64, 64, 1000])
    }

    fn time(&mut self) -> f64 {
        match self.times {
            _ if self.rng.once_in(6) => 0.0,
            0 => self.rng.below(1000) as f64,
            1 => self.rng.choose(&[1.0, 2.0, 4.0, 10.0]),
            _ => self.rng.choose(&[0.1, 0.2, 0.3, 0.7, 1.1, 1e3 / 3.0]),
        }
    }
}
