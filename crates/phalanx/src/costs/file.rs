//! Books as files: JSON with one entry a line, sorted, so that people can read, compare and change them.
//!
//! A file is replaced as a whole, so readers see the old one or the new one. Saving keeps what stands in the file: it
//! only adds entries. So processes that share a file lose nothing, agree on its times, and leave alone what people wrote.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Book, Machine, Signature};

/// The layout of files this version reads and writes.
const FORMAT: u32 = 1;

/// Why a book cannot be read, kept or filled in.
#[derive(Debug, thiserror::Error)]
pub enum BookError {
    /// The file cannot be read.
    #[error("cannot read the costs {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is no book; the parser tells line and column.
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
        book.cpu, book.isa, book.version, this.cpu, this.isa, this.version
    )]
    OtherMachine {
        /// Whose times they are.
        book: Box<Machine>,
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

impl Book {
    /// The book in a file. If there is no such file, an empty book of this machine, to be saved there.
    pub fn load(path: &Path) -> Result<Book, BookError> {
        match Book::read(path) {
            Err(BookError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(Book { path: Some(path.to_path_buf()), ..Book::new(Machine::this()) })
            }
            result => result,
        }
    }

    /// The book in a file, which must be there.
    pub fn read(path: &Path) -> Result<Book, BookError> {
        let text = fs::read_to_string(path)
            .map_err(|source| BookError::Read { path: path.to_path_buf(), source })?;
        Ok(Book { path: Some(path.to_path_buf()), ..Book::parse(&text, path)? })
    }

    /// The book in the text of a file; `path` is for error messages.
    pub fn parse(text: &str, path: &Path) -> Result<Book, BookError> {
        let path = path.to_path_buf();
        let content: Content = match serde_json::from_str(text) {
            Ok(content) => content,
            Err(source) => return Err(BookError::Syntax { path, source }),
        };
        let Content { format, cpu, isa, version, entries } = content;
        if format != FORMAT {
            return Err(BookError::Format { path, found: format });
        }
        let mut book = Book::new(Machine { cpu, isa, version });
        for (entry, Entry { kernel, words, reads, writes, cores, ns }) in (1..).zip(entries) {
            if cores == 0 {
                return Err(BookError::NoCores { path, entry, kernel });
            }
            let signature = Signature { kernel: kernel.clone(), words, reads, writes, cores };
            if let Some(first) = book.entries.insert(signature, ns) {
                return Err(BookError::Twice { path, entry, kernel, first, second: ns });
            }
        }
        Ok(book)
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

    /// Adds the entries that the file it was loaded from lacks, and takes over those that others have added since. A book
    /// from no file, or without new entries, is left as it is.
    pub fn save(&mut self) -> Result<(), BookError> {
        let Some(path) = self.path.clone().filter(|_| self.grown) else { return Ok(()) };
        let _lock = lock(&path)?;
        let stored = Book::load(&path)?;
        if stored.machine != self.machine && !stored.entries.is_empty() {
            let (book, this) = (Box::new(stored.machine), Box::new(self.machine.clone()));
            return Err(BookError::OtherMachine { book, this });
        }
        self.entries.extend(stored.entries);
        replace(&path, &self.to_text())?;
        self.grown = false;
        Ok(())
    }

    /// Writes the book to a file, in place of what is there.
    pub fn write(&self, path: &Path) -> Result<(), BookError> {
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

/// Makes the directory of `path` and keeps other processes from changing books in it while the result lives.
///
/// The lock is on the directory itself, so no other file remains. Some file systems cannot lock: two processes that save at
/// the same moment may then lose entries of one, which are measured again.
fn lock(path: &Path) -> Result<Option<File>, BookError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(|source| BookError::Write { path: path.to_path_buf(), source })?;
    let Ok(directory) = File::open(parent) else { return Ok(None) };
    Ok(directory.lock().is_ok().then_some(directory))
}

/// Puts `text` in the place of a file at once.
fn replace(path: &Path, text: &str) -> Result<(), BookError> {
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
        BookError::Write { path: path.to_path_buf(), source }
    })
}
