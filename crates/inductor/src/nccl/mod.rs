//! How long a collective takes, from its bytes and the machine alone: the reference's two models of NCCL.
//!
//! Both take bandwidth and latency of a fixed set of algorithms and protocols from tables. Nothing is measured here.

mod newer;
mod older;
mod saturation;

pub use saturation::saturation_bytes;

use crate::mode::PassMode;

/// A generation of devices, as the tables know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Gpu {
    /// V100 and its kin.
    Volta,
    /// A100 and its kin; also stands for devices that the tables do not know.
    #[default]
    Ampere,
    /// H100 and its kin.
    Hopper,
    /// B200 and its kin.
    Blackwell,
}

/// What a collective does, as far as its cost depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NcclOp {
    /// Everybody gets the sum.
    AllReduce,
    /// Everybody gets everything.
    AllGather,
    /// Everybody gets a part of the sum.
    ReduceScatter,
    /// Everybody gets a part of everybody.
    AllToAll,
    /// One sends, one receives; only the newer model knows it.
    PointToPoint,
}

impl NcclOp {
    /// The operation that a kernel's name stands for.
    pub fn of(kernel: &str) -> Option<NcclOp> {
        const WORDS: [(&str, NcclOp); 8] = [
            ("all_reduce", NcclOp::AllReduce),
            ("all_gather", NcclOp::AllGather),
            ("reduce_scatter", NcclOp::ReduceScatter),
            ("all_to_all", NcclOp::AllToAll),
            ("alltoall", NcclOp::AllToAll),
            ("isend", NcclOp::PointToPoint),
            ("irecv", NcclOp::PointToPoint),
            ("batch_p2p", NcclOp::PointToPoint),
        ];
        WORDS.iter().find(|(word, _)| kernel.contains(word)).map(|&(_, op)| op)
    }

    /// How many times bytes go from one member of a ring of `ranks` to the next.
    fn steps(self, ranks: u64) -> u64 {
        match self {
            NcclOp::AllReduce | NcclOp::AllToAll => 2 * (ranks - 1),
            NcclOp::AllGather | NcclOp::ReduceScatter => ranks - 1,
            NcclOp::PointToPoint => 1,
        }
    }
}

/// Where a collective runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NcclMachine {
    /// The devices.
    pub gpu: Gpu,
    /// Devices in a node.
    pub per_node: u64,
    /// Whether the devices of a node are connected by NVLink, not by PCIe.
    pub has_nvlink: bool,
    /// GB/s inside a node, if not the default.
    pub intra_bandwidth: Option<f64>,
    /// GB/s between nodes, if not the default.
    pub inter_bandwidth: Option<f64>,
}

impl NcclMachine {
    /// Nodes of eight devices with NVLink and default bandwidths.
    pub fn new(gpu: Gpu) -> NcclMachine {
        NcclMachine { gpu, per_node: 8, has_nvlink: true, intra_bandwidth: None, inter_bandwidth: None }
    }

    /// How many nodes a group of `ranks` spans.
    fn nodes(&self, ranks: u64) -> u64 {
        ranks.div_ceil(self.per_node.max(1)).max(1)
    }
}

/// What moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclTraffic {
    /// The operation.
    pub op: NcclOp,
    /// Members of the process group.
    pub ranks: u64,
    /// Bytes, counted as the caller's level counts them.
    pub bytes: u64,
}

/// Milliseconds that the traffic takes; none if the model does not know the operation. A group of one takes none.
///
/// [`PassMode::Reference`] asks the older model, the others the newer one.
pub fn milliseconds(machine: &NcclMachine, traffic: &NcclTraffic, mode: PassMode) -> Option<f64> {
    match mode {
        PassMode::Reference if traffic.op == NcclOp::PointToPoint => None,
        _ if traffic.ranks <= 1 => Some(0.0),
        PassMode::Reference => Some(older::milliseconds(machine, traffic)),
        PassMode::Newer | PassMode::Fixed => Some(newer::microseconds(machine, traffic) / 1e3),
    }
}

/// Most GB/s of the low-latency protocol: for each generation on one, two, and more nodes.
const MOST_LOW_LATENCY: [[f64; 3]; 4] =
    [[39.0, 39.0, 20.4], [87.7, 22.5, 19.0], [141.0, 45.0, 35.0], [282.0, 90.0, 70.0]];

/// The bound of the low-latency protocol. Across nodes all generations use the first one's.
fn most_low_latency(gpu: Gpu, nodes: u64) -> f64 {
    let row = if nodes == 1 { gpu as usize } else { 0 };
    MOST_LOW_LATENCY[row][column(nodes)]
}

/// Which column of a table is for this many nodes.
fn column(nodes: u64) -> usize {
    nodes.clamp(1, 3) as usize - 1
}
