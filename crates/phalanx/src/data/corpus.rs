//! Tokens one after another, in memory or in mapped files, read as an endless ring.

use std::fmt;
use std::iter;

use phalanx_mapping::Mapping;

use super::token_file::TokenFile;

/// A row of tokens in one or more parts.
pub(super) struct Corpus {
    parts: Vec<Part>,
    /// The position after each part.
    ends: Vec<usize>,
}

/// Tokens in one place.
pub(super) enum Part {
    /// Byte tokens in memory.
    Bytes(Vec<u8>),
    /// Byte tokens in a file.
    Mapped(Mapping),
    /// Tokens of a tokenizer.
    Ids(Vec<u32>),
    /// Tokens in a file.
    File(TokenFile),
}

impl Corpus {
    pub(super) fn new(parts: Vec<Part>) -> Self {
        let ends = parts.iter().scan(0, |end, part| {
            *end += part.len();
            Some(*end)
        });
        Corpus { ends: ends.collect(), parts }
    }

    pub(super) fn from_bytes(bytes: Vec<u8>) -> Self {
        Corpus::new(vec![Part::Bytes(bytes)])
    }

    pub(super) fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The text of byte tokens.
    #[cfg(test)]
    pub(super) fn text(&self) -> String {
        let bytes: Vec<u8> = self.read(0).take(self.len()).map(|token| token as u8).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// All tokens from position `at` on, then from the start again, for ever; none if there are none.
    pub(super) fn read(&self, at: usize) -> impl Iterator<Item = i64> {
        let mut at = at.checked_rem(self.len()).unwrap_or(0);
        let mut part = self.ends.partition_point(|&end| end <= at);
        iter::from_fn(move || {
            if self.is_empty() {
                return None;
            }
            while at >= self.ends[part] {
                part = (part + 1) % self.parts.len();
                if part == 0 {
                    at = 0;
                }
            }
            let start = self.ends[part] - self.parts[part].len();
            at += 1;
            Some(self.parts[part].token(at - 1 - start))
        })
    }
}

impl fmt::Debug for Corpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens in {} parts", self.len(), self.parts.len())
    }
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Part::Bytes(bytes) => bytes.len(),
            Part::Mapped(mapping) => mapping.len(),
            Part::Ids(ids) => ids.len(),
            Part::File(file) => file.len(),
        }
    }

    fn token(&self, index: usize) -> i64 {
        match self {
            Part::Bytes(bytes) => i64::from(bytes[index]),
            Part::Mapped(mapping) => i64::from(mapping[index]),
            Part::Ids(ids) => i64::from(ids[index]),
            Part::File(file) => file.token(index),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_read_as_one_ring() {
        let parts = [&b"ab"[..], b"", b"cde", b""].map(|bytes| Part::Bytes(bytes.to_vec()));
        let corpus = Corpus::new(parts.into_iter().chain([Part::Ids(vec![7])]).collect());
        assert_eq!(corpus.len(), 6);
        let ring = [97, 98, 99, 100, 101, 7];
        for at in 0..13 {
            let read: Vec<i64> = corpus.read(at).take(9).collect();
            let wanted: Vec<i64> = (at..at + 9).map(|index| ring[index % 6]).collect();
            assert_eq!(read, wanted, "from {at}");
        }
        assert_eq!(Corpus::new(vec![]).read(3).next(), None);
    }
}
