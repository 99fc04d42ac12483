//! The two iterative passes of the reference as they are described: every window is looked at again after every move,
//! every group is listed anew, and memory is a table of all nodes. The two long loops follow the description step by step.

use phalanx_inductor::cases::ListConfig;
use phalanx_inductor::model::{BufId, Iterative, LaunchGraph, LaunchKind, NodeId, Stat, StopReason};
use phalanx_ir::IdVec;

/// The pass that moves collectives.
pub fn reorder(graph: &LaunchGraph, order: &[NodeId], config: &ListConfig) -> Iterative {
    let mut naive = Naive::new(graph, order, config);
    let most = config.reorder_iterative_debug_limit_to_reorder.unwrap_or(usize::MAX);
    let visited = order.iter().take(order.len().saturating_sub(1)).filter(|&&node| is_async(graph, node));
    let stats = visited.take(most).map(|&node| naive.raise(node)).collect();
    naive.finish(stats)
}

/// The pass that moves waits; `newer` as in the later version.
pub fn sink(graph: &LaunchGraph, order: &[NodeId], config: &ListConfig, newer: bool) -> Iterative {
    let mut naive = Naive::new(graph, order, config);
    let most = config.sink_waits_iterative_debug_limit_to_sink.unwrap_or(usize::MAX);
    let visited = order.iter().skip(1).rev().filter(|&&node| graph.contains_wait(node));
    let stats = visited.take(most).map(|&node| naive.sink(node, newer)).collect();
    naive.finish(stats)
}

fn is_async(graph: &LaunchGraph, node: NodeId) -> bool {
    let is_sync = |leaf: &phalanx_inductor::model::Leaf| leaf.kind == LaunchKind::SyncCollective;
    graph.contains_collective(node) && (graph.nodes[node].is_group || !graph.members(node).all(is_sync))
}

struct Naive<'a> {
    graph: &'a LaunchGraph,
    config: &'a ListConfig,
    order: Vec<NodeId>,
    peak: i64,
    table: IdVec<NodeId, (i64, i64)>,
    flow: IdVec<NodeId, (i64, i64)>,
    last_users: IdVec<BufId, Option<NodeId>>,
    times: IdVec<NodeId, f64>,
}

impl<'a> Naive<'a> {
    fn new(graph: &'a LaunchGraph, order: &[NodeId], config: &'a ListConfig) -> Self {
        let mut memory = graph.memory(order);
        memory.flow[order[0]].0 += memory.start;
        let mut table: IdVec<NodeId, (i64, i64)> = graph.nodes.ids().map(|_| (0, 0)).collect();
        for (&node, step) in order.iter().zip(&memory.steps) {
            table[node] = (step.post_alloc, step.post_free);
        }
        let multiplier = |node| match graph.contains_collective(node) {
            true => config.reorder_sink_runtime_estimations_comm_mult,
            false => config.reorder_sink_runtime_estimations_non_comm_mult,
        };
        let times = graph.nodes.iter().map(|(id, node)| node.cost * multiplier(id)).collect();
        let (order, peak) = (order.to_vec(), memory.peak);
        Naive { graph, config, order, peak, table, flow: memory.flow, last_users: memory.last_users, times }
    }

    fn finish(self, stats: Vec<Stat>) -> Iterative {
        let steps = self.graph.memory(&self.order).steps;
        let is_off = |&(&node, step): &(&NodeId, &phalanx_inductor::model::MemoryStep)| {
            self.table[node] != (step.post_alloc, step.post_free)
        };
        let drift = self.order.iter().zip(&steps).filter(is_off).count();
        Iterative { order: self.order, stats, drift }
    }

    fn at(&self, node: NodeId) -> usize {
        self.order.iter().position(|&other| other == node).expect("every node is in the order")
    }

    /// Whether `node` depends on an output of `definer`.
    fn depends(&self, node: NodeId, definer: NodeId) -> bool {
        let outputs = &self.graph.nodes[definer].outputs;
        self.graph.nodes[node].deps.iter().any(|dep| outputs.contains(dep))
    }

