//! Where a trained model goes: a directory that is written as a whole, with the tokenizer it needs.
//!
//! A directory that is there already is replaced only if the run that is resumed made it, or if the user asks for it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use phalanx::data::ChatTemplate;
use phalanx::hf;
use phalanx::train::TrainConfig;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Files beside a tokenizer that tell its special tokens and how conversations become text.
const BESIDE_TOKENIZER: [&str; 3] =
    ["tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"];

/// The file that tells which run wrote a directory.
const ORIGIN: &str = "phalanx.json";

/// Which run wrote a directory.
#[derive(Serialize, Deserialize)]
struct Origin {
    /// Where its checkpoints are.
    checkpoint: Option<PathBuf>,
    /// Steps done and steps asked for, of a run that was stopped before its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unfinished: Option<(u64, u64)>,
}

impl Origin {
    fn of(config: &TrainConfig) -> Origin {
        let checkpoint = config.checkpoint.as_deref().map(|dir| fs::canonicalize(dir).unwrap_or(dir.into()));
        Origin { checkpoint, unfinished: None }
    }

    fn read(dir: &Path) -> Option<Origin> {
        serde_json::from_slice(&fs::read(dir.join(ORIGIN)).ok()?).ok()
    }
}

/// Refuses a directory that holds anything but the model of the run that `config` resumes, and one beside which nothing
/// can be written.
pub fn check(config: &TrainConfig, dir: &Path) -> Result<(), Failure> {
    refuse_other(config, dir)?;
    hf::probe_directory(dir).map_err(|error| unwritable(dir, &error))
}

/// The first of these two; nothing is written to find out.
pub fn refuse_other(config: &TrainConfig, dir: &Path) -> Result<(), Failure> {
    let is_empty = match fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(unwritable(dir, &error)),
    };
    let is_own = config.resume
        && Origin::read(dir).is_some_and(|origin| origin.checkpoint == Origin::of(config).checkpoint);
    if !is_empty && !is_own && !config.overwrite {
        return Err(Failure::Input(format!(
            "{} is there already; choose another directory, or replace it with --overwrite",
            dir.display()
        )));
    }
    Ok(())
}

fn unwritable(dir: &Path, error: &io::Error) -> Failure {
    Failure::Input(format!("cannot save to {}: {error}; choose another directory", dir.display()))
}

/// Writes the directory: `weights` brings the model, and what it returns is returned; the tokenizer and the origin are put
/// beside it. A model of a run that was stopped is marked: `unfinished` are the steps done and the steps asked for.
pub fn write<T>(
    config: &TrainConfig,
    dir: &Path,
    unfinished: Option<(u64, u64)>,
    weights: impl FnOnce(&Path) -> Result<T, Failure>,
) -> Result<T, Failure> {
    hf::replace_directory(dir, |new| {
        let brought = weights(new)?;
        copy_tokenizer(config, new)?;
        write_chat_template(config, new)?;
        let origin = serde_json::to_string(&Origin { unfinished, ..Origin::of(config) }).unwrap_or_default();
        fs::write(new.join(ORIGIN), origin + "\n").map_err(|error| unwritten(&new.join(ORIGIN), &error))?;
        Ok(brought)
    })
}

/// Copies the tokenizer of the data.
fn copy_tokenizer(config: &TrainConfig, dir: &Path) -> Result<(), Failure> {
    let Some(tokenizer) = config.tokenizer.as_ref().filter(|_| config.data.is_some()) else { return Ok(()) };
    let beside = BESIDE_TOKENIZER.map(|name| (tokenizer.with_file_name(name), name));
    let beside = beside.into_iter().filter(|(from, _)| from.is_file());
    for (from, name) in [(tokenizer.clone(), "tokenizer.json")].into_iter().chain(beside) {
        let copy = dir.join(name);
        hf::copy_file(&from, &copy).map_err(|error| {
            let (from, copy) = (from.display(), copy.display());
            Failure::Run(format!("cannot copy the tokenizer {from} to {copy}: {error}"))
        })?;
    }
    Ok(())
}

/// Writes the chat template that was asked for, in place of the tokenizer's own.
fn write_chat_template(config: &TrainConfig, dir: &Path) -> Result<(), Failure> {
    let Some(choice) = &config.chat_template else { return Ok(()) };
    let source = ChatTemplate::source_of(choice).map_err(|error| Failure::Run(error.to_string()))?;
    let path = dir.join("chat_template.jinja");
    fs::write(&path, source).map_err(|error| unwritten(&path, &error))
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    Failure::Run(format!("cannot write {}: {error}", path.display()))
}
