//! The documents of text files, and their tokens.
//!
//! A text file is one document, a line of a JSON-lines file another. Each is encoded in pieces of bounded size, several
//! at a time on threads, and handed on in order: memory depends on the size of the pieces, not on that of the text. Where
//! the tokenizer has a token that ends a text, it stands after each document. A conversation is encoded as a whole, since
//! its prompts must be found again among the tokens.

use std::num::NonZero;
use std::ops::Range;
use std::path::Path;
use std::thread;

use phalanx_mapping::Mapping;

use super::files::FileKind;
use super::parquet;
use super::records::{Document, Records};
use super::{DataError, Tokenizer};

/// Bytes of text encoded at a time: encoding takes up to 60 times this in each thread.
const PIECE: usize = 256 << 10;

/// The most bytes encoded at a time of a text without a good place to cut it.
const LONGEST_PIECE: usize = 2 * PIECE;

/// The most threads that encode: each needs memory for a piece.
const MOST_THREADS: usize = 16;

/// Bytes of a file that are read before their memory is given back.
const BLOCK: usize = 1 << 20;

/// A file of text, mapped.
pub(super) struct TextFile<'a> {
    path: &'a Path,
    kind: FileKind,
    mapping: Mapping,
}

impl<'a> TextFile<'a> {
    pub(super) fn open(path: &'a Path) -> Result<TextFile<'a>, DataError> {
        let mapping = Mapping::open(path).map_err(|source| DataError::Read { path: path.into(), source })?;
        Ok(TextFile { path, kind: FileKind::of(path), mapping })
    }

    pub(super) fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Whether its documents are fields of lines or rows.
    pub(super) fn has_fields(&self) -> bool {
        self.kind != FileKind::Text
    }

    pub(super) fn into_mapping(self) -> Mapping {
        self.mapping
    }

    /// Checks that all of it is UTF-8, if it is text, and shows every block of it.
    pub(super) fn check(&self, mut see: impl FnMut(&[u8])) -> Result<(), DataError> {
        let mut at = 0;
        while at < self.len() {
            let end = self.len().min(at + BLOCK);
            let valid = match std::str::from_utf8(&self.mapping[at..end]) {
                _ if self.kind == FileKind::Parquet => end - at,
                Ok(text) => text.len(),
                // A character goes on in the next block.
                Err(error) if error.error_len().is_none() && end < self.len() => error.valid_up_to(),
                Err(error) => {
                    let offset = at + error.valid_up_to();
                    return Err(DataError::NotUtf8 { path: self.path.into(), offset });
                }
            };
            see(&self.mapping[at..at + valid]);
            self.mapping.release(at..at + valid);
            at += valid;
        }
        Ok(())
    }

    /// Hands its documents to `encoder` in order, and reports how many of its bytes are taken.
    pub(super) fn encode<Sink: FnMut(&Encoded) -> Result<(), DataError>>(
        &self,
        records: &Records<'_>,
        encoder: &mut Encoder<'_, Sink>,
        taken: &mut dyn FnMut(usize),
    ) -> Result<(), DataError> {
        let (mut at, mut released) = (0, 0);
        let mut advance = |to: usize| {
            taken(to - at);
            at = to;
            if at - released >= BLOCK {
                self.mapping.release(released..at);
                released = at;
            }
        };
        if self.kind == FileKind::Parquet {
            parquet::each_document(self.path, records.field, &mut |document| encoder.document(document))?;
            advance(self.len());
            return Ok(());
        }
        if !self.has_fields() {
            return encoder.text(&self.mapping, &mut advance);
        }
        for (number, line) in (1..).zip(self.lines()) {
            // It was checked when the file was opened; a file that changed since gets replacement characters.
            let text = String::from_utf8_lossy(&self.mapping[line.clone()]);
            if !text.trim().is_empty() {
                let wrong = |reason| DataError::JsonLine { path: self.path.into(), line: number, reason };
                encoder.document(records.read(&text).map_err(wrong)?)?;
            }
            advance(self.len().min(line.end + 1));
        }
        Ok(())
    }

    /// Where its lines are, without what ends them.
    fn lines(&self) -> impl Iterator<Item = Range<usize>> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let start = next;
            let rest = self.mapping.get(start..).filter(|rest| !rest.is_empty())?;
            let end = start + rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
            next = end + 1;
            Some(start..end)
        })
    }
}

