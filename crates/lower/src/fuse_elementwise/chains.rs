//! Makes a chain of every group of links.

use std::collections::HashMap;

use phalanx_ir::Id;
use phalanx_ir::tasks::{BufferId, Source, Step, Steps, TaskOp};
use phalanx_ir::wide::{Operand, WideGraph, WideTask};

use super::groups::{Group, Groups};
use super::links::Link;
use crate::rewrite::rebuild;

pub fn fuse(wide: &WideGraph) -> WideGraph {
    let groups = Groups::of(wide);
    let mut list: Vec<Option<WideTask>> = wide.tasks.iter().map(|(_, task)| Some(task.clone())).collect();
    for group in groups.iter().filter(|group| group.links.len() > 1) {
        let links: Vec<&Link> = group.links.iter().map(|&link| &groups.links[link]).collect();
        links.iter().for_each(|link| list[link.task.index()] = None);
        list[group.place.index()] = Some(chain(wide, group, &links));
    }
    rebuild(wide, list.into_iter().flatten().collect())
}

/// The task that does what all links of a group do.
fn chain(wide: &WideGraph, group: &Group, links: &[&Link]) -> WideTask {
    let result = &wide.buffers[links[0].write];
    let (extents, map) = result.ty.grid();
    let operand = |&buffer: &BufferId| {
        let map = if wide.buffers[buffer].ty == result.ty { map.clone() } else { map.dual() };
        Operand { buffer, map }
    };
    let random = links.iter().find(|link| link.function.is_random());
    let scalars = random.and_then(|link| wide.tasks[link.task].reads.last().cloned());
    let (steps, results) = steps(group, links);
    let last = &wide.tasks[links[links.len() - 1].task];
    WideTask {
        op: TaskOp::Chain { steps, results },
        reads: group.reads.iter().map(operand).chain(scalars).collect(),
        writes: group.writes.iter().map(operand).collect(),
        extents,
        sites: result.sites.clone(),
        layer: last.layer.clone(),
        round: last.round,
    }
}

/// The steps of a group's chain, and which of them are its results. What several links compute alike is one step.
fn steps(group: &Group, links: &[&Link]) -> (Steps, Vec<usize>) {
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
