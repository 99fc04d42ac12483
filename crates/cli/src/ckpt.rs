//! `phalanx ckpt`: looks at checkpoints, checks them, and exchanges weights with Hugging Face directories.

mod show;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use phalanx::Error;
use phalanx::ckpt::{self, Checkpoint, Checkpoints, CkptError, Manifest};
use serde_json::json;

use crate::failure::Failure;
use crate::flags::{Exported, Optimizer, Options, mask_files};
use crate::{output, save};

/// List, show and check checkpoints, and exchange weights with Hugging Face directories.
#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  phalanx ckpt list runs/a
  phalanx ckpt verify runs/a --all
  phalanx ckpt export runs/a --hf out       # then: phalanx generate --hf out --prompt 'Max '
  phalanx ckpt import --hf gpt2 --checkpoint runs/b")]
pub enum Command {
    List(show::ListArgs),
    Show(show::ShowArgs),
    Verify(VerifyArgs),
    Export(ExportArgs),
    Import(ImportArgs),
}

/// Check lengths and checksums of all files, and that they hold every element exactly once.
#[derive(clap::Args)]
pub struct VerifyArgs {
    /// A checkpoint, or the directory of a run's checkpoints: the newest one
    dir: PathBuf,
    /// All checkpoints of the directory
    #[arg(long)]
    all: bool,
    /// Print one line of JSON for each
    #[arg(long)]
    json: bool,
}

/// Write the weights as a Hugging Face directory, as `train --save` does.
#[derive(clap::Args)]
pub struct ExportArgs {
    /// A checkpoint, or the directory of a run's checkpoints: the newest one
    dir: PathBuf,
    /// Directory to write
    #[arg(long, value_name = "DIR")]
    hf: PathBuf,
    #[command(flatten)]
    options: Options<Exported>,
    /// Replace the directory if it is there already
    #[arg(long)]
    overwrite: bool,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Write the first checkpoint of a run that begins with the weights of a Hugging Face directory.
///
/// The sizes of the model come from its config.json; the optimizer starts from zero, as in a run from scratch.
/// `train --resume` goes on from there: with the same sizes, which are printed, and the same optimizer.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub struct ImportArgs {
    /// Configuration file of the run; the sizes of the model come from the Hugging Face directory
    config: Option<PathBuf>,
    /// Hugging Face directory to read
    #[arg(long, value_name = "DIR")]
    hf: PathBuf,
    /// Directory to write the checkpoint to
    #[arg(long, value_name = "DIR")]
    checkpoint: PathBuf,
    #[command(flatten)]
    options: Options<Optimizer>,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Does what is asked for.
pub fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::List(args) => show::list(&args)?,
        Command::Show(args) => show::show(&args)?,
        Command::Verify(args) => verify(&args)?,
        Command::Export(args) => export(&args)?,
        Command::Import(args) => import(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn verify(args: &VerifyArgs) -> Result<(), Failure> {
    let paths = match args.all && !is_single(&args.dir) {
        true => steps(&args.dir)?.into_iter().map(|step| args.dir.join(ckpt::name_of(step))).collect(),
        false => vec![path_of(&args.dir)?],
    };
    let latest = if is_single(&args.dir) { Ok(()) } else { Checkpoints::open(&args.dir).check_latest() };
    let mut problems: Vec<_> = latest.err().iter().map(ToString::to_string).collect();
    for path in paths {
        let found = look_at(&path);
        if args.json {
            let error = found.as_ref().err().map(CkptError::to_string);
            output::json(&json!({ "path": path, "whole": found.is_ok(), "error": error }))?;
        }
        match found {
            Ok(extent) if !args.json => output::line(format!("{} is whole: {extent}", path.display()))?,
            Ok(_) => {}
            Err(error) => problems.push(format!("{} is damaged: {error}", path.display())),
        }
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(Failure::Run(problems.join("; "))),
    }
}

/// Checks a checkpoint; how much there is in it.
fn look_at(path: &Path) -> Result<String, CkptError> {
    let checkpoint = Checkpoint::open(path)?;
    checkpoint.audit()?;
    Ok(extent(checkpoint.manifest()))
}

fn extent(manifest: &Manifest) -> String {
    let bytes: u64 = manifest.files.iter().map(|file| file.bytes).sum();
    let (files, tensors) = (manifest.files.len(), manifest.tensors.len());
    let (files, tensors) = (output::count(files, "file"), output::count(tensors, "tensor"));
    format!("{tensors} in {files}, {}", output::bytes(bytes))
}

fn export(args: &ExportArgs) -> Result<(), Failure> {
    let checkpoint = open(&args.dir)?;
    let config = args.options.set(ckpt::config_of(&checkpoint).map_err(Error::from)?)?;
    let config = config.resume(false).overwrite(args.overwrite);
    mask_files(&config);
    save::check(&config, &args.hf)?;
    save::write(&config, &args.hf, None, |dir| Ok(ckpt::export(&checkpoint, dir, config.save_dtype)?))?;
    if args.json {
        return output::json(
            &json!({ "from": checkpoint.path(), "hf": args.hf, "dtype": config.save_dtype }),
        );
    }
    let (from, to) = (checkpoint.path().display(), args.hf.display());
    output::line(format!("{to} has the weights of {from}"))
}

fn import(args: ImportArgs) -> Result<(), Failure> {
    let config = args.options.config(args.config.as_ref())?;
    let config = ckpt::import(&args.hf, &args.checkpoint, config)?;
    config.note_dropout(&args.hf)?.into_iter().for_each(|note| eprintln!("note: {note}"));
    if args.json {
        return output::json(&json!({ "hf": args.hf, "checkpoint": args.checkpoint }));
    }
    let given = args.config.map(|path| format!(" {}", path.display())).unwrap_or_default();
    let (hf, dir) = (args.hf.display(), args.checkpoint.display());
    output::line(format!("{dir} has a checkpoint before the first step, with the weights of {hf}"))?;
    output::line(format!(
        "train it with the same flags: phalanx train{given} --hf {hf} --checkpoint {dir} --resume"
    ))
}

/// The checkpoint at `path`, or the newest one below it.
pub fn open(path: &Path) -> Result<Checkpoint, Failure> {
    Ok(Checkpoint::open(path_of(path)?).map_err(Error::from)?)
}

/// Where the checkpoint at `path` is, or the newest one below it.
fn path_of(path: &Path) -> Result<PathBuf, Failure> {
    if is_single(path) {
        return Ok(path.into());
    }
    let newest = steps(path)?.last().copied().unwrap_or_default();
    Ok(path.join(ckpt::name_of(newest)))
}

/// Whether `path` is one checkpoint rather than a directory of them.
pub fn is_single(path: &Path) -> bool {
    path.join("manifest.json").is_file()
}

/// The steps of the checkpoints in a directory, of which there is at least one.
fn steps(dir: &Path) -> Result<Vec<u64>, Failure> {
    let steps = Checkpoints::open(dir).list().map_err(Error::from)?;
    match steps.is_empty() {
        false => Ok(steps),
        true => Err(Failure::Input(format!(
            "{} has no checkpoints; give a directory that `train --checkpoint` wrote",
            dir.display()
        ))),
    }
}
