//! The documents of text files, and their tokens.
//!
//! A text file is one document, a line of a JSON-lines file another. Each is encoded in pieces of bounded size, several
//! at a time on threads, and handed on in order: memory depends on the size of the pieces, not on that of the text. Where
//! the tokenizer has a token that ends a text, it stands after each document.

use std::num::NonZero;
use std::path::Path;
use std::thread;

use phalanx_mapping::Mapping;
use serde_json::Value;

use super::files::FileKind;
use super::{DataError, Tokenizer};

/// Bytes of text encoded at a time: encoding takes up to 60 times this in each thread.
const PIECE: usize = 256 << 10;

/// A file of text, mapped and known to be UTF-8.
pub(super) struct TextFile<'a> {
    path: &'a Path,
    kind: FileKind,
    mapping: Mapping,
}

impl<'a> TextFile<'a> {
    pub(super) fn open(path: &'a Path) -> Result<TextFile<'a>, DataError> {
        let mapping = Mapping::open(path).map_err(|source| DataError::Read { path: path.into(), source })?;
        match std::str::from_utf8(&mapping) {
            Ok(_) => Ok(TextFile { path, kind: FileKind::of(path), mapping }),
            Err(error) => Err(DataError::NotUtf8 { path: path.into(), offset: error.valid_up_to() }),
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.mapping
    }

    /// Whether its documents are fields of lines.
    pub(super) fn is_lines(&self) -> bool {
        self.kind == FileKind::JsonLines
    }

    pub(super) fn into_mapping(self) -> Mapping {
        self.mapping
    }

    /// Hands on its documents in order. `field` has the text in lines of JSON.
    pub(super) fn for_each_document(
        &self,
        field: &str,
        mut take: impl FnMut(&str) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        // It was checked when the file was opened; a file that changed since gets replacement characters.
        let text = String::from_utf8_lossy(&self.mapping);
        if !self.is_lines() {
            return take(&text);
        }
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        for (number, line) in lines {
            take(&self.document(field, number + 1, line)?)?;
        }
        Ok(())
    }

    fn document(&self, field: &str, line: usize, text: &str) -> Result<String, DataError> {
        let wrong = |reason: String| DataError::JsonLine { path: self.path.into(), line, reason };
        let mut value: Value = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        match value.get_mut(field).map(Value::take) {
            Some(Value::String(text)) => Ok(text),
            Some(other) => Err(wrong(format!("`{field}` is {other}; it must be a string"))),
            None => Err(wrong(format!("there is no field `{field}`; name the one that has the text"))),
        }
    }
}

/// Encodes documents, several pieces at a time.
pub(super) struct Encoder<'a, Sink> {
    tokenizer: &'a Tokenizer,
    /// Stands after each document.
    end: Option<u32>,
    threads: usize,
    pieces: Vec<Piece>,
    bytes: usize,
    sink: Sink,
}

/// A part of a document.
struct Piece {
    text: String,
    is_last: bool,
}

impl<'a, Sink: FnMut(&[u32]) -> Result<(), DataError>> Encoder<'a, Sink> {
    /// Hands on tokens to `sink` in order.
    pub(super) fn new(tokenizer: &'a Tokenizer, sink: Sink) -> Self {
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        Encoder { tokenizer, end: tokenizer.end_of_text(), threads, pieces: Vec::new(), bytes: 0, sink }
    }

    /// Takes a document, and reports the size of each of its pieces.
    pub(super) fn document(&mut self, text: &str, taken: &mut dyn FnMut(usize)) -> Result<(), DataError> {
        let mut rest = text;
        loop {
            let (piece, tail) = rest.split_at(piece_len(rest));
            self.bytes += piece.len();
            taken(piece.len());
            self.pieces.push(Piece { text: piece.into(), is_last: tail.is_empty() });
            if self.bytes >= self.threads * PIECE {
                self.flush()?;
            }
            if tail.is_empty() {
                return Ok(());
            }
            rest = tail;
        }
    }

    /// Encodes what is left.
    pub(super) fn flush(&mut self) -> Result<(), DataError> {
        let shares = self.pieces.chunks(self.pieces.len().div_ceil(self.threads).max(1));
        let (tokenizer, end) = (self.tokenizer, self.end);
        let encoded: Vec<Result<Vec<u32>, DataError>> = thread::scope(|scope| {
            let threads: Vec<_> =
                shares.map(|share| scope.spawn(move || encode(tokenizer, end, share))).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        });
        for tokens in encoded {
            (self.sink)(&tokens?)?;
        }
        self.pieces.clear();
        self.bytes = 0;
        Ok(())
    }
}

fn encode(tokenizer: &Tokenizer, end: Option<u32>, pieces: &[Piece]) -> Result<Vec<u32>, DataError> {
    let mut tokens = Vec::new();
    for Piece { text, is_last } in pieces {
        tokenizer.encode_into(text, &mut tokens)?;
        tokens.extend(end.filter(|_| *is_last));
    }
    Ok(tokens)
}

/// How much of `text` to encode at once: up to the first line that ends past [`PIECE`] before a line that does not
/// begin with white space, as no tokenizer joins tokens across such a place.
fn piece_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_seam = |&end: &usize| bytes[end - 1] == b'\n' && bytes[end].is_ascii_graphic();
    (PIECE..bytes.len()).find(is_seam).unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_documents_are_encoded_in_pieces_with_the_same_tokens() {
        let line = "Lines of text, some indented.\n  More of it.\n";
        let long = line.repeat(3 * PIECE / line.len());
        let documents = ["short", "", &long, "end"];
        let (mut tokens, mut calls) = (Vec::new(), 0);
        let mut encoder = Encoder::new(&Tokenizer::Bytes, |part: &[u32]| {
            tokens.extend_from_slice(part);
            calls += 1;
            Ok(())
        });
        for document in documents {
            encoder.document(document, &mut |_| ()).unwrap();
        }
        encoder.flush().unwrap();
        let wanted: Vec<u32> = documents.concat().bytes().map(u32::from).collect();
        assert!(tokens == wanted, "{} tokens of {}", tokens.len(), wanted.len());
        assert!(calls > 1);
    }
}
