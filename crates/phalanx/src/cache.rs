//! Files that spare work the next time: where they are, and compiled programs among them.
//!
//! A program is kept as an [`Artifact`] of one step, in a directory that is named after everything it depends on: the model,
//! the settings with measured times of kernels, and the executable that compiled it. So none is ever out of date, and any can
//! be removed at any time. Only programs are kept whose schedule was chosen among many ([`Settings::overlaps`]): others are
//! compiled as fast as they are read. One that is not whole or not sound is ignored and written again, and where nothing can
//! be written the program is compiled every time. What was not used for longest is removed when there is too much.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use phalanx_ir::graph::Graph;
use phalanx_program::Program;
use phalanx_runtime::ExecutionMode;
use xxhash_rust::xxh3::Xxh3;

use crate::Pin;
use crate::artifact::{Artifact, ArtifactFiles};
use crate::device::Check;
use crate::job::fingerprint;
use crate::pipeline::{CompileError, Settings, compile, lower_plainly};

/// How names of directories end.
const EXTENSION: &str = "artifact";

/// How names of files ended in which earlier versions kept programs.
const FORMER_EXTENSION: &str = "program";

/// Programs beyond which the one that was not used for longest is removed.
const MOST_PROGRAMS: usize = 64;

/// Bytes beyond which the same happens.
const MOST_BYTES: u64 = 1 << 30;

/// Below `$XDG_CACHE_HOME` or `~/.cache`; nowhere if neither is a full path.
pub fn cache_dir() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value: &OsString| Path::new(value).is_absolute());
    let base = set("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| set("HOME").map(|home| Path::new(&home).join(".cache")))?;
    Some(base.join("phalanx"))
}

/// Model and settings as text, for comparing and hashing: all that a program depends on but the times of kernels.
pub(crate) fn source(model: &Graph, settings: &Settings) -> String {
    // Neither where threads run nor how runs are executed matters to a program.
    let settings = Settings {
        pin: Pin::Auto,
        execution: ExecutionMode::Replay,
        check: Check::None,
        cost_table: None,
        ..settings.clone()
    };
    format!("{model}\n{settings:#?}")
}

/// Where compiled programs are kept, if they are.
#[derive(Clone, Debug, Default)]
pub struct ProgramCache {
    dir: Option<PathBuf>,
}

impl ProgramCache {
    /// The user's: see [`cache_dir`].
    pub fn of_user() -> ProgramCache {
        ProgramCache { dir: cache_dir().map(|dir| dir.join("programs")) }
    }

    /// In a directory, which is made if it is not there.
    pub fn at(dir: impl Into<PathBuf>) -> ProgramCache {
        ProgramCache { dir: Some(dir.into()) }
    }

    /// Keeps nothing.
    pub fn none() -> ProgramCache {
        ProgramCache::default()
    }

    /// The program of a model: from its file, or compiled and then kept.
    pub fn compile(&self, model: &Graph, settings: &Settings) -> Result<Program, CompileError> {
        let path = self.path(model, settings);
        if let Some(program) = path.as_deref().and_then(|path| read(path, model, settings)) {
            return Ok(program);
        }
        let program = compile(model, settings)?;
        if let Some(path) = path {
            // A program that cannot be kept costs time only.
            _ = write(&path, &Artifact::of_program(model, &program, settings));
        }
        Ok(program)
    }

    /// The directory of a program; none if it is not worth one.
    fn path(&self, model: &Graph, settings: &Settings) -> Option<PathBuf> {
        let dir = self.dir.as_ref().filter(|_| settings.overlaps())?;
        let mut hasher = Xxh3::new();
        hasher.update(&fingerprint().ok()?.to_le_bytes());
        hasher.update(source(model, settings).as_bytes());
        // Of all times in a table only those of this model count: the others may change.
        let tasks = lower_plainly(model, settings).ok()?;
        settings.costs(&tasks).tasks.iter().for_each(|(_, cost)| hasher.update(&cost.to_le_bytes()));
        Some(dir.join(format!("{:032x}.{EXTENSION}", hasher.digest128())))
    }
}

/// The program in a directory; none if it is not there, not whole, not sound or of another model.
fn read(path: &Path, model: &Graph, settings: &Settings) -> Option<Program> {
    let files = ArtifactFiles::read(path).ok()?;
    let program = Artifact::load(&files, Some(model)).ok()?.into_program(model, settings)?;
    // It is in use: others are removed first.
    _ = File::open(path).and_then(|dir| dir.set_modified(SystemTime::now()));
    Some(program)
}

/// Writes a directory, which appears when it is complete, and removes old ones.
fn write(path: &Path, artifact: &Artifact) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    artifact.replace(path).map_err(io::Error::other)?;
    remove_old(dir, MOST_BYTES)
}

/// A program that is kept.
struct Kept {
    used: SystemTime,
    path: PathBuf,
    bytes: u64,
}

/// Removes programs until there are neither too many nor more than `most` bytes of them; the newest one stays.
fn remove_old(dir: &Path, most: u64) -> io::Result<()> {
    let mut kept = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some(EXTENSION) => kept.extend(Kept::of(path)),
            Some(FORMER_EXTENSION) => fs::remove_file(path)?,
            _ => {}
        }
    }
    kept.sort_unstable_by(|a, b| (b.used, &b.path).cmp(&(a.used, &a.path)));
    let mut bytes = 0;
    for (number, kept) in kept.iter().enumerate() {
        bytes += kept.bytes;
        if number >= MOST_PROGRAMS || (number > 0 && bytes > most) {
            fs::remove_dir_all(&kept.path)?;
        }
    }
    Ok(())
}

impl Kept {
    /// What is in a directory; none if another process removes it now.
    fn of(path: PathBuf) -> Option<Kept> {
        let used = fs::metadata(&path).and_then(|metadata| metadata.modified()).ok()?;
        let files = fs::read_dir(&path).ok()?.flatten().filter_map(|file| file.metadata().ok());
        let bytes = files.map(|metadata| metadata.len()).sum();
        Some(Kept { used, path, bytes })
    }
}

#[cfg(test)]
mod tests;
