//! Training steps on many devices: each has a lane that computes and one that transfers, and every movement has a part
//! on each device.

use phalanx_ir::Id;
use phalanx_schedule::search::{JobId, LaneId, LaneKind, Problem, SearchBuffer, SearchJob, SearchLane};

/// A step with layers that are all alike.
#[derive(Clone, Copy)]
pub struct Step {
    pub devices: usize,
    pub layers: usize,
    /// Nanoseconds of a layer's forward half; the backward half takes twice as long.
    pub compute: f64,
    /// Nanoseconds of a movement.
    pub transfer: f64,
}

/// Bytes of an activation, and of a layer's weights or gradients.
pub const ACTIVATION: i64 = 1000;
pub const WEIGHTS: i64 = 4000;

/// A problem under construction.
struct Maker {
    problem: Problem,
    devices: usize,
    movements: u32,
}

impl Maker {
    fn new(devices: usize) -> Self {
        let mut problem = Problem::default();
        for device in 0..devices {
            problem.lanes.push(SearchLane { device, kind: LaneKind::Compute });
            problem.lanes.push(SearchLane { device, kind: LaneKind::Transfers });
        }
        Maker { problem, devices, movements: 0 }
    }

    /// The same job on every device, after what each device gives.
    fn compute(&mut self, cost: f64, after: &[&[JobId]]) -> Vec<JobId> {
        (0..self.devices)
            .map(|device| {
                let after = after.iter().map(|jobs| jobs[device]).collect();
                self.problem
                    .jobs
                    .push(SearchJob { after, ..SearchJob::new(LaneId::from_index(2 * device), cost) })
            })
            .collect()
    }

    /// A movement with a part on every device, after all of `after`.
    fn movement(&mut self, cost: f64, after: &[JobId]) -> Vec<JobId> {
        self.movements += 1;
        let unit = Some(self.movements);
        (0..self.devices)
            .map(|device| {
                let lane = LaneId::from_index(2 * device + 1);
                self.problem.jobs.push(SearchJob {
                    after: after.to_vec(),
                    unit,
                    ..SearchJob::new(lane, cost)
                })
            })
            .collect()
    }

    /// A buffer on every device.
    fn buffer(&mut self, bytes: i64, touched_by: &[&[JobId]]) {
        for device in 0..self.devices {
            let touched_by = touched_by.iter().map(|jobs| jobs[device]).collect();
            let buffer =
                SearchBuffer { device, alloc: bytes, free: bytes, touched_by, ..SearchBuffer::default() };
            self.problem.buffers.push(buffer);
        }
    }
}

/// Data parallel: every layer's gradients are summed over all devices and then applied.
pub fn data_parallel(step: Step) -> Problem {
    let mut maker = Maker::new(step.devices);
    let mut forward: Vec<Vec<JobId>> = Vec::new();
    for _ in 0..step.layers {
        let after: Vec<&[JobId]> = forward.last().map(Vec::as_slice).into_iter().collect();
        let jobs = maker.compute(step.compute, &after);
        forward.push(jobs);
    }
    let mut last = forward[step.layers - 1].clone();
    for layer in forward.iter().rev() {
        let backward = maker.compute(2.0 * step.compute, &[&last]);
        let sum = maker.movement(step.transfer, &backward);
        let update = maker.compute(0.0, &[&sum]);
        maker.buffer(ACTIVATION, &[layer, &backward]);
        maker.buffer(WEIGHTS, &[&backward, &sum, &update]);
        last = backward;
    }
    maker.problem
}

/// Fully sharded: weights are gathered before each half of a layer, gradients are summed and scattered after it.
pub fn fully_sharded(step: Step) -> Problem {
    let mut maker = Maker::new(step.devices);
    let mut forward: Vec<Vec<JobId>> = Vec::new();
    for _ in 0..step.layers {
        let gather = maker.movement(step.transfer, &[]);
        let after: Vec<&[JobId]> =
            forward.last().map(Vec::as_slice).into_iter().chain([gather.as_slice()]).collect();
        let jobs = maker.compute(step.compute, &after);
        maker.buffer(WEIGHTS, &[&gather, &jobs]);
        forward.push(jobs);
    }
    let mut last = forward[step.layers - 1].clone();
    for layer in forward.iter().rev() {
        let gather = maker.movement(step.transfer, &[]);
        let backward = maker.compute(2.0 * step.compute, &[&last, &gather]);
        let scatter = maker.movement(step.transfer, &backward);
        maker.buffer(WEIGHTS, &[&gather, &backward]);
        maker.buffer(WEIGHTS, &[&backward, &scatter]);
        maker.buffer(ACTIVATION, &[layer, &backward]);
        last = backward;
    }
    maker.problem
}
