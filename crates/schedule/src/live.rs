//! What is alive when: the memory of a simulated step over its time.

use std::collections::BTreeMap;

use phalanx_ir::Id;
use phalanx_ir::tasks::TaskGraph;

use crate::index::Index;
use crate::simulate::SimRun;
use crate::{Owner, Schedule};

/// The bytes alive on one device over a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Curve {
    /// Nanoseconds and the bytes alive from then on, ascending.
    pub points: Vec<(u64, u64)>,
    /// The first moment of the most bytes.
    pub peak_at: u64,
    /// The most bytes alive. The arena may be a little larger, since bytes in it do not move.
    pub peak: u64,
    /// What is alive at that moment, largest first.
    pub alive: Vec<(Owner, u64)>,
}

/// Some bytes from a moment to another.
struct Life {
    owner: Owner,
    bytes: u64,
    from: u64,
    until: u64,
}

/// The curves of all devices, in the order of [`Schedule::devices`].
pub fn curves(tasks: &TaskGraph, schedule: &Schedule, run: &SimRun) -> Vec<Curve> {
    let index = Index::new(tasks, schedule.overlaps());
    let mut lives: Vec<Vec<Life>> = schedule.devices().iter().map(|_| Vec::new()).collect();
    let mut used: Vec<Option<(u64, u64)>> = vec![None; tasks.buffers.len()];
    for (number, (lane, spans)) in schedule.lanes.iter().zip(run).enumerate() {
        for (&task, span) in lane.order.iter().zip(spans) {
            let operands = tasks.tasks[task].reads.iter().chain(&tasks.tasks[task].writes);
            for &buffer in operands {
                let life = used[index.root(buffer).index()].get_or_insert((span.start, span.end));
                *life = (life.0.min(span.start), life.1.max(span.end));
            }
            if let Some(place) = schedule.workspaces[task] {
                let (owner, bytes) = (Owner::Workspace(task), place.bytes);
                lives[index.arena(number)].push(Life { owner, bytes, from: span.start, until: span.end });
            }
        }
    }
    for (id, buffer) in tasks.buffers.iter() {
        let Some(place) = schedule.buffers[id] else { continue };
        let (from, until) = match (buffer.role, used[id.index()]) {
            (role, _) if role.is_fed() => (0, u64::MAX),
            (_, None) => continue,
            (role, Some((from, _))) if role.is_kept() => (from, u64::MAX),
            (_, Some(life)) => life,
        };
        lives[index.home(id)].push(Life { owner: Owner::Buffer(id), bytes: place.bytes, from, until });
    }
    lives.into_iter().map(curve).collect()
}

fn curve(lives: Vec<Life>) -> Curve {
    let mut changes: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for life in &lives {
        changes.entry(life.from).or_default().0 += life.bytes;
        changes.entry(life.until).or_default().1 += life.bytes;
    }
    let mut curve = Curve::default();
    let mut live = 0;
    for (time, (more, less)) in changes {
        live = live + more - less;
        if time < u64::MAX {
            curve.points.push((time, live));
        }
        if live > curve.peak {
            (curve.peak, curve.peak_at) = (live, time);
        }
    }
    let at_peak = lives.into_iter().filter(|life| life.from <= curve.peak_at && curve.peak_at < life.until);
    curve.alive = at_peak.map(|life| (life.owner, life.bytes)).collect();
    curve.alive.sort_unstable_by_key(|&(owner, bytes)| (std::cmp::Reverse(bytes), owner));
    curve
}
