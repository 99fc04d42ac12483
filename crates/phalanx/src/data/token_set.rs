//! Writes tokens to a file, and beside it where their documents and prompts are.
//!
//! All files appear when they are complete, the tokens last. One document is told by nothing, and so are no prompts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::documents::Encoded;
use super::offsets::{OffsetKind, OffsetsWriter};
use super::token_file::{TokenFileWriter, TokenWidth};

/// Tokens being written.
pub(super) struct TokenSetWriter {
    path: PathBuf,
    tokens: TokenFileWriter,
    documents: OffsetsWriter,
    prompts: OffsetsWriter,
    /// Tokens so far, and those before the end of the last document.
    count: usize,
    last_end: usize,
}

impl TokenSetWriter {
    pub(super) fn new(path: &Path, vocab: usize) -> io::Result<TokenSetWriter> {
        Ok(TokenSetWriter {
            tokens: TokenFileWriter::new(&partial(path), TokenWidth::of(vocab))?,
            documents: OffsetsWriter::new(&partial(&OffsetKind::Documents.path(path)))?,
            prompts: OffsetsWriter::new(&partial(&OffsetKind::Prompts.path(path)))?,
            path: path.into(),
            count: 0,
            last_end: 0,
        })
    }

    pub(super) fn append(&mut self, encoded: &Encoded) -> io::Result<()> {
        let first = self.count;
        self.tokens.append(&encoded.tokens)?;
        self.count += encoded.tokens.len();
        for end in encoded.ends.iter().map(|end| first + end) {
            // Documents without tokens leave no trace.
            self.documents.append((end > self.last_end).then_some(end))?;
            self.last_end = end;
        }
        let bounds = encoded.prompts.iter().flat_map(|range| [first + range.start, first + range.end]);
        self.prompts.append(bounds)
    }

    /// Lets the files appear; the number of tokens.
    pub(super) fn finish(self) -> io::Result<usize> {
        let TokenSetWriter { path, tokens, documents, prompts, .. } = self;
        let (tokens, documents, prompts) = (tokens.finish()?, documents.finish()?, prompts.finish()?);
        for (kind, is_kept) in [(OffsetKind::Documents, documents > 1), (OffsetKind::Prompts, prompts > 0)] {
            let list = kind.path(&path);
            match is_kept {
                true => fs::rename(partial(&list), list)?,
                false => {
                    fs::remove_file(partial(&list))?;
                    // One of other tokens may be there.
                    fs::remove_file(list).or_else(|error| match error.kind() {
                        io::ErrorKind::NotFound => Ok(()),
                        _ => Err(error),
                    })?;
                }
            }
        }
        fs::rename(partial(&path), path)?;
        Ok(tokens)
    }
}

/// The file that is written first. It is named after the host: others may write the same file at the same time where the
/// file system knows no locks.
fn partial(path: &Path) -> PathBuf {
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".{}.partial", rustix::system::uname().nodename().to_string_lossy()));
    partial.into()
}
