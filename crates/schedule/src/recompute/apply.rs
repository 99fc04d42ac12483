//! Runs chosen tasks of the forward pass again where the backward pass needs their results.
//!
//! Needs: a verified graph.
//! Gives: a graph with the same meaning. Before the first backward reader of a chosen buffer stands a copy of its task
//! that writes a new buffer, read from there on; before it copies of the tasks whose chosen results it reads in turn.
//! Operands that are not chosen are read once more, if they still hold what they held; if not, the task is not repeated
//! and its results are kept.

use std::collections::HashMap;

use phalanx_ir::IdVec;
use phalanx_ir::tasks::{Buffer, BufferId, Role, Task, TaskGraph, TaskId, TaskOp};

use super::RecomputeChoice;
use super::twins::Twins;
use super::uses::Uses;

/// The graph that computes `choice` again.
pub fn apply(graph: &TaskGraph, choice: &RecomputeChoice) -> TaskGraph {
    match Uses::of(graph) {
        Some(uses) if !choice.is_empty() => Rewrite::new(&uses, choice).run(),
        _ => graph.clone(),
    }
}

/// What has been decided about a task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It runs once.
    Once,
    /// It will be repeated when something reads its results.
    Chosen,
    /// It has been repeated.
    Repeated,
}

struct Rewrite<'a> {
    uses: &'a Uses<'a>,
    twins: Twins,
    fates: IdVec<TaskId, Fate>,
    /// The task that wrote each buffer last, as far as the list has been walked.
    writers: IdVec<BufferId, Option<TaskId>>,
    /// The results of repeated tasks, by the buffers they replace.
    repeats: HashMap<BufferId, BufferId>,
    /// New views, by the view that each looks like and the buffer it shows.
    views: HashMap<(BufferId, BufferId), BufferId>,
    /// What was sent for a buffer, by movement.
    sent: HashMap<(usize, BufferId), BufferId>,
    /// Whether a task of the graph is in the list.
    listed: IdVec<TaskId, bool>,
    buffers: IdVec<BufferId, Buffer>,
    tasks: IdVec<TaskId, Task>,
}

impl<'a> Rewrite<'a> {
    fn new(uses: &'a Uses<'a>, choice: &RecomputeChoice) -> Self {
        let graph = uses.graph;
        let mut fates: IdVec<TaskId, Fate> = graph.tasks.ids().map(|_| Fate::Once).collect();
        let producers = choice.iter().filter_map(|buffer| uses.producer(uses.root(buffer)));
        for task in producers.filter(|&task| uses.is_repeatable(task)) {
            fates[task] = Fate::Chosen;
        }
        Rewrite {
            uses,
            twins: Twins::of(uses),
            fates,
            writers: graph.buffers.ids().map(|_| None).collect(),
            repeats: HashMap::new(),
            views: HashMap::new(),
            sent: HashMap::new(),
            listed: graph.tasks.ids().map(|_| false).collect(),
            buffers: graph.buffers.clone(),
            tasks: IdVec::new(),
        }
    }

    fn run(mut self) -> TaskGraph {
        let graph = self.uses.graph;
        for (id, task) in graph.tasks.iter() {
            if id < self.uses.backward {
                self.list(id, task.clone());
            } else if !self.listed[id] {
                let reads = task.reads.iter().map(|&read| self.read_backward(task, read)).collect();
                self.list(id, Task { reads, ..task.clone() });
            }
        }
        let Rewrite { buffers, tasks, .. } = self;
        TaskGraph { name: graph.name.clone(), buffers, tasks, outputs: graph.outputs.clone() }
    }

    /// Adds a task of the graph to the list.
    fn list(&mut self, id: TaskId, task: Task) {
        if let TaskOp::Send { movement } = task.op {
            let before = &self.uses.graph.tasks[id].reads;
            let pairs = before.iter().zip(&task.reads);
            self.sent.extend(pairs.map(|(&before, &now)| ((movement, before), now)));
        }
        for root in self.uses.results(id) {
            self.writers[root] = Some(id);
        }
        self.listed[id] = true;
        self.tasks.push(task);
    }

    /// What a task of the backward pass reads instead of `buffer`, which is made if need be.
    fn read_backward(&mut self, task: &Task, buffer: BufferId) -> BufferId {
        if let TaskOp::Receive { movement } = task.op
            && let Some(&sent) = self.sent.get(&(movement, buffer))
        {
            return sent;
        }
        let root = self.uses.root(buffer);
        if let Some(producer) = self.uses.producer(root) {
            self.repeat(producer);
        }
        self.current(buffer)
    }

    /// The buffer that now holds what `buffer` holds.
    fn current(&mut self, buffer: BufferId) -> BufferId {
        match self.repeats.get(&self.uses.root(buffer)) {
            Some(&root) => self.show(buffer, root),
            None => buffer,
        }
    }

    /// Repeats a task if it is chosen and was not repeated yet, after the chosen ones whose results it reads.
    fn repeat(&mut self, task: TaskId) {
        let (mut open, mut found) = (vec![task], Vec::new());
        while let Some(task) = open.pop() {
            if self.fates[task] != Fate::Chosen {
                continue;
            }
            if !self.operands_hold(task) {
                self.fates[task] = Fate::Once;
                continue;
            }
            self.fates[task] = Fate::Repeated;
            found.push(task);
            open.extend(self.uses.operands(task).filter_map(|root| self.uses.producer(root)));
        }
        found.sort_unstable();
        found.into_iter().for_each(|task| self.run_again(task));
    }

    /// Whether everything that a task has read still holds the same. What is chosen does: it is written once.
    fn operands_hold(&self, task: TaskId) -> bool {
        self.uses.operands(task).all(|root| self.writers[root].is_none_or(|writer| writer < task))
    }

    /// Lists a copy of a task that writes new buffers.
    fn run_again(&mut self, id: TaskId) {
        let task = &self.uses.graph.tasks[id];
        let reads = task.reads.iter().map(|&read| self.read_again(read, task.microbatch)).collect();
        for root in self.uses.results(id) {
            let buffer = Buffer { role: Role::Temp, ..self.buffers[root].clone() };
            self.repeats.insert(root, self.buffers.push(buffer));
        }
        let writes = task.writes.iter().map(|&write| self.current(write)).collect();
        self.tasks.push(Task { reads, writes, ..task.clone() });
    }

    /// What a repeated task of a microbatch reads instead of `buffer`.
    fn read_again(&mut self, buffer: BufferId, microbatch: u32) -> BufferId {
        let Some(twin) = self.twins.find(self.uses, self.uses.root(buffer), microbatch) else {
            return self.current(buffer);
        };
        for at in 0..self.twins.tasks(twin.movement).len() {
            let id = self.twins.tasks(twin.movement)[at];
            if !self.listed[id] {
                self.list(id, self.uses.graph.tasks[id].clone());
            }
        }
        self.show(buffer, twin.buffer)
    }

    /// A buffer with the bytes of `root` that looks like `buffer`.
    fn show(&mut self, buffer: BufferId, root: BufferId) -> BufferId {
        let Some(parent) = self.uses.graph.buffers[buffer].view_of else { return root };
        if let Some(&known) = self.views.get(&(buffer, root)) {
            return known;
        }
        let view_of = Some(self.show(parent, root));
        let view = self.buffers.push(Buffer { view_of, ..self.uses.graph.buffers[buffer].clone() });
        self.views.insert((buffer, root), view);
        view
    }
}
