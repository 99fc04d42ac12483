//! Cost tables as files: JSON with one entry a line, sorted, so that people can read, compare and change them.
//!
//! A file is replaced as a whole, so readers see the old one or the new one. Saving keeps what stands in the file: it
//! only adds entries. So processes that share a file lose nothing, agree on its times, and leave alone what people wrote.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{CostTable, Machine, Signature};
use crate::files;

/// The layout of files this version reads and writes.
const FORMAT: u32 = 1;

/// Why a cost table cannot be read, kept or filled in.
#[derive(Debug, thiserror::Error)]
pub enum CostTableError {
    /// The file cannot be read.
    #[error("cannot read the costs {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is no cost table; the parser tells line and column.
    #[error("{}: {source}; correct this line, or delete the file to measure again", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// The file is of another version of this format.
    #[error("{}: `format` is {found}, but this version reads {FORMAT}; delete the file to measure again", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// An entry is on no core.
    #[error("{}: entry {entry}, a `{kernel}`, has 0 cores; a device has at least 1", path.display())]
    NoCores {
        /// The file.
        path: PathBuf,
        /// Which entry, from 1.
        entry: usize,
        /// Its kernel.
        kernel: String,
    },
    /// An entry stands there twice.
    #[error(
        "{}: entry {entry}, a `{kernel}` of {second} ns, is there before with {first} ns; keep one of them",
        path.display()
    )]
    Twice {
        /// The file.
        path: PathBuf,
        /// Which entry, from 1.
        entry: usize,
        /// Its kernel.
        kernel: String,
        /// The time of the entry before.
        first: u64,
        /// The time of this one.
        second: u64,
    },
    /// The file cannot be written.
    #[error("cannot write the costs {}: {source}; choose another file", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The times are those of another machine, and this one's would be mixed with them.
    #[error(
        "the costs are those of {}, {}, {}, but this is {}, {}, {}; measure into another file",
        cost_table.cpu, cost_table.isa, cost_table.version, this.cpu, this.isa, this.version
    )]
    OtherMachine {
        /// Whose times they are.
        cost_table: Box<Machine>,
        /// This machine.
        this: Box<Machine>,
    },
}

/// A file's content.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    format: u32,
    cpu: String,
    isa: String,
    version: String,
    entries: Vec<Entry>,
}

/// A line of a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    kernel: String,
    words: Vec<u64>,
    reads: Vec<u64>,
    writes: Vec<u64>,
    cores: usize,
    ns: u64,
}

impl CostTable {
    /// The cost table in a file. If there is no such file, an empty cost table of this machine, to be saved there.
    pub fn load(path: &Path) -> Result<CostTable, CostTableError> {
        match CostTable::read(path) {
            Err(CostTableError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(CostTable { path: Some(path.to_path_buf()), ..CostTable::new(Machine::this()) })
            }
            result => result,
        }
    }

    /// The cost table in a file, which must be there.
    pub fn read(path: &Path) -> Result<CostTable, CostTableError> {
        let text = files::read_text(path)
            .map_err(|source| CostTableError::Read { path: path.to_path_buf(), source })?;
        Ok(CostTable { path: Some(path.to_path_buf()), ..CostTable::parse(&text, path)? })
    }

    /// The cost table in the text of a file; `path` is for error messages.
    pub fn parse(text: &str, path: &Path) -> Result<CostTable, CostTableError> {
        let path = path.to_path_buf();
        let content: Content = match serde_json::from_str(text) {
            Ok(content) => content,
            Err(source) => return Err(CostTableError::Syntax { path, source }),
        };
        let Content { format, cpu, isa, version, entries } = content;
        if format != FORMAT {
            return Err(CostTableError::Format { path, found: format });
        }
        let mut cost_table = CostTable::new(Machine { cpu, isa, version });
        for (entry, Entry { kernel, words, reads, writes, cores, ns }) in (1..).zip(entries) {
            if cores == 0 {
                return Err(CostTableError::NoCores { path, entry, kernel });
            }
            let signature = Signature { kernel: kernel.clone(), words, reads, writes, cores };
            if let Some(first) = cost_table.entries.insert(signature, ns) {
                return Err(CostTableError::Twice { path, entry, kernel, first, second: ns });
            }
        }
        Ok(cost_table)
    }

    /// The text of its file.
    pub fn to_text(&self) -> String {
        let Machine { cpu, isa, version } = self.machine();
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let head = [("cpu", cpu), ("isa", isa), ("version", version)];
        let head: Vec<_> =
            head.iter().map(|(name, text)| format!("  \"{name}\": {},\n", quoted(text))).collect();
        let lines: Vec<String> = self.entries().map(|(signature, ns)| line(signature, ns)).collect();
        format!(
            "{{\n  \"format\": {FORMAT},\n{}  \"entries\": [\n{}\n  ]\n}}\n",
            head.concat(),
            lines.join(",\n")
        )
    }

    /// Adds the entries that the file it was loaded from lacks, and takes over those that others have added since. A cost table
    /// from no file, or without new entries, is left as it is.
    pub fn save(&mut self) -> Result<(), CostTableError> {
        let Some(path) = self.path.clone().filter(|_| self.grown) else { return Ok(()) };
        let _lock = lock(&path)?;
        let stored = CostTable::load(&path)?;
        if stored.machine != self.machine && !stored.entries.is_empty() {
            let (cost_table, this) = (Box::new(stored.machine), Box::new(self.machine.clone()));
            return Err(CostTableError::OtherMachine { cost_table, this });
        }
        self.entries.extend(stored.entries);
        replace(&path, &self.to_text())?;
        self.grown = false;
        Ok(())
    }

    /// Writes the cost table to a file, in place of what is there.
    pub fn write(&self, path: &Path) -> Result<(), CostTableError> {
        let _lock = lock(path)?;
        replace(path, &self.to_text())
    }
}

fn line(signature: &Signature, ns: u64) -> String {
    let Signature { kernel, words, reads, writes, cores } = signature;
    let kernel = serde_json::Value::from(kernel.as_str());
    format!(
        "    {{\"kernel\": {kernel}, \"words\": {words:?}, \"reads\": {reads:?}, \"writes\": {writes:?}, \
         \"cores\": {cores}, \"ns\": {ns}}}"
    )
}

/// Makes the directory of `path` and keeps other processes from changing tables in it while the result lives.
///
/// The lock is on the directory itself, so no other file remains. Some file systems cannot lock: two processes that save at
/// the same moment may then lose entries of one, which are measured again.
fn lock(path: &Path) -> Result<Option<File>, CostTableError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(parent)
        .map_err(|source| CostTableError::Write { path: path.to_path_buf(), source })?;
    let Ok(directory) = File::open(parent) else { return Ok(None) };
    Ok(directory.lock().is_ok().then_some(directory))
}

/// Puts `text` in the place of a file at once.
fn replace(path: &Path, text: &str) -> Result<(), CostTableError> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}", std::process::id()));
    let temporary = path.with_file_name(name);
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|source| {
        // The rest of the file is of no use, and the first error is the one to report.
        _ = fs::remove_file(&temporary);
        CostTableError::Write { path: path.to_path_buf(), source }
    })
}
