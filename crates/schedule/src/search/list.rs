//! List scheduling: every lane takes the best unit that it can start, in one simulation of all lanes.
//!
//! What is best is a [`Rule`]. Where memory is limited, a unit that does not fit waits, and when nothing fits, the next
//! unit of the fallback is taken, which always does; see [`MemoryBudget`]. The order found keeps the limits if the fallback does.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use phalanx_ir::Id;

use super::budget::MemoryBudget;
use super::instance::{Instance, UnitId};
use super::problem::LaneId;
use super::simulate::Simulator;
use super::time::Time;

/// How many units of a lane are asked whether they fit before the lane has to wait.
const ASKED: usize = 6;

/// What is best.
pub(super) struct Rule<'a> {
    /// By unit: the smaller, the sooner.
    pub rank: &'a [u32],
    /// At most this many transfers of a lane may be under way or done without the unit that uses them being issued.
    pub ahead: usize,
}

/// The units that stand in front of a lane: those that others use at once, or the rest, as a lane has two queues.
struct Queue {
    /// What it could start now, best first.
    now: BinaryHeap<Reverse<(u32, UnitId)>>,
    /// What it could start later, soonest first.
    later: BinaryHeap<Reverse<(Time, u32, UnitId)>>,
    /// What does not fit; asked again when the bytes of the device change.
    held: Vec<UnitId>,
    /// Transfers issued that no unit has used.
    unused: usize,
    /// When its turn is, and the rank of its best unit: the smallest of all queues goes next.
    turn: (Time, u32),
}

/// It has nothing that could start.
const NEVER: (Time, u32) = (Time(f64::INFINITY), u32::MAX);

impl Default for Queue {
    fn default() -> Self {
        let (now, later) = (BinaryHeap::new(), BinaryHeap::new());
        Queue { now, later, held: Vec::new(), unused: 0, turn: NEVER }
    }
}

impl Queue {
    fn peek(&self) -> Option<UnitId> {
        let later = || self.later.peek().map(|&Reverse((_, _, unit))| unit);
        self.now.peek().map(|&Reverse((_, unit))| unit).or_else(later)
    }

    fn pop(&mut self) {
        if self.now.pop().is_none() {
            self.later.pop();
        }
    }
}

/// The state of the simulation.
struct Lister<'a> {
    simulator: Simulator<'a>,
    rule: &'a Rule<'a>,
    budget: Option<MemoryBudget<'a>>,
    /// By lane: the queue of its transfers that units wait for which are none, and that of all others.
    queues: Vec<Queue>,
    /// By device: its queues.
    queues_of: Vec<Vec<usize>>,
    owed: Vec<u32>,
    is_taken: Vec<bool>,
    is_used: Vec<bool>,
    order: Vec<UnitId>,
}

/// An order of all units by `rule`; `fallback` is the way out when memory is short.
pub(super) fn list<'a>(instance: &'a Instance<'a>, rule: &'a Rule<'a>, fallback: &[UnitId]) -> Vec<UnitId> {
    let mut lister = Lister::new(instance, rule, fallback);
    let mut rest = fallback.iter();
    while lister.order.len() < instance.len() {
        let turn = |&queue: &usize| lister.queues[queue].turn;
        match (0..lister.queues.len()).min_by_key(turn).filter(|queue| turn(queue) < NEVER) {
            Some(queue) => lister.take_from(queue),
            None => {
                let next = rest.find(|unit| !lister.is_taken[unit.index()]);
                let fits = lister.take(*next.expect("the fallback has every unit that is left"));
                debug_assert!(fits, "the first unit of the fallback that is left always fits");
            }
        }
    }
    lister.order
}

impl<'a> Lister<'a> {
    fn new(instance: &'a Instance<'a>, rule: &'a Rule<'a>, fallback: &[UnitId]) -> Self {
        let mut queues_of = vec![Vec::new(); instance.start.len()];
        for (id, lane) in instance.problem.lanes.iter() {
            queues_of[lane.device].extend([2 * id.index(), 2 * id.index() + 1]);
        }
        let mut lister = Lister {
            simulator: Simulator::new(instance),
            rule,
            budget: instance.is_limited().then(|| MemoryBudget::new(instance, fallback)),
            queues: (0..2 * instance.lanes.len()).map(|_| Queue::default()).collect(),
            queues_of,
            owed: instance.before.iter().map(|before| before.len() as u32).collect(),
            is_taken: vec![false; instance.len()],
            is_used: vec![false; instance.len()],
            order: Vec::with_capacity(instance.len()),
        };
        for unit in (0..instance.len()).map(UnitId::from_index) {
            if lister.owed[unit.index()] == 0 {
                lister.enqueue(unit);
            }
        }
        lister
    }

