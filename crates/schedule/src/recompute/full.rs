//! Nearly everything is computed again: what lies between *boundaries*, where the model is narrow.
//!
//! A boundary is a tensor that is at some moment the only activation a device still needs for the rest of a microbatch's
//! forward pass: a block's input, a residual stream. Where boundaries are kept, one part of the model is computed again
//! without another. Keeping many takes memory, keeping few makes the parts long, so several numbers are tried. What
//! follows the last kept boundary is kept, since the backward pass begins with it.

use std::collections::{BTreeMap, HashSet};

use phalanx_ir::parallel::DeviceId;
use phalanx_ir::tasks::{BufferId, Role, TaskGraph, TaskId};
use phalanx_ir::{Id, IdVec};

use super::gain::Gains;
use super::uses::Uses;
use super::{RecomputeCandidate, RecomputeChoice, apply, candidates};
use crate::live_bytes;

/// All that is worth being computed again if memory is all that counts.
pub fn full(graph: &TaskGraph) -> RecomputeChoice {
    let Some(uses) = Uses::of(graph) else { return RecomputeChoice::default() };
    let all = candidates::of(&uses);
    let streams = streams(&uses);
    let heaviest = streams.iter().map(|stream| stream.weight(&uses)).max().unwrap_or(0);
    let most = streams.iter().map(|stream| stream.boundaries.len() as u64).max().unwrap_or(0);
    // One part is the last part: nothing is computed again.
    let parts =
        std::iter::successors(Some(1), |parts| Some(parts * 2)).take_while(|&parts| parts <= 2 * most);
    let choices = parts.map(|parts| choose(&uses, &all, &streams, heaviest / parts));
    let need = |choice: &RecomputeChoice| {
        let live = live_bytes(&apply(graph, choice));
        (live.iter().max().copied(), live.iter().sum::<u64>(), choice.len())
    };
    choices.min_by_key(need).unwrap_or_default()
}

/// The forward tasks of one microbatch on one device.
struct Stream {
    tasks: Vec<TaskId>,
    /// Boundaries with the tasks after which they are alone, in order.
    boundaries: Vec<(TaskId, BufferId)>,
}

impl Stream {
    /// Bytes that could be saved.
    fn weight(&self, uses: &Uses<'_>) -> u64 {
        self.tasks.iter().map(|&task| weight(uses, task)).sum()
    }

    /// Boundaries to keep, such that the parts between them have at least `least` bytes; and after which task the last
    /// part begins.
    fn kept(&self, uses: &Uses<'_>, least: u64) -> (Vec<BufferId>, Option<TaskId>) {
        let (mut kept, mut last) = (Vec::new(), None);
        let (mut gathered, mut at) = (0, self.tasks.len());
        for &(task, boundary) in self.boundaries.iter().rev() {
            while at > 0 && self.tasks[at - 1] > task {
                at -= 1;
                gathered += weight(uses, self.tasks[at]);
            }
            if gathered > least {
                kept.push(boundary);
                last = last.or(Some(task));
                gathered = 0;
            }
        }
        (kept, last)
    }
}

/// Bytes of a task's results that the backward pass reads and that can be computed again.
fn weight(uses: &Uses<'_>, task: TaskId) -> u64 {
    let kept = uses.results(task).filter(|&root| uses.is_repeatable(task) && uses.is_read_backward(root));
    kept.map(|root| uses.bytes(root)).sum()
}

fn streams(uses: &Uses<'_>) -> Vec<Stream> {
    let activations = activations(uses);
    let mut streams: BTreeMap<(DeviceId, u32), Vec<TaskId>> = BTreeMap::new();
    for (id, task) in uses.graph.tasks.iter().take(uses.backward.index()) {
        if uses.results(id).any(|root| activations[root]) {
            streams.entry((task.device, task.microbatch)).or_default().push(id);
        }
    }
    let stream = |tasks: Vec<TaskId>| Stream { boundaries: boundaries(uses, &tasks), tasks };
    streams.into_values().map(stream).collect()
}

/// Which buffers hold activations: what depends on a parameter and on an input. Others are weights or data.
fn activations(uses: &Uses<'_>) -> IdVec<BufferId, bool> {
    let buffers = &uses.graph.buffers;
    let mut from: IdVec<BufferId, [bool; 2]> = buffers
        .iter()
        .map(|(_, buffer)| [Role::Param, Role::Input].map(|role| role == buffer.role))
        .collect();
    for id in uses.graph.tasks.ids().take(uses.backward.index()) {
        let either = |a: [bool; 2], b: [bool; 2]| [a[0] || b[0], a[1] || b[1]];
        let read = uses.operands(id).map(|root| from[root]).fold([false; 2], either);
        for root in uses.results(id) {
            from[root] = either(from[root], read);
        }
    }
    from.into_iter().map(|from| from == [true; 2]).collect()
}

/// The tensors that are alone, of those that these tasks write and a task of the forward pass still reads.
fn boundaries(uses: &Uses<'_>, tasks: &[TaskId]) -> Vec<(TaskId, BufferId)> {
    let mut alive: Vec<(BufferId, TaskId)> = Vec::new();
    let mut found: Vec<(TaskId, BufferId)> = Vec::new();
    for &task in tasks {
        alive.retain(|&(_, last)| last > task);
        let results = uses.results(task).filter_map(|root| Some((root, uses.last_forward_reader(root)?)));
        alive.extend(results);
        if let [(only, _)] = alive[..]
            && found.last().is_none_or(|&(_, boundary)| boundary != only)
        {
            found.push((task, only));
        }
    }
    found
}

/// Everything but kept boundaries, what follows the last of them, and what saves nothing.
fn choose(uses: &Uses<'_>, all: &[RecomputeCandidate], streams: &[Stream], least: u64) -> RecomputeChoice {
    let mut kept: HashSet<TaskId> = HashSet::new();
    let mut repeated: HashSet<TaskId> = HashSet::new();
    for stream in streams {
        let (boundaries, last) = stream.kept(uses, least);
        kept.extend(boundaries.iter().filter_map(|&boundary| uses.producer(boundary)));
        repeated.extend(stream.tasks.iter().filter(|&&task| last.is_some_and(|last| task <= last)));
    }
    let is_chosen = |candidate: &&RecomputeCandidate| {
        candidate.tasks.iter().all(|task| repeated.contains(task) && !kept.contains(task))
    };
    let chosen: Vec<&RecomputeCandidate> = all.iter().filter(is_chosen).collect();
    let gains = Gains::new(uses, chosen.iter().copied());
    let pays = |candidate: &&RecomputeCandidate| candidate.bytes == 0 || gains.of(candidate).saved > 0;
    chosen.into_iter().filter(pays).flat_map(|candidate| candidate.buffers.iter().copied()).collect()
}
