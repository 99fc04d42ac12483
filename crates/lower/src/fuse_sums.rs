//! Lets the task that computes the last addend of a gradient sum add it in place.
//!
//! Needs: a verified sharded graph.
//! Gives: the same values, with no `add(a, b)` where b is computed only for it by a task that can accumulate, and a is a
//! temporary that a task computed and that is not read after that task starts; neither is a parameter's gradient itself.
//! The bits stay: the task computes a + b. What a movement wrote is left alone, and what a movement read while its target
//! is of use: they may be the same bytes.

use phalanx_ir::sharded::{ShardedGraph, ShardedTask};
use phalanx_ir::tasks::{BufferId, Role, TaskId, TaskOp};
use phalanx_ir::{Binary, Id, IdVec};

use crate::rewrite::{Touches, rebuild};
use crate::{LowerError, LowerOptions};

pub fn fuse_sums(sharded: ShardedGraph, _options: &LowerOptions) -> Result<ShardedGraph, LowerError> {
    let mut sums = Sums {
        touches: Touches::of(&sharded),
        list: sharded.tasks.iter().map(|(_, task)| Some(task.clone())).collect(),
        stands_for: sharded.buffers.ids().map(|_| None).collect(),
        gradient: sharded.buffers.ids().map(|_| false).collect(),
        sharded,
    };
    for index in 0..sums.sharded.gradients.len() {
        let (_, gradient) = sums.sharded.gradients[index];
        let root = sums.sharded.root(gradient);
        sums.gradient[root] = true;
    }
    for id in sums.sharded.tasks.ids().collect::<Vec<_>>() {
        sums.fuse(id);
    }
    Ok(sums.finish())
}

struct Sums {
    sharded: ShardedGraph,
    touches: Touches,
    list: Vec<Option<ShardedTask>>,
    /// The buffer that now holds what this one held.
    stands_for: IdVec<BufferId, Option<BufferId>>,
    /// Whether the bytes are the gradient of a parameter, which updates will read.
    gradient: IdVec<BufferId, bool>,
}

impl Sums {
    fn now(&self, buffer: BufferId) -> BufferId {
        let mut now = buffer;
        while let Some(next) = self.stands_for[now] {
            now = next;
        }
        now
    }

    fn root(&self, buffer: BufferId) -> BufferId {
        self.now(self.sharded.root(buffer))
    }

    fn fuse(&mut self, id: TaskId) -> Option<()> {
        let add = self.list[id.index()].as_ref()?;
        if add.op != (TaskOp::Binary { kind: Binary::Add }) {
            return None;
        }
        let [a, b, sum] = [add.reads[0].buffer, add.reads[1].buffer, add.writes[0].buffer];
        let like = |x: BufferId, y: BufferId| {
            let [x, y] = [x, y].map(|buffer| &self.sharded.buffers[buffer]);
            x.ty == y.ty && x.groups == y.groups
        };
        // Both addends own their bytes, so that the sum can take the first one's place.
        let own = [a, b, sum].iter().all(|&buffer| self.sharded.buffers[buffer].view_of.is_none());
        if !own || !like(a, sum) || !like(b, sum) || self.gradient[a] || self.gradient[b] {
            return None;
        }
        let now = self.now(a);
        let producer = self.sole_producer(b, id)?;
        let task = self.list[producer.index()].as_ref()?;
        let op = task.op.clone().accumulating()?;
        let whole = task.writes[0].buffer == b && task.op.accumulates() == Some(false);
        if !whole || !self.free_at(now, producer, id) {
            return None;
        }
        let task = self.list[producer.index()].as_mut()?;
        task.op = op;
        task.writes[0].buffer = now;
        self.list[id.index()] = None;
        self.stands_for[sum] = Some(now);
        self.touches.readers[now].retain(|&reader| reader != id);
        let readers = std::mem::take(&mut self.touches.readers[sum]);
        self.touches.readers[now].extend(readers);
        self.touches.writers[now].push(producer);
        self.gradient[now] |= self.gradient[sum];
        if self.sharded.buffers[sum].role != Role::Temp {
            self.sharded.buffers[now].role = self.sharded.buffers[sum].role;
        }
        Some(())
    }

    /// The task that writes `buffer`, if it is a temporary that only `reader` reads.
    fn sole_producer(&self, buffer: BufferId, reader: TaskId) -> Option<TaskId> {
        let alone =
            self.touches.readers[buffer] == [reader] && self.sharded.buffers[buffer].role == Role::Temp;
        match self.touches.writers[buffer][..] {
            [producer] if alone && self.stands_for[buffer].is_none() => Some(producer),
            _ => None,
        }
    }

    /// Whether `buffer` is a temporary that tasks wrote, all before `task`, and read from `task` on only by `reader`.
    fn free_at(&self, buffer: BufferId, task: TaskId, reader: TaskId) -> bool {
        let computed = |&writer: &TaskId| {
            let op = self.list[writer.index()].as_ref().map(|task| &task.op);
            writer < task && !matches!(op, Some(TaskOp::Move { .. }))
        };
        let reads = self.list[task.index()].as_ref().into_iter().flat_map(ShardedTask::read_buffers);
        self.sharded.buffers[buffer].role == Role::Temp
            && self.touches.writers[buffer].iter().all(computed)
            && self.is_read_before(buffer, task, reader)
            && !reads.into_iter().any(|read| self.root(read) == buffer)
    }

    /// Whether nothing but `reader` reads `buffer` from `task` on, nor what movements made of it: that may be the same bytes.
    fn is_read_before(&self, buffer: BufferId, task: TaskId, reader: TaskId) -> bool {
        self.touches.readers[buffer].iter().filter(|&&other| other != reader).all(|&other| {
            let moved =
                self.list[other.index()].as_ref().filter(|task| matches!(task.op, TaskOp::Move { .. }));
            let mut targets = moved.into_iter().flat_map(|task| &task.writes);
            other < task && targets.all(|target| self.is_read_before(self.root(target.buffer), task, reader))
        })
    }

    fn finish(mut self) -> ShardedGraph {
        let mut list: Vec<ShardedTask> = std::mem::take(&mut self.list).into_iter().flatten().collect();
        for operand in list.iter_mut().flat_map(|task| task.reads.iter_mut().chain(&mut task.writes)) {
            operand.buffer = self.now(operand.buffer);
        }
        let mut sharded = self.sharded.clone();
        sharded.gradients.iter_mut().for_each(|(_, gradient)| *gradient = self.now(*gradient));
        sharded.outputs.iter_mut().for_each(|(_, output)| *output = self.now(*output));
        for (_, buffer) in sharded.buffers.iter_mut() {
            buffer.view_of = buffer.view_of.map(|of| self.now(of));
        }
        rebuild(&sharded, list)
    }
}
