//! Tokens of text, encoded once and kept in a file that is named after everything they depend on.
//!
//! The name is a hash of the text, of the tokenizer and of how documents are taken, so a file is never out of date; it
//! can be removed at any time. Processes that want the same tokens at once wait for the first one to write them. Where no
//! file can be written, the tokens are held in memory.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use super::corpus::Part;
use super::documents::{Encoder, TextFile};
use super::token_file::{TokenFile, TokenFileWriter, TokenWidth};
use super::{DataError, DataSource, Tokenizer};

/// Part of every name: counted up when the same text would give other tokens.
const FORMAT: &[u8] = b"phalanx tokens 1";

/// Text and the rules by which it becomes tokens.
pub(super) struct Encoding<'a> {
    pub(super) source: &'a DataSource<'a>,
    pub(super) files: &'a [TextFile<'a>],
    pub(super) tokenizer: &'a Tokenizer,
    /// The file of the tokenizer.
    pub(super) rules: &'a [u8],
}

/// Called with the bytes of text encoded so far and those of all text.
pub type EncodingProgress<'a> = dyn FnMut(u64, u64) + 'a;

impl Encoding<'_> {
    /// The tokens: from the cache, if possible. The second result says why no file could be written.
    pub(super) fn tokens(
        &self,
        progress: &mut EncodingProgress<'_>,
    ) -> Result<(Part, Option<(PathBuf, io::Error)>), DataError> {
        let Some(dir) = self.source.cache else { return Ok((self.in_memory(progress)?, None)) };
        let path = dir.join(format!("{:032x}.bin", self.hash()));
        if let Ok(file) = TokenFile::open(&path) {
            return Ok((Part::File(file), None));
        }
        match lock(dir, &path) {
            Ok(_locked) => match TokenFile::open(&path) {
                Ok(file) => Ok((Part::File(file), None)),
                Err(_) => match self.write(&path, progress) {
                    Ok(_) => Ok((Part::File(TokenFile::open(&path)?), None)),
                    // A full disk costs time only.
                    Err(DataError::Write { path, source }) => {
                        Ok((self.in_memory(progress)?, Some((path, source))))
                    }
                    Err(error) => Err(error),
                },
            },
            Err(source) => Ok((self.in_memory(progress)?, Some((path, source)))),
        }
    }

    /// Writes the tokens to a file, which appears when it is complete; their number.
    pub(super) fn write(&self, path: &Path, progress: &mut EncodingProgress<'_>) -> Result<usize, DataError> {
        let failed = |source| DataError::Write { path: path.into(), source };
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let width = TokenWidth::of(self.tokenizer.vocab());
        let mut writer = TokenFileWriter::new(Path::new(&partial), width).map_err(failed)?;
        self.encode(progress, |tokens| writer.append(tokens).map_err(failed))?;
        let tokens = writer.finish().map_err(failed)?;
        fs::rename(&partial, path).map_err(failed)?;
        Ok(tokens)
    }

    fn in_memory(&self, progress: &mut EncodingProgress<'_>) -> Result<Part, DataError> {
        let mut all = Vec::new();
        self.encode(progress, |tokens| {
            all.extend_from_slice(tokens);
            Ok(())
        })?;
        Ok(Part::Ids(all))
    }

    fn encode(
        &self,
        progress: &mut EncodingProgress<'_>,
        sink: impl FnMut(&[u32]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let total = self.files.iter().map(|file| file.bytes().len() as u64).sum();
        let mut done = 0;
        let mut encoder = Encoder::new(self.tokenizer, sink);
        for file in self.files {
            file.for_each_document(self.source.field, |text| {
                encoder.document(text, &mut |bytes| {
                    done += bytes as u64;
                    progress(done.min(total), total);
                })
            })?;
        }
        encoder.flush()
    }

    /// Of everything that the tokens depend on.
    fn hash(&self) -> u128 {
        let mut hash = Xxh3::new();
        let mut part = |bytes: &[u8]| {
            hash.update(&(bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(FORMAT);
        part(self.rules);
        part(self.source.field.as_bytes());
        for file in self.files {
            part(&[u8::from(file.is_lines())]);
            part(file.bytes());
        }
        hash.digest128()
    }
}

/// Waits until no other process writes the file; others wait for this one as long as the result lives.
fn lock(dir: &Path, path: &Path) -> io::Result<File> {
    fs::create_dir_all(dir)?;
    let file = File::options().create(true).append(true).open(path.with_extension("lock"))?;
    file.lock()?;
    Ok(file)
}
