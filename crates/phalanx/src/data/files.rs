//! The files that a path stands for: itself, all files below a directory, or the matches of a pattern such as
//! `texts/*.jsonl`; always in the order of their paths.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::DataError;
use super::offsets::is_beside_tokens;

/// What is in a file, by the ending of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    /// UTF-8 text: one document.
    Text,
    /// A JSON object on each line, one field of which is a document.
    JsonLines,
    /// A table with a column of documents.
    Parquet,
    /// Tokens.
    Tokens,
}

impl FileKind {
    pub(super) fn of(path: &Path) -> FileKind {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or("").to_ascii_lowercase();
        match ending.as_str() {
            "jsonl" | "ndjson" => FileKind::JsonLines,
            "parquet" => FileKind::Parquet,
            "bin" => FileKind::Tokens,
            _ => FileKind::Text,
        }
    }
}

/// All files that `path` stands for; at least one.
pub(super) fn find(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    let mut files = Vec::new();
    match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => collect(path, &mut files)?,
        Ok(meta) if !meta.is_file() => return Err(DataError::Stream { path: path.into() }),
        Ok(_) => files.push(path.to_path_buf()),
        Err(source) => match path.to_str().filter(|text| text.contains(['*', '?', '['])) {
            Some(pattern) => matches(pattern, &mut files)?,
            None => return Err(DataError::Read { path: path.into(), source }),
        },
    }
    files.sort();
    if files.is_empty() { Err(DataError::Empty { path: path.into() }) } else { Ok(files) }
}

/// The files below `dir`; links to files count, links to directories do not, which could form a cycle.
fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let read = |source| DataError::Read { path: dir.into(), source };
    for entry in fs::read_dir(dir).map_err(read)? {
        let entry = entry.map_err(read)?;
        let path = entry.path();
        if entry.file_type().map_err(read)?.is_dir() {
            collect(&path, files)?;
        } else if path.is_file() && !is_beside_tokens(&path) {
            files.push(path);
        }
    }
    Ok(())
}

fn matches(pattern: &str, files: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let wrong = |error: glob::PatternError| DataError::Read {
        path: pattern.into(),
        source: io::Error::new(io::ErrorKind::InvalidInput, error.to_string()),
    };
    for path in glob::glob(pattern).map_err(wrong)? {
        let path =
            path.map_err(|error| DataError::Read { path: error.path().to_path_buf(), source: error.into() })?;
        if path.is_file() && !is_beside_tokens(&path) {
            files.push(path);
        }
    }
    Ok(())
}
