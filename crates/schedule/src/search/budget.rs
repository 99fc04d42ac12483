//! Which units may come next without ever exceeding a limit.
//!
//! There is always a way out: an order of all units, the *fallback*, that keeps the limits. Invariant: the units taken so
//! far, followed by the others as in the fallback, keep the limits too. So a list that takes only units that fit never
//! gets stuck; the first unit of the fallback that is left always fits. The bytes while each unit left would run are kept in one
//! tree of range sums a device, so that asking costs the logarithm of the number of units.

use phalanx_ir::Id;

use super::instance::{Instance, UnitId};
use super::problem::SearchBufferId;
use crate::rows::Rows;

/// Far below every number of bytes, and far from overflow.
const GONE: i64 = i64::MIN / 4;

/// What may come next.
pub(super) struct MemoryBudget<'a> {
    instance: &'a Instance<'a>,
    /// By device: at most this many bytes; at least what the fallback needs.
    limits: Vec<i64>,
    /// By unit: the buffers that it touches, each with the unit's place among those of the fallback that touch the device.
    touches: Rows<(SearchBufferId, u32)>,
    /// By buffer: the places of the units that touch it, ascending.
    touched_at: Rows<u32>,
    /// By buffer: how many units that touch it are left.
    left: Vec<u32>,
    /// By device: bytes now.
    live: Vec<i64>,
    /// By device: bytes while each unit left would run.
    levels: Vec<Levels>,
}

impl<'a> MemoryBudget<'a> {
    pub fn new(instance: &'a Instance<'a>, fallback: &[UnitId]) -> Self {
        let (touches, counts) = places(instance, fallback);
        let pairs = touches.iter().flatten().map(|&(buffer, place)| (buffer.index(), place));
        let touched_at = Rows::group(instance.problem.buffers.len(), pairs.clone());
        let touched_at = Rows::new(touched_at.iter().map(|places| {
            let mut places = places.to_vec();
            places.sort_unstable();
            places
        }));
        let levels = counts.iter().zip(&instance.start).map(|(&count, &start)| Levels::new(count, start));
        let mut budget = MemoryBudget {
            instance,
            limits: instance.limits.clone(),
            left: touched_at.iter().map(|places| places.len() as u32).collect(),
            live: instance.start.clone(),
            levels: levels.collect(),
            touches: Rows::new(touches),
            touched_at,
        };
        budget.fill(&counts);
        budget
    }

    /// The bytes of the fallback as it is; a limit that it does not keep gives way.
    fn fill(&mut self, counts: &[usize]) {
        for (id, buffer) in self.instance.problem.buffers.iter() {
            let [first, last] = match self.touched_at.row(id.index()) {
                [] => continue,
                [only] => [*only, *only],
                [first, .., last] => [*first, *last],
            };
            let end = counts[buffer.device] as u32;
            if !buffer.from_start {
                self.levels[buffer.device].add(first, end, buffer.alloc);
            }
            if !buffer.to_end {
                self.levels[buffer.device].add(last + 1, end, -buffer.free);
            }
        }
        for (limit, levels) in self.limits.iter_mut().zip(&self.levels) {
            *limit = (*limit).max(levels.max());
        }
    }

    /// Takes `unit` if all limits are kept, now and on the way that is left.
    pub fn take(&mut self, unit: UnitId) -> bool {
        self.change(unit, 1);
        let fits = self.keeps_limits(unit);
        if fits {
            self.settle(unit);
        } else {
            self.change(unit, -1);
        }
        fits
    }

    fn keeps_limits(&self, unit: UnitId) -> bool {
        self.touches.row(unit.index()).iter().all(|&(id, _)| {
            let device = self.instance.problem.buffers[id].device;
            let own = self.live[device] + self.added(unit, device);
            own.max(self.levels[device].max()) <= self.limits[device]
        })
    }

    /// Whether no unit that touches the buffer was taken and settled.
    fn is_fresh(&self, id: SearchBufferId) -> bool {
        self.left[id.index()] as usize == self.touched_at.row(id.index()).len()
            && !self.instance.problem.buffers[id].from_start
    }

    /// Bytes of `device` that the unit adds when it is next.
    fn added(&self, unit: UnitId, device: usize) -> i64 {
        let fresh = self.touches.row(unit.index()).iter().filter(|&&(id, _)| self.is_fresh(id));
        let buffers = fresh.map(|&(id, _)| &self.instance.problem.buffers[id]);
        buffers.filter(|buffer| buffer.device == device).map(|buffer| buffer.alloc).sum()
    }

    /// Moves the unit from its place in the fallback to the front, or back if `sign` is negative.
    fn change(&mut self, unit: UnitId, sign: i64) {
        for &(id, place) in self.touches.row(unit.index()) {
            let buffer = &self.instance.problem.buffers[id];
            let is_fresh = self.is_fresh(id);
            let levels = &mut self.levels[buffer.device];
            levels.set_taken(place, sign > 0);
            let places = self.touched_at.row(id.index());
            if is_fresh {
                levels.add(0, places[0], sign * buffer.alloc);
            }
            let others = places.iter().rev().filter(|&&at| at != place);
            let last = others.copied().find(|&at| !levels.taken[at as usize]).map_or(0, |last| last + 1);
            if last <= place && !buffer.to_end {
                levels.add(last, place, -sign * buffer.free);
            }
        }
    }

    /// Books the bytes of the unit just taken.
    fn settle(&mut self, unit: UnitId) {
        for &(id, _) in self.touches.row(unit.index()) {
            let buffer = &self.instance.problem.buffers[id];
            if self.is_fresh(id) {
                self.live[buffer.device] += buffer.alloc;
            }
            self.left[id.index()] -= 1;
            if self.left[id.index()] == 0 && !buffer.to_end {
                self.live[buffer.device] -= buffer.free;
            }
        }
    }
}

