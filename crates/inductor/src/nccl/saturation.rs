//! From which size on a collective makes good use of its links.

use super::{Gpu, NcclMachine, NcclOp};

/// A kind of link.
struct Link {
    /// GB/s.
    bus: f64,
    /// Microseconds for every step.
    hop: f64,
    /// Microseconds, once.
    base: f64,
    /// Bytes below which nothing saturates it.
    floor: u64,
}

const fn link(bus: f64, hop: f64, base: f64, floor_mib: u64) -> Link {
    Link { bus, hop, base, floor: floor_mib << 20 }
}

const PCIE: Link = link(10.0, 60.0, 15.0, 0);
const OLDER_NETWORK: Link = link(11.0, 14.0, 30.0, 75);
const NEWER_NETWORK: Link = link(22.0, 12.0, 30.0, 100);
/// By generation.
const NVLINK: [Link; 4] = [
    link(14.0, 50.0, 10.0, 0),
    link(22.0, 45.0, 10.0, 0),
    link(36.0, 40.0, 10.0, 0),
    link(60.0, 30.0, 10.0, 0),
];

/// The bytes from which on a collective among `ranks` reaches `efficiency`, a share below 1, of its links' bandwidth;
/// none if the reference does not say. Among one rank nothing moves.
pub fn saturation_bytes(machine: &NcclMachine, op: NcclOp, ranks: u64, efficiency: f64) -> Option<u64> {
    if !matches!(op, NcclOp::AllGather | NcclOp::ReduceScatter | NcclOp::AllReduce) {
        return None;
    }
    if ranks <= 1 {
        return Some(0);
    }
    let link = match (machine.nodes(ranks), machine.gpu) {
        (1, gpu) if machine.has_nvlink => &NVLINK[gpu as usize],
        (1, _) => &PCIE,
        (_, Gpu::Volta | Gpu::Ampere) => &OLDER_NETWORK,
        (_, Gpu::Hopper | Gpu::Blackwell) => &NEWER_NETWORK,
    };
    let latency = link.base + op.steps(ranks) as f64 * link.hop;
    let bytes = efficiency / (1.0 - efficiency) * latency * 1e-6 * link.bus * 1e9;
    Some((bytes as u64).max(link.floor))
}
