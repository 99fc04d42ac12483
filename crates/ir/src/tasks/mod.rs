//! Tasks on buffers: what each device computes in one step.
//!
//! The list of tasks is a program in the sequential sense: a task reads what the last earlier writer of a buffer left
//! there. Dependencies follow from that ([`TaskGraph::predecessors`]); any order that respects them means the same.

mod chain;
mod deps;
mod mask;
mod movement;
mod op;
mod text;
mod verify;
mod view;

pub use chain::{Function, MAX_CHAIN, Source, Step, Steps};
pub use mask::Mask;
pub use movement::{Piece, Rect, Sources};
pub use op::{EpilogueFlags, MoveKind, SET_STATE, TaskOp};
pub(crate) use text::numbered;
pub use verify::TaskError;
pub use view::TaskView;

use std::sync::Arc;

use crate::parallel::DeviceId;
use crate::{IdVec, Shape, TensorType};

crate::id! {
    /// A buffer: one tile of a tensor in one device's memory.
    pub struct BufferId("b");
    /// A task: one kernel execution on one device.
    pub struct TaskId("t");
}

/// Why a buffer exists, and so how long it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Written by the host before a step; never by a task.
    Input,
    /// A weight of the model: a trained tensor, or a state that the step sets itself; lives across steps.
    Param,
    /// A constant tensor; written by the host once, never by a task.
    Table,
    /// Optimizer state; zero before the first step, lives across steps.
    State,
    /// Read by the host after a step.
    Output,
    /// Lives from its first writer to its last reader.
    Temp,
}

/// Which part of which tensor a buffer holds. Global coordinates, so that movements are intersections of rectangles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// The tensor: tiles of one tensor have the same number.
    pub tensor: u32,
    /// The tensor's extents.
    pub global: Shape,
    /// The coordinates of the first element.
    pub origin: Vec<usize>,
    /// Which partial sum.
    pub part: u32,
}

/// One tile of a tensor in one device's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// The tensor's name, for people.
    pub name: Arc<str>,
    /// Element type and extents of the tile.
    pub ty: TensorType,
    /// Which tile; none for the whole of a tensor that does not move.
    pub tile: Option<Box<Tile>>,
    /// Whose memory.
    pub device: DeviceId,
    /// Why it exists.
    pub role: Role,
    /// The buffer whose bytes these are, in another shape; of a device that another one stands for, what that one has in its
    /// place, in the same shape.
    pub view_of: Option<BufferId>,
}

impl Buffer {
    /// Where the tile starts along dimension `dim` of its tensor.
    pub fn origin(&self, dim: usize) -> usize {
        self.tile.as_ref().map_or(0, |tile| tile.origin[dim])
    }
}

/// One kernel execution.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// What is computed.
    pub op: TaskOp,
    /// Buffers only read, by slot.
    pub reads: Vec<BufferId>,
    /// Buffers written, by slot; some operators also read them.
    pub writes: Vec<BufferId>,
    /// Where.
    pub device: DeviceId,
    /// The layer of the model it comes from.
    pub layer: Arc<str>,
    /// Which microbatch it belongs to; work shared by all comes last.
    pub microbatch: u32,
}

/// All tasks of a step.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct TaskGraph {
    /// The model's name.
    pub name: String,
    /// Every buffer.
    pub buffers: IdVec<BufferId, Buffer>,
    /// Every task, in an order that gives the step its meaning.
    pub tasks: IdVec<TaskId, Task>,
    /// What the host reads after a step, by name; a tensor in tiles is named once for each.
    pub outputs: Vec<(String, BufferId)>,
}

impl TaskGraph {
    /// The buffer that owns the bytes of `buffer`.
    pub fn root(&self, buffer: BufferId) -> BufferId {
        let mut root = buffer;
        while let Some(parent) = self.buffers[root].view_of {
            root = parent;
        }
        root
    }

    /// The buffer that stands for `buffer`: itself, or where one device stands for several what that device has in its place.
    pub fn image(&self, buffer: BufferId) -> BufferId {
        let Buffer { device, view_of, .. } = self.buffers[buffer];
        view_of.filter(|&of| self.buffers[of].device != device).unwrap_or(buffer)
    }

    /// Whether some devices stand for others: such a graph can be scheduled and simulated, not run.
    pub fn has_images(&self) -> bool {
        self.buffers.ids().any(|buffer| self.image(buffer) != buffer)
    }
}
