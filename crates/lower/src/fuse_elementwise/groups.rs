//! Which links become one chain: greedily, those first that spare most bytes together.
//!
//! Links are joined that hand a tensor on, or that read the same one with only links between them. A group runs where
//! one of its links was: after all it reads is written, before anybody else reads what it writes, seen from where other
//! groups run by then. So joining two groups never breaks what was decided before.

use std::cmp::Reverse;
use std::collections::HashMap;

use phalanx_ir::sharded::{ShardedGraph, ShardedTask};
use phalanx_ir::tasks::{BufferId, MAX_CHAIN, TaskId};
use phalanx_ir::{Id, IdVec};

use super::links::{ChainLink, by_task, bytes, kept, links};
use crate::rewrite::Touches;

/// Links that run together.
#[derive(Clone)]
pub struct ChainGroup {
    /// Positions in the list of links, ascending.
    pub links: Vec<usize>,
    /// What they read of others.
    pub reads: Vec<BufferId>,
    /// What others read of them.
    pub writes: Vec<BufferId>,
    /// The task in whose place they run.
    pub place: TaskId,
}

/// All links of a graph, each in one group.
pub struct Groups<'a> {
    sharded: &'a ShardedGraph,
    touches: Touches,
    /// The links, in order.
    pub links: Vec<ChainLink>,
    by_task: IdVec<TaskId, Option<usize>>,
    kept: IdVec<BufferId, bool>,
    /// The first task of the backward pass.
    backward: usize,
    /// How many tasks that are no links stand before each task.
    others: Vec<usize>,
    /// The group of each link.
    group_of: Vec<usize>,
    groups: Vec<Option<ChainGroup>>,
}

impl<'a> Groups<'a> {
    /// The groups that spare most.
    pub fn of(sharded: &'a ShardedGraph) -> Self {
        let mut groups = Groups::alone(sharded);
        for [left, right] in groups.edges() {
            groups.join(groups.group_of[left], groups.group_of[right]);
        }
        groups
    }

    /// All groups, by their first links.
    pub fn iter(&self) -> impl Iterator<Item = &ChainGroup> {
        self.groups.iter().flatten()
    }

    /// Every link by itself.
    fn alone(sharded: &'a ShardedGraph) -> Self {
        let touches = Touches::of(sharded);
        let links = links(sharded, &touches);
        let by_task = by_task(sharded, &links);
        let is_gradient = |(_, task): (TaskId, &ShardedTask)| task.op.is_gradient();
        let count = |others: &mut usize, (_, link): (TaskId, &Option<usize>)| {
            *others += usize::from(link.is_none());
            Some(*others)
        };
        let group = |(index, link): (usize, &ChainLink)| {
            let mut reads = link.reads.clone();
            reads.sort_unstable();
            reads.dedup();
            Some(ChainGroup { links: vec![index], reads, writes: vec![link.write], place: link.task })
        };
        Groups {
            kept: kept(sharded),
            backward: sharded.tasks.iter().position(is_gradient).unwrap_or(sharded.tasks.len()),
            others: by_task.iter().scan(0, count).collect(),
            group_of: (0..links.len()).collect(),
            groups: links.iter().enumerate().map(group).collect(),
            sharded,
            touches,
            links,
            by_task,
        }
    }

    /// Pairs of links that may spare something together, those first that spare most.
    fn edges(&self) -> Vec<[usize; 2]> {
        let mut pairs: Vec<[usize; 2]> = Vec::new();
        // The last link that read a tensor, in the stretch of links that is being looked at.
        let mut readers: HashMap<BufferId, usize> = HashMap::new();
        for (index, link) in self.links.iter().enumerate() {
            if index > 0 && self.is_apart(self.links[index - 1].task, link.task) {
                readers.clear();
            }
            for &read in &link.reads {
                let before = readers.insert(read, index).filter(|&before| before != index);
                pairs.extend(before.map(|before| [before, index]));
            }
            let reading = self.touches.readers[link.write].iter().filter_map(|&task| self.by_task[task]);
            pairs.extend(reading.map(|reader| [index, reader]));
        }
        let spared = |&pair: &[usize; 2]| {
            let alone = |link: usize| self.groups[link].as_ref().expect("every link begins as a group");
            let [left, right] = pair.map(alone);
            let group = self.joined(left, right)?;
            Some((Reverse(self.cost(left) + self.cost(right) - self.cost(&group)), pair))
        };
        let mut edges: Vec<_> = pairs.iter().filter_map(spared).collect();
        edges.sort_unstable();
        edges.dedup();
        edges.into_iter().map(|(_, pair)| pair).collect()
    }

    /// Whether a task that is no link stands between two links.
    fn is_apart(&self, one: TaskId, other: TaskId) -> bool {
        self.others[one.index()] != self.others[other.index()]
    }

