//! `phalanx train --model NAME` for models of the zoo, which bring their own data, and `--graph FILE` for graph files, which
//! are fed from a file.

use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

use phalanx::models::zoo::ZooModel;
use phalanx::nn::{OwnedFeed, StepOutcome, Training, TrainingRun};
use phalanx::train::TrainConfig;
use serde_json::json;

use super::Args;
use crate::failure::Failure;
use crate::graph::{self, FeedFile};
use crate::{job, output, save, stop};

/// Lines of progress of a run, unless the user says otherwise.
const LINES: u64 = 10;

/// What a step is fed with, by name.
type Samples = Vec<(String, OwnedFeed)>;

/// A training, and where the samples of its steps come from.
pub struct SampledRun {
    /// The training.
    pub run: TrainingRun<'static>,
    samples: Box<dyn Fn(&TrainingRun<'_>) -> Samples>,
    title: String,
}

impl SampledRun {
    /// A model of the zoo on samples of its own; `given` are the options that the user has set.
    pub fn of_zoo(
        config: TrainConfig,
        given: &[&str],
        model: Box<dyn ZooModel>,
    ) -> Result<SampledRun, Failure> {
        let model: Rc<dyn ZooModel> = model.into();
        let run = Training::of_zoo(config, given, Rc::clone(&model))?.start()?;
        let title = format!("{}, on samples of its own", run.config().model);
        let samples = move |run: &TrainingRun<'_>| {
            let samples = model.samples(run.config().seed, run.steps(), run.batch()).into_iter();
            samples.map(|(name, data)| (name, data.into())).collect()
        };
        Ok(SampledRun { run, samples: Box::new(samples), title })
    }

    /// A graph file on batches of a file.
    fn of_graph(args: &Args, config: TrainConfig, path: &Path) -> Result<SampledRun, Failure> {
        let model = graph::read(path)?;
        let feeds = FeedFile::read(args.feeds.as_deref(), &model.inputs)?;
        let given: Vec<&str> = args.options.given().collect();
        let title = format!("{} of {}", model.name, path.display());
        let run = Training::of_graph_file(config, &given, &model)?.start()?;
        let samples = move |run: &TrainingRun<'_>| feeds.batch(run.steps());
        Ok(SampledRun { run, samples: Box::new(samples), title })
    }

    /// The next step.
    pub fn step(&mut self) -> Result<StepOutcome, Failure> {
        let samples = (self.samples)(&self.run);
        Ok(self.run.step(samples)?)
    }
}

/// Trains a model of the zoo and prints the summary: alone, or as one rank of a job.
pub fn run(args: &Args, config: TrainConfig, model: Box<dyn ZooModel>) -> Result<ExitCode, Failure> {
    check(args, &config)?;
    let given: Vec<&str> = args.options.given().collect();
    train(args, SampledRun::of_zoo(config, &given, model)?)
}

/// Trains a graph file and prints the summary.
pub fn run_graph(args: &Args, config: TrainConfig, path: &Path) -> Result<ExitCode, Failure> {
    check(args, &config)?;
    train(args, SampledRun::of_graph(args, config, path)?)
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
    let writes = job::launched().is_none_or(|job| job.rank == 0);
    config.save.as_ref().filter(|_| writes).map_or(Ok(()), |dir| save::check(config, dir))
}

fn train(args: &Args, mut sampled: SampledRun) -> Result<ExitCode, Failure> {
    stop::listen()?;
    let run = &sampled.run;
    let speaks = run.rank() == 0;
    if speaks && !args.json {
        output::line(opening(run, &sampled.title))?;
    }
    let began = (run.steps(), Instant::now());
    let every = run.config().log_every.unwrap_or((run.config().steps / LINES).max(1));
    while !sampled.run.is_done() {
        if stop::is_asked() {
            sampled.run.stop();
        }
        let step = sampled.step()?;
        for notice in sampled.run.take_notices().iter().filter(|_| speaks) {
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
    let run = &mut sampled.run;
    let unfinished = (run.steps() < run.config().steps).then(|| (run.steps(), run.config().steps));
    if let Some(dir) = run.config().save.clone() {
        let config = run.config().clone();
        match speaks {
            true => save::write(&config, &dir, unfinished, |dir| Ok(run.save_model(dir)?))?,
            false => run.save_model(&dir)?,
        }
    }
    finish(run, args.json, began)
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
            "saved": run.config().save,
        } }))?;
    } else if run.rank() == 0 {
        let asked = if interrupted { format!(" of {}, stopped", run.config().steps) } else { String::new() };
        output::line(format!("{:14}{steps}{asked}, {} of them in {seconds:.1} s", "steps", steps - before))?;
        output::line(format!("{:14}{}", "weights hash", output::hash(&hash, run.config().precision)))?;
        if let Some(dir) = &run.config().save {
            output::line(format!("{:14}{}", "saved", dir.display()))?;
        }
    }
    Ok(if interrupted { ExitCode::from(stop::STOPPED) } else { ExitCode::SUCCESS })
}
