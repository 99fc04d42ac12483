//! The first model: a ring with the low-latency protocol, nothing else.

use super::{NcclMachine, NcclOp, NcclTraffic, most_low_latency};

const BASE_MICROSECONDS: f64 = 6.6;
const HOP_IN_NODE: f64 = 0.6;
const LEAST_HOP_ACROSS_NODES: f64 = 1.0;
const HOP_BETWEEN_NODES: f64 = 2.7;
const CHANNELS: f64 = 2.0;

/// Milliseconds of traffic among at least two ranks. A GB is 2^30 bytes.
pub(super) fn milliseconds(machine: &NcclMachine, traffic: &NcclTraffic) -> f64 {
    let &NcclTraffic { op, ranks, bytes } = traffic;
    let nodes = machine.nodes(ranks);
    let bandwidth = match nodes {
        1 => machine.intra_bandwidth.unwrap_or(300.0),
        _ => machine.inter_bandwidth.unwrap_or(25.0),
    };
    let share = if nodes > 1 || op == NcclOp::AllReduce { 1.0 / 4.0 } else { 1.0 / 3.0 };
    let bus = most_low_latency(machine.gpu, nodes).min(CHANNELS * bandwidth * share);
    let steps = op.steps(ranks);
    let gigabytes = bytes as f64 / (1u64 << 30) as f64;
    let seconds = gigabytes / (bus * ranks as f64 / steps as f64);
    let between = match op {
        NcclOp::AllReduce if nodes > 1 => 2 * nodes,
        NcclOp::AllReduce => 0,
        _ => nodes - 1,
    };
    let in_node = HOP_IN_NODE.max(if nodes > 1 { LEAST_HOP_ACROSS_NODES } else { 0.0 });
    let latency =
        BASE_MICROSECONDS + (steps as f64 - between as f64) * in_node + between as f64 * HOP_BETWEEN_NODES;
    seconds * 1e3 + latency / 1e3
}
