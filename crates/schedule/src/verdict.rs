//! What became of every movement: how much of it is hidden, and what keeps the rest from being so.
//!
//! A movement is judged by that of its receives of which most is exposed. Its time is hidden where its device computes.
//! The limit is the first of these that holds:
//!
//! * *nothing left*: it is hidden;
//! * *data dependency*: it starts when what it moves is there, so it cannot start earlier;
//! * *bandwidth*: from then until it starts other transfers to its device are under way all the time;
//! * *memory*: it waits for bytes that it takes over, or is held back because too many are ahead of their use;
//! * *order*: it waits for another movement's turn.

use std::collections::BTreeMap;

use phalanx_ir::tasks::{TaskGraph, TaskId, TaskOp};
use phalanx_ir::{Id, IdVec};

use crate::index::Index;
use crate::overlap::Candidate;
use crate::simulate::SimSpan;

/// What keeps a transfer from being hidden better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// It starts as soon as the data that it moves are there, or an earlier start would end nothing sooner.
    DataDependency,
    /// It waits for bytes that others hold.
    Memory,
    /// It waits for the turn of another transfer.
    Order,
    /// Other transfers keep its lane or link busy until it starts.
    Bandwidth,
    /// It is hidden.
    NothingLeft,
}

impl Limit {
    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Limit::DataDependency => "data dependency",
            Limit::Memory => "memory",
            Limit::Order => "order",
            Limit::Bandwidth => "bandwidth",
            Limit::NothingLeft => "nothing left",
        }
    }
}

/// The verdict on a transfer `S`, with times in nanoseconds of type `T`: the receives of a movement of a step, or a job of
/// a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict<S = Vec<TaskId>, T = u64> {
    /// What is judged; the receives of a movement are in the order of the task graph.
    pub transfer: S,
    /// When it starts.
    pub start: T,
    /// When it is complete.
    pub end: T,
    /// For how much of that time its device computes.
    pub hidden: T,
    /// How many places earlier, or if negative later, it is than in the order that it was given in: for a movement the
    /// tasks of its device that it has passed, less those that have passed it.
    pub moves: i64,
    /// What keeps the rest from being hidden.
    pub limit: Limit,
}

impl<S> Verdict<S, f64> {
    /// The share of its time, from 0 to 1, in which its device computes; 1 if it takes no time.
    pub fn hidden_share(&self) -> f64 {
        let time = self.end - self.start;
        if time <= 0.0 { 1.0 } else { self.hidden / time }
    }
}

/// A share above which a movement counts as hidden, and below which a delay counts as none.
const ALL: f64 = 0.99;

/// The verdicts on all movements, in the order of the task graph.
pub fn verdicts(tasks: &TaskGraph, candidate: &Candidate) -> Vec<Verdict> {
    let mut movements: BTreeMap<usize, Vec<TaskId>> = BTreeMap::new();
    for (id, task) in tasks.tasks.iter() {
        if let TaskOp::Receive { movement } = task.op {
            movements.entry(movement).or_default().push(id);
        }
    }
    let judge = Judge::new(tasks, candidate);
    movements.into_values().map(|receives| judge.verdict(receives)).collect()
}

struct Judge {
    predecessors: IdVec<TaskId, Vec<TaskId>>,
    index: Index,
    spans: Vec<SimSpan>,
    /// By device: what it computes, in order of time.
    busy: Vec<Busy>,
    /// For every task the one before it in its lane.
    before: Vec<Option<TaskId>>,
}

#[derive(Default)]
struct Busy {
    spans: Vec<(u64, u64)>,
    /// Nanoseconds before each span.
    sums: Vec<u64>,
    /// Tasks in the order they start.
    tasks: Vec<TaskId>,
}

impl Busy {
    fn push(&mut self, task: TaskId, span: SimSpan) {
        let before = self.sums.last().copied().unwrap_or(0);
        let last = self.spans.last().map_or(0, |(start, end)| end - start);
        self.sums.push(before + last);
        self.spans.push((span.start, span.end));
        self.tasks.push(task);
    }

