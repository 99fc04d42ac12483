//! What each system makes of a graph: medians over rounds that take turns, each with the machine for itself.
//!
//! A turn counts only if the machine has nothing else to do right before and after it, and its cores are as near to each
//! other as they have been: a virtual machine's change places, and half of what short tasks take is the way between them.
//! A turn that keeps being disturbed is kept but marked.

use std::hint::spin_loop;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::yield_now;
use std::time::Instant;

use task_peers::{Cost, PatternShape, Point, TaskWork, busy, cost, median};

use crate::system::System;

/// How much longer than alone plain work may take: more than clock rates vary, less than with a core shared.
const QUIET: f64 = 1.2;

/// How much longer than at best the way between two cores may take: less than between cores that share no cache.
const NEAR: f64 = 1.5;

/// How often a turn waits for a quiet machine and is repeated if that did not last.
const TRIES: usize = 3;

/// How often it looks before it gives up waiting.
const PROBES: usize = 30;

/// How graphs are measured.
pub struct Bench {
    /// Threads that run tasks.
    pub workers: usize,
    /// How often a point is timed in one turn.
    pub repeat: usize,
    /// Turns of each system.
    pub rounds: usize,
    /// Seconds of one iteration of a body.
    pub iteration_seconds: f64,
    /// Seconds from core to core, at best.
    pub way_seconds: f64,
}

/// What one system makes of one graph.
pub struct Turn {
    /// What it costs.
    pub cost: Cost,
    /// Whether other load was there.
    pub disturbed: bool,
}

impl Bench {
    /// The middle turn of each system.
    pub fn turns(&self, systems: &[System], shape: PatternShape) -> Result<Vec<Turn>, String> {
        let mut turns: Vec<Vec<Turn>> = systems.iter().map(|_| Vec::new()).collect();
        for turn in 0..self.rounds * systems.len() {
            // Each round starts with another system.
            let index = (turn + turn / systems.len()) % systems.len();
            turns[index].push(self.quiet_turn(&systems[index], shape)?);
        }
        Ok(turns.iter().map(|turns| middle(turns)).collect())
    }

    fn quiet_turn(&self, system: &System, shape: PatternShape) -> Result<Turn, String> {
        for _ in 0..TRIES {
            if !(0..PROBES).any(|_| self.is_quiet()) {
                break;
            }
            let cost = self.cost(system, shape)?;
            if self.is_quiet() {
                return Ok(Turn { cost, disturbed: false });
            }
        }
        Ok(Turn { cost: self.cost(system, shape)?, disturbed: true })
    }

    fn cost(&self, system: &System, shape: PatternShape) -> Result<Cost, String> {
        let &Self { workers, iteration_seconds, .. } = self;
        let work = TaskWork { tasks: shape.tasks(), workers, iteration_seconds };
        cost(work, self.repeat, |grain, repeat| system.run(&Point { shape, workers, grain, repeat }))
    }

    /// Whether nothing disturbs.
    fn is_quiet(&self) -> bool {
        self.is_alone() && (self.workers == 1 || way_seconds() < NEAR * self.way_seconds)
    }

    /// Whether all workers' cores together do plain work about as fast as one does alone.
    fn is_alone(&self) -> bool {
        const SECONDS: f64 = 0.03;
        let grain = (SECONDS / self.iteration_seconds) as u64;
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..self.workers {
                scope.spawn(|| busy(grain));
            }
        });
        start.elapsed().as_secs_f64() < QUIET * SECONDS
    }
}

/// Seconds from core to core, the best of some looks; the system may move threads between them.
pub fn calibrate_way() -> f64 {
    (0..PROBES).map(|_| way_seconds()).fold(f64::INFINITY, f64::min)
}

/// Seconds until one thread sees what another has written.
fn way_seconds() -> f64 {
    const WAYS: u32 = 20_000;
    // Longer than any way: after that the other thread may need this core.
    const LOOKS: u32 = 1000;
    let turn = AtomicU32::new(0);
    let run = |mine: u32| {
        for way in (mine..WAYS).step_by(2) {
            let mut looks = 0;
            while turn.load(Acquire) != way {
                looks += 1;
                if looks < LOOKS { spin_loop() } else { yield_now() }
            }
            turn.store(way + 1, Release);
        }
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| run(1));
        run(0);
    });
    start.elapsed().as_secs_f64() / f64::from(WAYS)
}

/// Medians of the quiet turns, or of all turns if none was quiet.
fn middle(turns: &[Turn]) -> Turn {
    let disturbed = turns.iter().all(|turn| turn.disturbed);
    let counted = turns.iter().filter(|turn| turn.disturbed == disturbed).map(|turn| turn.cost);
    let middle = |measure: &dyn Fn(Cost) -> f64| median(counted.clone().map(measure).collect());
    // What is out of reach is longer than everything else.
    let metg = |index: usize| middle(&|cost| cost.metg_us[index].unwrap_or(f64::INFINITY));
    let metg_us = [metg(0), metg(1)].map(|us| us.is_finite().then_some(us));
    Turn { cost: Cost { empty_ns: middle(&|cost| cost.empty_ns), metg_us }, disturbed }
}
