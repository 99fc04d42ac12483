//! A node that moves, with those it takes along.

use super::report::{Stat, Stop, StopReason};
use super::window::Window;
use super::{Run, Way};
use crate::model::NodeId;
use crate::model::exposure::{Exposure, Look};

/// Neighbors that move together: at the rear the node that is treated, before it those that joined.
pub(super) struct NodeGroup<'r, 'a> {
    pub run: &'r mut Run<'a>,
    /// The node that is treated.
    pub node: NodeId,
    /// The node that joined last.
    lead: NodeId,
    /// Process groups of the collectives in the group.
    streams: Vec<u32>,
    pub window: Window,
    /// The exposures of others that suffer when the group moves.
    pub others: Vec<Exposure>,
    /// Time of those that came along.
    pub runtime: f64,
    moves: usize,
    grouped: usize,
}

impl<'r, 'a> NodeGroup<'r, 'a> {
    /// A node alone.
    pub fn new(run: &'r mut Run<'a>, node: NodeId, window: Window) -> Self {
        run.memory.join(node);
        let streams = run.facts.groups.of(node).to_vec();
        let (others, runtime, moves, grouped) = (Vec::new(), 0.0, 0, 0);
        NodeGroup { run, node, lead: node, streams, window, others, runtime, moves, grouped }
    }

    /// Lets `advance` take along or pass one neighbor after the other, until it stops.
    pub fn advance_all(mut self, mut advance: impl FnMut(&mut Self, NodeId) -> Result<(), Stop>) -> Stat {
        let first = self.window.exposure(self.run.look());
        let stop = loop {
            let Some(candidate) = self.neighbor() else { break Stop::from(StopReason::None) };
            if let Err(stop) = advance(&mut self, candidate) {
                break stop;
            }
        };
        self.run.memory.settle();
        let last = self.window.exposure(self.run.look());
        Stat::new(self.node, (first, last), (self.moves, self.grouped), stop)
    }

    /// Whether the collective of the treated node is hidden, if times matter.
    pub fn is_hidden(&mut self) -> bool {
        let knobs = self.run.knobs;
        knobs.by_time && self.window.is_hidden(self.run.look(), knobs.extra)
    }

    /// Whether some collective of the group runs on the stream of one of `candidate`.
    pub fn shares_stream(&self, candidate: NodeId) -> bool {
        self.run.facts.groups.of(candidate).iter().any(|stream| self.streams.contains(stream))
    }

    /// Whether there is a collective in the group.
    pub fn has_collective(&self) -> bool {
        !self.streams.is_empty()
    }

    /// Takes `candidate` along.
    pub fn take_along(&mut self, candidate: NodeId) {
        self.run.memory.join(candidate);
        for &stream in self.run.facts.groups.of(candidate) {
            if !self.streams.contains(&stream) {
                self.streams.push(stream);
            }
        }
        self.lead = candidate;
        self.grouped += 1;
    }

    /// Passes `candidate`, if memory allows.
    pub fn pass(&mut self, candidate: NodeId) -> Result<(), Stop> {
        let Run { facts, times, list, memory, inside, .. } = &mut *self.run;
        memory.pass(candidate).map_err(Stop::peak)?;
        match memory.way() {
            Way::Up => {
                list.move_after(candidate, self.node);
                self.window.rise(Look { facts, times, list }, candidate);
            }
            Way::Down => {
                list.move_before(candidate, self.node);
                self.window.sink(Look { facts, times, list }, candidate, inside);
            }
        }
        self.moves += 1;
        if self.run.is_checked {
            self.run.check(self.node);
        }
        Ok(())
    }

    /// Takes `time` out of the windows of the others that lose it, unless that and `change` together are a loss.
    pub fn weigh(&mut self, time: f64, change: f64, loses: impl Fn(&Run, &Exposure) -> bool) -> bool {
        let NodeGroup { run, others, .. } = self;
        let losers = others.iter().filter(|other| loses(run, other));
        let is_loss = losers.fold(change, |change, other| change + other.damage(time)) > 0.0;
        if !is_loss {
            let losers = others.iter_mut().filter(|other| loses(run, other));
            losers.for_each(|other| other.comp -= time);
        }
        is_loss
    }

    fn neighbor(&self) -> Option<NodeId> {
        if self.run.error.is_some() {
            return None;
        }
        match self.run.memory.way() {
            Way::Up => self.run.list.before(self.lead),
            Way::Down => self.run.list.after(self.lead),
        }
    }
}