    fn uses(&self, node: NodeId, buf: BufId) -> bool {
        self.graph.bufs[buf].users.contains(&node)
    }

    fn free(&self, bufs: &[BufId]) -> i64 {
        bufs.iter().map(|&buf| self.graph.bufs[buf].free as i64).sum()
    }

    fn forward(&self, collective: NodeId) -> (f64, f64) {
        let mut comp = 0.0;
        for &node in &self.order[self.at(collective) + 1..] {
            if self.depends(node, collective) {
                break;
            }
            match self.graph.contains_collective(node) {
                true if is_async(self.graph, node) => {}
                true => break,
                false => comp += self.times[node],
            }
        }
        (self.times[collective], comp)
    }

    fn backward(&self, wait: NodeId) -> (f64, f64) {
        let (mut comp, mut waits) = (0.0, Vec::new());
        for &node in self.order[..self.at(wait)].iter().rev() {
            if self.graph.contains_wait(node) {
                waits.push(node);
            }
            if !self.graph.contains_collective(node) {
                comp += self.times[node];
            } else if self.depends(wait, node) {
                return (self.times[node], comp);
            } else if !is_async(self.graph, node) || waits.iter().any(|&wait| self.depends(wait, node)) {
                comp = 0.0;
            }
        }
        (0.0, comp)
    }

    fn raise(&mut self, curr: NodeId) -> Stat {
        let (graph, config) = (self.graph, self.config);
        let by_time = config.reorder_iterative_use_runtime_estimations;
        let mut stat = Self::stat(curr, self.forward(curr));
        let (mut head, mut tail) = (self.at(curr), self.at(curr));
        let (mut group_waits, mut group_runtime) = (Vec::<(f64, f64)>::new(), 0.0);
        let mut group_peak = self.table[curr].0;
        stat.limit = loop {
            let Some(candidate) = head.checked_sub(1).map(|at| self.order[at]) else {
                break StopReason::None;
            };
            let extra = config.reorder_iterative_extra_comm_comp_overlap;
            if by_time && stat.final_exposed < -extra * stat.comm_time {
                break StopReason::Unexposed;
            }
            if !config.reorder_iterative_unsafe_collectives_reorder && graph.contains_collective(candidate) {
                break StopReason::CollectiveOrdering;
            }
            if self.order[head..=tail].iter().any(|&node| self.depends(node, candidate)) {
                if is_async(graph, candidate) && !config.reorder_iterative_group_with_collectives
                    || graph.nodes[candidate].contains_gemm && !by_time
                {
                    break StopReason::DataDependency;
                }
                if graph.contains_wait(candidate) {
                    group_waits.push(self.backward(candidate));
                }
                if !is_async(graph, candidate) {
                    group_runtime += self.times[candidate];
                }
                group_peak = group_peak.max(self.table[candidate].0);
                (head, stat.grouped) = (head - 1, stat.grouped + 1);
                continue;
            }
            let r = self.times[candidate];
            if by_time && !is_async(graph, candidate) && r > 0.0 && !group_waits.is_empty() {
                let mut delta = change(stat.comm_time, stat.comp_time, -r);
                delta = group_waits.iter().fold(delta, |delta, &(c, p)| delta + change(c, p, r));
                if delta > 0.0 {
                    break StopReason::ExposesGroupWaits;
                }
                group_waits.iter_mut().for_each(|wait| wait.1 -= r);
            }
            if by_time && is_async(graph, candidate) && group_runtime > 0.0 {
                let (c, p) = self.forward(candidate);
                if change(c, p, group_runtime) > 0.0 {
                    break StopReason::ExposesCandidateCollective;
                }
            }
            let budget = config.reorder_iterative_peak_memory_budget;
            if let Err(peak) = self.swap_up((head, tail), group_peak, budget) {
                stat.limit_peak = Some(peak);
                break StopReason::PeakMemory;
            }
            self.order[head - 1..=tail].rotate_left(1);
            (head, tail) = (head - 1, tail - 1);
            self.moved(&mut stat, Self::forward);
        };
        stat
    }

