//! Graphs whose runs wait for events that have not triggered.
//!
//! Such a run must live on when its graph's handles are gone, for the event may trigger later. But the table of events
//! cannot own it: the graph owns the table, and an event that never triggers would keep both forever. So the handles of
//! the runtime own these graphs, and a waiter in the table names its graph weakly. When the last handle goes, runs that
//! still wait are dropped with their graphs.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::event::{Event, Events};
use crate::fault::{Fault, Outcome};
use crate::sync::{Mutex, lock};

use super::Inner;

/// The graphs of a runtime that wait for events.
#[derive(Default)]
pub(crate) struct Pending {
    /// By address: the graph, and for how many events it waits.
    graphs: Mutex<HashMap<usize, (Arc<Inner>, usize)>>,
}

/// Something that belongs to a run.
pub(super) trait OfRun: Send + 'static {
    /// The events that the run triggers.
    fn events(&self) -> Vec<Event>;
}

impl Pending {
    /// Calls `then` with `graph` and `part` of a run when `event` triggers. If the runtime has ended by then, it poisons
    /// the events of the run instead.
    pub(super) fn wait<P: OfRun>(
        graph: &Arc<Inner>,
        event: Event,
        part: P,
        then: impl FnOnce(&Arc<Inner>, P, &Outcome) + Send + 'static,
    ) {
        let pending = Weak::clone(&graph.pending);
        pending.upgrade().iter().for_each(|pending| pending.hold(graph));
        let (address, events) = (address(graph), Arc::downgrade(&graph.events));
        let name: Box<str> = graph.flow.name().into();
        graph.events.subscribe(event, move |outcome| {
            match pending.upgrade().and_then(|pending| pending.release(address)) {
                Some(graph) => then(&graph, part, outcome),
                None => events.upgrade().iter().for_each(|events| refuse(events, &name, &part)),
            }
        });
    }

    fn hold(&self, graph: &Arc<Inner>) {
        let mut graphs = lock(&self.graphs);
        graphs.entry(address(graph)).or_insert_with(|| (Arc::clone(graph), 0)).1 += 1;
    }

    /// The graph, which waits for one event less.
    fn release(&self, address: usize) -> Option<Arc<Inner>> {
        let mut graphs = lock(&self.graphs);
        let (graph, events) = graphs.get_mut(&address)?;
        *events -= 1;
        match *events {
            0 => graphs.remove(&address).map(|(graph, _)| graph),
            _ => Some(Arc::clone(graph)),
        }
    }
}

/// Poisons the events of a run that can never start.
fn refuse(events: &Arc<Events>, graph: &str, part: &impl OfRun) {
    for event in part.events() {
        // Another event that the run waited for may have been first.
        let _ = events.complete(event, Err(Fault::refused(graph, "its runtime has ended")));
    }
}

/// What a graph that is held is known by: no other can have its address meanwhile.
fn address(graph: &Arc<Inner>) -> usize {
    Arc::as_ptr(graph) as usize
}
