//! What happens on one process group, in scheduled order.
//!
//! Starts and waits of the group, compute nodes and all hiding nodes are events with fixed positions. Starts and waits
//! that move into a bucket are unlinked and share the event of the one they join.

use phalanx_ir::{Id, IdVec};

use crate::fx::bits::NodeSet;
use crate::fx::graph::{CollectiveId, FxNodeId, Graph, GroupId, Role};

phalanx_ir::id! {
    /// An event of a timeline; events compare by position.
    pub struct EventId("e");
}

/// One node on the timeline.
struct Event {
    node: FxNodeId,
    /// The collective of the group that the node starts or waits for.
    collective: Option<CollectiveId>,
    prev: Option<EventId>,
    next: Option<EventId>,
}

/// The events of a group.
pub(super) struct Timeline {
    events: IdVec<EventId, Event>,
    of_node: IdVec<FxNodeId, Option<EventId>>,
}

impl Timeline {
    pub(super) fn new(graph: &Graph, order: &[FxNodeId], group: GroupId, hides: &NodeSet) -> Self {
        let mut events: IdVec<EventId, Event> = IdVec::new();
        let mut of_node: IdVec<FxNodeId, Option<EventId>> = graph.roles.ids().map(|_| None).collect();
        for &node in order {
            let collective = match graph.roles[node] {
                Role::Start(id) | Role::Wait(id) if graph.collectives[id].group == group => Some(id),
                role if role == Role::Gemm || hides.contains(node) => None,
                _ => continue,
            };
            let prev = events.len().checked_sub(1).map(EventId::from_index);
            let event = events.push(Event { node, collective, prev, next: None });
            if let Some(prev) = prev {
                events[prev].next = Some(event);
            }
            of_node[node] = Some(event);
        }
        Timeline { events, of_node }
    }

    /// Neighboring nodes, the earlier one first.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (FxNodeId, FxNodeId)> {
        let next = |event: &Event| event.next.map(|next| (event.node, self.events[next].node));
        self.events.iter().filter_map(move |(_, event)| next(event))
    }

    /// Where a start, wait or hiding node is.
    pub(super) fn event(&self, node: FxNodeId) -> EventId {
        self.of_node[node].expect("starts, waits and hiding nodes are on the timeline")
    }

    /// Lets `node` happen at `event`.
    pub(super) fn place(&mut self, node: FxNodeId, event: EventId) {
        self.of_node[node] = Some(event);
    }

    pub(super) fn node(&self, event: EventId) -> FxNodeId {
        self.events[event].node
    }

    /// The nodes around an event.
    pub(super) fn neighbors(&self, event: EventId) -> (Option<FxNodeId>, Option<FxNodeId>) {
        let Event { prev, next, .. } = self.events[event];
        (prev.map(|prev| self.node(prev)), next.map(|next| self.node(next)))
    }

    /// Takes an event out of the chain; it remembers where it was.
    pub(super) fn unlink(&mut self, event: EventId) {
        let Event { prev, next, .. } = self.events[event];
        self.connect(prev, next);
    }

    /// Puts the event that was unlinked last back where it was.
    pub(super) fn relink(&mut self, event: EventId) {
        let Event { prev, next, .. } = self.events[event];
        self.connect(prev, Some(event));
        self.connect(Some(event), next);
    }

    fn connect(&mut self, prev: Option<EventId>, next: Option<EventId>) {
        if let Some(prev) = prev {
            self.events[prev].next = next;
        }
        if let Some(next) = next {
            self.events[next].prev = prev;
        }
    }

    /// The collectives with an event strictly between two positions.
    pub(super) fn between(&self, after: EventId, before: EventId) -> impl Iterator<Item = CollectiveId> {
        let first = self.events[after].next;
        let events = std::iter::successors(first, |&event| self.events[event].next);
        events.take_while(move |&event| event < before).filter_map(|event| self.events[event].collective)
    }
}
