//! The ready tasks of every device and which of them is next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use phalanx_ir::IdVec;
use phalanx_ir::tasks::{TaskGraph, TaskId, TaskOp};

use super::pipeline::Pipeline;
use crate::index::Index;

/// Ready tasks, the earliest microbatch first, then as listed.
type Ready = BinaryHeap<Reverse<(u32, TaskId)>>;

/// The ready tasks of one device.
#[derive(Default)]
struct Queue {
    /// Sends: they take no time and others wait for them.
    sends: Ready,
    /// Without a pipeline everything else; with one the forward tasks of microbatches already begun.
    open: Ready,
    /// Backward tasks of a pipeline.
    backward: Ready,
    /// Forward tasks of microbatches not yet begun.
    closed: Ready,
    /// The microbatch of the forward task that ran last, if no other task has run since.
    forward: Option<u32>,
}

pub(super) struct Queues {
    lanes: Vec<Queue>,
    /// The microbatch of every task, and whether it is a send that goes first.
    microbatches: IdVec<TaskId, (u32, bool)>,
    pipeline: Option<Pipeline>,
}

impl Queues {
    pub fn new(
        tasks: &TaskGraph,
        index: &Index,
        predecessors: &IdVec<TaskId, Vec<TaskId>>,
        pipeline: Option<Pipeline>,
    ) -> Self {
        let own = pipeline
            .as_ref()
            .map_or_else(|| due(tasks, predecessors), |pipeline| pipeline.microbatches.clone());
        let microbatches =
            tasks.tasks.iter().map(|(id, task)| (own[id], matches!(task.op, TaskOp::Send { .. })));
        let lanes = index.devices.iter().map(|_| Queue::default()).collect();
        Queues { lanes, microbatches: microbatches.collect(), pipeline }
    }

    /// The microbatch a task belongs to.
    pub fn microbatch(&self, task: TaskId) -> u32 {
        self.microbatches[task].0
    }

    /// `task` is ready.
    pub fn push(&mut self, lane: usize, task: TaskId) {
        let (microbatch, is_send) = self.microbatches[task];
        let queue = &mut self.lanes[lane];
        let ready = match &self.pipeline {
            _ if is_send => &mut queue.sends,
            Some(pipeline) if pipeline.is_backward(task) => &mut queue.backward,
            Some(pipeline) if !pipeline.has_begun(lane, microbatch) => &mut queue.closed,
            _ => &mut queue.open,
        };
        ready.push(Reverse((microbatch, task)));
    }

    /// The task that the device starts now, if there is one.
    pub fn pop(&mut self, lane: usize) -> Option<TaskId> {
        let queue = &mut self.lanes[lane];
        if let Some(Reverse((_, task))) = queue.sends.pop() {
            return Some(task);
        }
        // A forward pass once begun goes on, so that the next stage gets it; otherwise backward tasks come first, so that
        // activations go.
        let goes_on =
            queue.open.peek().is_some_and(|&Reverse((microbatch, _))| queue.forward == Some(microbatch));
        if !goes_on && let Some(Reverse((_, task))) = queue.backward.pop() {
            queue.forward = None;
            return Some(task);
        }
        if let Some(Reverse((microbatch, task))) = queue.open.pop() {
            queue.forward = Some(microbatch);
            return Some(task);
        }
        let allowed = self.pipeline.as_ref().is_some_and(|pipeline| pipeline.allows(lane));
        if allowed { self.begin(lane) } else { None }
    }

    /// Begins the next microbatch of some device against the limit: the earliest that is ready.
    pub fn lift(&mut self) -> Option<(usize, TaskId)> {
        let first = |lane: &usize| self.lanes[*lane].closed.peek().map(|&Reverse(key)| key);
        let ready = (0..self.lanes.len()).filter(|lane| first(lane).is_some());
        let lane = ready.min_by_key(|lane| first(lane))?;
        Some((lane, self.begin(lane)?))
    }

    /// `task` has run.
    pub fn complete(&mut self, lane: usize, task: TaskId) {
        if let Some(pipeline) = &mut self.pipeline {
            pipeline.complete(lane, self.microbatches[task].0);
        }
    }

    fn begin(&mut self, lane: usize) -> Option<TaskId> {
        let queue = &mut self.lanes[lane];
        let Reverse((microbatch, task)) = queue.closed.pop()?;
        while let Some(&Reverse(key)) = queue.closed.peek()
            && key.0 == microbatch
        {
            queue.closed.pop();
            queue.open.push(Reverse(key));
        }
        queue.forward = Some(microbatch);
        self.pipeline.as_mut()?.begin(lane, microbatch);
        Some(task)
    }
}

/// The first microbatch that needs each task: what several share is due with the first of them.
fn due(tasks: &TaskGraph, predecessors: &IdVec<TaskId, Vec<TaskId>>) -> IdVec<TaskId, u32> {
    let mut due: IdVec<TaskId, u32> = tasks.tasks.iter().map(|(_, task)| task.microbatch).collect();
    for (id, before) in predecessors.iter().rev() {
        before.iter().for_each(|&other| due[other] = due[other].min(due[id]));
    }
    due
}