    /// The queue that the unit stands in.
    fn queue_of(&self, unit: UnitId) -> usize {
        let instance = self.simulator.instance;
        let has_use = || instance.behind.row(unit.index()).iter().any(|&other| !instance.is_transfer(other));
        let is_first = instance.is_transfer(unit) && has_use();
        2 * instance.home(unit).index() + usize::from(!is_first)
    }

    /// The best unit of the queue, if it fits.
    fn take_from(&mut self, queue: usize) {
        let unit = self.queues[queue].peek().expect("a queue whose turn it is has a unit");
        self.queues[queue].pop();
        if !self.is_taken[unit.index()] && !self.take(unit) {
            self.queues[queue].held.push(unit);
        }
        self.set_turn(queue);
    }

    /// Appends the unit if it fits.
    fn take(&mut self, unit: UnitId) -> bool {
        if self.budget.as_mut().is_some_and(|budget| !budget.take(unit)) {
            return false;
        }
        let instance = self.simulator.instance;
        self.is_taken[unit.index()] = true;
        self.order.push(unit);
        self.simulator.run(unit);
        self.count_use(unit);
        for &other in instance.behind.row(unit.index()) {
            self.owed[other.index()] -= 1;
            if self.owed[other.index()] == 0 {
                self.enqueue(other);
            }
        }
        for &job in instance.jobs.row(unit.index()) {
            let device = instance.problem.lanes[instance.problem.jobs[job].lane].device;
            for at in 0..self.queues_of[device].len() {
                self.release(self.queues_of[device][at]);
            }
        }
        true
    }

    /// A transfer is unused until the first unit behind it that is none.
    fn count_use(&mut self, unit: UnitId) {
        let instance = self.simulator.instance;
        if instance.is_transfer(unit) {
            let queue = self.queue_of(unit);
            self.queues[queue].unused += 1;
            return;
        }
        for &other in instance.before.row(unit.index()) {
            if instance.is_transfer(other) && !std::mem::replace(&mut self.is_used[other.index()], true) {
                let queue = self.queue_of(other);
                self.queues[queue].unused -= 1;
                self.set_turn(queue);
            }
        }
    }

    /// Puts a unit, all of whose predecessors are taken, in front of its lane.
    fn enqueue(&mut self, unit: UnitId) {
        let instance = self.simulator.instance;
        let queue = self.queue_of(unit);
        let after = instance.jobs.row(unit.index()).iter().flat_map(|job| instance.after.row(job.index()));
        let ready = after.map(|job| self.simulator.times[job.index()].1).fold(0.0, f64::max);
        self.queues[queue].later.push(Reverse((Time(ready), self.rule.rank[unit.index()], unit)));
        self.set_turn(queue);
    }

    /// The bytes of the queue's device have changed: what did not fit is asked again.
    fn release(&mut self, queue: usize) {
        let Queue { held, now, .. } = &mut self.queues[queue];
        now.extend(held.drain(..).map(|unit| Reverse((self.rule.rank[unit.index()], unit))));
        self.set_turn(queue);
    }

    /// When the queue is next: when its lane could start its best unit. But a transfer that is issued in order must come
    /// before a job that would end only after it could start, so that lanes that compute are next when they could be done.
    fn set_turn(&mut self, number: usize) {
        let instance = self.simulator.instance;
        let free = self.simulator.free(LaneId::from_index(number / 2));
        let queue = &mut self.queues[number];
        while let Some(&Reverse((Time(ready), rank, unit))) = queue.later.peek()
            && ready <= free
        {
            queue.later.pop();
            queue.now.push(Reverse((rank, unit)));
        }
        let is_ahead = number.is_multiple_of(2) && queue.unused >= self.rule.ahead;
        queue.turn = match queue.peek() {
            Some(unit) if !is_ahead && queue.held.len() < ASKED => {
                let later = queue.later.peek().map_or(free, |&Reverse((Time(ready), ..))| ready);
                let start = if queue.now.is_empty() { later } else { free };
                let counts = instance.problem.issued_in_order && !instance.is_transfer(unit);
                let first = instance.jobs.row(unit.index())[0];
                let cost = if counts { instance.problem.jobs[first].cost } else { 0.0 };
                (Time(start + cost), self.rule.rank[unit.index()])
            }
            _ => NEVER,
        };
    }
}