/// By unit: the buffers that it touches with its place on their device; by device: how many units touch it.
fn places(instance: &Instance<'_>, fallback: &[UnitId]) -> (Vec<Vec<(SearchBufferId, u32)>>, Vec<usize>) {
    let mut touches = vec![Vec::new(); instance.len()];
    let mut counts = vec![0_usize; instance.start.len()];
    let mut last = vec![None; instance.start.len()];
    for &unit in fallback {
        for &id in instance.touches.row(unit.index()) {
            let device = instance.problem.buffers[id].device;
            if last[device].replace(unit) != Some(unit) {
                counts[device] += 1;
            }
            touches[unit.index()].push((id, counts[device] as u32 - 1));
        }
    }
    (touches, counts)
}

/// Numbers by place, with sums over ranges and the greatest of all.
struct Levels {
    leaves: usize,
    /// By node of the tree: the greatest below it, and what is added to all below it.
    nodes: Vec<(i64, i64)>,
    /// By place: whether its number does not count.
    taken: Vec<bool>,
}

impl Levels {
    fn new(count: usize, value: i64) -> Self {
        let leaves = count.next_power_of_two();
        let mut levels = Levels { leaves, nodes: vec![(GONE, 0); 2 * leaves], taken: vec![false; count] };
        levels.nodes[leaves..leaves + count].fill((value, 0));
        for node in (1..leaves).rev() {
            levels.nodes[node].0 = levels.nodes[2 * node].0.max(levels.nodes[2 * node + 1].0);
        }
        levels
    }

    /// The greatest number.
    fn max(&self) -> i64 {
        self.nodes[1].0
    }

    /// Whether the number of a place counts.
    fn set_taken(&mut self, place: u32, taken: bool) {
        if std::mem::replace(&mut self.taken[place as usize], taken) != taken {
            self.add(place, place + 1, if taken { GONE } else { -GONE });
        }
    }

    /// Adds `value` to the numbers of the places `from..to`.
    fn add(&mut self, from: u32, to: u32, value: i64) {
        if from >= to || value == 0 {
            return;
        }
        let (first, last) = (from as usize + self.leaves, to as usize + self.leaves - 1);
        let (mut low, mut high) = (first, last + 1);
        while low < high {
            if low & 1 == 1 {
                self.lift(low, value);
                low += 1;
            }
            if high & 1 == 1 {
                high -= 1;
                self.lift(high, value);
            }
            (low, high) = (low / 2, high / 2);
        }
        self.pull(first);
        self.pull(last);
    }

    fn lift(&mut self, node: usize, value: i64) {
        self.nodes[node].0 += value;
        self.nodes[node].1 += value;
    }

    /// Finds the greatest again for all nodes above a leaf.
    fn pull(&mut self, leaf: usize) {
        let mut node = leaf / 2;
        while node > 0 {
            let below = self.nodes[2 * node].0.max(self.nodes[2 * node + 1].0);
            self.nodes[node].0 = below + self.nodes[node].1;
            node /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::simulate::Simulator;
    use crate::search::{JobId, LaneKind, Problem, SearchBuffer, SearchJob, SearchLane};
    use phalanx_testkit::Rng;

    /// Jobs of two devices without dependencies; buffers touched by up to four of them.
    fn random(rng: &mut Rng) -> Problem {
        let mut problem = Problem { limits: vec![Some(150), Some(220)], ..Problem::default() };
        let lanes = [0, 1].map(|device| problem.lanes.push(SearchLane { device, kind: LaneKind::Compute }));
        for job in 0..12 {
            problem.jobs.push(SearchJob::new(lanes[job % 2], 1.0));
        }
        for _ in 0..14 {
            let touched_by = (0..1 + rng.below(4)).map(|_| JobId::from_index(rng.below(12))).collect();
            let (alloc, free) = (rng.below(50) as i64, rng.below(50) as i64);
            let (from_start, to_end) = (rng.once_in(5), rng.once_in(5));
            problem.buffers.push(SearchBuffer {
                device: rng.below(2),
                alloc,
                free,
                from_start,
                to_end,
                touched_by,
            });
        }
        problem
    }

    /// A unit is taken exactly if those taken, the unit and the rest of the fallback keep the limits.
    #[test]
    fn what_fits_is_what_a_full_walk_says() {
        let mut rng = Rng::new(3);
        let mut refused = 0;
        for _ in 0..200 {
            let problem = random(&mut rng);
            let mut instance = Instance::new(&problem).unwrap();
            let mut fallback = instance.listed.clone();
            rng.shuffle(&mut fallback);
            let mut simulator = Simulator::new(&instance);
            simulator.score(&fallback);
            let limits =
                instance.limits.iter().zip(&simulator.peaks).map(|(&limit, &peak)| limit.max(peak)).collect();
            instance.limits = limits;
            let mut simulator = Simulator::new(&instance);
            let mut budget = MemoryBudget::new(&instance, &fallback);
            let (mut taken, mut left) = (Vec::new(), fallback);
            while !left.is_empty() {
                let unit = left[rng.below(left.len())];
                let rest = left.iter().copied().filter(|&other| other != unit);
                let order: Vec<UnitId> = taken.iter().copied().chain([unit]).chain(rest).collect();
                let fits = simulator.excess(&order) == 0;
                assert_eq!(budget.take(unit), fits);
                if fits {
                    taken.push(unit);
                    left.retain(|&other| other != unit);
                } else {
                    refused += 1;
                }
            }
        }
        assert!(refused > 100, "{refused}");
    }
}