    /// Nanoseconds computed before `time`.
    fn until(&self, time: u64) -> u64 {
        let at = self.spans.partition_point(|&(start, _)| start < time);
        match at.checked_sub(1) {
            None => 0,
            Some(last) => self.sums[last] + self.spans[last].1.min(time) - self.spans[last].0,
        }
    }
}

impl Judge {
    fn new(tasks: &TaskGraph, candidate: &Candidate) -> Judge {
        let schedule = &candidate.schedule;
        let index = Index::new(tasks, schedule.overlaps());
        let mut spans = vec![SimSpan::default(); tasks.tasks.len()];
        let mut busy: Vec<Busy> = schedule.devices().iter().map(|_| Busy::default()).collect();
        let mut before = vec![None; tasks.tasks.len()];
        for (number, (lane, run)) in schedule.lanes.iter().zip(&candidate.run).enumerate() {
            let mut last = None;
            for (&task, &span) in lane.order.iter().zip(run) {
                spans[task.index()] = span;
                before[task.index()] = last.replace(task);
                let op = &tasks.tasks[task].op;
                if !matches!(op, TaskOp::Send { .. } | TaskOp::Receive { .. }) {
                    busy[index.arena(number)].push(task, span);
                }
            }
        }
        Judge { predecessors: tasks.predecessors(), index, spans, busy, before }
    }

    fn verdict(&self, receives: Vec<TaskId>) -> Verdict {
        let exposed = |&task: &TaskId| {
            let (time, hidden) = self.hidden(task);
            time - hidden
        };
        let worst = receives.iter().copied().max_by_key(|task| (exposed(task), std::cmp::Reverse(*task)));
        let worst = worst.expect("a movement has a receive");
        let (time, hidden) = self.hidden(worst);
        let limit = match hidden as f64 >= ALL * time as f64 {
            true => Limit::NothingLeft,
            false => self.limit(worst),
        };
        let SimSpan { start, end, .. } = self.spans[worst.index()];
        Verdict { transfer: receives, start, end, hidden, moves: self.moves(worst), limit }
    }

    /// How long a receive takes, and how much of that its device computes.
    fn hidden(&self, task: TaskId) -> (u64, u64) {
        let (span, busy) = (self.spans[task.index()], self.busy_of(task));
        (span.end - span.start, busy.until(span.end) - busy.until(span.start))
    }

    fn busy_of(&self, task: TaskId) -> &Busy {
        &self.busy[self.index.arena(self.index.lane(task))]
    }

    /// Tasks that it has passed.
    fn moves(&self, task: TaskId) -> i64 {
        let (busy, start) = (self.busy_of(task), self.spans[task.index()].start);
        let at = busy.spans.partition_point(|&(begin, _)| begin < start);
        let passed = busy.tasks[at..].iter().filter(|&&other| other < task).count();
        let passed_by = busy.tasks[..at].iter().filter(|&&other| other > task).count();
        passed as i64 - passed_by as i64
    }

    fn limit(&self, task: TaskId) -> Limit {
        let span = self.spans[task.index()];
        let ready = self.data_ready(task);
        let delay = span.start.saturating_sub(ready);
        if delay as f64 <= (1.0 - ALL) * (span.end - span.start) as f64 {
            return Limit::DataDependency;
        }
        let mut covered = 0;
        let mut other = self.before[task.index()];
        while let Some(earlier) = other.filter(|other| self.spans[other.index()].end > ready) {
            let earlier_span = self.spans[earlier.index()];
            covered += earlier_span.end - earlier_span.start.max(ready).min(earlier_span.end);
            other = self.before[earlier.index()];
        }
        if covered as f64 >= ALL * delay as f64 {
            return Limit::Bandwidth;
        }
        let last = self.before[task.index()].map_or(0, |other| self.spans[other.index()].end);
        if last < span.start { Limit::Memory } else { Limit::Order }
    }

    /// When everything that the receive depends on is there.
    fn data_ready(&self, task: TaskId) -> u64 {
        self.predecessors[task].iter().map(|other| self.spans[other.index()].end).max().unwrap_or(0)
    }
}
