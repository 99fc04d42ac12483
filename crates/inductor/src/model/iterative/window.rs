//! The exposure of the node that moves, kept up to date move by move.
//!
//! Passing a node changes a window by that node's time at most. A sum kept that way is rounded in another order than the
//! reference's look at the whole window: unless all times are exact it only decides what it decides for certain, and
//! the window is looked at again for the rest.

use phalanx_ir::IdVec;

use crate::mode::PassMode;
use crate::model::exposure::{Awaited, Exposure, Look};
use crate::model::{LaunchGraph, NodeId};

/// More than sums of up to four million times differ when they are rounded in different orders, as a share of them.
const ROUGHNESS: f64 = 1e-9;

/// Which collectives lie in the window of the wait that sinks.
#[derive(Clone, Debug)]
pub(super) struct Inside {
    windows: IdVec<NodeId, u32>,
    window: u32,
}

impl Inside {
    /// For the nodes of `graph`.
    pub fn new(graph: &LaunchGraph) -> Inside {
        Inside { windows: graph.nodes.ids().map(|_| 0).collect(), window: 0 }
    }

    fn insert(&mut self, node: NodeId) {
        self.windows[node] = self.window;
    }

    fn contains(&self, node: NodeId) -> bool {
        self.windows[node] == self.window
    }
}

/// The window of the node that moves.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// The collective that rises, or the wait that sinks.
    node: NodeId,
    exposure: Exposure,
    /// Whether `exposure.comp` may be rounded in another order than a look rounds it.
    is_rough: bool,
}

impl Window {
    /// The window of a collective.
    pub fn of_collective(look: Look, node: NodeId) -> Window {
        Window { node, exposure: look.collective(node, |_| false), is_rough: false }
    }

    /// The window of a wait.
    pub fn of_wait(look: Look, node: NodeId, awaited: &mut Awaited, inside: &mut Inside) -> Window {
        let exposure = look.wait(node, awaited);
        if look.facts.mode != PassMode::Fixed {
            mark_inside(look, &exposure, inside);
        }
        Window { node, exposure, is_rough: false }
    }

    /// The exposure, rounded as a look at the whole window does.
    pub fn exposure(&mut self, look: Look) -> Exposure {
        if self.is_rough {
            self.exposure.comp = self.sum(look);
            self.is_rough = false;
        }
        self.exposure
    }

    /// Whether the collective is hidden, with `extra` of its time to spare.
    pub fn is_hidden(&mut self, look: Look, extra: f64) -> bool {
        let Exposure { comm, comp, .. } = self.exposure;
        let line = -extra * comm;
        if (comm - comp - line).abs() <= ROUGHNESS * (comm + comp) {
            self.exposure(look);
        }
        let exposed = comm - self.exposure.comp;
        // D15: the reference goes on when it is just hidden; so a collective that takes no time never stops.
        if look.facts.mode == PassMode::Fixed { exposed <= line } else { exposed < line }
    }

    /// The collective has risen past `passed`, which now follows it.
    pub fn rise(&mut self, look: Look, passed: NodeId) {
        if look.ends(self.node, passed) {
            self.exposure = Exposure { comp: 0.0, end: Some(passed), ..self.exposure };
            self.is_rough = false;
        } else {
            self.add(look, passed);
        }
    }

    /// The wait has sunk past `passed`, which now precedes it.
    pub fn sink(&mut self, look: Look, passed: NodeId, inside: &mut Inside) {
        if look.facts.mode != PassMode::Fixed {
            return self.sink_backward(look, passed, inside);
        }
        let Some(collective) = self.exposure.collective.filter(|_| self.exposure.end == Some(self.node))
        else {
            return;
        };
        if look.ends(collective, passed) {
            self.exposure.end = Some(passed);
        } else {
            self.add(look, passed);
        }
    }

    /// As [`Window::sink`], by the reference's backward rule: a wait that is passed may complete a nested pair.
    fn sink_backward(&mut self, look: Look, passed: NodeId, inside: &mut Inside) {
        let traits = look.facts.traits[passed];
        let is_whole = self.exposure.end == Some(self.node);
        if traits.has_wait {
            for &definer in look.facts.definers.of(passed) {
                if inside.contains(definer) {
                    self.exposure.end = Some(definer);
                    self.exposure.comp = mark_inside(look, &self.exposure, inside);
                    self.is_rough = false;
                }
            }
        }
        if !is_whole || self.exposure.end != Some(self.node) {
            return;
        }
        if traits.is_sync {
            self.exposure.end = Some(passed);
        } else if traits.is_async {
            inside.insert(passed);
        } else {
            self.add(look, passed);
        }
    }

    fn add(&mut self, look: Look, passed: NodeId) {
        self.exposure.comp += look.hiding_time(passed);
        self.is_rough = !look.times.are_exact;
    }

    fn sum(&self, look: Look) -> f64 {
        let Exposure { collective, end, .. } = self.exposure;
        match (collective, end) {
            (Some(collective), _) if look.facts.mode == PassMode::Fixed || collective == self.node => {
                look.collective(collective, |_| false).comp
            }
            (_, Some(end)) => look.sum_back(end, collective),
            (_, None) => self.exposure.comp,
        }
    }
}

/// Marks the collectives between a wait's collective and the end of its window, and sums the times there.
fn mark_inside(look: Look, exposure: &Exposure, inside: &mut Inside) -> f64 {
    inside.window += 1;
    let Some(end) = exposure.end else { return 0.0 };
    let mut comp = 0.0;
    for node in look.list.all_before(end).take_while(|&node| Some(node) != exposure.collective) {
        if look.facts.traits[node].is_async {
            inside.insert(node);
        }
        comp += look.hiding_time(node);
    }
    comp
}
