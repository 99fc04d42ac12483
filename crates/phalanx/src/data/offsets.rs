//! Ascending lists of positions in a row of tokens: where documents end, where prompts begin and end.
//!
//! A list lies in memory, or as little-endian 64-bit numbers in a mapped file beside the tokens.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use phalanx_mapping::Mapping;

use super::DataError;

/// Bytes of a position in a file.
const WIDTH: usize = 8;

/// A list of positions.
#[derive(Debug)]
pub(super) enum Offsets {
    Listed(Vec<u64>),
    Mapped(Mapping),
}

/// What a list beside a file of tokens tells.
#[derive(Clone, Copy)]
pub(super) enum OffsetKind {
    /// The position behind each document.
    Documents,
    /// The first position of each prompt and the one behind it.
    Prompts,
}

impl OffsetKind {
    /// The list beside a file of tokens.
    pub(super) fn path(self, tokens: &Path) -> PathBuf {
        let mut path = tokens.as_os_str().to_owned();
        path.push(match self {
            OffsetKind::Documents => ".docs",
            OffsetKind::Prompts => ".prompts",
        });
        path.into()
    }
}

/// Whether a file is such a list, and so no data by itself.
pub(super) fn is_beside_tokens(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
    name.ends_with(".bin.docs") || name.ends_with(".bin.prompts")
}

impl Offsets {
    /// The list beside a file of `tokens` tokens, if there is one; it must be about as many.
    pub(super) fn beside(path: &Path, tokens: usize, kind: OffsetKind) -> Result<Option<Offsets>, DataError> {
        let list = kind.path(path);
        let mapping = match Mapping::open(&list) {
            Ok(mapping) => mapping,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(DataError::Read { path: list, source }),
        };
        let (is_whole, offsets) = (mapping.len().is_multiple_of(WIDTH), Offsets::Mapped(mapping));
        let last = offsets.len().checked_sub(1).map(|last| offsets.get(last));
        let fits = match kind {
            OffsetKind::Documents => last == Some(tokens),
            OffsetKind::Prompts => offsets.len().is_multiple_of(2) && last.is_none_or(|last| last <= tokens),
        };
        match fits && is_whole {
            true => Ok(Some(offsets)),
            false => Err(DataError::Offsets { path: list, tokens_path: path.into(), tokens }),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Offsets::Listed(list) => list.len(),
            Offsets::Mapped(mapping) => mapping.len() / WIDTH,
        }
    }

    pub(super) fn get(&self, index: usize) -> usize {
        let offset = match self {
            Offsets::Listed(list) => list[index],
            Offsets::Mapped(mapping) => {
                u64::from_le_bytes(std::array::from_fn(|byte| mapping[index * WIDTH + byte]))
            }
        };
        offset as usize
    }

    /// How many positions, the first ones, are at most `at`.
    pub(super) fn count_up_to(&self, at: usize) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.get(middle) <= at {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// Writes such a list.
pub(super) struct OffsetsWriter {
    file: BufWriter<File>,
    count: usize,
}

impl OffsetsWriter {
    pub(super) fn new(path: &Path) -> io::Result<OffsetsWriter> {
        Ok(OffsetsWriter { file: BufWriter::new(File::create(path)?), count: 0 })
    }

    pub(super) fn append(&mut self, offsets: impl IntoIterator<Item = usize>) -> io::Result<()> {
        for offset in offsets {
            self.count += 1;
            self.file.write_all(&(offset as u64).to_le_bytes())?;
        }
        Ok(())
    }

    /// Waits until the disk has everything; how many there are.
    pub(super) fn finish(self) -> io::Result<usize> {
        self.file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        Ok(self.count)
    }
}
