//! `phalanx train --model NAME` for models of the zoo, which bring their own data, and `--graph FILE` for graph files, which
//! are fed from a file.

use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

use phalanx::models::zoo::ZooModel;
use phalanx::nn::{OwnedFeed, Training, TrainingRun};
use phalanx::train::TrainConfig;
use serde_json::json;

use super::Args;
use crate::failure::Failure;
use crate::graph::{self, FeedFile};
use crate::{output, stop};

/// Lines of progress of a run, unless the user says otherwise.
const LINES: u64 = 10;

/// Trains a model of the zoo and prints the summary: alone, or as one rank of a job.
pub fn run(args: &Args, config: TrainConfig, model: Box<dyn ZooModel>) -> Result<ExitCode, Failure> {
    check(args, &config)?;
    let given: Vec<&str> = args.options.given().collect();
    let model: Rc<dyn ZooModel> = model.into();
    let run = Training::of_zoo(config, &given, Rc::clone(&model))?.start()?;
    let title = format!("{}, on samples of its own", run.config().model);
    train(args, run, &title, |run| {
        let (seed, batch) = (run.config().seed, run.batch());
        model.samples(seed, run.steps(), batch).into_iter().map(|(name, data)| (name, data.into())).collect()
    })
}

/// Trains a graph file and prints the summary.
pub fn run_graph(args: &Args, config: TrainConfig, path: &Path) -> Result<ExitCode, Failure> {
    check(args, &config)?;
    let model = graph::read(path)?;
    let feeds = FeedFile::read(args.feeds.as_deref(), &model.inputs)?;
    let given: Vec<&str> = args.options.given().collect();
    let title = format!("{} of {}", model.name, path.display());
    let run = Training::of_graph_file(config, &given, &model)?.start()?;
    train(args, run, &title, |run| feeds.batch(run.steps()))
}

/// Refuses what neither can do.
fn check(args: &Args, config: &TrainConfig) -> Result<(), Failure> {
    if args.dry_run || args.drawings.any() || args.certificate.certificate.is_some() {
        let why = "--dry-run, --trace, --report and --certificate are for gpt2 and llama: leave them out";
        return Err(Failure::Input(why.into()));
    }
    if let Some(every) = config.log_every.filter(|_| args.json) {
        return Err(Failure::Input(format!(
            "`log_every` is {every}, but with --json every step is a line: leave one of them out"
        )));
    }
    Ok(())
}

fn train(
    args: &Args,
    mut run: TrainingRun<'_>,
    title: &str,
    samples: impl Fn(&TrainingRun<'_>) -> Vec<(String, OwnedFeed)>,
) -> Result<ExitCode, Failure> {
    stop::listen()?;
    let speaks = run.rank() == 0;
    if speaks && !args.json {
        output::line(opening(&run, title))?;
    }
    let began = (run.steps(), Instant::now());
    let every = run.config().log_every.unwrap_or((run.config().steps / LINES).max(1));
    while !run.is_done() {
        if stop::is_asked() {
            run.stop();
        }
        let step = run.step(samples(&run))?;
        for notice in run.take_notices().iter().filter(|_| speaks) {
            eprintln!("{notice}");
        }
        if speaks && args.json {
            let numbers: serde_json::Map<_, _> =
                step.metrics.iter().map(|(name, value)| (name.to_string(), json!(value))).collect();
            output::json(
                &json!({ "step": step.number, "lr": step.lr, "metrics": numbers, "loss": step.loss }),
            )?;
        } else if speaks && (step.number.is_multiple_of(every) || step.number == began.0 + 1) {
            output::line(step.to_string())?;
        }
    }
    finish(&run, args.json, began)
}

fn opening(run: &TrainingRun<'_>, title: &str) -> String {
    let config = run.config();
    let devices = output::count(run.session().program().homes().count(), "device");
    let layout = config.plan.as_ref().map_or(devices.clone(), |plan| format!("plan {plan} on {devices}"));
    format!(
        "{title}, {} parameters: {} of {}, {layout}",
        output::grouped(run.parameters()),
        output::count(config.steps as usize, "step"),
        output::count(config.batch, "sample"),
    )
}

/// Prints the summary. All ranks take part in the hash.
fn finish(
    run: &TrainingRun<'_>,
    is_json: bool,
    (before, start): (u64, Instant),
) -> Result<ExitCode, Failure> {
    let hash = format!("{:032x}", run.session().weights_hash()?);
    let (steps, seconds) = (run.steps(), start.elapsed().as_secs_f64());
    let interrupted = steps < run.config().steps;
    if run.rank() == 0 && is_json {
        output::json(&json!({ "summary": {
            "steps": steps, "seconds": seconds, "weights_hash": hash, "interrupted": interrupted,
        } }))?;
    } else if run.rank() == 0 {
        let asked = if interrupted { format!(" of {}, stopped", run.config().steps) } else { String::new() };
        output::line(format!("{:14}{steps}{asked}, {} of them in {seconds:.1} s", "steps", steps - before))?;
        output::line(format!("{:14}{}", "weights hash", output::hash(&hash, run.config().precision)))?;
    }
    Ok(if interrupted { ExitCode::from(stop::STOPPED) } else { ExitCode::SUCCESS })
}
