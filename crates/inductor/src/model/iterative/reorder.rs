//! Collectives rise to the front.

use phalanx_ir::IdVec;

use super::Run;
use super::node_group::NodeGroup;
use super::report::{Stat, Stop, StopReason};
use super::window::Window;
use crate::model::NodeId;
use crate::model::exposure::{Exposure, Look};

/// Treats the collectives of the list from front to back.
pub(super) fn treat_all(run: &mut Run, order: &[NodeId]) -> Vec<Stat> {
    // D11: the reference never comes to the last node.
    let reached = if run.is_fixed() { order.len() } else { order.len().saturating_sub(1) };
    let traits = &run.facts.traits;
    let collectives = order[..reached].iter().filter(|&&node| traits[node].is_async);
    let collectives = collectives.take(run.knobs.most);
    let mut wanted = Wanted { groups: order.iter().map(|_| 0).collect(), group: 0 };
    let treat = |&node: &NodeId| {
        wanted.start(run, node);
        let window = Window::of_collective(run.look(), node);
        let group = NodeGroup::new(run, node, window);
        group.advance_all(|group, candidate| advance(group, &mut wanted, candidate))
    };
    collectives.map(treat).collect()
}

/// Which nodes the group must stay behind.
struct Wanted {
    /// By node: the last group that must.
    groups: IdVec<NodeId, u32>,
    group: u32,
}

impl Wanted {
    fn start(&mut self, run: &Run, node: NodeId) {
        self.group += 1;
        self.add(run, node);
    }

    fn add(&mut self, run: &Run, node: NodeId) {
        for &fence in run.facts.fences.of(node) {
            self.groups[fence] = self.group;
        }
    }

    fn contains(&self, node: NodeId) -> bool {
        self.groups[node] == self.group
    }
}

/// Takes `candidate`, the neighbor before the group, along, or passes it.
fn advance(group: &mut NodeGroup, wanted: &mut Wanted, candidate: NodeId) -> Result<(), Stop> {
    if group.is_hidden() {
        return Err(StopReason::Unexposed.into());
    }
    if breaks_order(group, candidate) {
        return Err(StopReason::CollectiveOrdering.into());
    }
    if wanted.contains(candidate) {
        join(group, candidate)?;
        wanted.add(group.run, candidate);
        return Ok(());
    }
    if group.run.knobs.by_time {
        match group.run.facts.traits[candidate].is_async {
            true => weigh_collective(group, candidate)?,
            false => weigh_waits(group, candidate)?,
        }
    }
    group.pass(candidate)
}

fn breaks_order(group: &NodeGroup, candidate: NodeId) -> bool {
    // D14: by default the reference lets all collectives pass each other, and otherwise none. Those of different process
    // groups may, those of the same may not.
    if group.run.is_fixed() {
        return group.shares_stream(candidate);
    }
    !group.run.knobs.is_unsafe && group.run.facts.traits[candidate].has_collective()
}

/// Takes a node along that the group needs, if that may be.
fn join(group: &mut NodeGroup, candidate: NodeId) -> Result<(), Stop> {
    let Run { facts, times, list, awaited, config, knobs, .. } = &mut *group.run;
    let traits = facts.traits[candidate];
    let is_heavy = traits.has_gemm && !knobs.by_time;
    if is_heavy || (traits.is_async && !config.reorder_iterative_group_with_collectives) {
        return Err(StopReason::DataDependency.into());
    }
    if traits.has_wait && knobs.by_time {
        group.others.push(Look { facts, times, list }.wait(candidate, awaited));
    }
    if !traits.is_async {
        group.runtime += times.of[candidate];
    }
    group.take_along(candidate);
    Ok(())
}

/// Whether passing `candidate` exposes the waits of the group more than it hides the collective.
fn weigh_waits(group: &mut NodeGroup, candidate: NodeId) -> Result<(), Stop> {
    let time = group.run.times.of[candidate];
    if time == 0.0 || group.others.is_empty() {
        return Ok(());
    }
    let gain = group.window.exposure(group.run.look()).damage(-time);
    if group.weigh(time, gain, loses) {
        return Err(StopReason::ExposesGroupWaits.into());
    }
    Ok(())
}

/// Whether what the group passes leaves the window that a wait of it ends: only if the window ends inside the group and
/// starts before it. The reference takes that for granted.
fn loses(run: &Run, wait: &Exposure) -> bool {
    let is_inside = |node: Option<NodeId>| node.is_some_and(|node| run.memory.in_party(node));
    !run.is_fixed() || (is_inside(wait.end) && !is_inside(wait.collective))
}

/// Whether a collective that the group passes is still hidden without what came along.
fn weigh_collective(group: &NodeGroup, candidate: NodeId) -> Result<(), Stop> {
    let (lost, comm) = (group.runtime, group.run.times.of[candidate]);
    let is_enough = |comp: f64| comm - comp + lost <= 0.0;
    if lost > 0.0 && group.run.look().collective(candidate, is_enough).damage(lost) > 0.0 {
        return Err(StopReason::ExposesCandidateCollective.into());
    }
    Ok(())
}
