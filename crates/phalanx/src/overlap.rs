//! How a step's communication is hidden: predicted by the scheduler's simulation, and beside it as it was measured.

mod measured;

use phalanx_ir::Id;
use phalanx_ir::graph::Graph;
use phalanx_ir::tasks::{TaskGraph, TaskId, TaskOp};
use phalanx_program::{Placement, Program, Wait};
use phalanx_schedule::live::curves;
use phalanx_schedule::overlap::{self, Candidate, ScheduleChoice, end};
use phalanx_schedule::simulate::{SimLane, SimRun, SimRuns, SimStep, StepAt, simulate};
use phalanx_schedule::verdict::{Verdict, verdicts};
use phalanx_schedule::{LaneKind, Schedule, TaskCosts};

use crate::emit::{emit, origins};
use crate::job::RankSpans;
use crate::layout::{Layout, movement_label};
use crate::memory::describe;
use crate::pipeline::{CompileError, Settings, choose, lay_out};
use crate::timeline::{
    self, Alive, MemoryCurve, SpanKind, Timeline, TimelineLane, TimelineLaneKind, TimelineReport,
    TimelineSpan, TransferRow,
};

/// Everything about a step and its communication.
pub struct Overview {
    tasks: TaskGraph,
    choice: ScheduleChoice,
    /// Verdicts on the chosen schedule.
    verdicts: Vec<Verdict>,
    memory: Option<u64>,
    subtitle: String,
    plain: u64,
    chosen: u64,
}

/// Runs that may be in flight, and how many are simulated to see how long one takes when others follow.
const STEADY: SimRuns = SimRuns { count: 6, depth: 2 };

impl Overview {
    /// Compiles a model and weighs its schedules.
    pub fn new(model: &Graph, settings: &Settings) -> Result<Overview, CompileError> {
        let mut layout = lay_out(model, settings, |_, _| ())?;
        let choice = layout.choice.take().map_or_else(
            || ScheduleChoice { best: None, ..choose(&layout.tasks, settings) },
            |choice| *choice,
        );
        let costs = settings.costs(&layout.tasks);
        let step = |candidate: &Candidate| -> Result<u64, CompileError> {
            let program = emit(&layout.tasks, &candidate.schedule, settings.machine())?;
            Ok(steady(&layout.tasks, &costs, &candidate.schedule, &program))
        };
        Ok(Overview {
            plain: step(&choice.plain)?,
            chosen: step(choice.chosen())?,
            verdicts: verdicts(&layout.tasks, choice.chosen()),
            memory: settings.memory,
            subtitle: subtitle(&layout.tasks, settings),
            tasks: layout.tasks,
            choice,
        })
    }

    /// The same of one device of each class, and for a single step.
    pub(crate) fn of_classes(tasks: TaskGraph, choice: ScheduleChoice, settings: &Settings) -> Overview {
        Overview {
            plain: choice.plain.totals.step,
            chosen: choice.chosen().totals.step,
            verdicts: verdicts(&tasks, choice.chosen()),
            memory: settings.memory,
            subtitle: subtitle(&tasks, settings),
            tasks,
            choice,
        }
    }

    /// Nanoseconds of a step when steps follow each other: without overlap, and as chosen.
    pub fn steps(&self) -> (u64, u64) {
        (self.plain, self.chosen)
    }

    /// What a single step comes to without overlap, and as chosen.
    pub fn totals(&self) -> (timeline::Totals, timeline::Totals) {
        (totals(&self.choice.plain), totals(self.choice.chosen()))
    }

    /// Whether some schedule with overlap was chosen.
    pub fn overlaps(&self) -> bool {
        self.choice.best.is_some()
    }

    /// The verdict on every transfer.
    pub fn transfers(&self) -> Vec<TransferRow> {
        self.verdicts.iter().map(|verdict| self.transfer(verdict)).collect()
    }

