//! How long a step takes: lanes run in order, wait for each other, and share links.
//!
//! The one judge of schedules and the predictor of what a run will show. Several runs may follow each other, overlapping
//! as far as waits from run to run allow. Contention is that of [`phalanx_link::Traffic`]; cores are not shared between lanes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use phalanx_link::{Part, Topology};

pub use crate::lanes::SimSpan;
use crate::lanes::{Countdown, LaneClocks, Links, later};
use crate::rows::Rows;

/// A step of a lane: its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepAt {
    /// The lane.
    pub lane: u32,
    /// The place in the lane.
    pub position: u32,
}

/// Something a lane does.
#[derive(Clone, Debug, Default)]
pub struct SimStep {
    /// Nanoseconds of work.
    pub cost: u64,
    /// What must arrive from other devices before the work.
    pub parts: Vec<Part>,
    /// What must be complete before, in the same run.
    pub waits: Vec<StepAt>,
    /// What must be complete before, in the run before.
    pub carried: Vec<StepAt>,
}

/// One lane.
#[derive(Clone, Debug, Default)]
pub struct SimLane {
    /// The device, by which parts name it.
    pub device: u32,
    /// What it does, in order.
    pub steps: Vec<SimStep>,
}

/// The spans of a run, by lane and place.
pub type SimRun = Vec<Vec<SimSpan>>;

/// What simultaneous runs are limited by.
#[derive(Clone, Copy, Debug)]
pub struct SimRuns {
    /// How many follow each other.
    pub count: usize,
    /// How many may be under way.
    pub depth: usize,
}

/// Simulates runs of `lines` on devices that have `link`.
///
/// # Panics
/// If lanes wait for each other in a circle.
pub fn simulate(lines: &[SimLane], topology: Option<&Topology>, runs: SimRuns) -> Vec<SimRun> {
    let mut simulation = Simulation::new(lines, topology, runs);
    (0..runs.depth.min(runs.count)).for_each(|run| simulation.launch(run, 0));
    // Ends are known at the start, so steps are taken in the order of their starts, as contention requires.
    while let Some(Reverse((time, node))) = simulation.ready.pop() {
        simulation.run(time, node);
    }
    assert!(simulation.left.iter().all(|&(left, _)| left == 0), "lanes do not wait in a circle");
    simulation.spans
}

struct Simulation<'a> {
    lines: &'a [SimLane],
    runs: SimRuns,
    clocks: LaneClocks<u64>,
    links: Links,
    /// Where each lane begins among the steps of a run, and their number.
    starts: Vec<u32>,
    /// For each step those that wait for it: the step, and whether in the next run.
    waiters: Rows<(u32, bool)>,
    /// By run and step.
    countdown: Countdown,
    /// By run: steps that have not run, and the end of those that have.
    left: Vec<(u32, u64)>,
    ready: BinaryHeap<Reverse<(u64, u32)>>,
    spans: Vec<SimRun>,
}

impl<'a> Simulation<'a> {
    fn new(lines: &'a [SimLane], topology: Option<&Topology>, runs: SimRuns) -> Self {
        let mut starts = vec![0];
        for line in lines {
            starts.push(starts[starts.len() - 1] + line.steps.len() as u32);
        }
        let steps = starts[lines.len()];
        let devices = lines.iter().map(|line| line.device as usize + 1).max().unwrap_or(0);
        let empty: SimRun = lines.iter().map(|line| vec![SimSpan::default(); line.steps.len()]).collect();
        let waits = waits(lines, &starts);
        // Every step waits for the launch of its run, too.
        let mut owed = vec![1; steps as usize * runs.count];
        for &(_, (waiter, is_carried)) in &waits {
            for run in usize::from(is_carried)..runs.count {
                owed[run * steps as usize + waiter as usize] += 1;
            }
        }
        Simulation {
            lines,
            runs,
            clocks: LaneClocks::new(lines.len()),
            links: Links::new(topology, devices),
            waiters: Rows::group(steps as usize, waits.iter().copied()),
            starts,
            countdown: Countdown::new(owed),
            left: vec![(steps, 0); runs.count],
            ready: BinaryHeap::new(),
            spans: vec![empty; runs.count],
        }
    }

    fn steps(&self) -> u32 {
        self.starts[self.lines.len()]
    }

    /// The run may begin.
    fn launch(&mut self, run: usize, time: u64) {
        let steps = self.steps();
        (0..steps).for_each(|step| self.arrive(run as u32 * steps + step, time));
    }

    /// Something that `node` waits for ends at `time`.
    fn arrive(&mut self, node: u32, time: u64) {
        if let Some(ready) = self.countdown.arrive(node as usize, time) {
            self.ready.push(Reverse((ready, node)));
        }
    }

    fn place(&self, node: u32) -> (usize, usize, usize) {
        let (run, step) = (node / self.steps(), node % self.steps());
        let lane = self.starts.partition_point(|&start| start <= step) - 1;
        (run as usize, lane, (step - self.starts[lane]) as usize)
    }

    fn run(&mut self, time: u64, node: u32) {
        let (run, lane, position) = self.place(node);
        let line = &self.lines[lane];
        let step = &line.steps[position];
        let arrival = |start| self.links.arrival(start, line.device, &step.parts);
        let span = self.clocks.run(lane, time, step.cost, arrival);
        self.spans[run][lane][position] = span;
        let number = (node % self.steps()) as usize;
        for at in 0..self.waiters.row(number).len() {
            let (waiter, is_carried) = self.waiters.row(number)[at];
            let run = run + usize::from(is_carried);
            if run < self.runs.count {
                self.arrive(run as u32 * self.steps() + waiter, span.end);
            }
        }
        let (left, end) = &mut self.left[run];
        (*left, *end) = (*left - 1, later(*end, span.end));
        let (left, end) = (*left, *end);
        let next = run + self.runs.depth;
        if left == 0 && next < self.runs.count {
            self.launch(next, end);
        }
    }
}

/// What steps wait for: the other step, the one that waits, and whether it waits in the next run. Besides what it says, a
/// step waits for the one before it in its lane.
fn waits(lines: &[SimLane], starts: &[u32]) -> Vec<(usize, (u32, bool))> {
    let number = |at: StepAt| starts[at.lane as usize] + at.position;
    let mut pairs = Vec::new();
    for (lane, line) in (0..).zip(lines) {
        for (position, step) in (0..).zip(&line.steps) {
            let own = match position {
                0 => (StepAt { lane, position: line.steps.len() as u32 - 1 }, true),
                _ => (StepAt { lane, position: position - 1 }, false),
            };
            let waits = step.waits.iter().map(|&at| (at, false));
            let carried = step.carried.iter().map(|&at| (at, true));
            let waiter = number(StepAt { lane, position });
            let pair = |(at, is_carried)| (number(at) as usize, (waiter, is_carried));
            pairs.extend(waits.chain(carried).chain([own]).map(pair));
        }
    }
    pairs
}

#[cfg(test)]
mod tests;