    fn sink(&mut self, curr: NodeId, newer: bool) -> Stat {
        let (graph, config) = (self.graph, self.config);
        let by_time = config.sink_iterative_use_runtime_estimations;
        let mut stat = Self::stat(curr, self.backward(curr));
        let (mut head, mut tail) = (self.at(curr), self.at(curr));
        let (mut group_collectives, mut group_runtime) = (Vec::<(f64, f64)>::new(), 0.0);
        let mut group_peak = self.table[curr].0;
        stat.limit = loop {
            let Some(&candidate) = self.order.get(tail + 1) else { break StopReason::None };
            let extra = config.sink_iterative_extra_comm_comp_overlap;
            if by_time && stat.final_exposed < -extra * stat.comm_time {
                break StopReason::Unexposed;
            }
            let group = &self.order[head..=tail];
            let dep = group.iter().any(|&node| self.depends(candidate, node));
            let has_collective = graph.contains_collective(candidate);
            if is_async(graph, candidate) && !config.sink_waits_iterative_swap_with_collectives {
                break StopReason::AsyncCollectiveAhead;
            }
            let both = has_collective && group.iter().any(|&node| graph.contains_collective(node));
            if dep || both {
                let is_plain = !graph.contains_wait(candidate) && !is_async(graph, candidate);
                if is_plain && (by_time || !has_collective && !graph.nodes[candidate].contains_gemm) {
                    if has_collective {
                        group_collectives.push(self.forward(candidate));
                        group_runtime += self.times[candidate];
                    }
                    group_peak = group_peak.max(self.table[candidate].0);
                    (tail, stat.grouped) = (tail + 1, stat.grouped + 1);
                    continue;
                }
                if dep {
                    break StopReason::DataDependency;
                }
                if !config.sink_waits_iterative_unsafe_collectives_reorder {
                    break StopReason::CollectiveOrdering;
                }
            }
            let is_wait = !graph.nodes[candidate].is_group && graph.contains_wait(candidate);
            if by_time && is_wait {
                let (c, p) = self.backward(candidate);
                if change(c, p, group_runtime) > 0.0 {
                    break StopReason::ExposesCandidateWait;
                }
            }
            let r = self.times[candidate];
            if by_time && !is_async(graph, candidate) && r > 0.0 && !group_collectives.is_empty() {
                let losses = group_collectives.iter().map(|&(c, p)| change(c, p, r));
                let delta = match newer {
                    true => losses.fold(change(stat.comm_time, stat.comp_time, -r), |sum, loss| sum + loss),
                    false => losses.fold((stat.comm_time - stat.comp_time).max(0.0), |sum, loss| sum - loss),
                };
                if delta > 0.0 {
                    break StopReason::ExposesGroupCollectives;
                }
                group_collectives.iter_mut().for_each(|collective| collective.1 -= r);
            }
            let budget = config.sink_iterative_peak_memory_budget;
            if let Err(peak) = self.swap_down((head, tail), group_peak, budget) {
                stat.limit_peak = Some(peak);
                break StopReason::PeakMemory;
            }
            self.order[head..=tail + 1].rotate_right(1);
            (head, tail) = (head + 1, tail + 1);
            self.moved(&mut stat, Self::backward);
        };
        stat
    }

    fn stat(node: NodeId, (comm_time, comp_time): (f64, f64)) -> Stat {
        let initial_exposed = comm_time - comp_time;
        let (final_exposed, limit) = (initial_exposed, StopReason::None);
        let (moves, grouped, limit_peak) = (0, 0, None);
        Stat { node, comm_time, comp_time, initial_exposed, final_exposed, moves, grouped, limit, limit_peak }
    }

    fn moved(&self, stat: &mut Stat, exposure: fn(&Self, NodeId) -> (f64, f64)) {
        (stat.comm_time, stat.comp_time) = exposure(self, stat.node);
        stat.final_exposed = stat.comm_time - stat.comp_time;
        stat.moves += 1;
    }

