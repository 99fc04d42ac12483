//! One answer: random models under random plans, and on random parallel graphs, give the bits of one device or an error.

pub mod case;
mod mutate;
mod plans;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use case::{Case, Outcome};
use phalanx::internals::lower::LowerError;
use phalanx::ir::parallel::ParallelGraph;
use phalanx::pipeline;
use phalanx::pipeline::CompileError;
use phalanx::plan::PlanError;
use phalanx::{Error, Session};
use phalanx_testkit::generate::provide_tables;
use phalanx_testkit::{Rng, cases};
use plans::random_plan;

/// Models of a whole soak; each is run under several plans.
const MODELS: u64 = 20_000;
const PLANS: u64 = 2;

/// Models whose parallel graph is changed at random, and how often each.
const MUTATED_MODELS: u64 = 500;
const MUTATIONS: u64 = 12;

/// How often each thing happened.
pub type Counts = BTreeMap<String, usize>;

/// Runs `check` for all seeds on two threads; what all of them counted.
///
/// # Panics
/// With the shortest of the messages with which `check` panicked.
pub fn on_two_threads(seeds: u64, check: impl Fn(u64, &mut Counts) + Sync) -> Counts {
    let total = Mutex::new((Counts::new(), Vec::new()));
    let is_whole = "no thread panics with it";
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (total, check) = (&total, &check);
            scope.spawn(move || {
                for seed in (thread..seeds).step_by(2) {
                    let mut counts = Counts::new();
                    let outcome = catch_unwind(AssertUnwindSafe(|| check(seed, &mut counts)));
                    let mut total = total.lock().expect(is_whole);
                    counts.into_iter().for_each(|(what, count)| *total.0.entry(what).or_default() += count);
                    total.1.extend(outcome.err().map(|panic| case::message(&*panic)));
                }
            });
        }
    });
    let (counts, mut messages) = total.into_inner().expect(is_whole);
    messages.sort_by_key(String::len);
    // The shortest ones whole, of the others the first line.
    let whole = |(at, message): (usize, &String)| if at < 5 { message.clone() } else { first_line(message) };
    let shown = messages.iter().enumerate().map(whole).collect::<Vec<_>>().join("\n\n");
    assert!(messages.is_empty(), "{} of {seeds} failed, {counts:?}\n{shown}", messages.len());
    counts
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().chars().take(200).collect()
}

/// Counts one more of a thing.
pub fn count(counts: &mut Counts, what: &str) {
    *counts.entry(what.into()).or_default() += 1;
}

/// A word for the refusal of a legal model under a plan that cannot be; none if it is a bug.
fn refusal(error: &Error) -> Option<&'static str> {
    let Error::Compile(error) = error else { return None };
    match error {
        CompileError::Lower(LowerError::Unaligned { .. }) => Some("unaligned"),
        CompileError::Plan(error) => match **error {
            PlanError::Microbatch(_) => Some("microbatches"),
            PlanError::Indivisible { .. } => Some("indivisible"),
            _ => None,
        },
        _ => None,
    }
}

#[test]
fn random_plans_give_the_bits_of_one_device() {
    let counts = on_two_threads(cases(MODELS), |seed, counts| {
        let case = Case::new(seed);
        for turn in 0..PLANS {
            let plan = random_plan(&case.model, seed * PLANS + turn);
            let problem = match case.outcome(|| Session::new(&case.model, &case.settings(plan.clone()))) {
                Outcome::Same => {
                    count(counts, "same");
                    Ok(if plan.microbatches > 1 { "same in microbatches" } else { "same at once" })
                }
                Outcome::Refused(error) => refusal(&error).ok_or_else(|| format!("refused: {error}")),
                Outcome::Different(what) => Err(format!("different: {what}")),
                Outcome::Panicked(message) => Err(format!("panicked: {message}")),
            };
            match problem {
                Ok(word) => count(counts, word),
                Err(problem) => {
                    let plan = plan.to_text();
                    panic!("seed {seed}.{turn} {problem}\n{plan}\n{}", case.model);
                }
            }
        }
    });
    println!("random plans: {counts:?}");
    assert!(counts["same"] as u64 >= cases(8000), "too few plans could be compared: {counts:?}");
    assert!(counts["unaligned"] > 0 && counts["microbatches"] > 0 && counts["indivisible"] > 0, "{counts:?}");
}

/// Whether an error is about the graph given, not about one that a pass made of it.
fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::Compile(
            CompileError::Graph(_)
                | CompileError::Lower(
                    LowerError::Unaligned { .. }
                        | LowerError::NoLoss { .. }
                        | LowerError::NothingToTrain { .. }
                        | LowerError::Rule { .. }
                )
        )
    )
}

#[test]
fn random_degrees_are_refused_or_give_the_bits_of_one_device() {
    let counts = on_two_threads(cases(MUTATED_MODELS), |seed, counts| {
        let case = Case::new(seed);
        let plan = random_plan(&case.model, seed);
        let settings = case.settings(plan);
        let Ok(layout) = pipeline::lay_out(&case.model, &settings, |_, _| ()) else { return };
        for turn in 0..MUTATIONS {
            let mut rng = Rng::new(seed * MUTATIONS + turn);
            let parallel = match turn % 3 {
                0 => match ParallelGraph::parse(
                    mutate::mutate_text(&layout.parallel, &mut rng),
                    phalanx_ops::operators(),
                ) {
                    Ok(mut parallel) => {
                        provide_tables(&mut parallel, &case.model);
                        parallel
                    }
                    Err(_) => {
                        count(counts, "no graph");
                        continue;
                    }
                },
                _ => mutate::mutate(&layout.parallel, &mut rng),
            };
            if parallel == layout.parallel {
                continue;
            }
            let problem = match case.outcome(|| Session::on_devices(&case.model, &parallel, &settings)) {
                Outcome::Same => Ok("same"),
                Outcome::Refused(error) => match *error {
                    Error::Compile(CompileError::Graph(_)) => Ok("refused by the verifier"),
                    error if is_refusal(&error) => Ok("refused by the lowering"),
                    error => Err(format!("refused: {error}")),
                },
                Outcome::Different(what) => Err(format!("different: {what}")),
                Outcome::Panicked(message) => Err(format!("panicked: {message}")),
            };
            match problem {
                Ok(word) => count(counts, word),
                Err(problem) => {
                    panic!("seed {seed}.{turn} {problem}\n{parallel}\n{}", case.model)
                }
            }
        }
    });
    println!("random degrees: {counts:?}");
    assert!(counts.values().sum::<usize>() as u64 >= cases(1000), "too few cases: {counts:?}");
    let least = cases(200) as usize;
    assert!(counts["same"] >= least && counts["refused by the verifier"] >= least, "{counts:?}");
}
