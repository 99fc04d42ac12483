//! A step as it was measured, in one process or by the ranks of a job.

use std::collections::BTreeSet;

use phalanx_ir::Id;
use phalanx_ir::tasks::TaskId;
use phalanx_program::{ARRIVE, Lane, MessageEnd, Operation, Placement, Program, RECEIVE, SEND};

use super::{Overview, kind};
use crate::emit::{EmitError, origins};
use crate::job::RankSpans;
use crate::pipeline::CompileError;
use crate::timeline::{SpanKind, Timeline, TimelineLane, TimelineLaneKind, TimelineSpan};

impl Overview {
    /// The spans of a run, in the order of the program's operations.
    pub(super) fn measured(&self, spans: &[(u64, u64)]) -> Timeline {
        let schedule = &self.choice.chosen().schedule;
        let mut spans = spans.iter();
        let lanes = schedule.lanes.iter().zip(origins(&self.tasks, schedule)).map(|(lane, origins)| {
            let own = origins.into_iter().zip(spans.by_ref());
            let (device, kind) = (lane.device.index() as u32, kind(lane.kind));
            let spans = own.filter_map(|(task, &span)| Some(self.span(task?, span))).collect();
            TimelineLane { device, rank: None, kind, spans }
        });
        Timeline { name: "measured".into(), lanes: lanes.collect() }
    }

    /// The spans of the parts of all ranks of the program `whole`.
    pub(super) fn measured_on_ranks(
        &self,
        whole: &Program,
        placement: &Placement,
        run: &RankSpans,
    ) -> Result<Timeline, CompileError> {
        let tasks = origins(&self.tasks, &self.choice.chosen().schedule).concat();
        // Labels go from the whole to its parts, so they tell which operation of the whole one of a part comes from.
        let numbered = whole.clone().relabelled(|position| position.to_string());
        let parts = numbered.parts(placement).map_err(EmitError::Unsound)?;
        let mut lanes = Vec::new();
        for ((rank, part), spans) in (0..).zip(&parts).zip(&run.spans) {
            let shown = PartSpans::new(self, part, &tasks);
            let mut spans = spans.iter();
            for (number, lane) in (0..).zip(part.lanes()) {
                let own = part.operations_of(lane).iter().zip(spans.by_ref());
                let spans = own.filter_map(|(operation, &span)| shown.span(operation, span)).collect();
                let kind = shown.kind(number, lane);
                lanes.push(TimelineLane { device: lane.device, rank: Some(rank), kind, spans });
            }
        }
        lanes.sort_by_key(|lane| (lane.device, lane.kind as u8));
        Ok(Timeline { name: "measured".into(), lanes })
    }
}

/// What is known of the operations of a part.
struct PartSpans<'a> {
    overview: &'a Overview,
    part: &'a Program,
    /// By operation of the whole.
    tasks: &'a [Option<TaskId>],
    /// Labels of what arrives in messages.
    arriving: BTreeSet<&'a str>,
}

impl<'a> PartSpans<'a> {
    fn new(overview: &'a Overview, part: &'a Program, tasks: &'a [Option<TaskId>]) -> Self {
        let arrivals = part.operations().iter().filter(|operation| part.kernel(operation) == ARRIVE);
        let arriving = arrivals.map(|operation| part.label(operation)).collect();
        PartSpans { overview, part, tasks, arriving }
    }

    /// An operation that was executed so long; none if it serves the host alone.
    fn span(&self, operation: &Operation, span: (u64, u64)) -> Option<TimelineSpan> {
        let (part, label) = (self.part, self.part.label(operation));
        let task = (*self.tasks.get(label.parse::<usize>().ok()?)?)?;
        let shown = self.overview.span(task, span);
        let message = |kind| TimelineSpan {
            kind,
            name: format!("{} {}", part.kernel(operation), shown.layer),
            bytes: part.messages(operation).iter().map(MessageEnd::bytes).sum(),
            ..shown.clone()
        };
        Some(match part.kernel(operation) {
            SEND => message(SpanKind::Send),
            ARRIVE => message(SpanKind::Receive),
            // What is left of a receive when messages have arrived is a copy or a sum.
            RECEIVE if self.arriving.contains(label) => {
                TimelineSpan { kind: SpanKind::Compute, bytes: 0, ..shown }
            }
            _ => shown,
        })
    }

    fn kind(&self, number: u32, lane: &Lane) -> TimelineLaneKind {
        let first = self.part.operations_of(lane).first();
        match first.map(|operation| self.part.kernel(operation)) {
            _ if lane.home == number => TimelineLaneKind::Compute,
            Some(SEND) => TimelineLaneKind::Sends,
            Some(ARRIVE) => TimelineLaneKind::Arrivals,
            _ => TimelineLaneKind::Transfers,
        }
    }
}
