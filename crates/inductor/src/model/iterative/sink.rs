//! Waits sink to the back.

use super::Run;
use super::party::Party;
use super::report::{Limit, Stat, Stop};
use super::window::Window;
use crate::mode::Mode;
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
        Party::new(run, node, window).travel(advance)
    };
    waits.map(treat).collect()
}

/// Takes `candidate`, the neighbor after the party, along, or passes it.
fn advance(party: &mut Party, candidate: NodeId) -> Result<(), Stop> {
    let (config, facts) = (party.run.config, party.run.facts);
    if party.is_hidden() {
        return Err(Limit::Unexposed.into());
    }
    if facts.traits[candidate].is_async && !config.sink_waits_iterative_swap_with_collectives {
        return Err(Limit::AsyncCollectiveAhead.into());
    }
    let needs_party = facts.fences.of(candidate).iter().any(|&fence| party.run.memory.in_party(fence));
    let breaks_order = breaks_order(party, candidate);
    if (needs_party || breaks_order) && may_join(party.run, candidate) {
        join(party, candidate);
        return Ok(());
    }
    if needs_party {
        return Err(Limit::DataDependency.into());
    }
    // D14: as in the other pass.
    if breaks_order && (party.run.is_fixed() || !party.run.knobs.is_unsafe) {
        return Err(Limit::CollectiveOrdering.into());
    }
    if party.run.knobs.by_time {
        weigh_wait(party, candidate)?;
        weigh_collectives(party, candidate)?;
    }
    party.pass(candidate)
}

/// Whether a collective of the party would pass another.
fn breaks_order(party: &Party, candidate: NodeId) -> bool {
    if party.run.is_fixed() {
        return party.shares_stream(candidate);
    }
    party.has_collective() && party.run.facts.traits[candidate].has_collective()
}

fn may_join(run: &Run, candidate: NodeId) -> bool {
    let traits = run.facts.traits[candidate];
    let is_heavy = traits.is_sync || traits.has_gemm;
    !traits.has_wait && !traits.is_async && (run.knobs.by_time || !is_heavy)
}

fn join(party: &mut Party, candidate: NodeId) {
    let is_sync = party.run.facts.traits[candidate].is_sync;
    if is_sync && party.run.knobs.by_time {
        party.others.push(party.run.look().collective(candidate, |_| false));
    }
    // D2: the reference forgets the time of everything but collectives.
    if is_sync || party.run.is_fixed() {
        party.runtime += party.run.times.of[candidate];
    }
    party.take_along(candidate);
}

/// Whether a wait that the party passes still has as much before it without what came along.
fn weigh_wait(party: &mut Party, candidate: NodeId) -> Result<(), Stop> {
    let Run { facts, times, list, awaited, memory, .. } = &mut *party.run;
    if !facts.traits[candidate].is_guarded || party.runtime == 0.0 {
        return Ok(());
    }
    let exposure = Look { facts, times, list }.wait(candidate, awaited);
    // The reference takes for granted that the window reaches the party.
    let reaches = |end| end == candidate || memory.in_party(end);
    let is_lost = facts.mode != Mode::Fixed || exposure.end.is_some_and(reaches);
    if is_lost && exposure.damage(party.runtime) > 0.0 {
        return Err(Limit::ExposesCandidateWait.into());
    }
    Ok(())
}

/// Whether passing `candidate` exposes the collectives of the party more than it hides that of the wait.
fn weigh_collectives(party: &mut Party, candidate: NodeId) -> Result<(), Stop> {
    let time = party.run.times.of[candidate];
    if party.run.facts.traits[candidate].is_async || time == 0.0 || party.others.is_empty() {
        return Ok(());
    }
    let exposure = party.window.exposure(party.run.look());
    let is_loss = match party.run.facts.mode {
        Mode::Reference => weigh_as_the_reference(party, time, exposure),
        Mode::Newer | Mode::Fixed => party.weigh(time, exposure.damage(-time), loses),
    };
    if is_loss { Err(Limit::ExposesGroupCollectives.into()) } else { Ok(()) }
}

/// D1: the reference forgets what the wait gains, and takes the losses of the others for gains.
fn weigh_as_the_reference(party: &mut Party, time: f64, exposure: Exposure) -> bool {
    let exposed = (exposure.comm - exposure.comp).max(0.0);
    let is_loss = party.others.iter().fold(exposed, |sum, other| sum - other.damage(time)) > 0.0;
    if !is_loss {
        party.others.iter_mut().for_each(|other| other.comp -= time);
    }
    is_loss
}

/// Whether what the party passes leaves the window of a collective in it: not if the window ends inside the party. The
/// reference takes that for granted.
fn loses(run: &Run, collective: &Exposure) -> bool {
    !run.is_fixed() || !collective.end.is_some_and(|end| run.memory.in_party(end))
}
