//! How long a step takes: lanes run in order, wait for each other, and share links.
//!
//! The one judge of schedules and the predictor of what a run will show. Several runs may follow each other, overlapping
//! as far as waits from run to run allow. Contention is that of [`Traffic`]; cores are not shared between lanes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use phalanx_link::{Link, Part, Traffic};

/// A step of a lane: its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The lane.
    pub lane: u32,
    /// The place in the lane.
    pub position: u32,
}

/// Something a lane does.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// Nanoseconds of work.
    pub cost: u64,
    /// What must arrive from other devices before the work.
    pub parts: Vec<Part>,
    /// What must be complete before, in the same run.
    pub waits: Vec<At>,
    /// What must be complete before, in the run before.
    pub carried: Vec<At>,
}

/// One lane.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// The device, by which parts name it.
    pub device: u32,
    /// What it does, in order.
    pub steps: Vec<Step>,
}

/// When something happens, in nanoseconds from the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// It starts, or starts to travel.
    pub start: u64,
    /// It has arrived, and its work begins.
    pub arrival: u64,
    /// It is complete.
    pub end: u64,
}

/// The spans of a run, by lane and place.
pub type Run = Vec<Vec<Span>>;

/// What simultaneous runs are limited by.
#[derive(Clone, Copy, Debug)]
pub struct Runs {
    /// How many follow each other.
    pub count: usize,
    /// How many may be under way.
    pub depth: usize,
}

/// Simulates runs of `lines` on devices that have `link`.
///
/// # Panics
/// If lanes wait for each other in a circle.
pub fn simulate(lines: &[Line], link: Option<Link>, runs: Runs) -> Vec<Run> {
    let mut simulation = Simulation::new(lines, link, runs);
    (0..runs.depth.min(runs.count)).for_each(|run| simulation.launch(run, 0));
    while let Some(Reverse((time, node))) = simulation.ready.pop() {
        simulation.start(time, node);
        while let Some(&Reverse((end, _))) = simulation.running.peek()
            && simulation.ready.peek().is_none_or(|Reverse((time, _))| end <= *time)
        {
            simulation.complete();
        }
    }
    assert!(simulation.left.iter().all(|&left| left == 0), "lanes do not wait in a circle");
    simulation.spans
}

struct Simulation<'a> {
    lines: &'a [Line],
    runs: Runs,
    traffic: Option<Traffic>,
    /// Where each lane begins among the steps of a run, and their number.
    starts: Vec<u32>,
    /// For each step those that wait for it: the step, and whether in the next run.
    waiters: Vec<Vec<(u32, bool)>>,
    /// By run and step: what it still waits for.
    owed: Vec<u32>,
    /// By run: steps that are not complete.
    left: Vec<u32>,
    ready: BinaryHeap<Reverse<(u64, u32)>>,
    running: BinaryHeap<Reverse<(u64, u32)>>,
    spans: Vec<Run>,
}

impl<'a> Simulation<'a> {
    fn new(lines: &'a [Line], link: Option<Link>, runs: Runs) -> Self {
        let mut starts = vec![0];
        for line in lines {
            starts.push(starts[starts.len() - 1] + line.steps.len() as u32);
        }
        let steps = starts[lines.len()];
        let devices = lines.iter().map(|line| line.device as usize + 1).max().unwrap_or(0);
        let empty: Run = lines.iter().map(|line| vec![Span::default(); line.steps.len()]).collect();
        let mut simulation = Simulation {
            lines,
            runs,
            traffic: link.map(|link| Traffic::new(link, devices)),
            waiters: vec![Vec::new(); steps as usize],
            starts,
            owed: vec![1; steps as usize * runs.count],
            left: vec![steps; runs.count],
            ready: BinaryHeap::new(),
            running: BinaryHeap::new(),
            spans: vec![empty; runs.count],
        };
        simulation.connect();
        simulation
    }

    /// Every step waits for its launch, its lane, and what it says.
    fn connect(&mut self) {
        let steps = self.starts[self.lines.len()];
        for (lane, line) in (0..).zip(self.lines) {
            for (position, step) in (0..).zip(&line.steps) {
                let me = self.number(At { lane, position });
                let own = match position {
                    0 => (At { lane, position: line.steps.len() as u32 - 1 }, true),
                    _ => (At { lane, position: position - 1 }, false),
                };
                let waits = step.waits.iter().map(|&at| (at, false));
                let carried = step.carried.iter().map(|&at| (at, true));
                for (at, is_carried) in waits.chain(carried).chain([own]) {
                    let other = self.number(at);
                    self.waiters[other as usize].push((me, is_carried));
                    for run in usize::from(is_carried)..self.runs.count {
                        self.owed[run * steps as usize + me as usize] += 1;
                    }
                }
            }
        }
    }

    fn number(&self, at: At) -> u32 {
        self.starts[at.lane as usize] + at.position
    }

    fn steps(&self) -> u32 {
        self.starts[self.lines.len()]
    }

    /// The run may begin.
    fn launch(&mut self, run: usize, time: u64) {
        let steps = self.steps();
        (0..steps).for_each(|step| self.arrive(run as u32 * steps + step, time));
        if steps == 0 {
            self.left[run] = 0;
        }
    }

    /// Something that `node` waits for is complete.
    fn arrive(&mut self, node: u32, time: u64) {
        let owed = &mut self.owed[node as usize];
        *owed -= 1;
        if *owed == 0 {
            self.ready.push(Reverse((time, node)));
        }
    }

    fn place(&self, node: u32) -> (usize, usize, usize) {
        let (run, step) = (node / self.steps(), node % self.steps());
        let lane = self.starts.partition_point(|&start| start <= step) - 1;
        (run as usize, lane, (step - self.starts[lane]) as usize)
    }

    fn start(&mut self, time: u64, node: u32) {
        let (run, lane, position) = self.place(node);
        let line = &self.lines[lane];
        let step = &line.steps[position];
        let arrival = match &mut self.traffic {
            Some(traffic) if !step.parts.is_empty() => {
                traffic.transfer(Duration::from_nanos(time), line.device, &step.parts).as_nanos() as u64
            }
            _ => time,
        };
        let end = arrival + step.cost;
        self.spans[run][lane][position] = Span { start: time, arrival, end };
        self.running.push(Reverse((end, node)));
    }

    fn complete(&mut self) {
        let Some(Reverse((end, node))) = self.running.pop() else { return };
        let (run, step) = ((node / self.steps()) as usize, node % self.steps());
        for at in 0..self.waiters[step as usize].len() {
            let (waiter, is_carried) = self.waiters[step as usize][at];
            let run = run + usize::from(is_carried);
            if run < self.runs.count {
                self.arrive(run as u32 * self.steps() + waiter, end);
            }
        }
        self.left[run] -= 1;
        let next = run + self.runs.depth;
        if self.left[run] == 0 && next < self.runs.count {
            self.launch(next, end);
        }
    }
}

#[cfg(test)]
mod tests;
