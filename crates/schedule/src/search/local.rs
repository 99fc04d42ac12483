//! Local search: moves that keep every order legal, accepted while they do not make it worse than it was a while ago.
//!
//! A move takes a unit to an earlier place together with everything in between that it waits for, or to a later place
//! together with everything in between that waits for it. Two moves of three start where a lane stands still. The numbers
//! that choose the moves come from a fixed seed, and the effort is a count: the same problem gives the same order.

use phalanx_ir::Id;

use super::instance::UnitId;
use super::problem::JobId;
use super::simulate::{Score, Simulator};

/// How many moves ago an order may have been no better than this one: the more moves there are, the farther a walk may
/// stray.
const MEMORY: std::ops::RangeInclusive<usize> = 16..=512;
/// How many of its memories a walk forgets, at least if it is long.
const MEMORIES: usize = 24;
/// How far a move reaches at most.
const REACH: usize = 128;

/// Where the random numbers begin.
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// A lane stands still before the unit at this position, because of that unit.
struct Gap {
    position: usize,
    culprit: UnitId,
}

/// A search around one order.
struct Local<'s, 'a> {
    simulator: &'s mut Simulator<'a>,
    order: Vec<UnitId>,
    place: Vec<u32>,
    gaps: Vec<Gap>,
    /// By unit: the number of the last move that took it along.
    marks: Vec<u32>,
    mark: u32,
    /// Of the places that a move touches: the units before the move, then those that come first and those behind them.
    before: Vec<UnitId>,
    first: Vec<UnitId>,
    second: Vec<UnitId>,
    random: u64,
}

/// The best order found with `moves` moves from `order`, and its score; ends early when it takes no longer than `enough`.
pub(super) fn improve(
    simulator: &mut Simulator<'_>,
    order: Vec<UnitId>,
    moves: usize,
    enough: f64,
) -> (Score, Vec<UnitId>) {
    let score = simulator.score(&order);
    let mut best = (score, order.clone());
    let mut current = score;
    let mut history = vec![score; (moves / MEMORIES).clamp(*MEMORY.start(), *MEMORY.end())];
    let memory = history.len();
    let mut local = Local::new(simulator, order);
    for step in 0..moves {
        if best.0.excess == 0 && best.0.makespan <= enough {
            break;
        }
        let was = &mut history[step % memory];
        if let Some(score) = local.step(|score| !score.is_worse(current) || !score.is_worse(*was)) {
            current = score;
            if score < best.0 {
                best = (score, local.order.clone());
            }
        }
        *was = current;
    }
    best
}

impl<'s, 'a> Local<'s, 'a> {
    fn new(simulator: &'s mut Simulator<'a>, order: Vec<UnitId>) -> Self {
        let count = order.len();
        // Another walk takes other ways: the seed depends on what was tried before, which is the same every time.
        let random = SEED ^ ((simulator.tried as u64) << 20);
        let mut local = Local {
            simulator,
            order,
            place: vec![0; count],
            gaps: Vec::new(),
            marks: vec![0; count],
            mark: 0,
            before: Vec::new(),
            first: Vec::new(),
            second: Vec::new(),
            random,
        };
        local.settle(0, count);
        local
    }

    /// A number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 33) as usize) % bound
    }

    /// Books the order just simulated: the places `from..to` have changed.
    fn settle(&mut self, from: usize, to: usize) {
        for at in from..to {
            self.place[self.order[at].index()] = at as u32;
        }
        let instance = self.simulator.instance;
        let mut free = vec![0.0_f64; instance.lanes.len()];
        self.gaps.clear();
        for (position, &unit) in self.order.iter().enumerate() {
            for &job in instance.jobs.row(unit.index()) {
                let lane = instance.problem.jobs[job].lane.index();
                let (start, end) = self.simulator.times[job.index()];
                if start > free[lane] {
                    let late = |other: &&JobId| self.simulator.times[other.index()].1 >= start;
                    let other = instance.after.row(job.index()).iter().find(late);
                    let culprit = other.map_or(unit, |&other| instance.unit_of[other]);
                    self.gaps.push(Gap { position, culprit });
                }
                free[lane] = end;
            }
        }
    }

    /// One move, taken back unless the order is good; its score if it is.
    fn step(&mut self, is_good: impl Fn(Score) -> bool) -> Option<Score> {
        let (from, to) = self.propose()?;
        self.before.clear();
        self.before.extend_from_slice(&self.order[from..to]);
        for (at, &unit) in self.first.iter().chain(&self.second).enumerate() {
            self.order[from + at] = unit;
        }
        let score = self.simulator.score_if(&self.order, is_good);
        match score {
            Some(_) => self.settle(from, to),
            None => self.order[from..to].copy_from_slice(&self.before),
        }
        score
    }

    /// Chooses a move: the places that it touches, none if it changes nothing.
    fn propose(&mut self) -> Option<(usize, usize)> {
        let count = self.order.len();
        if count < 2 {
            return None;
        }
        // Short ways are more likely than long ones.
        let widest = 1 + self.below(REACH.min(count));
        let distance = 1 + self.below(widest);
        if self.gaps.is_empty() || self.below(3) == 0 {
            let unit = UnitId::from_index(self.below(count));
            let forward = self.below(2) == 0;
            return if forward { self.earlier(unit, distance) } else { self.later(unit, distance) };
        }
        let gap = self.below(self.gaps.len());
        let Gap { position, culprit } = self.gaps[gap];
        match self.below(4) {
            0 | 1 => self.earlier(culprit, distance),
            2 => self.later(self.order[position], distance),
            _ => self.earlier(*self.order.get(position + distance)?, distance),
        }
    }

    /// Only the unit itself moves so far.
    fn begin(&mut self, unit: UnitId) {
        self.mark += 1;
        self.marks[unit.index()] = self.mark;
        self.first.clear();
        self.second.clear();
    }

    /// The unit goes `distance` places forward, with what it waits for.
    fn earlier(&mut self, unit: UnitId, distance: usize) -> Option<(usize, usize)> {
        let at = self.place[unit.index()] as usize;
        let from = at.saturating_sub(distance);
        let instance = self.simulator.instance;
        self.begin(unit);
        for &other in self.order[from..=at].iter().rev() {
            if self.marks[other.index()] == self.mark {
                self.first.push(other);
                let along = instance.before.row(other.index()).iter();
                along.for_each(|unit| self.marks[unit.index()] = self.mark);
            } else {
                self.second.push(other);
            }
        }
        self.first.reverse();
        self.second.reverse();
        (!self.second.is_empty()).then_some((from, at + 1))
    }

    /// The unit goes `distance` places back, with what waits for it.
    fn later(&mut self, unit: UnitId, distance: usize) -> Option<(usize, usize)> {
        let at = self.place[unit.index()] as usize;
        let to = (at + distance + 1).min(self.order.len());
        let instance = self.simulator.instance;
        self.begin(unit);
        for &other in &self.order[at..to] {
            if self.marks[other.index()] == self.mark {
                self.second.push(other);
                let along = instance.behind.row(other.index()).iter();
                along.for_each(|unit| self.marks[unit.index()] = self.mark);
            } else {
                self.first.push(other);
            }
        }
        (!self.first.is_empty()).then_some((at, to))
    }
}
