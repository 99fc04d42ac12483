//! Text files as byte tokens, memory-mapped.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use phalanx_mapping::Mapping;

use super::corpus::{Corpus, Part};
use super::tokenizer::TokenizerError;

/// Why there is no data to train on.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum DataError {
    /// A file or directory cannot be read.
    #[error("cannot read {}: {source}; give a text file or a directory of text files", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// There is no text at all.
    #[error("{} has no text; give a file with at least context + 1 tokens", path.display())]
    Empty { path: PathBuf },
    /// A file is not UTF-8.
    #[error("{} is not UTF-8 at byte {offset}; convert it, e.g. with iconv -t utf-8", path.display())]
    NotUtf8 { path: PathBuf, offset: usize },
    /// The text does not fill one window.
    #[error("{name} has {tokens} tokens but a context of {context} needs {}; add text or use a shorter context", context + 1)]
    TooShort { name: String, tokens: usize, context: usize },
    /// Nothing would remain to train on.
    #[error(
        "a share of {share} held back leaves nothing of {name} to train on, whose text is cut into {windows}; add text, use a shorter context or evaluate nothing"
    )]
    AllHeld { name: String, windows: usize, share: f64 },
    /// The tokenizer does not work.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// Maps a file, or all files below a directory in the order of their paths; together they must hold text.
pub(super) fn open(path: &Path) -> Result<Corpus, DataError> {
    let read = |source| DataError::Read { path: path.into(), source };
    let mut files = Vec::new();
    if fs::metadata(path).map_err(read)?.is_dir() {
        collect(path, &mut files)?;
        files.sort();
    } else {
        files.push(path.to_path_buf());
    }
    let parts = files.iter().map(|file| map(file)).collect::<Result<Vec<_>, _>>()?;
    let corpus = Corpus::new(parts);
    if corpus.is_empty() { Err(DataError::Empty { path: path.into() }) } else { Ok(corpus) }
}

/// The files below `dir`; links to files count, links to directories do not, so there is no going in circles.
fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let read = |source| DataError::Read { path: dir.into(), source };
    for entry in fs::read_dir(dir).map_err(read)? {
        let entry = entry.map_err(read)?;
        let path = entry.path();
        if entry.file_type().map_err(read)?.is_dir() {
            collect(&path, files)?;
        } else if path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

fn map(path: &Path) -> Result<Part, DataError> {
    let mapping = Mapping::open(path).map_err(|source| DataError::Read { path: path.into(), source })?;
    match std::str::from_utf8(&mapping) {
        Ok(_) => Ok(Part::Mapped(mapping)),
        Err(error) => Err(DataError::NotUtf8 { path: path.into(), offset: error.valid_up_to() }),
    }
}
