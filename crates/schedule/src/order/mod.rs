//! One legal order of all tasks, found by letting every device run its tasks in a simulation.
//!
//! A device runs one task at a time and takes the next as soon as it is free: of those that are ready, the earliest
//! microbatch first, then as the task graph lists them. With several microbatches this finishes the backward tasks of one
//! before the next one's forward tasks begin, so only one microbatch's activations are alive. On pipelines the order is
//! 1F1B; see [`pipeline`]. Nothing depends on clocks or hashes: the same graph gives the same order.

mod cost;
mod pipeline;
mod queue;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use phalanx_ir::tasks::{TaskGraph, TaskId};
use phalanx_ir::{Id, IdVec};

use crate::index::Index;
use pipeline::Pipeline;
use queue::Queues;

/// All tasks in the order in which they start.
pub(crate) struct Order {
    /// The tasks.
    pub tasks: Vec<TaskId>,
    /// For each position, how many different moments the simulation had seen. Tasks that start at the same moment are
    /// independent of each other; on one device the moment is the position.
    pub ticks: Vec<u32>,
}

pub(crate) fn order(tasks: &TaskGraph, index: &Index, predecessors: &IdVec<TaskId, Vec<TaskId>>) -> Order {
    let pipeline = Pipeline::find(tasks, index, predecessors);
    let mut simulation = Simulation::new(tasks, index, predecessors, Queues::new(tasks, index, pipeline));
    simulation.run();
    simulation.order
}

/// Tasks by the tasks they wait for, in one array.
struct Successors {
    starts: Vec<u32>,
    tasks: Vec<TaskId>,
}

impl Successors {
    fn new(predecessors: &IdVec<TaskId, Vec<TaskId>>) -> Self {
        let mut starts = vec![0; predecessors.len() + 1];
        for (_, before) in predecessors.iter() {
            before.iter().for_each(|other| starts[other.index() + 1] += 1);
        }
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let end = starts[predecessors.len()];
        let mut tasks = vec![TaskId::from_index(0); end as usize];
        let mut next = starts.clone();
        for (id, before) in predecessors.iter() {
            for other in before {
                tasks[next[other.index()] as usize] = id;
                next[other.index()] += 1;
            }
        }
        Successors { starts, tasks }
    }

    fn range(&self, task: TaskId) -> std::ops::Range<usize> {
        self.starts[task.index()] as usize..self.starts[task.index() + 1] as usize
    }
}

struct Simulation<'a> {
    tasks: &'a TaskGraph,
    index: &'a Index,
    successors: Successors,
    /// How many predecessors of each task are not complete.
    owed: Vec<u32>,
    queues: Queues,
    /// Tasks under way, by the time they end.
    running: BinaryHeap<Reverse<(u64, TaskId)>>,
    busy: Vec<bool>,
    /// Lanes that may be able to start something.
    awake: Vec<usize>,
    now: u64,
    tick: u32,
    order: Order,
}

impl<'a> Simulation<'a> {
    fn new(
        tasks: &'a TaskGraph,
        index: &'a Index,
        predecessors: &IdVec<TaskId, Vec<TaskId>>,
        mut queues: Queues,
    ) -> Self {
        let owed: Vec<u32> = predecessors.iter().map(|(_, before)| before.len() as u32).collect();
        for task in tasks.tasks.ids().filter(|task| owed[task.index()] == 0) {
            queues.push(index.lane(task), task);
        }
        let lanes = index.devices.len();
        let capacity = tasks.tasks.len();
        Simulation {
            tasks,
            index,
            successors: Successors::new(predecessors),
            owed,
            queues,
            running: BinaryHeap::new(),
            busy: vec![false; lanes],
            awake: (0..lanes).collect(),
            now: 0,
            tick: 0,
            order: Order { tasks: Vec::with_capacity(capacity), ticks: Vec::with_capacity(capacity) },
        }
    }

    fn run(&mut self) {
        while self.order.tasks.len() < self.tasks.tasks.len() {
            self.start_all();
            if self.running.is_empty() {
                // Only the limit of a pipeline can hold back every device, because no task waits for a later one.
                let (lane, task) = self.queues.lift().expect("some task is ready while not all have run");
                self.start(lane, task);
                self.tick += 1;
            }
            self.complete_next();
        }
    }

    /// Every free device takes its next task.
    fn start_all(&mut self) {
        let mut awake = std::mem::take(&mut self.awake);
        awake.sort_unstable();
        awake.dedup();
        let before = self.order.tasks.len();
        for &lane in &awake {
            if !self.busy[lane]
                && let Some(task) = self.queues.pop(lane)
            {
                self.start(lane, task);
            }
        }
        self.tick += u32::from(self.order.tasks.len() > before);
        awake.clear();
        self.awake = awake;
    }

    fn start(&mut self, lane: usize, task: TaskId) {
        self.order.tasks.push(task);
        self.order.ticks.push(self.tick);
        self.busy[lane] = true;
        self.running.push(Reverse((self.now + cost::cost(self.tasks, task), task)));
    }

    /// Moves on to the time when the next tasks end, and ends all of them.
    fn complete_next(&mut self) {
        let Some(&Reverse((time, _))) = self.running.peek() else { return };
        self.now = time;
        while let Some(&Reverse((end, task))) = self.running.peek()
            && end == time
        {
            self.running.pop();
            let lane = self.index.lane(task);
            self.busy[lane] = false;
            self.awake.push(lane);
            self.queues.complete(lane, task);
            for at in self.successors.range(task) {
                self.arrive(self.successors.tasks[at]);
            }
        }
    }

    fn arrive(&mut self, task: TaskId) {
        let owed = &mut self.owed[task.index()];
        *owed -= 1;
        if *owed == 0 {
            let lane = self.index.lane(task);
            self.queues.push(lane, task);
            self.awake.push(lane);
        }
    }
}
