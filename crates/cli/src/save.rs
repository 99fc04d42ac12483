//! Where a trained model goes: a directory that is written as a whole, with the tokenizer it needs.
//!
//! A directory that is there already is replaced only if the run that is resumed made it, or if the user asks for it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use phalanx::hf;
use phalanx::train::TrainConfig;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// The file that tells which run wrote a directory.
const ORIGIN: &str = "phalanx.json";

/// Which run wrote a directory.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Origin {
    /// Where its checkpoints are.
    checkpoint: Option<PathBuf>,
}

impl Origin {
    fn of(config: &TrainConfig) -> Origin {
        let checkpoint = config.checkpoint.as_deref().map(|dir| fs::canonicalize(dir).unwrap_or(dir.into()));
        Origin { checkpoint }
    }

    fn read(dir: &Path) -> Option<Origin> {
        serde_json::from_slice(&fs::read(dir.join(ORIGIN)).ok()?).ok()
    }
}

/// Refuses a directory that holds anything but the model of the run that `config` resumes, and one beside which nothing
/// can be written.
pub fn check(config: &TrainConfig, dir: &Path) -> Result<(), Failure> {
    let unwritable = |error: io::Error| {
        let dir = dir.display();
        Failure::Input(format!("cannot save to {dir}: {error}; choose another directory"))
    };
    let is_empty = match fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(unwritable(error)),
    };
    let is_own = config.resume && Origin::read(dir) == Some(Origin::of(config));
    if !is_empty && !is_own && !config.overwrite {
        return Err(Failure::Input(format!(
            "{} is there already; choose another directory, or replace it with --overwrite",
            dir.display()
        )));
    }
    hf::probe_directory(dir).map_err(unwritable)
}

/// Writes the directory: `weights` brings the model, and what it returns is returned; the tokenizer and the origin are put
/// beside it.
pub fn write<T>(
    config: &TrainConfig,
    dir: &Path,
    weights: impl FnOnce(&Path) -> Result<T, Failure>,
) -> Result<T, Failure> {
    hf::replace_directory(dir, |new| {
        let brought = weights(new)?;
        copy_tokenizer(config, new)?;
        let origin = serde_json::to_string(&Origin::of(config)).unwrap_or_default();
        fs::write(new.join(ORIGIN), origin + "\n").map_err(|error| unwritten(&new.join(ORIGIN), &error))?;
        Ok(brought)
    })
}

/// Copies the tokenizer of the data.
fn copy_tokenizer(config: &TrainConfig, dir: &Path) -> Result<(), Failure> {
    let Some(tokenizer) = config.tokenizer.as_ref().filter(|_| config.data.is_some()) else { return Ok(()) };
    let copy = dir.join("tokenizer.json");
    fs::copy(tokenizer, &copy).map(|_| ()).map_err(|error| {
        let (tokenizer, copy) = (tokenizer.display(), copy.display());
        Failure::Run(format!("cannot copy the tokenizer {tokenizer} to {copy}: {error}"))
    })
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    Failure::Run(format!("cannot write {}: {error}", path.display()))
}