/// Tokens of a row of documents.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Encoded {
    pub(super) tokens: Vec<u32>,
    /// How many of the tokens are before the end of each document that ends here.
    pub(super) ends: Vec<usize>,
    /// Which tokens are prompts.
    pub(super) prompts: Vec<Range<usize>>,
}

/// Encodes documents, several pieces at a time.
pub(super) struct Encoder<'a, Sink> {
    tokenizer: &'a Tokenizer,
    threads: usize,
    pieces: Vec<Piece>,
    bytes: usize,
    sink: Sink,
}

/// A part of a document.
#[derive(Default)]
struct Piece {
    text: String,
    prompts: Vec<Range<usize>>,
    is_last: bool,
    /// Stands after it.
    end: Option<u32>,
}

impl<'a, Sink: FnMut(&Encoded) -> Result<(), DataError>> Encoder<'a, Sink> {
    /// Hands on tokens to `sink` in order.
    pub(super) fn new(tokenizer: &'a Tokenizer, sink: Sink) -> Self {
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS);
        Encoder { tokenizer, threads, pieces: Vec::new(), bytes: 0, sink }
    }

    /// Takes a document of a line.
    pub(super) fn document(&mut self, document: Document) -> Result<(), DataError> {
        let Document { text, prompts, is_closed } = document;
        let end = match self.tokenizer {
            _ if is_closed => None,
            Tokenizer::Bytes => Some(u32::from(b'\n')),
            _ => self.tokenizer.end_of_text(),
        };
        match prompts {
            Some(prompts) => self.push(Piece { text, prompts, is_last: true, end }),
            None => self.cut(text.as_bytes(), end, &mut |_| ()),
        }
    }

    /// Takes a document that is a file, and reports up to where.
    pub(super) fn text(&mut self, text: &[u8], taken: &mut dyn FnMut(usize)) -> Result<(), DataError> {
        self.cut(text, self.tokenizer.end_of_text(), taken)
    }

    fn cut(&mut self, text: &[u8], end: Option<u32>, taken: &mut dyn FnMut(usize)) -> Result<(), DataError> {
        let mut at = 0;
        loop {
            let next = at + piece_len(&text[at..]);
            let is_last = next == text.len();
            let piece = String::from_utf8_lossy(&text[at..next]).into_owned();
            taken(next);
            self.push(Piece { text: piece, is_last, end: end.filter(|_| is_last), ..Piece::default() })?;
            if is_last {
                return Ok(());
            }
            at = next;
        }
    }

    fn push(&mut self, piece: Piece) -> Result<(), DataError> {
        self.bytes += piece.text.len();
        self.pieces.push(piece);
        if self.bytes >= self.threads * PIECE { self.flush() } else { Ok(()) }
    }

    /// Encodes what is left.
    pub(super) fn flush(&mut self) -> Result<(), DataError> {
        let shares = self.pieces.chunks(self.pieces.len().div_ceil(self.threads).max(1));
        let tokenizer = self.tokenizer;
        let encoded: Vec<Result<Encoded, DataError>> = thread::scope(|scope| {
            let threads: Vec<_> = shares.map(|share| scope.spawn(move || encode(tokenizer, share))).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        });
        for encoded in encoded {
            (self.sink)(&encoded?)?;
        }
        self.pieces.clear();
        self.bytes = 0;
        Ok(())
    }
}

fn encode(tokenizer: &Tokenizer, pieces: &[Piece]) -> Result<Encoded, DataError> {
    let mut encoded = Encoded::default();
    for Piece { text, prompts, is_last, end } in pieces {
        let first = encoded.tokens.len();
        if prompts.is_empty() {
            tokenizer.encode_into(text, &mut encoded.tokens)?;
        } else {
            let starts = tokenizer.encode_with_starts(text, &mut encoded.tokens)?;
            encoded.prompts.extend(prompt_tokens(prompts, first, &starts));
        }
        encoded.tokens.extend(end);
        encoded.ends.extend(is_last.then_some(encoded.tokens.len()));
    }
    Ok(encoded)
}

/// The tokens that begin inside prompts; `starts` has the byte at which each token begins, the first is number `first`.
fn prompt_tokens(prompts: &[Range<usize>], first: usize, starts: &[usize]) -> Vec<Range<usize>> {
    let is_prompt = |start: usize| {
        let next = prompts.partition_point(|prompt| prompt.end <= start);
        prompts.get(next).is_some_and(|prompt| prompt.contains(&start))
    };
    let mut found: Vec<Range<usize>> = Vec::new();
    for (token, &start) in (first..).zip(starts) {
        match found.last_mut() {
            _ if !is_prompt(start) => {}
            Some(last) if last.end == token => last.end += 1,
            _ => found.push(token..token + 1),
        }
    }
    found
}

