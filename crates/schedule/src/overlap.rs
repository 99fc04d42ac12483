//! Which of several schedules of a step is best: the least time within the memory there is.
//!
//! Candidates differ in whether transfers have lanes of their own and in how far those may be ahead of their use; one
//! comes from a search. Each is laid out in full, so that its peak is exact, and judged by one simulation of lanes, waits and links. All devices' parts
//! come from one decision, so that movements have the same order everywhere.

use phalanx_ir::Id;
use phalanx_ir::tasks::{TaskGraph, TaskId, TaskOp};

use crate::cost::Parts;
use crate::index::Index;
use crate::search::Effort;
use crate::simulate::{SimLane, SimRun, SimRuns, SimSpan, SimStep, StepAt, simulate};
use crate::{Schedule, Style, TaskCosts, schedule_by_search, schedule_in};

/// What a schedule of a step comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScheduleTotals {
    /// Nanoseconds until all lanes are done.
    pub step: u64,
    /// Nanoseconds in which the device that waits most computes nothing while a transfer to it is under way.
    pub exposed: u64,
    /// Nanoseconds of computing on the device that computes most.
    pub compute: u64,
    /// Nanoseconds that no order can beat: the longest chain of tasks and transfers, the busiest device or link.
    pub bound: u64,
    /// Bytes of the largest arena.
    pub peak: u64,
}

/// A schedule that was looked at.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// How it was made.
    pub style: Style,
    /// The schedule.
    pub schedule: Schedule,
    /// The simulated step, by lane and place.
    pub run: SimRun,
    /// What it comes to.
    pub totals: ScheduleTotals,
}

/// The schedule chosen, and the one without overlap.
#[derive(Clone, Debug)]
pub struct ScheduleChoice {
    /// Every device does one thing at a time.
    pub plain: Candidate,
    /// The best one; none if the plain one is.
    pub best: Option<Candidate>,
}

impl ScheduleChoice {
    /// The one to use.
    pub fn chosen(&self) -> &Candidate {
        self.best.as_ref().unwrap_or(&self.plain)
    }

    /// The one to use, alone.
    pub fn into_chosen(self) -> Candidate {
        self.best.unwrap_or(self.plain)
    }
}

/// How far transfers that need memory may be ahead, in the order tried: none for any number.
const PREFETCH: [Option<u32>; 5] = [None, Some(2), Some(1), Some(4), Some(8)];

/// Tasks above which only the first two of these are tried.
const MANY: usize = 50_000;

/// Tasks below which all of these are made at the same time: with more they need too much memory together.
const MOST_AT_ONCE: usize = 2_000_000;

/// The most tasks of a graph that is searched.
const SEARCHED: usize = 200_000;

/// A schedule this much slower is as good if it needs less memory.
const TOLERANCE: f64 = 0.01;

/// A search may cost at most this fraction of what it can gain: one part in `GAIN`.
const GAIN: f64 = 50.0;

/// What a schedule may need, and what finding it may cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes of an arena; none for any number.
    pub memory: Option<u64>,
    /// Whether to search.
    pub search: Search,
}

/// Whether orders are searched for that no simple rule gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Search {
    /// No.
    Off,
    /// As far as it can pay: in `runs` runs, by as much as the best schedule is above the bound.
    For {
        /// How often the schedule will be run.
        runs: u64,
    },
    /// With all effort.
    #[default]
    Full,
}

impl Search {
    /// The effort that improving on a schedule is worth, if any.
    fn effort(self, best: &ScheduleTotals) -> Option<Effort> {
        match self {
            Search::Off => None,
            Search::Full => Some(Effort::default()),
            Search::For { runs } => {
                let gain = best.step.saturating_sub(best.bound) as f64 * runs as f64;
                Some(Effort::within(gain / GAIN)).filter(|effort| *effort > Effort::within(0.0))
            }
        }
    }
}

