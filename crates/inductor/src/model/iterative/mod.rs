//! The two passes that move collectives and waits step by step.
//!
//! Each treats one node after the other: the node swaps places with its neighbor until something forbids it. A neighbor
//! that it cannot pass may come along, so that a group moves. Every choice follows from the graph, the order and the
//! knobs alone. A swap costs the buffers that change hands and a constant besides: nothing is looked at again (D13).
//!
//! In [`PassMode::Fixed`] the order of collectives of one process group never changes and nodes stay behind what they are
//! only ordered behind, whatever the knobs say (D14); the peak never exceeds the budget.

mod levels;
mod memory;
mod node_group;
mod reorder;
mod report;
mod sink;
mod window;

pub(super) use memory::{Tracked, Way};
pub use report::{DriftError, Iterative, Stat, StopReason};

use super::exposure::{Awaited, Look, Times};
use super::facts::Facts;
use super::list::List;
use super::{LaunchGraph, NodeId};
use crate::cases::ListConfig;
use crate::mode::PassMode;
use window::Inside;

/// Moves every collective that runs beside others to the front, as far as times, memory and dependencies allow. `order`
/// holds every node of `graph` once, each after what it depends on.
pub fn reorder_communication_preserving_peak_memory(
    graph: &LaunchGraph,
    order: Vec<NodeId>,
    config: &ListConfig,
    mode: PassMode,
) -> Iterative {
    IterativePass::Reorder.run(graph, order, config, mode)
}

/// Moves every wait to the back, as far as times, memory and dependencies allow. `order` holds every node of `graph`
/// once, each after what it depends on.
pub fn sink_waits_iterative(
    graph: &LaunchGraph,
    order: Vec<NodeId>,
    config: &ListConfig,
    mode: PassMode,
) -> Iterative {
    IterativePass::Sink.run(graph, order, config, mode)
}

/// One of the two passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IterativePass {
    /// [`reorder_communication_preserving_peak_memory`].
    Reorder,
    /// [`sink_waits_iterative`].
    Sink,
}

impl IterativePass {
    /// Runs the pass on `order`, which holds every node of `graph` once, each after what it depends on.
    pub fn run(
        self,
        graph: &LaunchGraph,
        order: Vec<NodeId>,
        config: &ListConfig,
        mode: PassMode,
    ) -> Iterative {
        self.treat(graph, order, (config, mode), false).0
    }

    /// As [`IterativePass::run`], and computes memory from scratch after every move; much slower.
    pub fn run_checked(
        self,
        graph: &LaunchGraph,
        order: Vec<NodeId>,
        config: &ListConfig,
        mode: PassMode,
    ) -> Result<Iterative, DriftError> {
        let (found, error) = self.treat(graph, order, (config, mode), true);
        error.map_or(Ok(found), Err)
    }

    fn treat(
        self,
        graph: &LaunchGraph,
        order: Vec<NodeId>,
        (config, mode): (&ListConfig, PassMode),
        is_checked: bool,
    ) -> (Iterative, Option<DriftError>) {
        let facts = Facts::new(graph, &order, mode, mode == PassMode::Fixed);
        let mut run = Run::new(graph, &facts, &order, (self, config));
        run.is_checked = is_checked;
        let stats = match self {
            IterativePass::Reorder => reorder::treat_all(&mut run, &order),
            IterativePass::Sink => sink::treat_all(&mut run, &order),
        };
        let order = run.list.order();
        let drift = run.memory.drift(&order, &graph.memory(&order));
        (Iterative { order, stats, drift }, run.error)
    }
}

/// The knobs that both passes have, each its own.
#[derive(Clone, Copy)]
struct Knobs {
    /// How many nodes are treated.
    most: usize,
    /// Whether times are looked at.
    by_time: bool,
    /// How much more than hidden a collective must be before it stops.
    extra: f64,
    /// How far the peak may rise, as a share of it.
    budget: f64,
    /// Whether collectives may pass each other.
    is_unsafe: bool,
}

impl Knobs {
    fn new(pass: IterativePass, config: &ListConfig) -> Knobs {
        match pass {
            IterativePass::Reorder => Knobs {
                most: config.reorder_iterative_debug_limit_to_reorder.unwrap_or(usize::MAX),
                by_time: config.reorder_iterative_use_runtime_estimations,
                extra: config.reorder_iterative_extra_comm_comp_overlap,
                budget: config.reorder_iterative_peak_memory_budget,
                is_unsafe: config.reorder_iterative_unsafe_collectives_reorder,
            },
            IterativePass::Sink => Knobs {
                most: config.sink_waits_iterative_debug_limit_to_sink.unwrap_or(usize::MAX),
                by_time: config.sink_iterative_use_runtime_estimations,
                extra: config.sink_iterative_extra_comm_comp_overlap,
                budget: config.sink_iterative_peak_memory_budget,
                is_unsafe: config.sink_waits_iterative_unsafe_collectives_reorder,
            },
        }
    }
}

/// The state of a pass between two moves.
struct Run<'a> {
    graph: &'a LaunchGraph,
    facts: &'a Facts,
    config: &'a ListConfig,
    knobs: Knobs,
    times: Times,
    list: List,
    memory: Tracked<'a>,
    awaited: Awaited,
    inside: Inside,
    is_checked: bool,
    /// What computing memory from scratch has found: the pass ends.
    error: Option<DriftError>,
}

impl<'a> Run<'a> {
    fn new(
        graph: &'a LaunchGraph,
        facts: &'a Facts,
        order: &[NodeId],
        (pass, config): (IterativePass, &'a ListConfig),
    ) -> Self {
        let knobs = Knobs::new(pass, config);
        let way = if pass == IterativePass::Reorder { Way::Up } else { Way::Down };
        Run {
            graph,
            facts,
            config,
            knobs,
            times: Times::new(graph, facts, config),
            list: List::new(order),
            memory: Tracked::new(graph, facts, order, (way, knobs.budget)),
            awaited: Awaited::new(graph),
            inside: Inside::new(graph),
            is_checked: false,
            error: None,
        }
    }

    fn look(&self) -> Look<'_> {
        Look { facts: self.facts, times: &self.times, list: &self.list }
    }

    fn is_fixed(&self) -> bool {
        self.facts.mode == PassMode::Fixed
    }

    /// Computes memory from scratch after a move of `node` and compares.
    fn check(&mut self, node: NodeId) {
        let order = self.list.order();
        let memory = self.graph.memory(&order);
        let (nodes, peak) = (self.memory.drift(&order, &memory), memory.peak);
        // D20: the reference compares with the first peak, although the budget allows more.
        let allowed = if self.is_fixed() { self.memory.allowed() } else { self.memory.peak };
        if nodes > 0 {
            self.error = Some(DriftError::Levels { node, nodes });
        } else if peak > allowed {
            self.error = Some(DriftError::Peak { node, peak, allowed });
        }
    }
}