    fn transfer(&self, verdict: &Verdict) -> TransferRow {
        let tasks = &self.tasks;
        let receives = &verdict.transfer;
        let mut reads: Vec<_> =
            receives.iter().flat_map(|&task| tasks.tasks[task].reads.iter().copied()).collect();
        reads.sort_unstable();
        reads.dedup();
        let writes: Vec<_> =
            receives.iter().flat_map(|&task| tasks.tasks[task].writes.iter().copied()).collect();
        let TaskOp::Receive { movement } = tasks.tasks[receives[0]].op else {
            unreachable!("a movement is judged by its receives")
        };
        TransferRow {
            movement: movement as u32,
            kind: phalanx_lower::movement_kind(tasks, &reads, &writes).to_string(),
            layer: movement_label(tasks, &tasks.tasks[receives[0]].layer, &writes),
            bytes: receives.iter().map(|&task| self.bytes(task)).sum(),
            devices: receives.len() as u32,
            time: verdict.end - verdict.start,
            hidden: verdict.hidden,
            moves: verdict.moves,
            limit: verdict.limit.name().into(),
        }
    }

    /// Bytes that a receive brings from other devices.
    fn bytes(&self, task: TaskId) -> u64 {
        let task = &self.tasks.tasks[task];
        let sources = self.tasks.sources(&task.reads);
        let mut bytes = 0;
        for &write in &task.writes {
            let element = self.tasks.buffers[write].ty.dtype.bytes() as u64;
            for piece in sources.pieces(write).into_iter().flatten() {
                let far =
                    piece.sources.iter().filter(|&&from| self.tasks.buffers[from].device != task.device);
                bytes += far.count() as u64 * piece.rect.volume() as u64 * element;
            }
        }
        bytes
    }

    /// The step as predicted.
    pub fn report(&self) -> TimelineReport {
        self.report_of("A step, predicted", vec![self.predicted()])
    }

    /// The same beside a run of one process: the spans of its operations.
    pub fn report_beside(&self, spans: &[(u64, u64)]) -> TimelineReport {
        self.report_of("A step, predicted and measured", vec![self.predicted(), self.measured(spans)])
    }

    /// The same beside a run of several ranks, whose program is `whole`.
    pub fn report_beside_ranks(
        &self,
        whole: &Program,
        placement: &Placement,
        run: &RankSpans,
    ) -> Result<TimelineReport, CompileError> {
        let measured = self.measured_on_ranks(whole, placement, run)?;
        let mut report = self.report_of("A step, predicted and measured", vec![self.predicted(), measured]);
        let microseconds = run.bound as f64 / 1e3;
        report.subtitle += &format!(", clocks of ranks aligned to within {microseconds:.1} us");
        report.clock_bound = Some(run.bound);
        Ok(report)
    }

    fn report_of(&self, title: &str, timelines: Vec<Timeline>) -> TimelineReport {
        let (before, after) = self.totals();
        TimelineReport {
            title: title.into(),
            subtitle: self.subtitle.clone(),
            timelines,
            memory: self.memory(),
            transfers: self.transfers(),
            before,
            after,
            clock_bound: None,
        }
    }

    fn predicted(&self) -> Timeline {
        let Candidate { schedule, run, .. } = self.choice.chosen();
        let lanes = schedule.lanes.iter().zip(run).map(|(lane, spans)| {
            let spans = lane.order.iter().zip(spans).filter(|(_, span)| span.end > span.start);
            TimelineLane {
                device: lane.device.index() as u32,
                rank: None,
                kind: kind(lane.kind),
                spans: spans.map(|(&task, span)| self.span(task, (span.start, span.end))).collect(),
            }
        });
        Timeline { name: "predicted".into(), lanes: lanes.collect() }
    }

    fn span(&self, id: TaskId, (start, end): (u64, u64)) -> TimelineSpan {
        let task = &self.tasks.tasks[id];
        let (kind, movement) = match task.op {
            TaskOp::Send { movement } => (SpanKind::Send, Some(movement as u32)),
            TaskOp::Receive { movement } => (SpanKind::Receive, Some(movement as u32)),
            _ => (SpanKind::Compute, None),
        };
        let bytes = if kind == SpanKind::Receive { self.bytes(id) } else { 0 };
        let name = format!("{} {}", task.op.to_text().0, task.layer);
        TimelineSpan { name, layer: task.layer.to_string(), kind, start, end, bytes, movement }
    }

