//! Files that spare work the next time: where they are, and compiled programs among them.
//!
//! A program is kept in a file that is named after everything it depends on: the model, the settings with measured times
//! of kernels, and the executable that compiled it. So a file is never out of date, and it can be removed at any time.
//! Only programs are kept whose schedule was chosen among many ([`Settings::overlaps`]): others are compiled as fast as
//! they are read. A file that is not whole or not sound is ignored and written again, and where no file can be written the
//! program is compiled every time.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use phalanx_ir::graph::Graph;
use phalanx_program::Program;
use phalanx_runtime::ExecutionMode;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::Pin;
use crate::device::Check;
use crate::job::fingerprint;
use crate::pipeline::{CompileError, Settings, compile, lower_plainly};

/// The first word of a file; behind it stands the hash of all that follows this line.
const FORMAT: &str = "phalanx-program-1";

/// How names of files end.
const EXTENSION: &str = "program";

/// Files beyond which the one that was not used for longest is removed.
const MOST_FILES: usize = 64;

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
        if let Some(program) = path.as_deref().and_then(read) {
            return Ok(program);
        }
        let program = compile(model, settings)?;
        // A program that cannot be kept costs time only.
        path.iter().for_each(|path| _ = write(path, &program));
        Ok(program)
    }

    /// The file of a program; none if it is not worth one.
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

/// The program in a file; none if it is not there, not whole or not sound.
fn read(path: &Path) -> Option<Program> {
    let text = fs::read_to_string(path).ok()?;
    let (head, body) = text.split_once('\n')?;
    let hash = u128::from_str_radix(head.strip_prefix(FORMAT)?.trim_start(), 16).ok()?;
    let program = (hash == xxh3_128(body.as_bytes())).then(|| body.parse().ok())?;
    // The file is in use: others are removed first.
    _ = File::options().append(true).open(path).and_then(|file| file.set_modified(SystemTime::now()));
    program
}

/// Writes a file, which appears when it is complete, and removes old ones.
fn write(path: &Path, program: &Program) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let body = program.to_string();
    // Another process may write the same file.
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    let written = fs::write(&partial, format!("{FORMAT} {:032x}\n{body}", xxh3_128(body.as_bytes())))
        .and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        _ = fs::remove_file(&partial);
    }
    written.and_then(|()| remove_old(dir))
}

fn remove_old(dir: &Path) -> io::Result<()> {
    let used = |entry: io::Result<fs::DirEntry>| {
        let path = entry.ok()?.path();
        let is_program = path.extension().is_some_and(|extension| extension == EXTENSION);
        let used = fs::metadata(&path).and_then(|metadata| metadata.modified()).ok()?;
        is_program.then_some((used, path))
    };
    let mut files: Vec<_> = fs::read_dir(dir)?.filter_map(used).collect();
    files.sort_unstable();
    let old = files.len().saturating_sub(MOST_FILES);
    files[..old].iter().try_for_each(|(_, path)| fs::remove_file(path))
}

#[cfg(test)]
mod tests;
