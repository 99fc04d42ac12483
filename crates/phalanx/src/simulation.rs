//! A step on a cluster that need not be there: predicted from one device of each class.

use phalanx_ir::Id;
use phalanx_ir::graph::Graph;
use phalanx_schedule::overlap::{Candidate, ScheduleChoice, ScheduleTotals};
use phalanx_schedule::usage::{DeviceUsage, usage};
use serde::Serialize;

use crate::classes;
use crate::layout::Layout;
use crate::overlap::Overview;
use crate::pipeline::{CompileError, Settings, choose, lay_out_classes};
use crate::timeline::TimelineReport;

/// What a step comes to.
pub struct Simulation {
    /// Devices of the plan.
    pub devices: usize,
    /// Tasks that were scheduled: those of one device of each class.
    pub tasks: usize,
    /// Nanoseconds of a step by itself.
    pub step_ns: u64,
    /// Nanoseconds that no order of the same tasks can beat.
    pub bound_ns: u64,
    /// The classes, by ascending device.
    pub classes: Vec<ClassRow>,
    overview: Overview,
}

/// Devices that do the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassRow {
    /// The lowest of them, which stands for all.
    pub device: usize,
    /// How many there are.
    pub members: usize,
    /// Bytes of its arena.
    pub peak_bytes: u64,
    /// Nanoseconds that it computes.
    pub compute_ns: u64,
    /// By level of the cluster, the innermost first: nanoseconds in which it only waits for a transfer over that level.
    pub exposed_ns: Vec<u64>,
    /// Nanoseconds in which it waits for something else: the bubble.
    pub bubble_ns: u64,
    /// By level: bytes that it receives.
    pub received_bytes: Vec<u64>,
}

impl Simulation {
    /// Predicts a step of `model`.
    pub fn new(model: &Graph, settings: &Settings) -> Result<Simulation, CompileError> {
        let mut layout: Layout = lay_out_classes(model, settings)?;
        let members = layout.classes.as_ref().map_or(1, |classes| classes.members());
        let settings = &match &layout.classes {
            Some(classes) => classes::settings(settings, classes),
            None => settings.clone(),
        };
        let choice = layout.choice.take().map_or_else(
            || ScheduleChoice { best: None, ..choose(&layout.tasks, settings) },
            |choice| *choice,
        );
        let costs = settings.costs(&layout.tasks);
        let Candidate { schedule, totals, .. } = choice.chosen();
        let ScheduleTotals { step, bound, .. } = *totals;
        let row = |(usage, lane): (DeviceUsage, &phalanx_schedule::ScheduledLane)| ClassRow {
            device: usage.device.index(),
            members,
            peak_bytes: lane.peak,
            compute_ns: usage.compute,
            exposed_ns: usage.exposed,
            bubble_ns: usage.idle,
            received_bytes: usage.received,
        };
        let usage = usage(&layout.tasks, &costs, choice.chosen());
        let classes = usage.into_iter().zip(schedule.devices()).map(row).collect();
        let (devices, tasks) = (settings.plan.mesh.devices(), layout.tasks.tasks.len());
        let overview = Overview::of_classes(layout.tasks, choice, settings);
        Ok(Simulation { devices, tasks, step_ns: step, bound_ns: bound, classes, overview })
    }

    /// The class of which a device needs most memory.
    pub fn peak_bytes(&self) -> u64 {
        self.classes.iter().map(|class| class.peak_bytes).max().unwrap_or(0)
    }

    /// The mean over all devices of what `value` gives for each.
    pub fn mean(&self, value: impl Fn(&ClassRow) -> u64) -> u64 {
        let sum: u128 = self.classes.iter().map(|class| u128::from(value(class))).sum();
        (sum / self.classes.len().max(1) as u128) as u64
    }

    /// The step of one device of each class, to be drawn.
    pub fn report(&self) -> TimelineReport {
        self.overview.report()
    }
}
