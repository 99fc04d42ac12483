//! The search itself: many orders by simple rules, then local search from the best, all judged by one simulator.
//!
//! The effort is a number of steps that depends on the problem alone, never on a clock.

use phalanx_ir::Id;

use super::instance::{Instance, UnitId};
use super::list::{Rule, list};
use super::simulate::{Score, Simulator};
use super::{bound, local, low_memory};

/// About how many jobs are placed by rules, all orders together.
const RULE_STEPS: usize = 1_200_000;
/// About how many jobs are simulated by local search.
const MOVE_STEPS: usize = 20_000_000;
/// At most this many moves; fewer than the least are not worth beginning.
const MOVES: std::ops::RangeInclusive<usize> = 500..=120_000;
/// From how many orders local search starts.
const STARTS: usize = 5;
/// How often it starts again from the best order.
const LEGS: usize = 2;
/// How many orders with few bytes are tried when the limits are broken.
const LOW_MEMORY: usize = 4;
/// How much longer than the bound is as good, because sums are rounded.
const ROUNDING: f64 = 1e-12;

/// What transfers and what others are ordered by, and how far transfers may run ahead.
const RULES: [(Key, Key, usize); 20] = [
    (Key::Path, Key::Path, usize::MAX),
    (Key::Place, Key::Place, usize::MAX),
    (Key::Place, Key::Place, 1),
    (Key::Place, Key::Place, 2),
    (Key::Place, Key::Place, 4),
    (Key::Path, Key::Transfers, usize::MAX),
    (Key::Path, Key::Path, 2),
    (Key::Place, Key::Path, usize::MAX),
    (Key::Transfers, Key::Transfers, usize::MAX),
    (Key::Both, Key::Both, usize::MAX),
    (Key::Place, Key::Transfers, usize::MAX),
    (Key::Place, Key::Both, usize::MAX),
    (Key::Path, Key::Both, usize::MAX),
    (Key::Path, Key::Place, usize::MAX),
    (Key::Both, Key::Place, usize::MAX),
    (Key::Path, Key::Both, 1),
    (Key::Path, Key::Both, 4),
    (Key::Place, Key::Path, 2),
    (Key::Both, Key::Both, 2),
    (Key::Transfers, Key::Transfers, 2),
];

/// What comes first.
#[derive(Clone, Copy, PartialEq)]
enum Key {
    /// What is early in the best order so far.
    Place,
    /// What has the longest path to the end.
    Path,
    /// What has the longest path to the end, counting transfers only.
    Transfers,
    /// What has the longest path to the end on which transfers count four times.
    Both,
}

/// What the search found.
pub(super) struct Outcome {
    pub order: Vec<UnitId>,
    /// No order takes less.
    pub bound: f64,
    pub tried: usize,
}

/// The best order found, starting from `seeds`, which must be legal, and from the listed order.
pub(super) fn search(instance: &Instance<'_>, seeds: Vec<Vec<UnitId>>) -> Outcome {
    let bound = bound::bound(instance);
    let enough = bound * (1.0 + ROUNDING);
    let mut pool = Pool { simulator: Simulator::new(instance), orders: Vec::new() };
    for order in seeds.into_iter().chain([instance.listed.clone()]) {
        pool.add(order);
    }
    pool.add_low_memory_orders();
    let rule_steps = instance.problem.effort.of(RULE_STEPS);
    let rules = (rule_steps / instance.problem.jobs.len().max(1)).clamp(3, 2 * RULES.len());
    let keys = keys(instance);
    for at in 0..rules {
        if pool.is_done(enough) {
            break;
        }
        pool.apply(&keys, RULES[at % RULES.len()]);
    }
    pool.polish(enough);
    let order = pool.best().1.clone();
    Outcome { order, bound, tried: pool.simulator.tried }
}

/// The best orders so far.
struct Pool<'a> {
    simulator: Simulator<'a>,
    /// Orders by score, the best first, no two alike.
    orders: Vec<(Score, Vec<UnitId>)>,
}

