//! A graph on Rayon, in the two ways that suit it; the faster one counts.
//!
//! `graph`: every task counts down its successors and spawns those it releases, except one that it goes on with itself.
//! `levels`: tasks at the same distance from the first row form a level; levels run one after the other, each as a
//! parallel iterator.
//!
//! Before anything is timed, runs with checks show that no task starts before those it reads are done.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Instant;

use rayon::prelude::*;
use rayon::{Scope, ThreadPoolBuilder};
use task_peers::{Point, busy, median};

/// A task and who waits for it.
struct Task {
    reads: Vec<usize>,
    read_by: Vec<usize>,
    owed: AtomicU32,
    done: AtomicBool,
}

struct Graph {
    tasks: Vec<Task>,
    roots: Vec<usize>,
    levels: Vec<Vec<usize>>,
    grain: u64,
    checking: bool,
}

impl Graph {
    fn new(point: &Point) -> Self {
        let shape = point.shape;
        let mut tasks: Vec<Task> = Vec::with_capacity(shape.tasks());
        let (mut level_of, mut levels) = (Vec::new(), Vec::<Vec<usize>>::new());
        for id in 0..shape.tasks() {
            let reads: Vec<usize> = shape.reads(id).collect();
            reads.iter().for_each(|&read| tasks[read].read_by.push(id));
            let level = reads.iter().map(|&read| level_of[read] + 1).max().unwrap_or(0);
            level_of.push(level);
            levels.resize_with(levels.len().max(level + 1), Vec::new);
            levels[level].push(id);
            let owed = AtomicU32::new(reads.len() as u32);
            tasks.push(Task { reads, read_by: Vec::new(), owed, done: AtomicBool::new(false) });
        }
        let roots = levels[0].clone();
        Self { tasks, roots, levels, grain: point.grain, checking: true }
    }

    fn body(&self, id: usize) {
        if self.checking {
            // Relaxed: the flags are to show whether the executor orders tasks, so they must not do so themselves.
            let ready = self.tasks[id].reads.iter().all(|&read| self.tasks[read].done.load(Relaxed));
            assert!(ready, "task {id} started before those it reads were done");
        }
        busy(self.grain);
        if self.checking {
            assert!(!self.tasks[id].done.swap(true, Relaxed), "task {id} ran twice");
        }
    }

    /// Runs a task and whatever it leads to.
    fn chain<'scope>(&'scope self, scope: &Scope<'scope>, first: usize) {
        let mut next = Some(first);
        while let Some(id) = next.take() {
            self.body(id);
            let task = &self.tasks[id];
            // Relaxed: this task's readers come after it, so nobody counts it down any more.
            task.owed.store(task.reads.len() as u32, Relaxed);
            for &reader in &task.read_by {
                // AcqRel, pairs with itself: the last to arrive sees what the others did.
                if self.tasks[reader].owed.fetch_sub(1, AcqRel) > 1 {
                    continue;
                }
                if let Some(other) = next.replace(reader) {
                    scope.spawn(move |scope| self.chain(scope, other));
                }
            }
        }
    }

    fn run_graph(&self) {
        rayon::scope(|scope| {
            for &root in &self.roots {
                scope.spawn(move |scope| self.chain(scope, root));
            }
        });
    }

    fn run_levels(&self) {
        for level in &self.levels {
            level.par_iter().for_each(|&id| self.body(id));
        }
    }

    /// The median time of one way to run, after two runs with checks and one without.
    fn seconds(&mut self, repeat: usize, run: impl Fn(&Self)) -> f64 {
        self.checking = true;
        for _ in 0..2 {
            run(self);
            let done = |task: &mut Task| std::mem::take(task.done.get_mut());
            assert!(self.tasks.iter_mut().all(done), "a task did not run");
        }
        self.checking = false;
        run(self);
        let time = |_| {
            let start = Instant::now();
            run(self);
            start.elapsed().as_secs_f64()
        };
        median((0..repeat).map(time).collect())
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match measure(&args) {
        Ok(line) => println!("{line}"),
        Err(message) => {
            eprintln!("rayon: {message}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn measure(args: &[String]) -> Result<String, String> {
    let point = Point::from_args(args)?;
    let pool = ThreadPoolBuilder::new().num_threads(point.workers).build();
    let pool = pool.map_err(|error| format!("cannot start {} threads: {error}", point.workers))?;
    let mut graph = Graph::new(&point);
    let (by_graph, by_levels) = pool.install(|| {
        (graph.seconds(point.repeat, Graph::run_graph), graph.seconds(point.repeat, Graph::run_levels))
    });
    Ok(point.answer("rayon", by_graph.min(by_levels)))
}
