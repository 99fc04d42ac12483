//! How good the orders of the search are: against the reference on lists and graphs of values, and on training steps of many devices.
//!
//! `cargo run --release -p phalanx-inductor --example search_report`

#[path = "../tests/search_cases/mod.rs"]
mod search_cases;
#[path = "../../schedule/tests/steps/mod.rs"]
mod steps;

use std::time::Instant;

use phalanx_inductor::fx;
use phalanx_inductor::model::{LaunchGraph, NodeId};
use phalanx_inductor::search::{Fakes, ListFound, improve, improve_freely};
use phalanx_schedule::search::Problem;
use search_cases::lists::ROUNDING;
use search_cases::{graphs, lists};
use steps::{Step, data_parallel, fully_sharded};

/// How many of the cases that are farthest from their bounds are listed.
const FAR: usize = 8;

type Search = fn(&LaunchGraph, Option<i64>, &[Vec<NodeId>]) -> ListFound;

fn main() {
    let cases: Vec<lists::Case> = lists::lists().collect();
    report("lists, fakes kept, no seeds", || each(&cases, improve, false));
    report("lists, fakes kept unless a seed is better, seeded", || each(&cases, improve, true));
    report("lists, fakes broken where it pays, no seeds", || each(&cases, improve_freely, false));
    let lists = report("lists, fakes broken where it pays, seeded", || each(&cases, improve_freely, true));
    let graphs = report("graphs", || graphs::graphs().map(|case| of_graph(&case)).collect());
    report("lists, seeded, and graphs", || [lists, graphs].concat());
    println!("\nbeside the passes that the reference recommends, at their peaks");
    let lists = report("lists, seeded", || cases.iter().map(beside_recommended).collect());
    let graphs = report("graphs", || graphs::graphs().map(|case| beside_reference(&case)).collect());
    report("lists, seeded, and graphs", || [lists, graphs].concat());
    println!("\n{:<42} {:>8} {:>9} {:>9} {:>9} {:>7}", "step", "jobs", "in a row", "found", "bound", "s");
    for devices in [2, 8, 64] {
        let step = Step { devices, layers: 24, compute: 1000.0, transfer: 900.0 };
        time(&format!("data parallel, {devices} devices"), &data_parallel(step), None);
        time(&format!("fully sharded, {devices} devices"), &fully_sharded(step), None);
        time(&format!("fully sharded, {devices} devices, tight"), &fully_sharded(step), Some(40_000));
    }
    let step = Step { devices: 64, layers: 391, compute: 1000.0, transfer: 900.0 };
    time("data parallel, large", &data_parallel(step), None);
    time("data parallel, large, tight", &data_parallel(step), Some(410_000));
    let step = Step { layers: 313, ..step };
    time("fully sharded, large", &fully_sharded(step), None);
    time("fully sharded, large, tight", &fully_sharded(step), Some(330_000));
}

/// What was found for a case, beside the best order of the reference.
#[derive(Clone)]
struct Line {
    id: String,
    makespan: f64,
    exposed: f64,
    bound: f64,
    best: f64,
    best_exposed: f64,
    /// Whether it has no more bytes alive than the best order of the reference.
    keeps_peak: bool,
    breaks_fakes: bool,
}

impl Line {
    /// How much longer than the bound it takes.
    fn ratio(&self) -> f64 {
        if self.bound > 0.0 { self.makespan / self.bound } else { 1.0 }
    }
}

/// The lists at the peak of the reference's best order.
fn each(cases: &[lists::Case], search: Search, seeded: bool) -> Vec<Line> {
    cases.iter().map(|case| of_list(case, search, seeded)).collect()
}

fn of_list(case: &lists::Case, search: Search, seeded: bool) -> Line {
    let seeds = if seeded { case.seeds() } else { Vec::new() };
    let found = search(&case.graph, Some(case.limit()), &seeds);
    Line {
        id: case.id.clone(),
        makespan: found.makespan,
        exposed: case.graph.simulate(&found.order).exposed,
        bound: found.lower_bound,
        best: case.best(),
        best_exposed: case.exposed(),
        keeps_peak: found.peak <= case.limit(),
        breaks_fakes: found.fakes == Fakes::Dropped && !case.graph.is_valid(&found.order, true),
    }
}

