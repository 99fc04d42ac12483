//! How a model lies on its devices, what moves between them in a step, and what each needs at its peak: for people.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_ir::graph::ValueId;
use phalanx_ir::parallel::{DeviceId, ParallelGraph};
use phalanx_ir::tasks::{BufferId, MoveKind, Role, TaskGraph, TaskOp};
use phalanx_ir::{Id, Op, OpError};
use phalanx_lower::DeviceClasses;
use phalanx_schedule::overlap::ScheduleChoice;
use phalanx_schedule::{LaneKind, Schedule, ScheduledLane};
use serde::Serialize;

/// A step laid out on devices and in time, before it is frozen.
pub struct Layout {
    /// The model with tilings and placements.
    pub parallel: ParallelGraph,
    /// The tasks of every device.
    pub tasks: TaskGraph,
    /// Their order and memory.
    pub schedule: Schedule,
    /// Where transfers may run beside computing: what the schedule was chosen from.
    pub choice: Option<Box<ScheduleChoice>>,
    /// If only one device of each class was laid out: the classes.
    pub classes: Option<DeviceClasses>,
}

/// A tensor and where its parts lie.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorRow {
    /// Its name.
    pub name: String,
    /// `param`, `input` or the operator that computes it.
    pub op: String,
    /// Element type and tiling.
    pub ty: String,
    /// For every device that holds a part: which.
    pub parts: Vec<Part>,
}

/// A part of a tensor on one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// The device.
    pub device: usize,
    /// The coordinates of the first element.
    pub origin: Vec<usize>,
    /// The extents.
    pub extents: Vec<usize>,
    /// Which of several partial sums.
    pub sum: usize,
}

/// Movements of one kind for one layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MovementRow {
    /// What it is called.
    pub kind: String,
    /// The layer or parameter that needs it.
    pub layer: String,
    /// How many there are: one for each microbatch and group of devices.
    pub count: usize,
    /// Bytes that go from one device to another, all together.
    pub bytes: u64,
}

/// What a device needs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceRow {
    /// The device.
    pub device: usize,
    /// Its arena.
    pub peak_bytes: u64,
    /// Bytes of parameters, states and tables.
    pub param_bytes: u64,
    /// Bytes of optimizer state.
    pub state_bytes: u64,
    /// Bytes that it receives in a step.
    pub received_bytes: u64,
    /// Tasks of a step.
    pub tasks: usize,
}

/// All sides of one movement.
#[derive(Default)]
struct Sides<'a> {
    reads: BTreeSet<BufferId>,
    writes: Vec<BufferId>,
    bytes: u64,
    layer: &'a str,
}

impl Layout {
    /// All leaves but constants, and with `all` every value.
    pub fn tensors(&self, all: bool) -> Result<Vec<TensorRow>, OpError> {
        let wanted = |op: &Op| all || op.is_leaf() && !matches!(op, Op::Constant(_));
        let values = self.parallel.values().ids().filter(|&value| wanted(self.parallel.op_of(value)));
        values.map(|value| self.tensor(value)).collect()
    }

    fn tensor(&self, value: ValueId) -> Result<TensorRow, OpError> {
        let ty = self.parallel.ty(value);
        let extents = ty.tile().shape.dims().to_vec();
        let mut parts = Vec::new();
        for (tile, group) in self.parallel.groups(value)?.iter().enumerate() {
            let coord = ty.coord(tile);
            parts.extend(group.devices().iter().map(|device| Part {
                device: device.index(),
                origin: ty.origin(&coord),
                extents: extents.clone(),
                sum: coord.sum,
            }));
        }
        parts.sort_by(|a, b| (a.device, a.sum, &a.origin).cmp(&(b.device, b.sum, &b.origin)));
        let op = self.parallel.op_of(value).to_text().0;
        Ok(TensorRow {
            name: self.parallel.values()[value].name.clone(),
            op: op.to_string(),
            ty: ty.to_string(),
            parts,
        })
    }

