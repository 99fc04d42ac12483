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
use super::documents::{Encoded, Encoder, TextFile};
use super::records::Records;
use super::token_set::TokenSetWriter;
use super::{DataError, Tokenizer};

/// Part of every name: counted up when the same text would give other tokens.
pub(super) const FORMAT: &[u8] = b"phalanx tokens 2";

/// Text and the rules by which it becomes tokens.
pub(super) struct Encoding<'a> {
    pub(super) paths: &'a [&'a Path],
    pub(super) records: Records<'a>,
    pub(super) tokenizer: &'a Tokenizer,
    /// The file of the tokenizer.
    pub(super) rules: &'a [u8],
}

/// Called with the bytes of text encoded so far and those of all text.
pub type EncodingProgress<'a> = dyn FnMut(u64, u64) + 'a;

/// Tokens of text.
pub(super) struct Kept {
    pub(super) part: Part,
    /// What the file is named after, if there is one.
    pub(super) name: Option<u128>,
    /// Why no file could be written.
    pub(super) failure: Option<(PathBuf, io::Error)>,
}

impl Encoding<'_> {
    /// The tokens: from the cache, if possible.
    pub(super) fn tokens(
        &self,
        cache: Option<&Path>,
        progress: &mut EncodingProgress<'_>,
    ) -> Result<Kept, DataError> {
        let Some(dir) = cache else {
            return Ok(Kept { part: self.in_memory(progress)?, name: None, failure: None });
        };
        let name = self.name()?;
        let path = path_of(dir, name);
        let kept = |part| Kept { part, name: Some(name), failure: None };
        if let Some(part) = find(dir, name) {
            return Ok(kept(part));
        }
        let failure = match lock(dir, &path) {
            Ok(_locked) => {
                if let Some(part) = find(dir, name) {
                    return Ok(kept(part));
                }
                match self.write(&path, progress) {
                    Ok(_) => return Ok(kept(Part::open(&path)?)),
                    // A full disk costs time only.
                    Err(DataError::Write { path, source }) => (path, source),
                    Err(error) => return Err(error),
                }
            }
            Err(source) => (path, source),
        };
        Ok(Kept { part: self.in_memory(progress)?, name: None, failure: Some(failure) })
    }

    /// Writes the tokens to a file, which appears when it is complete; their number.
    pub(super) fn write(&self, path: &Path, progress: &mut EncodingProgress<'_>) -> Result<usize, DataError> {
        let failed = |source| DataError::Write { path: path.into(), source };
        let mut writer = TokenSetWriter::new(path, self.tokenizer.vocab()).map_err(failed)?;
        self.encode(progress, |encoded| writer.append(encoded).map_err(failed))?;
        writer.finish().map_err(failed)
    }

    fn in_memory(&self, progress: &mut EncodingProgress<'_>) -> Result<Part, DataError> {
        let (mut all, mut documents, mut prompts) = (Vec::new(), Vec::new(), Vec::new());
        self.encode(progress, |Encoded { tokens, ends, prompts: asked }| {
            let first = all.len();
            documents.extend(ends.iter().map(|end| (first + end) as u64));
            prompts.extend(
                asked.iter().flat_map(|range| [first + range.start, first + range.end]).map(|at| at as u64),
            );
            all.extend_from_slice(tokens);
            Ok(())
        })?;
        documents.dedup();
        documents.retain(|&end| end > 0);
        Ok(Part::in_memory(all, documents, prompts))
    }

    fn encode(
        &self,
        progress: &mut EncodingProgress<'_>,
        sink: impl FnMut(&Encoded) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let mut total = 0;
        for path in self.paths {
            total += TextFile::open(path)?.len() as u64;
        }
        let mut done = 0;
        let mut encoder = Encoder::new(self.tokenizer, sink);
        for path in self.paths {
            let file = TextFile::open(path)?;
            file.check(|_| ())?;
            file.encode(&self.records, &mut encoder, &mut |bytes| {
                done += bytes as u64;
                progress(done.min(total), total);
            })?;
        }
        encoder.flush()
    }

    /// A hash of everything that the tokens depend on.
    fn name(&self) -> Result<u128, DataError> {
        let (mut hash, mut has_fields) = (Xxh3::new(), false);
        for path in self.paths {
            let file = TextFile::open(path)?;
            hash_part(&mut hash, &[u8::from(file.has_fields())]);
            hash.update(&(file.len() as u64).to_le_bytes());
            file.check(|block| hash.update(block))?;
            has_fields |= file.has_fields();
        }
        let records = if has_fields { self.records.identity() } else { String::new() };
        for part in [FORMAT, self.rules, records.as_bytes()] {
            hash_part(&mut hash, part);
        }
        Ok(hash.digest128())
    }
}

/// Adds bytes to a hash, told from those before and after them by their number.
pub(super) fn hash_part(hash: &mut Xxh3, bytes: &[u8]) {
    hash.update(&(bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

/// The tokens of a name, if they are kept.
pub(super) fn find(dir: &Path, name: u128) -> Option<Part> {
    Part::open(&path_of(dir, name)).ok()
}

fn path_of(dir: &Path, name: u128) -> PathBuf {
    dir.join(format!("{name:032x}.bin"))
}

/// Waits until no other process writes the file; others wait for this one as long as the result lives.
fn lock(dir: &Path, path: &Path) -> io::Result<File> {
    fs::create_dir_all(dir)?;
    let file = File::options().create(true).append(true).open(path.with_extension("lock"))?;
    file.lock()?;
    Ok(file)
}