/// Chooses among schedules that keep the limit of memory; if none does, the smallest.
pub fn choose(
    tasks: &TaskGraph,
    costs: &TaskCosts,
    Limits { memory, search }: Limits,
    workspace: impl Fn(TaskId) -> u64 + Sync,
) -> ScheduleChoice {
    let judge = |style, schedule: Schedule| {
        let lines = lines(tasks, costs, &schedule);
        let run = simulate(&lines, costs.topology.as_ref(), SimRuns { count: 1, depth: 1 }).remove(0);
        let totals = totals(tasks, costs, &schedule, &lines, &run);
        Candidate { style, schedule, run, totals }
    };
    let candidate = |style| judge(style, schedule_in(tasks, costs, style, &workspace));
    let tried = if tasks.tasks.len() > MANY { 2 } else { PREFETCH.len() };
    let beside = PREFETCH[..tried].iter().map(|&prefetch| Style { overlap: true, prefetch });
    let mut styles = [Style::default()].into_iter().chain(beside);
    let mut all = match (MANY..MOST_AT_ONCE).contains(&tasks.tasks.len()) {
        true => at_once(styles.by_ref().collect(), &candidate),
        false => Vec::new(),
    }
    .into_iter();
    let mut candidates = || all.next().or_else(|| styles.next().map(&candidate));
    let plain = candidates().expect("there is a style without overlap");
    let mut best: Option<Candidate> = None;
    while let Some(next) = candidates() {
        // Without transfers that need memory all are alike.
        let same = best.as_ref().is_some_and(|best| best.schedule == next.schedule);
        if best.as_ref().is_none_or(|best| next.totals.is_better(&best.totals, memory)) {
            best = Some(next);
        }
        if same {
            break;
        }
    }
    let effort = search.effort(&best.as_ref().unwrap_or(&plain).totals);
    if tasks.tasks.len() <= SEARCHED
        && let Some(effort) = effort
        && let Some(schedule) = schedule_by_search(tasks, costs, memory, effort, &workspace)
    {
        let found = judge(Style { overlap: true, prefetch: None }, schedule);
        best = best.filter(|best| !found.totals.is_better(&best.totals, memory)).or(Some(found));
    }
    let best = best.filter(|best| best.totals.is_better(&plain.totals, memory));
    ScheduleChoice { plain, best }
}