    /// All movements of a step, in its order.
    pub fn movements(&self) -> Vec<MovementRow> {
        let mut sides: BTreeMap<usize, Sides> = BTreeMap::new();
        for (_, task) in self.tasks.tasks.iter() {
            let TaskOp::Receive { movement } = task.op else { continue };
            let sides = sides.entry(movement).or_default();
            sides.layer = &task.layer;
            sides.reads.extend(&task.reads);
            sides.writes.extend(&task.writes);
            sides.bytes += self.received(&task.reads, task.device);
        }
        let mut rows: Vec<MovementRow> = Vec::new();
        let mut known: BTreeMap<(MoveKind, String), usize> = BTreeMap::new();
        for Sides { reads, writes, bytes, layer } in sides.into_values() {
            let reads: Vec<_> = reads.into_iter().collect();
            let kind = phalanx_lower::movement_kind(&self.tasks, &reads, &writes);
            let layer = movement_label(&self.tasks, without_microbatch(layer), &writes);
            let row = *known.entry((kind, layer.clone())).or_insert_with(|| {
                let kind = kind.to_string();
                rows.push(MovementRow { kind, layer, count: 0, bytes: 0 });
                rows.len() - 1
            });
            rows[row].count += 1;
            rows[row].bytes += bytes;
        }
        rows
    }

    /// Bytes that `device` gets from others when it reads these tiles. A tile of which it needs a part counts whole.
    fn received(&self, reads: &[BufferId], device: DeviceId) -> u64 {
        let remote =
            reads.iter().map(|&read| &self.tasks.buffers[read]).filter(|buffer| buffer.device != device);
        remote.map(|buffer| buffer.ty.bytes() as u64).sum()
    }

    /// What every device needs.
    pub fn devices(&self) -> Vec<DeviceRow> {
        let mut kept: BTreeMap<DeviceId, [u64; 2]> = BTreeMap::new();
        for (_, buffer) in self.tasks.buffers.iter().filter(|(_, buffer)| buffer.view_of.is_none()) {
            let [params, states] = kept.entry(buffer.device).or_default();
            match buffer.role {
                Role::Param | Role::Table => *params += buffer.ty.bytes() as u64,
                Role::State => *states += buffer.ty.bytes() as u64,
                _ => {}
            }
        }
        let row = |lane: &ScheduledLane| {
            let beside = self.schedule.position_of(lane.device, LaneKind::Transfers);
            let beside = beside.map_or(&[][..], |beside| &self.schedule.lanes[beside].order);
            let tasks = lane.order.iter().chain(beside).map(|&task| &self.tasks.tasks[task]);
            let receives = tasks.filter(|task| matches!(task.op, TaskOp::Receive { .. }));
            let [param_bytes, state_bytes] = kept.get(&lane.device).copied().unwrap_or_default();
            DeviceRow {
                device: lane.device.index(),
                peak_bytes: lane.peak,
                param_bytes,
                state_bytes,
                received_bytes: receives.map(|task| self.received(&task.reads, lane.device)).sum(),
                tasks: lane.order.len() + beside.len(),
            }
        };
        self.schedule.devices().iter().map(row).collect()
    }
}

/// The name of a layer for all microbatches: those of a layer and gathers for the backward pass belong together.
fn without_microbatch(layer: &str) -> &str {
    layer.split(".mb").next().unwrap_or(layer)
}

/// What a movement is called: its layer, or if it moves several tensors the first and the last of them.
pub(crate) fn movement_label(tasks: &TaskGraph, layer: &str, writes: &[BufferId]) -> String {
    let mut tensors: Vec<(u32, &str)> = Vec::new();
    for &write in writes {
        let buffer = &tasks.buffers[write];
        if let Some(tile) =
            buffer.tile.as_ref().filter(|tile| tensors.iter().all(|(id, _)| *id != tile.tensor))
        {
            tensors.push((tile.tensor, without_microbatch(&buffer.name)));
        }
    }
    match tensors.as_slice() {
        [] | [_] => layer.to_string(),
        [(_, first), .., (_, last)] => format!("bucket of {}: {first} … {last}", tensors.len()),
    }
}
