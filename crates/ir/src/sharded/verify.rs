//! What holds for every sharded graph:
//!
//! 1. a buffer has a group for every tile; a view has the tiles and groups of the buffer it shows, each of the same bytes;
//! 2. a task has a group for every place of its grid; the maps of its operands give their tilings;
//! 3. a task reads only what the host or an earlier task wrote, and not a buffer it writes except where its operator
//!    says so;
//! 4. inputs are written by no task, parameters and state only by operators that update them;
//! 5. a movement keeps element type and extents, and its result has no more partial sums than its operand;
//! 6. the steps of a chain read what is there, and its tiles have one size;
//! 7. every output and gradient is written by a task.

use super::{Operand, ShardedBuffer, ShardedGraph, ShardedTask};
use crate::IdVec;
use crate::tasks::{BufferId, Role, TaskId, TaskOp};

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum ShardedError {
    /// A buffer does not fit its groups or what it shows.
    #[error(
        "{buffer} has {groups} device groups for {tiles} tiles, or differs in bytes or groups from what it shows"
    )]
    Buffer { buffer: BufferId, groups: usize, tiles: usize },
    /// An operand's map does not give its tiling, or the grid has not a group for every place.
    #[error("{task} ({layer}): the grid does not fit {buffer} or its device groups")]
    Grid { task: TaskId, layer: String, buffer: BufferId },
    /// A task reads bytes that no task wrote.
    #[error("{task} ({layer}) reads {buffer}, which nothing has written before it")]
    Unwritten { task: TaskId, layer: String, buffer: BufferId },
    /// A task writes what it must not.
    #[error("{task} ({layer}) writes {buffer}, which is {why}")]
    Written { task: TaskId, layer: String, buffer: BufferId, why: &'static str },
    /// A movement changes more than the tiling.
    #[error("{task} ({layer}) moves {from} to {to}: not the same tensor, or more partial sums than before")]
    Move { task: TaskId, layer: String, from: BufferId, to: BufferId },
    /// A movement has not one operand and one result.
    #[error("{task} ({layer}) is a movement: it reads one buffer and writes one")]
    Sides { task: TaskId, layer: String },
    /// A chain contradicts itself.
    #[error("{task} ({layer}) is no chain: {why}")]
    Chain { task: TaskId, layer: String, why: &'static str },
    /// An output or gradient is never written.
    #[error("{buffer} is to be read after the step but no task writes it")]
    Missing { buffer: BufferId },
}

impl ShardedGraph {
    /// Checks every invariant of this file's head; all broken ones are reported.
    pub fn verify(&self) -> Result<(), Vec<ShardedError>> {
        let wrong = |(id, buffer): (BufferId, &ShardedBuffer)| match self.fits(id, buffer) {
            true => None,
            false => {
                let (groups, tiles) = (buffer.groups.len(), buffer.ty.tiles());
                Some(ShardedError::Buffer { buffer: id, groups, tiles })
            }
        };
        let mut errors: Vec<_> = self.buffers.iter().filter_map(wrong).collect();
        if !errors.is_empty() {
            return Err(errors);
        }
        let mut written: IdVec<BufferId, bool> = self.buffers.iter().map(|(_, b)| b.role.is_fed()).collect();
        for (id, task) in self.tasks.iter() {
            errors.extend(self.check_shape(id, task));
            errors.extend(self.check_chain(id, task));
            self.check_access(id, task, &mut written, &mut errors);
        }
        let wanted = self.outputs.iter().map(|&(_, buffer)| buffer);
        let wanted = wanted.chain(self.gradients.iter().map(|&(_, gradient)| gradient)).chain(self.loss);
        errors.extend(
            wanted.filter(|&b| !written[self.root(b)]).map(|buffer| ShardedError::Missing { buffer }),
        );
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    fn fits(&self, id: BufferId, buffer: &ShardedBuffer) -> bool {
        let shown = buffer.view_of.is_none_or(|of| {
            let shown = &self.buffers[of];
            of < id && shown.ty.tile().bytes() == buffer.ty.tile().bytes() && shown.groups == buffer.groups
        });
        shown && buffer.groups.len() == buffer.ty.tiles()
    }

    fn check_shape(&self, id: TaskId, task: &ShardedTask) -> Option<ShardedError> {
        let layer = || task.layer.clone();
        if matches!(task.op, TaskOp::Move { .. }) {
            let ([from], [to]) = (&task.reads[..], &task.writes[..]) else {
                return Some(ShardedError::Sides { task: id, layer: layer() });
            };
            let (from, to) = (from.buffer, to.buffer);
            let (a, b) = (&self.buffers[from].ty, &self.buffers[to].ty);
            let same = a.global() == b.global() && a.sum_degree().is_multiple_of(b.sum_degree());
            return (!same).then(|| ShardedError::Move { task: id, layer: layer(), from, to });
        }
        let places = task.extents.iter().fold(1, |places: usize, &extent| places.saturating_mul(extent));
        let fits = |operand: &&Operand| {
            let ty = &self.buffers[operand.buffer].ty;
            let known = operand.map.dims.len() == ty.dims().len();
            known && operand.map.tiling(&ty.global(), &task.extents).as_ref() == Some(ty)
        };
        let wrong = task.reads.iter().chain(&task.writes).find(|operand| !fits(operand));
        let wrong = wrong.or_else(|| task.writes.first().filter(|_| places != task.groups.len()));
        wrong.map(|operand| ShardedError::Grid { task: id, layer: layer(), buffer: operand.buffer })
    }

    fn check_chain(&self, id: TaskId, task: &ShardedTask) -> Option<ShardedError> {
        let TaskOp::Chain { steps, results } = &task.op else { return None };
        let tiles = |operands: &[Operand]| -> Vec<_> {
            operands.iter().map(|operand| self.buffers[operand.buffer].ty.tile()).collect()
        };
        let why = steps.check(results, &tiles(&task.reads), &tiles(&task.writes)).err()?;
        Some(ShardedError::Chain { task: id, layer: task.layer.clone(), why })
    }

    fn check_access(
        &self,
        id: TaskId,
        task: &ShardedTask,
        written: &mut IdVec<BufferId, bool>,
        errors: &mut Vec<ShardedError>,
    ) {
        let layer = || task.layer.clone();
        let updated = task.written_buffers().enumerate().filter(|&(slot, _)| task.op.reads_write(slot));
        for buffer in task.read_buffers().chain(updated.map(|(_, buffer)| buffer)) {
            if !written[self.root(buffer)] {
                errors.push(ShardedError::Unwritten { task: id, layer: layer(), buffer });
            }
        }
        for (slot, buffer) in task.written_buffers().enumerate() {
            let root = self.root(buffer);
            let others = task.read_buffers().chain(task.written_buffers().take(slot));
            let why = match self.buffers[root].role {
                _ if others.into_iter().any(|other| self.root(other) == root) => Some("also another operand"),
                Role::Input => Some("an input"),
                Role::Table => Some("a table"),
                Role::Param | Role::State if !task.op.reads_write(slot) => Some("kept across steps"),
                _ => None,
            };
            errors.extend(why.map(|why| ShardedError::Written { task: id, layer: layer(), buffer, why }));
            written[root] = true;
        }
    }
}
