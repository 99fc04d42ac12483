//! Task graphs on all systems, in alternating rounds so that a noisy machine hits them alike.
//!
//! `compare [--ours PROGRAM] [--patterns a,b] [--widths 2,8] [--workers 2] [--steps 1000] [--repeat 49] [--rounds 3]
//! [--peers rayon,openmp] [--json]`
//!
//! Per graph and system: nanoseconds per empty task, which is the time of the graph divided by its tasks, and METG at
//! 50 and 75 %. All are medians over rounds. Ratios are of the best peer to ours, above 1 where ours is better.
#![forbid(unsafe_code)]

mod measure;
mod system;

use std::process::ExitCode;
use std::str::FromStr;

use measure::{Bench, Turn, calibrate_way};
use system::{OURS, System, systems};
use task_peers::{Pattern, PatternShape, SHARES, calibrate};

struct Args {
    ours: Option<String>,
    patterns: Vec<Pattern>,
    widths: Vec<usize>,
    workers: usize,
    steps: usize,
    repeat: usize,
    rounds: usize,
    /// All if there are none.
    peers: Vec<String>,
    json: bool,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match parse(&words).and_then(|args| compare(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("compare: {message}");
            ExitCode::FAILURE
        }
    }
}

fn parse(words: &[String]) -> Result<Args, String> {
    let mut args = Args {
        ours: None,
        patterns: Pattern::ALL.to_vec(),
        widths: vec![2, 8],
        workers: 2,
        steps: 1000,
        repeat: 49,
        rounds: 3,
        peers: Vec::new(),
        json: false,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "--json" {
            args.json = true;
            continue;
        }
        let value = words.next().ok_or_else(|| format!("{word} needs a value or does not exist"))?;
        match word.as_str() {
            "--ours" => args.ours = Some(value.clone()),
            "--patterns" => args.patterns = list(word, value)?,
            "--widths" => args.widths = list(word, value)?,
            "--workers" => args.workers = one(word, value)?,
            "--steps" => args.steps = one(word, value)?,
            "--repeat" => args.repeat = one(word, value)?,
            "--peers" => args.peers = list(word, value)?,
            "--rounds" => args.rounds = one(word, value)?,
            _ => return Err(format!("there is no option {word}")),
        }
    }
    let counts = args.widths.iter().chain([&args.workers, &args.steps, &args.repeat, &args.rounds]);
    if counts.into_iter().any(|&count| count == 0) {
        return Err("widths, workers, steps, repeat and rounds must be at least 1".into());
    }
    Ok(args)
}

fn one<T: FromStr<Err: ToString>>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| format!("{name} {text}: {}", error.to_string()))
}

fn list<T: FromStr<Err: ToString>>(name: &str, text: &str) -> Result<Vec<T>, String> {
    text.split(',').map(|part| one(name, part)).collect()
}

fn compare(args: &Args) -> Result<(), String> {
    let systems = systems(args.ours.as_deref(), &args.peers)?;
    let &Args { workers, repeat, rounds, .. } = args;
    let way_seconds = if workers > 1 { calibrate_way() } else { 0.0 };
    let bench = Bench { workers, repeat, rounds, iteration_seconds: calibrate(), way_seconds };
    if !args.json {
        print_head(args.steps, &bench, &systems);
    }
    for &pattern in &args.patterns {
        for &width in &args.widths {
            let shape = PatternShape { pattern, width, steps: args.steps };
            let turns = bench.turns(&systems, shape)?;
            match args.json {
                true => print_json(workers, &systems, shape, &turns),
                false => print_row(&systems, shape, &turns),
            }
        }
    }
    Ok(())
}

fn print_head(steps: usize, bench: &Bench, systems: &[System]) {
    let [iteration, way] = [bench.iteration_seconds, bench.way_seconds].map(|seconds| seconds * 1e9);
    let workers = bench.workers;
    println!(
        "{workers} workers, {steps} steps, {iteration:.2} ns an iteration, {way:.0} ns from core to core"
    );
    let [half, most] = SHARES.map(|share| format!("METG({:.0} %)", 100.0 * share));
    println!("ns per empty task | {half} | {most} in us; * if every round was disturbed");
    let names: String = systems.iter().map(|system| format!("{:>28} ", system.name)).collect();
    println!("{:<15}{:>6}{names}{:>22}", "pattern", "width", "best peer / ours");
}

fn print_row(systems: &[System], shape: PatternShape, turns: &[Turn]) {
    let cell = |turn: &Turn| {
        let ([empty, half, most], mark) = (measures(turn), if turn.disturbed { '*' } else { ' ' });
        format!("{empty:>10.1} |{half:>7.3} |{most:>7.3}{mark}")
    };
    let cells: String = turns.iter().map(cell).collect();
    let ratios = match ratios(systems, turns) {
        // Neither reaches the share: there is nothing to compare.
        Some(ratios) => {
            ratios.map(|ratio| if ratio.is_nan() { "-".into() } else { format!("{ratio:.2}") }).join(" | ")
        }
        None => "-".into(),
    };
    println!("{:<15}{:>6}{cells}{ratios:>22}", shape.pattern.name(), shape.width);
}

fn print_json(workers: usize, systems: &[System], shape: PatternShape, turns: &[Turn]) {
    let PatternShape { pattern, width, steps } = shape;
    for (System { name, .. }, turn @ Turn { disturbed, .. }) in systems.iter().zip(turns) {
        let number = |us: f64| if us.is_finite() { format!("{us:.4}") } else { "null".into() };
        let [empty, half, most] = measures(turn).map(number);
        println!(
            "{{\"system\":\"{name}\",\"pattern\":\"{pattern}\",\"width\":{width},\"steps\":{steps},\
             \"workers\":{workers},\"empty_ns\":{empty},\"metg50_us\":{half},\"metg75_us\":{most},\
             \"disturbed\":{disturbed}}}"
        );
    }
}

/// How many times better ours is than the best peer, in each measure, if ours and a peer were measured.
fn ratios(systems: &[System], turns: &[Turn]) -> Option<[f64; 3]> {
    let (ours, peers) = turns.split_first()?;
    if systems.first()?.name != OURS || peers.is_empty() {
        return None;
    }
    let best = |index: usize| peers.iter().map(|peer| measures(peer)[index]).fold(f64::INFINITY, f64::min);
    let ours = measures(ours);
    Some([0, 1, 2].map(|index| best(index) / ours[index]))
}

/// Nanoseconds per empty task, and METG at both shares in microseconds, infinite where out of reach.
fn measures(turn: &Turn) -> [f64; 3] {
    let [half, most] = turn.cost.metg_us.map(|us| us.unwrap_or(f64::INFINITY));
    [turn.cost.empty_ns, half, most]
}