fn beside_recommended(case: &lists::Case) -> Line {
    let recommended = &case.recommended;
    let found = improve_freely(&case.graph, Some(recommended.peak), &case.seeds());
    Line {
        id: case.id.clone(),
        makespan: found.makespan,
        exposed: case.graph.simulate(&found.order).exposed,
        bound: found.lower_bound,
        best: recommended.makespan,
        best_exposed: recommended.exposed,
        keeps_peak: found.peak <= recommended.peak,
        breaks_fakes: found.fakes == Fakes::Dropped && !case.graph.is_valid(&found.order, true),
    }
}

/// The reference has one order a graph; here the original one does not count.
fn beside_reference(case: &graphs::GraphCase) -> Line {
    Line { best: case.makespan, best_exposed: case.exposed, ..of_graph(case) }
}

fn of_graph(case: &graphs::GraphCase) -> Line {
    let found = fx::search(&case.graph).expect("the cases are sound");
    Line {
        id: case.id.clone(),
        makespan: found.makespan_ns,
        exposed: found.exposed_sim_ns,
        bound: found.lower_bound_ns,
        best: case.best(),
        best_exposed: case.best_exposed(),
        keeps_peak: found.peak_limit.is_none_or(|limit| found.rescheduled_peak <= limit),
        breaks_fakes: false,
    }
}

/// Prints how what `find` finds compares with the reference and the bound.
fn report(name: &str, find: impl FnOnce() -> Vec<Line>) -> Vec<Line> {
    let begun = Instant::now();
    let lines = find();
    let count = |counts: fn(&Line) -> bool| lines.iter().filter(|line| counts(line)).count();
    let sum = |value: fn(&Line) -> f64| lines.iter().map(value).sum::<f64>();
    let shorter = count(|line| line.keeps_peak && line.makespan * ROUNDING < line.best);
    let longer = count(|line| !line.keeps_peak || line.makespan > line.best * ROUNDING);
    let optimal = count(|line| line.makespan <= line.bound * ROUNDING);
    let (ours, best) = (sum(|line| line.exposed), sum(|line| line.best_exposed));
    let bound = sum(|line| line.bound - (line.makespan - line.exposed));
    println!("{name}: {} cases in {:.1} s", lines.len(), begun.elapsed().as_secs_f64());
    println!(
        "  {shorter} shorter, {} as long, {longer} longer; {optimal} proven best; {} break fakes",
        lines.len() - shorter - longer,
        count(|line| line.breaks_fakes)
    );
    println!(
        "  exposed {ours:.0} of {best:.0} ({:.1} %), bound {bound:.0} ({:.1} %)",
        100.0 * ours / best,
        100.0 * bound / best
    );
    let mut ratios: Vec<f64> = lines.iter().map(Line::ratio).collect();
    ratios.sort_by(f64::total_cmp);
    let quantile = |share: f64| ratios[((ratios.len() - 1) as f64 * share) as usize];
    let [median, most, almost, all] = [0.5, 0.9, 0.99, 1.0].map(quantile);
    println!("  makespan/bound: median {median:.4}, 90 % {most:.4}, 99 % {almost:.4}, most {all:.4}");
    let mut far: Vec<&Line> = lines.iter().collect();
    far.sort_by(|a, b| (b.makespan - b.bound).total_cmp(&(a.makespan - a.bound)));
    for line in far.iter().take(FAR) {
        println!(
            "    {:<24} {:>9.0}, bound {:>9.0}, reference {:>9.0}",
            line.id, line.makespan, line.bound, line.best
        );
    }
    lines
}

fn time(name: &str, problem: &Problem, limit: Option<i64>) {
    let devices = problem.lanes.len() / 2;
    let problem = Problem { limits: vec![limit; devices], ..problem.clone() };
    let begun = Instant::now();
    let solution = problem.solve(&[]).expect("the generator makes sound problems");
    let seconds = begun.elapsed().as_secs_f64();
    let Some(peak) = solution.peaks.iter().max() else { return };
    println!(
        "{name:<42} {:>8} {:>9.0} {:>9.0} {:>9.0} {seconds:>7.2}  peak {peak}, {} above the limit, tried {}",
        problem.jobs.len(),
        problem.jobs.iter().map(|(_, job)| job.cost).sum::<f64>() / devices as f64,
        solution.makespan,
        solution.lower_bound,
        solution.excess,
        solution.tried,
    );
}