    /// Bytes that a group reads and writes.
    fn cost(&self, group: &ChainGroup) -> u64 {
        group.reads.iter().chain(&group.writes).map(|&buffer| bytes(self.sharded, buffer)).sum()
    }

    /// Makes one group of two if that spares bytes.
    fn join(&mut self, left: usize, right: usize) {
        if left == right {
            return;
        }
        let (Some(one), Some(other)) = (&self.groups[left], &self.groups[right]) else { return };
        let apart = self.cost(one) + self.cost(other);
        let Some(group) = self.joined(one, other).filter(|group| self.cost(group) < apart) else { return };
        let (first, second) = (left.min(right), left.max(right));
        group.links.iter().for_each(|&link| self.group_of[link] = first);
        (self.groups[first], self.groups[second]) = (Some(group), None);
    }

    /// Both groups as one, if they can run together.
    fn joined(&self, one: &ChainGroup, other: &ChainGroup) -> Option<ChainGroup> {
        let key = |group: &ChainGroup| {
            let link = &self.links[group.links[0]];
            let result = &self.sharded.buffers[link.write];
            let microbatch = self.sharded.tasks[link.task].microbatch;
            (&result.ty, &result.groups, microbatch, link.task.index() < self.backward)
        };
        if key(one) != key(other) {
            return None;
        }
        let mut links = [&one.links[..], &other.links].concat();
        links.sort_unstable();
        let mut group = ChainGroup { links, reads: Vec::new(), writes: Vec::new(), place: one.place };
        self.outline(&mut group)?;
        let random = group.links.iter().any(|&link| self.links[link].function.is_random());
        let reads = group.reads.len() + usize::from(random);
        let most = group.links.len().max(reads).max(group.writes.len());
        group.place = (0..group.links.len())
            .rev()
            .map(|at| self.links[group.links[at]].task)
            .find(|&place| self.can_run(&group, place))?;
        (most <= MAX_CHAIN && self.holds_no_more(&group)).then_some(group)
    }

    /// Finds what the links of a group read and write of and for others.
    fn outline(&self, group: &mut ChainGroup) -> Option<()> {
        let written = |buffer: BufferId| group.links.iter().any(|&link| self.links[link].write == buffer);
        for link in group.links.iter().map(|&link| &self.links[link]) {
            for &read in link.reads.iter().filter(|&&read| !written(read)) {
                // The same bytes in another shape are no longer there to be shown.
                if written(self.sharded.root(read)) {
                    return None;
                }
                if !group.reads.contains(&read) {
                    group.reads.push(read);
                }
            }
            let readers = &self.touches.readers[link.write];
            let is_hidden = !readers.is_empty() && readers.iter().all(|&reader| self.has(group, reader));
            if self.kept[link.write] || !is_hidden {
                group.writes.push(link.write);
            }
        }
        Some(())
    }

    fn has(&self, group: &ChainGroup, task: TaskId) -> bool {
        self.by_task[task].is_some_and(|link| group.links.binary_search(&link).is_ok())
    }

    /// Where a task runs now.
    fn now(&self, task: TaskId) -> TaskId {
        let group = self.by_task[task].and_then(|link| self.groups[self.group_of[link]].as_ref());
        group.map_or(task, |group| group.place)
    }

    /// Whether at `place` a group finds what its links found, and others what they wrote.
    fn can_run(&self, group: &ChainGroup, place: TaskId) -> bool {
        group.links.iter().map(|&link| &self.links[link]).all(|link| {
            let finds = |&read: &BufferId| {
                let mut writers = self.touches.writers[self.sharded.root(read)].iter();
                writers.all(|&writer| {
                    self.has(group, writer) || (writer < link.task) == (self.now(writer) < place)
                })
            };
            let mut readers = self.touches.readers[link.write].iter();
            link.reads.iter().all(finds)
                && readers.all(|&reader| self.has(group, reader) || self.now(reader) > place)
        })
    }

    /// Whether no more tensors live longer than are spared, of links that now run on the other side of tasks that are none.
    fn holds_no_more(&self, group: &ChainGroup) -> bool {
        let links = || group.links.iter().map(|&link| &self.links[link]);
        let moved = |link: &ChainLink| self.is_apart(link.task, group.place);
        let dies = |link: &ChainLink, read: BufferId| {
            let root = self.sharded.root(read);
            !self.kept[root] && self.touches.readers[root].iter().all(|&reader| reader <= link.task)
        };
        let held = |link: &ChainLink| match link.task < group.place {
            true => {
                group.reads.iter().filter(|&&read| link.reads.contains(&read) && dies(link, read)).count()
            }
            false => usize::from(group.writes.contains(&link.write)),
        };
        let spared = |link: &&ChainLink| {
            !group.writes.contains(&link.write)
                && (moved(link) || links().any(|other| moved(other) && other.reads.contains(&link.write)))
        };
        let held: usize = links().filter(|link| moved(link)).map(held).sum();
        held <= links().filter(spared).count()
    }
}
