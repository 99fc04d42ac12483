//! One legal order of all tasks, found by letting every device run its tasks in a simulation.
//!
//! A device runs one task at a time and takes the next as soon as it is free: of those that are ready, the earliest
//! microbatch first, then as the task graph lists them. With several microbatches this finishes the backward tasks of one
//! before the next one's forward tasks begin, so only one microbatch's activations are alive. On pipelines the order is
//! 1F1B; see [`pipeline`]. What has a lane of its own is received beside; see [`transfers`]. Activations that are
//! computed again wait until they are due; see [`late`]. Nothing depends on clocks or hashes: the same graph and costs
//! give the same order.

mod late;
mod pipeline;
mod queue;
mod searched;
mod transfers;

pub(crate) use searched::searched;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use phalanx_ir::tasks::{TaskGraph, TaskId};
use phalanx_ir::{Id, IdVec};

use crate::TaskCosts;
use crate::cost::Parts;
use crate::index::Index;
use crate::lanes::{Countdown, LaneClocks, Links};
use crate::rows::Rows;
use pipeline::Pipeline;
use queue::Queues;
use transfers::Transfers;

/// All tasks in the order in which they start.
pub(crate) struct Order {
    /// The tasks.
    pub tasks: Vec<TaskId>,
    /// For each position, how many different moments the simulation had seen. Tasks that start at the same moment are
    /// independent of each other; on one device the moment is the position.
    pub ticks: Vec<u32>,
    /// Tasks of transfer lanes with the last moment before they ended: other lanes go on meanwhile.
    pub ends: Vec<(u32, TaskId)>,
}

/// What an order is made from.
pub(crate) struct Given<'a> {
    pub tasks: &'a TaskGraph,
    pub index: &'a Index,
    pub predecessors: &'a IdVec<TaskId, Vec<TaskId>>,
    pub costs: &'a TaskCosts,
    pub parts: &'a Parts,
}

/// The order; with lanes of transfers, at most `prefetch` that need memory are ahead of their use on each device.
pub(crate) fn order(given: &Given<'_>, prefetch: Option<u32>) -> Order {
    let held = late::hold_back(given.tasks, given.predecessors);
    let given = &Given { predecessors: held.as_ref().unwrap_or(given.predecessors), ..*given };
    let &Given { tasks, index, predecessors, .. } = given;
    let pipeline = Pipeline::find(tasks, index, predecessors);
    let queues = Queues::new(tasks, index, predecessors, pipeline);
    let transfers = Transfers::new(tasks, index, |task| queues.microbatch(task), prefetch);
    let mut simulation = Simulation::new(given, queues, transfers);
    simulation.run();
    simulation.order
}

/// The task that begins the backward pass, if there is one.
pub(crate) fn first_backward(tasks: &TaskGraph) -> Option<TaskId> {
    tasks.tasks.iter().find(|(_, task)| task.op.is_gradient()).map(|(id, _)| id)
}

struct Simulation<'a> {
    tasks: &'a TaskGraph,
    index: &'a Index,
    costs: &'a TaskCosts,
    parts: &'a Parts,
    clocks: LaneClocks<u64>,
    links: Links,
    successors: Rows<TaskId>,
    countdown: Countdown,
    queues: Queues,
    transfers: Transfers,
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
    fn new(given: &Given<'a>, queues: Queues, transfers: Transfers) -> Self {
        let &Given { tasks, index, predecessors, costs, parts } = given;
        let lanes = index.n_lanes();
        let capacity = tasks.tasks.len();
        let owed = predecessors.iter().map(|(_, before)| before.len() as u32);
        let released = |id: TaskId| predecessors[id].iter().map(move |other| (other.index(), id));
        let pairs = (0..capacity).map(TaskId::from_index).flat_map(released);
        let mut simulation = Simulation {
            tasks,
            index,
            costs,
            parts,
            clocks: LaneClocks::new(lanes),
            links: Links::new(costs.topology.as_ref(), index.n_links()),
            successors: Rows::group(capacity, pairs),
            countdown: Countdown::new(owed.collect()),
            queues,
            transfers,
            running: BinaryHeap::new(),
            busy: vec![false; lanes],
            awake: (0..lanes).collect(),
            now: 0,
            tick: 0,
            order: Order {
                tasks: Vec::with_capacity(capacity),
                ticks: Vec::with_capacity(capacity),
                ends: Vec::new(),
            },
        };
        for task in tasks.tasks.ids().filter(|task| predecessors[*task].is_empty()) {
            simulation.ready(task);
        }
        simulation
    }

    fn run(&mut self) {
        while self.order.tasks.len() < self.tasks.tasks.len() {
            self.start_all();
            if self.running.is_empty() {
                // Only limits can hold back every device, because no task waits for a later one.
                if !self.transfers.lift(&mut self.awake) {
                    let (lane, task) = self.queues.lift().expect("some task is ready while not all have run");
                    self.start(lane, task);
                    self.tick += 1;
                }
            }
            self.complete_next();
        }
    }

    /// Every free device takes its next task.
    fn start_all(&mut self) {
        let before = self.order.tasks.len();
        let mut awake = Vec::new();
        while !self.awake.is_empty() {
            std::mem::swap(&mut awake, &mut self.awake);
            awake.sort_unstable();
            awake.dedup();
            for &lane in &awake {
                if !self.busy[lane]
                    && let Some(task) = self.next(lane)
                {
                    self.start(lane, task);
                }
            }
            awake.clear();
        }
        self.tick += u32::from(self.order.tasks.len() > before);
    }

    fn next(&mut self, lane: usize) -> Option<TaskId> {
        match self.index.is_beside(lane) {
            true => self.transfers.pop(lane, &mut self.awake),
            false => self.queues.pop(lane),
        }
    }

    fn start(&mut self, lane: usize, task: TaskId) {
        self.order.tasks.push(task);
        self.order.ticks.push(self.tick);
        self.busy[lane] = true;
        let to = self.index.device(lane);
        let arrival = |start| self.links.arrival(start, to, self.parts.of(task));
        let span = self.clocks.run(lane, self.now, self.costs.tasks[task], arrival);
        self.running.push(Reverse((span.end, task)));
        self.transfers.start(task, &self.tasks.tasks[task], self.index, &mut self.awake);
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
            match self.index.is_beside(lane) {
                true => self.order.ends.push((self.tick.saturating_sub(1), task)),
                false => self.queues.complete(lane, task),
            }
            for at in 0..self.successors.row(task.index()).len() {
                let successor = self.successors.row(task.index())[at];
                if self.countdown.arrive(successor.index(), time).is_some() {
                    self.ready(successor);
                }
            }
        }
    }

    fn ready(&mut self, task: TaskId) {
        let lane = self.index.lane(task);
        match self.index.is_beside(lane) {
            true => self.transfers.push(lane, task, &mut self.awake),
            false => {
                self.queues.push(lane, task);
                self.awake.push(lane);
            }
        }
    }
}
