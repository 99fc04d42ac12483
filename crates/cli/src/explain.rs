//! `phalanx explain`: what becomes of a model, stage by stage.

use std::path::PathBuf;
use std::process::ExitCode;

use phalanx::models::ModelConfig;
use phalanx::pipeline;
use phalanx::train::TrainConfig;
use phalanx::{Program, Settings, hf};
use serde_json::json;

use crate::failure::Failure;
use crate::flags::{CompiledStep, Options};
use crate::{graph, output};

/// Print what becomes of a model at any stage of the compiler.
///
/// Without --after it lists the stages. The text of every stage can be parsed back by the library.
#[derive(clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  phalanx explain
  phalanx explain --after build --layers 1
  phalanx explain --after parallelize --plan tp --devices 2 --layers 1
  phalanx explain --after insert-updates --model mlp --layers 2 --width 64
  phalanx explain --after emit --hf model/ --batch 2"
)]
pub struct Args {
    /// Configuration file, as for train
    config: Option<PathBuf>,
    /// Stage whose result is printed; the stages are listed without it
    #[arg(long, value_name = "STAGE")]
    after: Option<String>,
    /// Hugging Face directory whose model is explained
    #[arg(long, value_name = "DIR")]
    hf: Option<PathBuf>,
    /// Graph file exported from PyTorch that is explained
    #[arg(long, value_name = "FILE.json", conflicts_with = "hf")]
    graph: Option<PathBuf>,
    #[command(flatten)]
    options: Options<CompiledStep>,
    /// Print JSON: a line a stage, or the text of one as a string
    #[arg(long)]
    json: bool,
}

/// The result of a stage.
struct Stage {
    name: &'static str,
    text: String,
}

impl Stage {
    /// The level of its result and how many entries that has.
    fn count(&self) -> (&str, usize, &'static str) {
        let level = self.text.split_whitespace().next().unwrap_or("");
        let lines = self.text.lines().skip(1);
        let is = |line: &str, start: &str| line.trim_start().starts_with(start);
        match level {
            "sharded" | "tasks" => {
                (level, lines.filter(|line| is(line, "t") && line.contains("->")).count(), "tasks")
            }
            "schedule" => (level, lines.filter(|line| is(line, "place ")).count(), "buffers"),
            "program" => (level, lines.filter(|line| is(line, "run ")).count(), "operations"),
            _ => (level, lines.filter(|line| is(line, "%")).count(), "layers"),
        }
    }
}

/// Compiles and prints.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    if let Some(after) = &args.after {
        check_stage(after)?;
    }
    let config = args.options.config(args.config.as_ref())?;
    let graph = match &args.graph {
        Some(path) => graph::read(path)?.train,
        None => config.training_graph(&model(&args, &config)?)?,
    };
    let settings = config.settings(&graph)?;
    let mut stages = Vec::new();
    let program = pipeline::compile_observed(&graph, &settings, |name, level| {
        if args.after.as_deref().is_none_or(|after| after == name) {
            stages.push(Stage { name, text: level.to_string() });
        }
    })
    .map_err(phalanx::Error::from)?;
    match args.after {
        None => list(&stages, &program, &settings, args.json)?,
        Some(_) => stages.iter().try_for_each(|stage| print(stage, args.json))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn check_stage(after: &str) -> Result<(), Failure> {
    let stages = pipeline::stages();
    if stages.contains(&after) {
        return Ok(());
    }
    Err(Failure::Input(format!("stage `{after}` is unknown; use one of {}", stages.join(", "))))
}

fn model(args: &Args, config: &TrainConfig) -> Result<ModelConfig, Failure> {
    let Some(dir) = &args.hf else {
        let model = config.build_model(config.vocab_without_data());
        return model.map_err(|error| phalanx::Error::from(error).into());
    };
    if args.options.sizes_model() {
        let dir = dir.display();
        return Err(Failure::Input(format!(
            "--hf {dir} gives the model; of its flags only --context may be set too"
        )));
    }
    config.build_model(config.vocab_without_data()).map_err(phalanx::Error::from)?;
    Ok(hf::read_config(dir).map_err(phalanx::Error::from)?)
}

fn print(stage: &Stage, json: bool) -> Result<(), Failure> {
    match json {
        true => output::json(&json!({ "stage": stage.name, "text": stage.text })),
        false => output::line(&stage.text),
    }
}

fn list(stages: &[Stage], program: &Program, settings: &Settings, json: bool) -> Result<(), Failure> {
    for stage in stages {
        let (level, count, unit) = stage.count();
        match json {
            true => output::json(&json!({ "stage": stage.name, "level": level, unit: count }))?,
            false => output::line(format!("{:16} {level:9} {count:6} {unit}", stage.name))?,
        }
    }
    let (operations, arena) = (program.operations().len(), program.arena());
    let hash = format!("{:032x}", program.hash());
    if json {
        let program = json!({
            "operations": operations, "arena_bytes": arena, "precision": settings.precision, "hash": hash
        });
        return output::json(&json!({ "program": program }));
    }
    let (arena, hash) = (output::bytes(arena), output::hash(&hash, settings.precision));
    output::line(format!("program: {operations} operations, arena {arena}, hash {hash}"))
}
