//! Tasks on tiled tensors: what all devices compute in one step, written once for each tensor instead of once for each
//! tile. Lowering works here as long as it can; `expand-shards` then makes [`crate::tasks::TaskGraph`] of it.
//!
//! The list of tasks is a program in the sequential sense: a task reads what the last earlier writer of a buffer left
//! there. A buffer is a tensor with a tiling and a group for every tile; a gradient's tiling is the dual of its value's
//! (see [`crate::parallel`]), so the reconstruction law holds for every buffer.
//!
//! A task is a grid of equal tasks, one group each. Its operands name for every place of the grid the tile it uses. A
//! `move` task has no grid: it gives its result the value of its operand, whatever the two tilings and groups are.

mod text;
mod verify;

pub use verify::ShardedError;

use std::sync::Arc;

use crate::IdVec;
use crate::parallel::{DeviceGroup, ParallelType, TileMap};
use crate::tasks::{BufferId, MoveKind, Role, TaskId, TaskOp};

/// A tiled tensor in the memories of its devices.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardedBuffer {
    /// The tensor's name, for people.
    pub name: String,
    /// Element type and tiling.
    pub ty: ParallelType,
    /// The devices that hold each tile.
    pub groups: Arc<[DeviceGroup]>,
    /// Why it exists.
    pub role: Role,
    /// The buffer whose bytes these are: tile by tile, in another shape.
    pub view_of: Option<BufferId>,
}

/// A buffer as a task uses it.
#[derive(Clone, Debug, PartialEq)]
pub struct Operand {
    /// The buffer.
    pub buffer: BufferId,
    /// Which of its tiles.
    pub map: TileMap,
}

/// A grid of equal kernel executions, or a movement.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardedTask {
    /// What is computed.
    pub op: TaskOp,
    /// Operands only read, by slot.
    pub reads: Vec<Operand>,
    /// Operands written, by slot; some operators also read them.
    pub writes: Vec<Operand>,
    /// Extents of the grid; empty for one task and for a movement.
    pub extents: Vec<usize>,
    /// The devices of every place of the grid, the last axis fastest; empty for a movement.
    pub groups: Arc<[DeviceGroup]>,
    /// The layer of the model it comes from.
    pub layer: String,
    /// In which microbatch of the step it is due; work shared by all microbatches comes with the last.
    pub microbatch: u32,
}

/// All tasks of a step.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ShardedGraph {
    /// The model's name.
    pub name: String,
    /// Every buffer.
    pub buffers: IdVec<BufferId, ShardedBuffer>,
    /// Every task, in an order that gives the step its meaning.
    pub tasks: IdVec<TaskId, ShardedTask>,
    /// What the host reads after a step, by name.
    pub outputs: Vec<(String, BufferId)>,
    /// Parameters with their gradients.
    pub gradients: Vec<(BufferId, BufferId)>,
    /// The scalar that training makes small.
    pub loss: Option<BufferId>,
}

impl ShardedGraph {
    /// The buffer that owns the bytes of `buffer`.
    pub fn root(&self, buffer: BufferId) -> BufferId {
        let mut root = buffer;
        while let Some(parent) = self.buffers[root].view_of {
            root = parent;
        }
        root
    }

    /// The buffer called `name` whose role satisfies `wanted`.
    pub fn find(&self, name: &str, wanted: impl Fn(Role) -> bool) -> Option<BufferId> {
        self.buffers.iter().find(|(_, buffer)| buffer.name == name && wanted(buffer.role)).map(|(id, _)| id)
    }

    /// Appends a movement that gives `to` the value of `from`.
    pub fn push_move(&mut self, from: BufferId, to: BufferId, layer: &str, microbatch: u32) -> TaskId {
        let whole = |buffer: BufferId| {
            let dims = vec![Vec::new(); self.buffers[buffer].ty.dims().len()];
            Operand { buffer, map: TileMap { dims, ..TileMap::default() } }
        };
        let (reads, writes) = (vec![whole(from)], vec![whole(to)]);
        let (extents, groups) = (Vec::new(), Arc::from([]));
        let layer = layer.to_string();
        let op = TaskOp::Move { kind: MoveKind::Any };
        self.tasks.push(ShardedTask { op, reads, writes, extents, groups, layer, microbatch })
    }
}

impl ShardedTask {
    /// The buffers read.
    pub fn read_buffers(&self) -> impl Iterator<Item = BufferId> {
        self.reads.iter().map(|operand| operand.buffer)
    }

    /// The buffers written.
    pub fn written_buffers(&self) -> impl Iterator<Item = BufferId> {
        self.writes.iter().map(|operand| operand.buffer)
    }
}
