//! What the devices of a simulated step do with its time.

use phalanx_ir::parallel::DeviceId;
use phalanx_ir::tasks::{TaskGraph, TaskOp};
use phalanx_link::{Part, Topology};

use crate::TaskCosts;
use crate::overlap::{Candidate, end, lines, uncovered};

/// The time of one device, in nanoseconds: what it computes, what it waits for, and the rest are the whole step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceUsage {
    /// The device.
    pub device: DeviceId,
    /// It computes.
    pub compute: u64,
    /// By level of the topology: it computes nothing while a transfer over that level is under way, and none over an
    /// outer one.
    pub exposed: Vec<u64>,
    /// It computes nothing, and nothing is under way to it.
    pub idle: u64,
    /// By level: bytes that come to it.
    pub received: Vec<u64>,
}

/// The usage of all devices, ascending.
pub fn usage(tasks: &TaskGraph, costs: &TaskCosts, candidate: &Candidate) -> Vec<DeviceUsage> {
    let levels = costs.topology.as_ref().map_or(1, |topology| topology.levels().len());
    let step = end(&candidate.run);
    let lanes = &candidate.schedule.lanes;
    let lines = lines(tasks, costs, &candidate.schedule);
    let of_device = |device: DeviceId| {
        let (mut busy, mut transfers) = (Vec::new(), vec![Vec::new(); levels]);
        let mut received = vec![0; levels];
        let own = lanes.iter().zip(&lines).zip(&candidate.run).filter(|((lane, _), _)| lane.device == device);
        for ((lane, line), spans) in own {
            for ((&task, step), span) in lane.order.iter().zip(&line.steps).zip(spans) {
                for part in step.parts.iter().filter(|part| part.from != line.device) {
                    received[level_of(costs.topology.as_ref(), line.device, part)] += part.bytes;
                }
                if span.end == span.start {
                    continue;
                }
                match tasks.tasks[task].op {
                    TaskOp::Receive { .. } => {
                        let level = slowest(costs.topology.as_ref(), line.device, &step.parts);
                        transfers[level].push((span.start, span.end));
                    }
                    _ => busy.push((span.start, span.end)),
                }
            }
        }
        let compute = busy.iter().map(|(start, end)| end - start).sum();
        let mut exposed = vec![0; levels];
        let (mut outer, mut before) = (Vec::new(), 0);
        for level in (0..levels).rev() {
            outer.append(&mut transfers[level]);
            let all = uncovered(&mut outer, &mut busy);
            exposed[level] = all - before;
            before = all;
        }
        let idle = step - compute - before;
        DeviceUsage { device, compute, exposed, idle, received }
    };
    candidate.schedule.devices().iter().map(|lane| of_device(lane.device)).collect()
}

fn level_of(topology: Option<&Topology>, to: u32, part: &Part) -> usize {
    topology.map_or(0, |topology| topology.level(part.from, to))
}

/// The level on which a transfer takes longest.
fn slowest(topology: Option<&Topology>, to: u32, parts: &[Part]) -> usize {
    let Some(topology) = topology else { return 0 };
    let mut times = vec![0; topology.levels().len()];
    for part in parts.iter().filter(|part| part.from != to && part.bytes > 0) {
        let level = topology.level(part.from, to);
        let link = topology.levels()[level].link;
        times[level] =
            times[level].max(link.latency.as_nanos() as u64) + link.occupancy(part.bytes).as_nanos() as u64;
    }
    (0..times.len()).max_by_key(|&level| times[level]).unwrap_or(0)
}
