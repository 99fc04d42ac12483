//! `phalanx opt`: compiler passes on a text file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use phalanx::internals::files;
use phalanx::internals::lower::{BucketSizes, EXPAND_PASSES, LowerOptions, PASSES, Stage};
use phalanx::{Goal, Optimizer};

use crate::failure::Failure;
use crate::flags::{Blocks, Options};
use crate::output;

/// Run compiler passes on a text file and print the result.
///
/// The file holds a parallel graph, a sharded graph or a task graph, as `explain --after` prints them; the passes must suit it.
/// It is verified first, and the result after every pass.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  phalanx explain --after parallelize --plan dp --devices 2 > dp.ir
  phalanx opt dp.ir --pass expand-passes,insert-loss
  phalanx opt dp.ir                  # only parse, verify and print")]
pub struct Args {
    /// File to read; - for standard input
    file: PathBuf,
    /// Passes to run, in this order, separated by commas
    #[arg(long = "pass", value_name = "NAME", value_delimiter = ',')]
    passes: Vec<String>,
    /// What the step is for
    #[arg(long, value_name = "GOAL", default_value = "train", value_parser = ["train", "gradients", "infer"])]
    goal: String,
    #[command(flatten)]
    blocks: Options<Blocks>,
    /// Allow cuts that change the bits
    #[arg(long)]
    free_bits: bool,
    /// Devices of a node, for two-levels; all are equally near if absent
    #[arg(long, value_name = "N")]
    node: Option<usize>,
    /// Print one line of JSON: the text as a string
    #[arg(long)]
    json: bool,
}

/// What a file holds.
enum Level {
    Parallel(phalanx::ir::parallel::ParallelGraph),
    Lowered(Stage),
}

/// Reads, runs the passes and prints.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let config = args.blocks.config(None)?;
    let options = LowerOptions {
        buckets: BucketSizes::default(),
        goal: match args.goal.as_str() {
            "infer" => Goal::Infer,
            "gradients" => Goal::Gradients,
            _ => Goal::Train(Optimizer::adamw(0.1).clip(Some(1.0))),
        },
        leaves: config.leaves(),
        precision: config.precision,
        seed: config.seed,
        free_bits: args.free_bits,
        fuse: true,
        node: args.node,
    };
    let mut level = read(&args.file)?;
    for name in &args.passes {
        level = pass(level, name, &options)?;
    }
    let text = match &level {
        Level::Parallel(graph) => graph.to_string(),
        Level::Lowered(stage) => stage.text().to_string(),
    };
    match args.json {
        true => output::json(&serde_json::json!({ "passes": args.passes, "text": text }))?,
        false => output::line(text)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> Result<Level, Failure> {
    let text = match path.as_os_str() == "-" {
        true => std::io::read_to_string(std::io::stdin()),
        false => files::read_text(path),
    };
    let shown = path.display();
    let text = text.map_err(|error| Failure::Input(format!("cannot read {shown}: {error}")))?;
    let wrong = |error: String| Failure::Input(format!("{shown}: {error}"));
    let parse_error = |error: phalanx::ir::text::ParseError| wrong(error.to_string());
    let level = match text.split_whitespace().next() {
        Some("parallel") => {
            let graph = phalanx::ir::parallel::ParallelGraph::parse(text, phalanx::ops::operators())
                .map_err(parse_error)?;
            graph.verify().map_err(|errors| wrong(errors[0].to_string()))?;
            return Ok(Level::Parallel(graph));
        }
        Some("sharded" | "wide") => Stage::Sharded(text.parse().map_err(parse_error)?),
        Some("tasks") => Stage::Tasks(text.parse().map_err(parse_error)?),
        found => {
            let found = found.unwrap_or("nothing");
            return Err(wrong(format!(
                "it starts with `{found}`; a parallel, sharded or tasks graph is needed"
            )));
        }
    };
    level.verify("reading").map_err(|error| wrong(error.to_string()))?;
    Ok(Level::Lowered(level))
}

fn pass(level: Level, name: &str, options: &LowerOptions) -> Result<Level, Failure> {
    let failed = |error: phalanx::internals::lower::LowerError| Failure::Input(format!("{name}: {error}"));
    let misfit = || {
        Failure::Input(format!(
            "pass `{name}` does not work on this level; the passes follow each other: {}",
            names()
        ))
    };
    let pass = PASSES.iter().find(|pass| pass.name == name);
    let stage = match (level, pass) {
        (Level::Parallel(graph), None) if name == EXPAND_PASSES => {
            Stage::start(&graph, options).map_err(failed)?
        }
        (Level::Lowered(stage), Some(pass)) => {
            let stage = stage.run(pass, options).ok_or_else(misfit)?.map_err(failed)?;
            stage.verify(pass.name).map_err(failed)?;
            stage
        }
        (_, None) if name != EXPAND_PASSES => {
            return Err(Failure::Input(format!("pass `{name}` is unknown; use one of {}", names())));
        }
        _ => return Err(misfit()),
    };
    Ok(Level::Lowered(stage))
}

fn names() -> String {
    let names: Vec<_> = std::iter::once(EXPAND_PASSES).chain(PASSES.iter().map(|pass| pass.name)).collect();
    names.join(", ")
}