impl Pool<'_> {
    /// Scores an order and keeps it if it is among the best.
    fn add(&mut self, order: Vec<UnitId>) {
        let score = self.simulator.score(&order);
        self.keep(score, order);
    }

    fn keep(&mut self, score: Score, order: Vec<UnitId>) {
        let at = self.orders.partition_point(|(other, _)| *other <= score);
        let is_known = self.orders.iter().any(|(_, other)| *other == order);
        if !is_known && at < STARTS {
            self.orders.insert(at, (score, order));
            self.orders.truncate(STARTS);
        }
    }

    fn best(&self) -> &(Score, Vec<UnitId>) {
        self.orders.first().expect("the listed order is in the pool")
    }

    fn is_done(&self, enough: f64) -> bool {
        let score = self.best().0;
        score.excess == 0 && score.makespan <= enough
    }

    /// If no order keeps the limits, looks for one that needs few bytes.
    fn add_low_memory_orders(&mut self) {
        let mut order = self.simulator.instance.listed.clone();
        for _ in 0..LOW_MEMORY {
            if self.best().0.excess == 0 {
                return;
            }
            order = low_memory::low_memory_order(self.simulator.instance, &order);
            self.add(order.clone());
            // Ties then go the other way.
            order.reverse();
        }
    }

    /// One order by a rule, with the best so far as the way out when memory is short.
    fn apply(&mut self, keys: &[Vec<f64>; 3], (transfer, compute, ahead): (Key, Key, usize)) {
        let instance = self.simulator.instance;
        let fallback = self.best().1.clone();
        let mut place = vec![0; fallback.len()];
        fallback.iter().enumerate().for_each(|(at, unit)| place[unit.index()] = at as u32);
        let by = |key: Key| match key {
            Key::Place => place.clone(),
            Key::Path => ranks(&keys[0], &place),
            Key::Transfers => ranks(&keys[1], &place),
            Key::Both => ranks(&keys[2], &place),
        };
        let (transfer, compute) = (by(transfer), by(compute));
        let units = (0..fallback.len()).map(UnitId::from_index);
        let rank =
            |unit| if instance.is_transfer(unit) { transfer[unit.index()] } else { compute[unit.index()] };
        let rank: Vec<u32> = units.map(rank).collect();
        self.add(list(instance, &Rule { rank: &rank, ahead }, &fallback));
    }

    /// Local search: half of the moves from each of the best orders, half from the best of what that gives.
    fn polish(&mut self, enough: f64) {
        let problem = self.simulator.instance.problem;
        let moves = problem.effort.of((MOVE_STEPS / problem.jobs.len().max(1)).min(*MOVES.end()));
        if moves >= *MOVES.start() && !self.is_done(enough) {
            let starts: Vec<Vec<UnitId>> = self.orders.iter().map(|(_, order)| order.clone()).collect();
            for order in &starts {
                self.walk(order.clone(), moves / 2 / starts.len(), enough);
            }
            for _ in 0..LEGS {
                self.walk(self.best().1.clone(), moves / 2 / LEGS, enough);
            }
        }
    }

    fn walk(&mut self, order: Vec<UnitId>, moves: usize, enough: f64) {
        if !self.is_done(enough) {
            let (score, order) = local::improve(&mut self.simulator, order, moves, enough);
            self.keep(score, order);
        }
    }
}

/// By unit: the lengths of its paths to the end that the rules compare.
fn keys(instance: &Instance<'_>) -> [Vec<f64>; 3] {
    let weighed = |compute: f64, transfer: f64| {
        bound::tails(instance, |lane, cost| {
            cost * if instance.lanes[lane.index()].0 { transfer } else { compute }
        })
    };
    [weighed(1.0, 1.0), weighed(0.0, 1.0), weighed(1.0, 4.0)]
}

/// By unit: its rank when the longest key comes first, ties by place.
fn ranks(keys: &[f64], place: &[u32]) -> Vec<u32> {
    let mut units: Vec<usize> = (0..keys.len()).collect();
    units.sort_by(|&a, &b| keys[b].total_cmp(&keys[a]).then(place[a].cmp(&place[b])));
    let mut ranks = vec![0; keys.len()];
    units.iter().enumerate().for_each(|(at, &unit)| ranks[unit] = at as u32);
    ranks
}
