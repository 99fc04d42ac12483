//! How good the orders of the search are: against the reference on lists, and on training steps of many devices.
//!
//! `cargo run --release -p phalanx-schedule --example search_report`

#[path = "../tests/search_cases/mod.rs"]
mod search_cases;

use std::time::Instant;

use phalanx_schedule::model::{Graph, NodeId};
use phalanx_schedule::search::{Fakes, Found, Problem, improve, improve_freely};
use search_cases::lists::{Case, ROUNDING, lists};
use search_cases::steps::{Step, data_parallel, fully_sharded};

type Search = fn(&Graph, Option<i64>, &[Vec<NodeId>]) -> Found;

fn main() {
    let cases: Vec<Case> = lists().collect();
    report("fakes kept, no seeds", &cases, improve, false);
    report("fakes kept unless a seed is better, seeded", &cases, improve, true);
    report("fakes broken where it pays, no seeds", &cases, improve_freely, false);
    report("fakes broken where it pays, seeded", &cases, improve_freely, true);
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

/// The lists at the peak of the reference's best order.
fn report(name: &str, cases: &[Case], search: Search, seeded: bool) {
    let begun = Instant::now();
    let (mut wins, mut ties, mut dropped, mut optimal) = (0, 0, 0, 0);
    let (mut ours, mut best, mut bound) = (0.0, 0.0, 0.0);
    let mut ratios = Vec::new();
    for case in cases {
        let seeds = if seeded { case.seeds() } else { Vec::new() };
        let found = search(&case.graph, Some(case.limit()), &seeds);
        let times = case.graph.simulate(&found.order);
        let busy = times.makespan - times.exposed;
        let keeps = found.peak <= case.limit();
        wins += usize::from(keeps && found.makespan * ROUNDING < case.best());
        ties +=
            usize::from(keeps && (case.best() / ROUNDING..=case.best() * ROUNDING).contains(&found.makespan));
        dropped += usize::from(found.fakes == Fakes::Dropped && !case.graph.is_valid(&found.order, true));
        optimal += usize::from(found.makespan <= found.lower_bound * ROUNDING);
        ours += times.exposed;
        best += case.exposed();
        bound += found.lower_bound - busy;
        ratios.push(if found.lower_bound > 0.0 { found.makespan / found.lower_bound } else { 1.0 });
    }
    ratios.sort_by(f64::total_cmp);
    let quantile = |share: f64| ratios[((ratios.len() - 1) as f64 * share) as usize];
    println!("{name}: {} lists in {:.1} s", cases.len(), begun.elapsed().as_secs_f64());
    println!(
        "  {wins} shorter, {ties} as long, {} longer; {optimal} proven best; {dropped} break fakes",
        cases.len() - wins - ties
    );
    println!(
        "  exposed {ours:.0} of {best:.0} ({:.1} %), bound {bound:.0} ({:.1} %)",
        100.0 * ours / best,
        100.0 * bound / best
    );
    println!(
        "  makespan/bound: median {:.4}, 90 % {:.4}, 99 % {:.4}, most {:.4}",
        quantile(0.5),
        quantile(0.9),
        quantile(0.99),
        quantile(1.0)
    );
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
