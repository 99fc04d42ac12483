//! An order with few bytes alive: what adds least above the bytes reached so far comes first.
//!
//! It is the way out for problems whose listed order breaks a limit. It looks at no times.

use std::collections::BTreeSet;

use phalanx_ir::Id;

use super::instance::{Instance, UnitId};
use super::problem::SearchBufferId;

/// How many ready units are compared for each place.
const COMPARED: usize = 64;

struct LowMemory<'a> {
    instance: &'a Instance<'a>,
    /// By buffer: how many units that touch it are left.
    left: Vec<usize>,
    live: Vec<i64>,
    top: Vec<i64>,
}

/// A legal order of all units with few bytes alive; ties go to the units that come early in `order`, which need not be
/// legal.
pub(super) fn low_memory_order(instance: &Instance<'_>, order: &[UnitId]) -> Vec<UnitId> {
    let mut place = vec![0; instance.len()];
    order.iter().enumerate().for_each(|(at, unit)| place[unit.index()] = at);
    let mut owed: Vec<usize> = instance.before.iter().map(<[UnitId]>::len).collect();
    let mut low_memory = LowMemory {
        instance,
        left: instance.touched_by.iter().map(<[UnitId]>::len).collect(),
        live: instance.start.clone(),
        top: instance.start.clone(),
    };
    let mut ready: BTreeSet<usize> = (0..order.len()).filter(|&at| owed[order[at].index()] == 0).collect();
    let mut found = Vec::with_capacity(order.len());
    let best = |low_memory: &LowMemory<'_>, ready: &BTreeSet<usize>| {
        ready.iter().take(COMPARED).copied().min_by_key(|&at| low_memory.price(order[at]))
    };
    while let Some(at) = best(&low_memory, &ready) {
        ready.remove(&at);
        low_memory.take(order[at]);
        found.push(order[at]);
        for other in instance.behind.row(order[at].index()) {
            owed[other.index()] -= 1;
            if owed[other.index()] == 0 {
                ready.insert(place[other.index()]);
            }
        }
    }
    found
}

impl LowMemory<'_> {
    /// Bytes above the top reached so far, then bytes that stay.
    fn price(&self, unit: UnitId) -> (i64, i64) {
        let mut above = 0;
        let mut stay = 0;
        let touches = self.instance.touches.row(unit.index());
        for (at, &id) in touches.iter().enumerate() {
            let buffer = &self.instance.problem.buffers[id];
            let device = buffer.device;
            stay += self.added(id) - self.freed(id);
            // Each device counts once, with its first buffer.
            let is_first =
                touches[..at].iter().all(|&other| self.instance.problem.buffers[other].device != device);
            if is_first {
                let on_device = |id: &&SearchBufferId| self.instance.problem.buffers[**id].device == device;
                let added: i64 = touches[at..].iter().filter(on_device).map(|&id| self.added(id)).sum();
                above += (self.live[device] + added - self.top[device]).max(0);
            }
        }
        (above, stay)
    }

    fn added(&self, id: SearchBufferId) -> i64 {
        let buffer = &self.instance.problem.buffers[id];
        let is_first = self.left[id.index()] == self.instance.touched_by.row(id.index()).len();
        if is_first && !buffer.from_start { buffer.alloc } else { 0 }
    }

    fn freed(&self, id: SearchBufferId) -> i64 {
        let buffer = &self.instance.problem.buffers[id];
        if self.left[id.index()] == 1 && !buffer.to_end { buffer.free } else { 0 }
    }

    fn take(&mut self, unit: UnitId) {
        for &id in self.instance.touches.row(unit.index()) {
            let device = self.instance.problem.buffers[id].device;
            self.live[device] += self.added(id);
            self.top[device] = self.top[device].max(self.live[device]);
        }
        for &id in self.instance.touches.row(unit.index()) {
            self.live[self.instance.problem.buffers[id].device] -= self.freed(id);
            self.left[id.index()] -= 1;
        }
    }
}
