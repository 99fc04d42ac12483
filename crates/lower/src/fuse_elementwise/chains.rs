//! Makes a chain of every group of links.

use std::collections::HashMap;

use phalanx_ir::Id;
use phalanx_ir::sharded::{Operand, ShardedGraph, ShardedTask};
use phalanx_ir::tasks::{BufferId, Source, Step, Steps, TaskOp};

use super::groups::{ChainGroup, Groups};
use super::links::ChainLink;
use crate::rewrite::rebuild;

pub fn fuse(sharded: &ShardedGraph) -> ShardedGraph {
    let groups = Groups::of(sharded);
    let mut list: Vec<Option<ShardedTask>> =
        sharded.tasks.iter().map(|(_, task)| Some(task.clone())).collect();
    for group in groups.iter().filter(|group| group.links.len() > 1) {
        let links: Vec<&ChainLink> = group.links.iter().map(|&link| &groups.links[link]).collect();
        links.iter().for_each(|link| list[link.task.index()] = None);
        list[group.place.index()] = Some(chain(sharded, group, &links));
    }
    rebuild(sharded, list.into_iter().flatten().collect())
}

/// The task that does what all links of a group do.
fn chain(sharded: &ShardedGraph, group: &ChainGroup, links: &[&ChainLink]) -> ShardedTask {
    let result = &sharded.buffers[links[0].write];
    let (extents, map) = result.ty.grid();
    let operand = |&buffer: &BufferId| {
        let map = if sharded.buffers[buffer].ty == result.ty { map.clone() } else { map.dual() };
        Operand { buffer, map }
    };
    let random = links.iter().find(|link| link.function.is_random());
    let scalars = random.and_then(|link| sharded.tasks[link.task].reads.last().cloned());
    let (steps, results) = steps(group, links);
    let last = &sharded.tasks[links[links.len() - 1].task];
    ShardedTask {
        op: TaskOp::Chain { steps, results },
        reads: group.reads.iter().map(operand).chain(scalars).collect(),
        writes: group.writes.iter().map(operand).collect(),
        extents,
        groups: result.groups.clone(),
        layer: last.layer.clone(),
        microbatch: last.microbatch,
    }
}

/// The steps of a group's chain, and which of them are its results. What several links compute alike is one step.
fn steps(group: &ChainGroup, links: &[&ChainLink]) -> (Steps, Vec<usize>) {
    let mut known: HashMap<BufferId, Source> =
        group.reads.iter().enumerate().map(|(slot, &read)| (read, Source::Read(slot))).collect();
    let (mut steps, mut results): (Vec<Step>, Vec<usize>) = (Vec::new(), Vec::new());
    for link in links {
        let sources = link.reads.iter().map(|read| known[read]).collect();
        let step = Step { function: link.function, sources };
        let is_result = group.writes.contains(&link.write);
        let same = steps.iter().position(|other| *other == step);
        let at = same.filter(|at| !is_result || !results.contains(at)).unwrap_or_else(|| {
            steps.push(step);
            steps.len() - 1
        });
        known.insert(link.write, Source::Step(at));
        if is_result {
            results.push(at);
        }
    }
    (Steps(steps), results)
}
