//! The second model: the best of rings and trees with three protocols.

use super::{NcclMachine, NcclOp, NcclTraffic, column, most_low_latency};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Tree,
    Ring,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    LowLatency,
    LowLatency128,
    Simple,
}

/// By generation.
const INTRA_BANDWIDTH: [f64; 4] = [120.0, 240.0, 370.0, 720.0];
const INTER_BANDWIDTH: [f64; 4] = [12.0, 25.0, 50.0, 50.0];
const PCIE_BANDWIDTH: f64 = 24.0;
const CHANNELS: [f64; 4] = [2.0, 8.0, 16.0, 32.0];

/// Most GB/s of a channel: for each generation on one, two, and more nodes.
const RING_LL128: [[f64; 3]; 4] = [[20.0; 3], [20.0; 3], [36.7; 3], [40.0; 3]];
const TREE_LL128: [[f64; 3]; 4] = [[20.0; 3], [20.0; 3], [36.7, 36.7, 29.0], [55.6, 31.67, 20.0]];
const TREE_SIMPLE: [[f64; 3]; 4] =
    [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [38.7, 41.4, 36.0], [70.0, 42.8, 24.0]];

/// Microseconds by algorithm, tree first, and protocol: once, and for every hop.
const BASE: [[f64; 3]; 2] = [[6.8, 14.0, 8.4], [6.6, 14.0, 8.4]];
const NVLINK_HOP: [[f64; 3]; 2] = [[0.6, 1.25, 4.0], [0.6, 1.9, 3.4]];
const PCIE_HOP: [[f64; 3]; 2] = [[1.0, 1.9, 4.0], [1.0, 2.5, 5.7]];
const NETWORK_HOP: [[f64; 3]; 2] = [[5.0, 8.5, 14.0], [2.7, 4.0, 14.0]];

/// What is left of a tree's bandwidth, by protocol, for messages from 64 bytes on, each twice as long as the one before.
const TREE_CORRECTION: [[f64; 24]; 3] = [
    [
        1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0,
        1.0, 1.0, 1.0, 1.0,
    ],
    [
        1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9,
        0.9, 1.0, 1.0, 1.0,
    ],
    [
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7,
        0.8, 0.9, 0.9, 0.9,
    ],
];

/// Microseconds of traffic among at least two ranks. A GB is 1e9 bytes.
pub(super) fn microseconds(machine: &NcclMachine, traffic: &NcclTraffic) -> f64 {
    let shape = Shape { machine, traffic, nodes: machine.nodes(traffic.ranks) };
    let algorithms: &[Algorithm] = match traffic.op {
        NcclOp::AllReduce => &[Algorithm::Tree, Algorithm::Ring],
        _ => &[Algorithm::Ring],
    };
    let protocols: &[Protocol] = match shape.nodes {
        1 => &[Protocol::LowLatency, Protocol::LowLatency128, Protocol::Simple],
        // Across nodes there is InfiniBand, which cannot do the protocol in between.
        _ => &[Protocol::LowLatency, Protocol::Simple],
    };
    let ways = algorithms.iter().flat_map(|&algorithm| protocols.iter().map(move |&way| (algorithm, way)));
    ways.map(|(algorithm, protocol)| shape.time(algorithm, protocol)).fold(f64::INFINITY, f64::min)
}

struct Shape<'a> {
    machine: &'a NcclMachine,
    traffic: &'a NcclTraffic,
    nodes: u64,
}

impl Shape<'_> {
    fn time(&self, algorithm: Algorithm, protocol: Protocol) -> f64 {
        let bytes = self.traffic.bytes as f64;
        self.latency(algorithm, protocol) + bytes / (1000.0 * self.bandwidth(algorithm, protocol))
    }

    /// What a link carries, in GB/s.
    fn link(&self) -> f64 {
        let &NcclMachine { gpu, has_nvlink, intra_bandwidth, inter_bandwidth, .. } = self.machine;
        let (nodes, bytes) = (self.nodes as f64, self.traffic.bytes as f64);
        if self.nodes == 1 {
            let default = if has_nvlink { INTRA_BANDWIDTH[gpu as usize] } else { PCIE_BANDWIDTH };
            return intra_bandwidth.unwrap_or(default);
        }
        let link = inter_bandwidth.unwrap_or(INTER_BANDWIDTH[gpu as usize])
            * (0.77 + 0.23 * ((nodes - 1.0) / 7.0).min(1.0));
        if self.nodes > 2 { link * (bytes.max(5e7) / 5e7).powf(0.17) } else { link }
    }

    /// What the algorithm gets through, in GB/s.
    fn bandwidth(&self, algorithm: Algorithm, protocol: Protocol) -> f64 {
        let link = self.link();
        let gpu = self.machine.gpu;
        let channels = |most: &[[f64; 3]; 4]| CHANNELS[gpu as usize] * most[gpu as usize][column(self.nodes)];
        let bus = match (algorithm, protocol) {
            (Algorithm::Ring, Protocol::LowLatency) => (link / 2.0).min(most_low_latency(gpu, self.nodes)),
            (Algorithm::Ring, Protocol::LowLatency128) => (link * 120.0 / 128.0).min(channels(&RING_LL128)),
            (Algorithm::Ring, Protocol::Simple) => link,
            (Algorithm::Tree, Protocol::LowLatency) => (link / 3.8).min(most_low_latency(gpu, self.nodes)),
            (Algorithm::Tree, Protocol::LowLatency128) => {
                let share = if self.nodes == 1 { 7.0 / 9.0 } else { 120.0 / 128.0 };
                (link * share).min(channels(&TREE_LL128))
            }
            (Algorithm::Tree, Protocol::Simple) => (0.92 * link).min(channels(&TREE_SIMPLE)),
        };
        match algorithm {
            Algorithm::Tree => bus / 2.0 * self.correction(protocol),
            Algorithm::Ring => {
                bus * self.traffic.ranks as f64 / self.traffic.op.steps(self.traffic.ranks) as f64
            }
        }
    }

    fn correction(&self, protocol: Protocol) -> f64 {
        let at = (self.traffic.bytes / 64).checked_ilog2();
        let correction = at.and_then(|at| TREE_CORRECTION[protocol as usize].get(at as usize));
        correction.copied().unwrap_or(1.0)
    }

    fn latency(&self, algorithm: Algorithm, protocol: Protocol) -> f64 {
        let of = |table: &[[f64; 3]; 2]| table[algorithm as usize][protocol as usize];
        let hop = if self.machine.has_nvlink { &NVLINK_HOP } else { &PCIE_HOP };
        let least = match (self.nodes, protocol) {
            (1, _) => 0.0,
            (_, Protocol::Simple) => 3.0,
            _ => 1.0,
        };
        let (in_node, network) = (of(hop).max(least), of(&NETWORK_HOP));
        let hops = match algorithm {
            Algorithm::Tree => {
                let in_nodes = (self.traffic.ranks / self.nodes).saturating_sub(1) as f64;
                2.0 * (in_nodes * in_node + f64::from(self.nodes.ilog2()) * network)
            }
            Algorithm::Ring => {
                let between = match self.traffic.op {
                    NcclOp::AllReduce => 2 * (self.nodes - 1),
                    _ => self.nodes - 1,
                };
                let steps = self.traffic.op.steps(self.traffic.ranks) as f64;
                (steps - between as f64) * in_node + between as f64 * network
            }
        };
        of(&BASE) + hops
    }
}
