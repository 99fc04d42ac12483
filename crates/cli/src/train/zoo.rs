//! `phalanx train --model NAME` for models of the zoo, which bring their own data.

use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

use phalanx::models::zoo::ZooModel;
use phalanx::nn::{OwnedFeed, StepOutcome, Training, TrainingRun};
use phalanx::train::TrainConfig;
use serde_json::json;

use super::Args;
use crate::failure::Failure;
use crate::{job, output, save, stop};

/// Lines of progress of a run, unless the user says otherwise.
const LINES: u64 = 10;

/// A model of the zoo that is trained on its own samples.
pub struct ZooRun {
    model: Rc<dyn ZooModel>,
    /// The training.
    pub run: TrainingRun<'static>,
}

impl ZooRun {
    /// Compiles the model; `given` are the options that the user has set.
    pub fn start(config: TrainConfig, given: &[&str], model: Box<dyn ZooModel>) -> Result<ZooRun, Failure> {
        let model: Rc<dyn ZooModel> = model.into();
        let run = Training::of_zoo(config, given, Rc::clone(&model))?.start()?;
        Ok(ZooRun { model, run })
    }

    /// The next step.
    pub fn step(&mut self) -> Result<StepOutcome, Failure> {
        let (seed, batch) = (self.run.config().seed, self.run.batch());
        let samples = self.model.samples(seed, self.run.steps(), batch).into_iter();
        let feeds: Vec<(String, OwnedFeed)> = samples.map(|(name, data)| (name, data.into())).collect();
        Ok(self.run.step(feeds)?)
    }
}

/// Trains a model of the zoo and prints the summary: alone, or as one rank of a job.
pub fn run(args: &Args, config: TrainConfig, model: Box<dyn ZooModel>) -> Result<ExitCode, Failure> {
    if args.dry_run || args.drawings.any() || args.certificate.certificate.is_some() {
        let why = "--dry-run, --trace, --report and --certificate are for gpt2 and llama: leave them out";
        return Err(Failure::Input(why.into()));
    }
    if let Some(every) = config.log_every.filter(|_| args.json) {
        return Err(Failure::Input(format!(
            "`log_every` is {every}, but with --json every step is a line: leave one of them out"
        )));
    }
    if let Some(dir) = config.save.as_ref().filter(|_| job::launched().is_none_or(|job| job.rank == 0)) {
        save::check(&config, dir)?;
    }
    let given: Vec<&str> = args.options.given().collect();
    let mut zoo = ZooRun::start(config, &given, model)?;
    stop::listen()?;
    let run = &mut zoo.run;
    let speaks = run.rank() == 0;
    if speaks && !args.json {
        output::line(opening(run))?;
    }
    let began = (run.steps(), Instant::now());
    let every = run.config().log_every.unwrap_or((run.config().steps / LINES).max(1));
    while !zoo.run.is_done() {
        if stop::is_asked() {
            zoo.run.stop();
        }
        let step = zoo.step()?;
        for notice in zoo.run.take_notices().iter().filter(|_| speaks) {
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
    let run = &mut zoo.run;
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

fn opening(run: &TrainingRun<'_>) -> String {
    let config = run.config();
    let devices = output::count(run.session().program().homes().count(), "device");
    let layout = config.plan.as_ref().map_or(devices.clone(), |plan| format!("plan {plan} on {devices}"));
    format!(
        "{}, {} parameters, on samples of its own: {} of {}, {layout}",
        config.model,
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