/// One candidate for each style, each made by a thread of its own.
fn at_once(styles: Vec<Style>, candidate: &(impl Fn(Style) -> Candidate + Sync)) -> Vec<Candidate> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = styles.into_iter().map(|style| scope.spawn(move || candidate(style))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

impl ScheduleTotals {
    /// Whether a schedule that comes to this is to be preferred to one that comes to `other`, with so much memory.
    pub fn is_better(&self, other: &ScheduleTotals, memory: Option<u64>) -> bool {
        let fits = |totals: &ScheduleTotals| memory.is_none_or(|memory| totals.peak <= memory);
        let smaller = (self.peak, self.step) < (other.peak, other.step);
        match (fits(self), fits(other)) {
            (true, true) => {
                let slower = |a: &ScheduleTotals, b: &ScheduleTotals| {
                    a.step as f64 > b.step as f64 * (1.0 + TOLERANCE)
                };
                slower(other, self) || !slower(self, other) && smaller
            }
            (false, false) => smaller,
            (fits, _) => fits,
        }
    }
}

/// A schedule as lanes to be simulated.
pub fn lines(tasks: &TaskGraph, costs: &TaskCosts, schedule: &Schedule) -> Vec<SimLane> {
    let index = Index::new(tasks, schedule.overlaps());
    let parts = Parts::new(tasks, costs.topology.as_ref());
    let mut places = vec![StepAt { lane: 0, position: 0 }; tasks.tasks.len()];
    for (lane, order) in (0..).zip(schedule.lanes.iter().map(|lane| &lane.order)) {
        for (position, task) in (0..).zip(order) {
            places[task.index()] = StepAt { lane, position };
        }
    }
    let step = |&task: &TaskId| SimStep {
        cost: costs.tasks[task],
        parts: parts.of(task).to_vec(),
        waits: schedule.waits[task].iter().map(|other| places[other.index()]).collect(),
        carried: Vec::new(),
    };
    let line = |(number, order): (usize, &Vec<TaskId>)| SimLane {
        device: index.device(number),
        steps: order.iter().map(step).collect(),
    };
    schedule.lanes.iter().map(|lane| &lane.order).enumerate().map(line).collect()
}

fn totals(
    tasks: &TaskGraph,
    costs: &TaskCosts,
    schedule: &Schedule,
    lines: &[SimLane],
    run: &SimRun,
) -> ScheduleTotals {
    let devices = schedule.devices();
    let arena = |device: u32| devices.partition_point(|lane| lane.device.index() < device as usize);
    let mut busy: Vec<Vec<(u64, u64)>> = vec![Vec::new(); devices.len()];
    let mut transfers = busy.clone();
    for ((lane, line), spans) in schedule.lanes.iter().zip(lines).zip(run) {
        for (&task, span) in lane.order.iter().zip(spans).filter(|(_, span)| span.end > span.start) {
            let kind = match tasks.tasks[task].op {
                TaskOp::Receive { .. } => &mut transfers,
                _ => &mut busy,
            };
            kind[arena(line.device)].push((span.start, span.end));
        }
    }
    let compute = busy.iter().map(|spans| spans.iter().map(|(start, end)| end - start).sum()).max();
    let exposed = busy.iter_mut().zip(&mut transfers).map(|(busy, transfers)| uncovered(transfers, busy));
    ScheduleTotals {
        step: end(run),
        exposed: exposed.max().unwrap_or(0),
        compute: compute.unwrap_or(0),
        bound: bound(tasks, costs, schedule, lines, compute.unwrap_or(0)),
        peak: schedule.peak(),
    }
}

/// When the last lane is done.
pub fn end(run: &[Vec<SimSpan>]) -> u64 {
    run.iter().flatten().map(|span| span.end).max().unwrap_or(0)
}

/// How long some of `spans` go on while none of `covers` does.
pub(crate) fn uncovered(spans: &mut [(u64, u64)], covers: &mut [(u64, u64)]) -> u64 {
    spans.sort_unstable();
    covers.sort_unstable();
    let (mut seen, mut at, mut sum) = (0, 0, 0);
    for &(start, end) in spans.iter() {
        let mut from = start.max(seen);
        seen = seen.max(end);
        while from < end {
            while covers.get(at).is_some_and(|cover| cover.1 <= from) {
                at += 1;
            }
            match covers.get(at) {
                Some(&(start, until)) if start <= from => from = until,
                Some(&(start, _)) => {
                    sum += start.min(end) - from;
                    from = start.min(end);
                }
                None => {
                    sum += end - from;
                    from = end;
                }
            }
        }
    }
    sum
}

/// The longest chain of dependencies, each transfer by itself; the busiest device; the busiest direction of a link.
fn bound(tasks: &TaskGraph, costs: &TaskCosts, schedule: &Schedule, lines: &[SimLane], compute: u64) -> u64 {
    let Some(topology) = &costs.topology else { return compute };
    let mut transfers = vec![0; tasks.tasks.len()];
    // By level and device.
    let devices = schedule.devices().last().map_or(0, |last| last.device.index() + 1);
    let idle = vec![vec![0; devices]; topology.levels().len()];
    let (mut incoming, mut outgoing) = (idle.clone(), idle);
    for (lane, line) in schedule.lanes.iter().zip(lines) {
        for (task, step) in lane.order.iter().zip(&line.steps) {
            let mut own = vec![0; topology.levels().len()];
            for part in step.parts.iter().filter(|part| part.from != line.device) {
                let level = topology.level(part.from, line.device);
                let time = topology.levels()[level].link.occupancy(part.bytes).as_nanos() as u64;
                outgoing[level][part.over as usize] += time;
                own[level] += time;
            }
            for (level, &own) in own.iter().enumerate().filter(|(_, own)| **own > 0) {
                incoming[level][line.device as usize] += own;
                let latency = topology.levels()[level].link.latency.as_nanos() as u64;
                transfers[task.index()] = (own + latency).max(transfers[task.index()]);
            }
        }
    }
    let mut ends = vec![0; tasks.tasks.len()];
    for (id, before) in tasks.predecessors().iter() {
        let ready = before.iter().map(|other| ends[other.index()]).max().unwrap_or(0);
        ends[id.index()] = ready + transfers[id.index()] + costs.tasks[id];
    }
    let longest = ends
        .iter()
        .chain(incoming.iter().flatten())
        .chain(outgoing.iter().flatten())
        .max()
        .copied()
        .unwrap_or(0);
    longest.max(compute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_uncovered_is_counted_once() {
        let exposed = |spans: &[(u64, u64)], covers: &[(u64, u64)]| {
            uncovered(&mut spans.to_vec(), &mut covers.to_vec())
        };
        assert_eq!(exposed(&[(0, 10)], &[]), 10);
        assert_eq!(exposed(&[(0, 10), (5, 12)], &[(2, 4), (11, 20)]), 9);
        assert_eq!(exposed(&[(3, 5)], &[(0, 4), (4, 9)]), 0);
        assert_eq!(exposed(&[(0, 2), (6, 8), (7, 9)], &[(1, 7)]), 3);
    }
}