    fn is_allowed(&self, peak: i64, budget: f64) -> Result<(), i64> {
        if (peak - self.peak) as f64 > self.peak as f64 * budget { Err(peak) } else { Ok(()) }
    }

    fn swap_up(&mut self, (head, tail): (usize, usize), group_peak: i64, budget: f64) -> Result<(), i64> {
        let (c, group) = (self.order[head - 1], self.order[head..=tail].to_vec());
        let (alloc, free) = self.flow[c];
        let d = alloc - free;
        let handed: Vec<Vec<BufId>> = group.iter().map(|&g| self.used_by_and_last(c, g)).collect();
        if handed.iter().all(Vec::is_empty) {
            let end = self.table[self.order[tail]].1;
            self.is_allowed((group_peak - d).max(end - d + alloc), budget)?;
            for &g in &group {
                self.table[g] = (self.table[g].0 - d, self.table[g].1 - d);
            }
            let top = end - d + alloc;
            self.table[c] = (top, top - free);
            return Ok(());
        }
        let (mut shift, mut tops) = (-d, Vec::new());
        for (&g, handed) in group.iter().zip(&handed) {
            tops.push(self.table[g].0 + shift);
            shift += self.free(handed);
        }
        let top = self.table[self.order[tail]].1 + shift + alloc;
        self.is_allowed(tops.iter().fold(top, |peak, &top| peak.max(top)), budget)?;
        for ((&g, handed), g_top) in group.iter().zip(&handed).zip(tops) {
            self.flow[g].1 -= self.free(handed);
            self.table[g] = (g_top, g_top - self.flow[g].1);
            self.flow[c].1 += self.free(handed);
            handed.iter().for_each(|&buf| self.last_users[buf] = Some(c));
        }
        self.table[c] = (top, top - self.flow[c].1);
        Ok(())
    }

    /// Buffers that `user` uses and `last` has used last.
    fn used_by_and_last(&self, user: NodeId, last: NodeId) -> Vec<BufId> {
        let bufs = self.graph.bufs.ids();
        bufs.filter(|&buf| self.uses(user, buf) && self.last_users[buf] == Some(last)).collect()
    }

    fn swap_down(&mut self, (head, tail): (usize, usize), group_peak: i64, budget: f64) -> Result<(), i64> {
        let (c, group) = (self.order[tail + 1], self.order[head..=tail].to_vec());
        let (alloc, free) = self.flow[c];
        let d = alloc - free;
        let top = self.table[group[0]].0 - self.flow[group[0]].0 + alloc;
        let mut handed = vec![Vec::new(); group.len()];
        for buf in self.graph.bufs.ids().filter(|&buf| self.last_users[buf] == Some(c)) {
            if let Some(at) = group.iter().rposition(|&g| self.uses(g, buf)) {
                handed[at].push(buf);
            }
        }
        if handed.iter().all(Vec::is_empty) {
            self.is_allowed((group_peak + d).max(top), budget)?;
            for &g in &group {
                self.table[g] = (self.table[g].0 + d, self.table[g].1 + d);
            }
            self.table[c] = (top, top - free);
            return Ok(());
        }
        let moved: i64 = handed.iter().map(|bufs| self.free(bufs)).sum();
        let (mut shift, mut tops) = (d + moved, Vec::new());
        for (&g, handed) in group.iter().zip(&handed) {
            tops.push(self.table[g].0 + shift);
            shift -= self.free(handed);
        }
        self.is_allowed(tops.iter().fold(top, |peak, &top| peak.max(top)), budget)?;
        for ((&g, handed), g_top) in group.iter().zip(&handed).zip(tops) {
            self.flow[g].1 += self.free(handed);
            self.table[g] = (g_top, g_top - self.flow[g].1);
        }
        self.flow[c].1 -= moved;
        self.table[c] = (top, top - self.flow[c].1);
        Ok(())
    }
}

/// By how much the exposure of a collective changes when what hides it shrinks by `lost`.
fn change(comm: f64, comp: f64, lost: f64) -> f64 {
    (comm - comp + lost).max(0.0) - (comm - comp).max(0.0)
}