/// How much of `text` to encode at once: up to the first line that ends past [`PIECE`] before a line that does not begin
/// with white space, as no tokenizer joins tokens across such a place. A text that has none in reach is cut before a space
/// between words, and one without spaces between characters.
fn piece_len(text: &[u8]) -> usize {
    if text.len() <= PIECE {
        return text.len();
    }
    let reach = PIECE..text.len().min(LONGEST_PIECE);
    let is_seam = |&at: &usize| text[at - 1] == b'\n' && text[at].is_ascii_graphic();
    let is_space = |&at: &usize| {
        text[at] == b' '
            && text[at - 1].is_ascii_graphic()
            && text.get(at + 1).is_some_and(u8::is_ascii_graphic)
    };
    let is_character = |&at: &usize| text[at] & 0xC0 != 0x80;
    if let Some(seam) = reach.clone().find(is_seam) {
        return seam;
    }
    if text.len() <= LONGEST_PIECE {
        return text.len();
    }
    reach.clone().find(is_space).or_else(|| reach.rev().find(is_character)).unwrap_or(LONGEST_PIECE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an encoder hands on for documents of lines, in one piece, and how often.
    fn encode_all(tokenizer: &Tokenizer, documents: Vec<Document>) -> (Encoded, usize) {
        let (mut all, mut calls) = (Encoded::default(), 0);
        let mut encoder = Encoder::new(tokenizer, |part: &Encoded| {
            let first = all.tokens.len();
            all.tokens.extend_from_slice(&part.tokens);
            all.ends.extend(part.ends.iter().map(|end| first + end));
            all.prompts.extend(part.prompts.iter().map(|range| first + range.start..first + range.end));
            calls += 1;
            Ok(())
        });
        documents.into_iter().for_each(|document| encoder.document(document).unwrap());
        encoder.flush().unwrap();
        (all, calls)
    }

    #[test]
    fn long_documents_are_encoded_in_pieces_with_the_same_tokens() {
        let line = "Lines of text, some indented.\n  More of it.\n";
        let long = line.repeat(3 * PIECE / line.len());
        let unbroken = "é".repeat(2 * PIECE);
        let texts = ["short", "", &long, &unbroken, "end"];
        let documents = texts.map(|text| Document { text: text.into(), ..Document::default() });
        let (found, calls) = encode_all(&Tokenizer::Bytes, documents.into());
        let wanted: Vec<u32> =
            texts.iter().flat_map(|text| text.bytes().chain([b'\n'])).map(u32::from).collect();
        assert!(found.tokens == wanted, "{} tokens of {}", found.tokens.len(), wanted.len());
        assert!(calls > 1);
        let ends: Vec<usize> = texts
            .iter()
            .scan(0, |end, text| {
                *end += text.len() + 1;
                Some(*end)
            })
            .collect();
        assert_eq!((found.ends, found.prompts), (ends, vec![]));
    }

    #[test]
    fn pieces_are_bounded_whatever_the_text() {
        let mut text = vec![b'x'; 3 * LONGEST_PIECE];
        assert_eq!(piece_len(&text), LONGEST_PIECE - 1);
        text[PIECE + 10] = b' ';
        assert_eq!(piece_len(&text), PIECE + 10, "before a space");
        text[PIECE + 20] = b'\n';
        assert_eq!(piece_len(&text), PIECE + 21, "a line is better");
        assert_eq!(piece_len("é".repeat(LONGEST_PIECE).as_bytes()), LONGEST_PIECE - 2, "between characters");
        assert_eq!(piece_len(b"short"), 5);
    }

    #[test]
    fn prompts_are_the_tokens_that_begin_in_them() {
        let text = "ask me answer\n".to_string();
        let document = Document { text, prompts: Some(vec![0..7, 13..14]), is_closed: true };
        let plain = Document { text: "text".into(), ..Document::default() };
        let (found, _) = encode_all(&Tokenizer::Bytes, vec![plain, document]);
        assert_eq!((found.ends, found.prompts), (vec![5, 19], vec![5..12, 18..19]));
        let starts = [0, 3, 6, 7, 13];
        assert_eq!(prompt_tokens(&[0..7, 13..14], 20, &starts), [20..23, 24..25]);
    }
}