    fn memory(&self) -> Vec<MemoryCurve> {
        let Candidate { schedule, run, .. } = self.choice.chosen();
        let curves = curves(&self.tasks, schedule, run);
        let curve =
            |(lane, curve): (&phalanx_schedule::ScheduledLane, phalanx_schedule::live::Curve)| MemoryCurve {
                device: lane.device.index() as u32,
                points: curve.points,
                peak: curve.peak,
                peak_at: curve.peak_at,
                budget: self.memory,
                alive: curve
                    .alive
                    .into_iter()
                    .map(|(owner, bytes)| {
                        let (name, role, bytes) = describe(&self.tasks, owner, bytes);
                        Alive { name, bytes, role: role.into() }
                    })
                    .collect(),
            };
        schedule.devices().iter().zip(curves).map(curve).collect()
    }
}

/// What was compiled, for what.
fn subtitle(tasks: &TaskGraph, settings: &Settings) -> String {
    let plan = if settings.plan.name.is_empty() { "one device" } else { &settings.plan.name };
    let link = match (&settings.topology, settings.expected_topology()) {
        (Some(topology), _) => format!("link {topology}"),
        (None, Some(topology)) => {
            format!("predicted for a link of {topology} between ranks (--link sets another one)")
        }
        (None, None) => "shared memory".to_string(),
    };
    let times = if settings.cost_table.is_some() { "measured" } else { "estimated" };
    format!("{}, {plan}, {link}, {times} kernel times", tasks.name)
}

fn kind(kind: LaneKind) -> TimelineLaneKind {
    match kind {
        LaneKind::Compute => TimelineLaneKind::Compute,
        LaneKind::Transfers => TimelineLaneKind::Transfers,
    }
}

fn totals(candidate: &Candidate) -> timeline::Totals {
    let overlap::ScheduleTotals { step, exposed, compute, bound, peak } = candidate.totals;
    timeline::Totals { step, exposed, compute, lower_bound: bound, peak }
}

/// Nanoseconds of a step that is laid out, when steps follow each other.
pub(crate) fn predicted_step(layout: &Layout, settings: &Settings) -> Result<u64, CompileError> {
    let program = emit(&layout.tasks, &layout.schedule, settings.machine())?;
    Ok(steady(&layout.tasks, &settings.costs(&layout.tasks), &layout.schedule, &program))
}

/// How long a step takes when steps follow each other.
fn steady(tasks: &TaskGraph, costs: &TaskCosts, schedule: &Schedule, program: &Program) -> u64 {
    let lines = lines(tasks, costs, schedule, program);
    let runs: Vec<SimRun> = simulate(&lines, costs.topology.as_ref(), STEADY);
    let (first, last) = (end(&runs[1]), end(&runs[STEADY.count - 1]));
    (last - first) / (STEADY.count as u64 - 2)
}

/// A program as lanes to be simulated: its waits, also those carried from run to run.
fn lines(tasks: &TaskGraph, costs: &TaskCosts, schedule: &Schedule, program: &Program) -> Vec<SimLane> {
    let by_task = overlap::lines(tasks, costs, schedule);
    let mut parts = vec![Vec::new(); tasks.tasks.len()];
    for (lane, line) in schedule.lanes.iter().zip(by_task) {
        for (task, step) in lane.order.iter().zip(line.steps) {
            parts[task.index()] = step.parts;
        }
    }
    let at = |waits: &[Wait]| waits.iter().map(|w| StepAt { lane: w.lane, position: w.position }).collect();
    let mut lines = Vec::new();
    for (lane, origins) in program.lanes().iter().zip(origins(tasks, schedule)) {
        let steps = program.operations_of(lane).iter().zip(origins).map(|(operation, origin)| SimStep {
            cost: origin.map_or(0, |task| costs.tasks[task]),
            parts: origin.map_or_else(Vec::new, |task| std::mem::take(&mut parts[task.index()])),
            waits: at(program.waits(operation)),
            carried: at(program.carried(operation)),
        });
        lines.push(SimLane { device: lane.device, steps: steps.collect() });
    }
    lines
}
