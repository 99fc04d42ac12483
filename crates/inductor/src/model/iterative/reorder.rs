//! Collectives rise to the front.

use phalanx_ir::IdVec;

use super::Run;
use super::party::Party;
use super::report::{Limit, Stat, Stop};
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
    let mut wanted = Wanted { parties: order.iter().map(|_| 0).collect(), party: 0 };
    let treat = |&node: &NodeId| {
        wanted.start(run, node);
        let window = Window::of_collective(run.look(), node);
        let party = Party::new(run, node, window);
        party.travel(|party, candidate| advance(party, &mut wanted, candidate))
    };
    collectives.map(treat).collect()
}

/// Which nodes the party must stay behind.
struct Wanted {
    /// By node: the last party that must.
    parties: IdVec<NodeId, u32>,
    party: u32,
}

impl Wanted {
    fn start(&mut self, run: &Run, node: NodeId) {
        self.party += 1;
        self.add(run, node);
    }

    fn add(&mut self, run: &Run, node: NodeId) {
        for &fence in run.facts.fences.of(node) {
            self.parties[fence] = self.party;
        }
    }

    fn contains(&self, node: NodeId) -> bool {
        self.parties[node] == self.party
    }
}

/// Takes `candidate`, the neighbor before the party, along, or passes it.
fn advance(party: &mut Party, wanted: &mut Wanted, candidate: NodeId) -> Result<(), Stop> {
    if party.is_hidden() {
        return Err(Limit::Unexposed.into());
    }
    if breaks_order(party, candidate) {
        return Err(Limit::CollectiveOrdering.into());
    }
    if wanted.contains(candidate) {
        join(party, candidate)?;
        wanted.add(party.run, candidate);
        return Ok(());
    }
    if party.run.knobs.by_time {
        match party.run.facts.traits[candidate].is_async {
            true => weigh_collective(party, candidate)?,
            false => weigh_waits(party, candidate)?,
        }
    }
    party.pass(candidate)
}

fn breaks_order(party: &Party, candidate: NodeId) -> bool {
    // D14: by default the reference lets all collectives pass each other, and otherwise none. Those of different process
    // groups may, those of the same may not.
    if party.run.is_fixed() {
        return party.shares_stream(candidate);
    }
    !party.run.knobs.is_unsafe && party.run.facts.traits[candidate].has_collective()
}

/// Takes a node along that the party needs, if that may be.
fn join(party: &mut Party, candidate: NodeId) -> Result<(), Stop> {
    let Run { facts, times, list, awaited, config, knobs, .. } = &mut *party.run;
    let traits = facts.traits[candidate];
    let is_heavy = traits.has_gemm && !knobs.by_time;
    if is_heavy || (traits.is_async && !config.reorder_iterative_group_with_collectives) {
        return Err(Limit::DataDependency.into());
    }
    if traits.has_wait && knobs.by_time {
        party.others.push(Look { facts, times, list }.wait(candidate, awaited));
    }
    if !traits.is_async {
        party.runtime += times.of[candidate];
    }
    party.take_along(candidate);
    Ok(())
}

/// Whether passing `candidate` exposes the waits of the party more than it hides the collective.
fn weigh_waits(party: &mut Party, candidate: NodeId) -> Result<(), Stop> {
    let time = party.run.times.of[candidate];
    if time == 0.0 || party.others.is_empty() {
        return Ok(());
    }
    let gain = party.window.exposure(party.run.look()).damage(-time);
    if party.weigh(time, gain, loses) {
        return Err(Limit::ExposesGroupWaits.into());
    }
    Ok(())
}

/// Whether what the party passes leaves the window that a wait of it ends: only if the window ends inside the party and
/// starts before it. The reference takes that for granted.
fn loses(run: &Run, wait: &Exposure) -> bool {
    let is_inside = |node: Option<NodeId>| node.is_some_and(|node| run.memory.in_party(node));
    !run.is_fixed() || (is_inside(wait.end) && !is_inside(wait.collective))
}

/// Whether a collective that the party passes is still hidden without what came along.
fn weigh_collective(party: &Party, candidate: NodeId) -> Result<(), Stop> {
    let (lost, comm) = (party.runtime, party.run.times.of[candidate]);
    let is_enough = |comp: f64| comm - comp + lost <= 0.0;
    if lost > 0.0 && party.run.look().collective(candidate, is_enough).damage(lost) > 0.0 {
        return Err(Limit::ExposesCandidateCollective.into());
    }
    Ok(())
}
