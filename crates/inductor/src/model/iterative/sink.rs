//! Waits sink to the back.

use super::Run;
use super::node_group::NodeGroup;
use super::report::{Stat, Stop, StopReason};
use super::window::Window;
use crate::mode::PassMode;
use crate::model::NodeId;
use crate::model::exposure::{Exposure, Look};

/// Treats the waits of the list from back to front.
pub(super) fn treat_all(run: &mut Run, order: &[NodeId]) -> Vec<Stat> {
    // D11: the reference never comes to the first node.
    let n_unreached = if run.is_fixed() { 0 } else { 1 };
    let traits = &run.facts.traits;
    let waits = order.iter().skip(n_unreached).rev().filter(|&&node| traits[node].has_wait);
    let waits = waits.take(run.knobs.most);
    let treat = |&node: &NodeId| {
        let Run { facts, times, list, awaited, inside, .. } = &mut *run;
        let window = Window::of_wait(Look { facts, times, list }, node, awaited, inside);
        NodeGroup::new(run, node, window).advance_all(advance)
    };
    waits.map(treat).collect()
}

/// Takes `candidate`, the neighbor after the group, along, or passes it.
fn advance(group: &mut NodeGroup, candidate: NodeId) -> Result<(), Stop> {
    let (config, facts) = (group.run.config, group.run.facts);
    if group.is_hidden() {
        return Err(StopReason::Unexposed.into());
    }
    if facts.traits[candidate].is_async && !config.sink_waits_iterative_swap_with_collectives {
        return Err(StopReason::AsyncCollectiveAhead.into());
    }
    let needs_party = facts.fences.of(candidate).iter().any(|&fence| group.run.memory.in_party(fence));
    let breaks_order = breaks_order(group, candidate);
    if (needs_party || breaks_order) && may_join(group.run, candidate) {
        join(group, candidate);
        return Ok(());
    }
    if needs_party {
        return Err(StopReason::DataDependency.into());
    }
    // D14: as in the other pass.
    if breaks_order && (group.run.is_fixed() || !group.run.knobs.is_unsafe) {
        return Err(StopReason::CollectiveOrdering.into());
    }
    if group.run.knobs.by_time {
        weigh_wait(group, candidate)?;
        weigh_collectives(group, candidate)?;
    }
    group.pass(candidate)
}

/// Whether a collective of the group would pass another.
fn breaks_order(group: &NodeGroup, candidate: NodeId) -> bool {
    if group.run.is_fixed() {
        return group.shares_stream(candidate);
    }
    group.has_collective() && group.run.facts.traits[candidate].has_collective()
}

fn may_join(run: &Run, candidate: NodeId) -> bool {
    let traits = run.facts.traits[candidate];
    let is_heavy = traits.is_sync || traits.has_gemm;
    !traits.has_wait && !traits.is_async && (run.knobs.by_time || !is_heavy)
}

fn join(group: &mut NodeGroup, candidate: NodeId) {
    let is_sync = group.run.facts.traits[candidate].is_sync;
    if is_sync && group.run.knobs.by_time {
        group.others.push(group.run.look().collective(candidate, |_| false));
    }
    // D2: the reference forgets the time of everything but collectives.
    if is_sync || group.run.is_fixed() {
        group.runtime += group.run.times.of[candidate];
    }
    group.take_along(candidate);
}

/// Whether a wait that the group passes still has as much before it without what came along.
fn weigh_wait(group: &mut NodeGroup, candidate: NodeId) -> Result<(), Stop> {
    let Run { facts, times, list, awaited, memory, .. } = &mut *group.run;
    if !facts.traits[candidate].is_guarded || group.runtime == 0.0 {
        return Ok(());
    }
    let exposure = Look { facts, times, list }.wait(candidate, awaited);
    // The reference takes for granted that the window reaches the group.
    let reaches = |end| end == candidate || memory.in_party(end);
    let is_lost = facts.mode != PassMode::Fixed || exposure.end.is_some_and(reaches);
    if is_lost && exposure.damage(group.runtime) > 0.0 {
        return Err(StopReason::ExposesCandidateWait.into());
    }
    Ok(())
}

/// Whether passing `candidate` exposes the collectives of the group more than it hides that of the wait.
fn weigh_collectives(group: &mut NodeGroup, candidate: NodeId) -> Result<(), Stop> {
    let time = group.run.times.of[candidate];
    if group.run.facts.traits[candidate].is_async || time == 0.0 || group.others.is_empty() {
        return Ok(());
    }
    let exposure = group.window.exposure(group.run.look());
    let is_loss = match group.run.facts.mode {
        PassMode::Reference => weigh_as_the_reference(group, time, exposure),
        PassMode::Newer | PassMode::Fixed => group.weigh(time, exposure.damage(-time), loses),
    };
    if is_loss { Err(StopReason::ExposesGroupCollectives.into()) } else { Ok(()) }
}

/// D1: the reference forgets what the wait gains, and takes the losses of the others for gains.
fn weigh_as_the_reference(group: &mut NodeGroup, time: f64, exposure: Exposure) -> bool {
    let exposed = (exposure.comm - exposure.comp).max(0.0);
    let is_loss = group.others.iter().fold(exposed, |sum, other| sum - other.damage(time)) > 0.0;
    if !is_loss {
        group.others.iter_mut().for_each(|other| other.comp -= time);
    }
    is_loss
}

/// Whether what the group passes leaves the window of a collective in it: not if the window ends inside the group. The
/// reference takes that for granted.
fn loses(run: &Run, collective: &Exposure) -> bool {
    !run.is_fixed() || !collective.end.is_some_and(|end| run.memory.in_party(end))
}
