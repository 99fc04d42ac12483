//! Tokens one after another, in memory or in mapped files, read as an endless ring; with them the documents they are of,
//! and which of them are prompts.

use std::fmt;
use std::iter;
use std::path::Path;

use phalanx_mapping::Mapping;
use phalanx_models::IGNORE_LABEL;

use super::DataError;
use super::offsets::{OffsetKind, Offsets};
use super::token_file::TokenFile;

/// A row of tokens in one or more parts.
pub(super) struct Corpus {
    parts: Vec<Part>,
    /// The position after each part.
    ends: Vec<usize>,
}

/// Tokens in one place.
pub(super) struct Part {
    tokens: Tokens,
    /// Where its documents end; one document if absent.
    documents: Option<Offsets>,
    /// Where its prompts begin and end.
    prompts: Option<Offsets>,
}

/// Where tokens are.
pub(super) enum Tokens {
    /// Byte tokens in memory.
    Bytes(Vec<u8>),
    /// Byte tokens in a file.
    Mapped(Mapping),
    /// Tokens of a tokenizer.
    Ids(Vec<u32>),
    /// Tokens in a file.
    File(TokenFile),
}

impl From<Tokens> for Part {
    fn from(tokens: Tokens) -> Part {
        Part { tokens, documents: None, prompts: None }
    }
}

impl Part {
    /// A file of tokens and what lies beside it.
    pub(super) fn open(path: &Path) -> Result<Part, DataError> {
        let file = TokenFile::open(path)?;
        let documents = Offsets::beside(path, file.len(), OffsetKind::Documents)?;
        let prompts = Offsets::beside(path, file.len(), OffsetKind::Prompts)?;
        Ok(Part { tokens: Tokens::File(file), documents, prompts })
    }

    /// Tokens in memory, with the positions behind documents and those of prompts.
    pub(super) fn in_memory(ids: Vec<u32>, documents: Vec<u64>, prompts: Vec<u64>) -> Part {
        let prompts = Some(prompts).filter(|prompts| !prompts.is_empty()).map(Offsets::Listed);
        Part { tokens: Tokens::Ids(ids), documents: Some(Offsets::Listed(documents)), prompts }
    }

    /// One more than the largest token of a file of tokens; reads the whole file.
    pub(super) fn token_file_vocab(&self) -> usize {
        if let Tokens::File(file) = &self.tokens { file.vocab() } else { 0 }
    }

    fn len(&self) -> usize {
        match &self.tokens {
            Tokens::Bytes(bytes) => bytes.len(),
            Tokens::Mapped(mapping) => mapping.len(),
            Tokens::Ids(ids) => ids.len(),
            Tokens::File(file) => file.len(),
        }
    }

    fn token(&self, index: usize) -> i64 {
        match &self.tokens {
            Tokens::Bytes(bytes) => i64::from(bytes[index]),
            Tokens::Mapped(mapping) => i64::from(mapping[index]),
            Tokens::Ids(ids) => i64::from(ids[index]),
            Tokens::File(file) => file.token(index),
        }
    }

    fn documents(&self) -> usize {
        self.documents.as_ref().map_or(usize::from(self.len() > 0), Offsets::len)
    }

    fn prompt_tokens(&self) -> usize {
        let Some(prompts) = &self.prompts else { return 0 };
        (0..prompts.len() / 2)
            .map(|pair| prompts.get(2 * pair + 1).saturating_sub(prompts.get(2 * pair)))
            .sum()
    }

    /// Whether a token is one of a prompt, and the position up to which the next ones are alike.
    fn prompt_at(&self, at: usize) -> (bool, usize) {
        let Some(prompts) = &self.prompts else { return (false, self.len()) };
        let passed = prompts.count_up_to(at);
        let end = if passed < prompts.len() { prompts.get(passed) } else { self.len() };
        (passed % 2 == 1, end.clamp(at + 1, self.len().max(at + 1)))
    }

    /// The ends of documents next to a position: the last one up to it, and the first one past it.
    fn document_ends(&self, at: usize) -> [Option<usize>; 2] {
        match &self.documents {
            None => [None, Some(self.len())],
            Some(ends) => {
                let passed = ends.count_up_to(at);
                let before = passed.checked_sub(1).map(|last| ends.get(last));
                [before, (passed < ends.len()).then(|| ends.get(passed))]
            }
        }
    }
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
        Corpus::new(vec![Tokens::Bytes(bytes).into()])
    }

    pub(super) fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many documents have tokens; a file of tokens is one if nothing lies beside it.
    pub(super) fn documents(&self) -> usize {
        self.parts.iter().map(Part::documents).sum()
    }

    /// How many tokens are given to the model rather than answered by it.
    pub(super) fn prompt_tokens(&self) -> usize {
        self.parts.iter().map(Part::prompt_tokens).sum()
    }

    /// Whether it tells prompts from answers anywhere.
    pub(super) fn has_prompts(&self) -> bool {
        self.parts.iter().any(|part| part.prompts.is_some())
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

    /// Replaces those of the tokens from position `at` on that are prompts by the label that is left out of the loss;
    /// whether any are left.
    pub(super) fn ignore_prompts(&self, at: usize, labels: &mut [i64]) -> bool {
        let (mut done, mut some_left) = (0, false);
        while done < labels.len() && !self.is_empty() {
            let position = (at + done) % self.len();
            let part = self.ends.partition_point(|&end| end <= position);
            let start = self.ends[part] - self.parts[part].len();
            let (is_prompt, end) = self.parts[part].prompt_at(position - start);
            let next = labels.len().min(done + (start + end - position));
            if is_prompt {
                labels[done..next].fill(IGNORE_LABEL);
            }
            some_left |= !is_prompt;
            done = next;
        }
        some_left
    }

    /// Where documents begin next to a position, before and behind it; the beginning and the end of all are none.
    pub(super) fn document_starts(&self, at: usize) -> impl Iterator<Item = usize> {
        let part = self.ends.partition_point(|&end| end <= at);
        let ends = self.parts.get(part).map(|found| {
            let start = self.ends[part] - found.len();
            let [before, after] = found.document_ends(at - start);
            [Some(start + before.unwrap_or(0)), after.map(|after| start + after)]
        });
        let all = self.len();
        ends.into_iter().flatten().flatten().filter(move |&start| 0 < start && start < all)
    }
}

impl fmt::Debug for Corpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens in {} parts", self.len(), self.parts.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_read_as_one_ring() {
        let parts = [&b"ab"[..], b"", b"cde", b""].map(|bytes| Tokens::Bytes(bytes.to_vec()).into());
        let corpus = Corpus::new(parts.into_iter().chain([Tokens::Ids(vec![7]).into()]).collect());
        assert_eq!((corpus.len(), corpus.documents()), (6, 3));
        let ring = [97, 98, 99, 100, 101, 7];
        for at in 0..13 {
            let read: Vec<i64> = corpus.read(at).take(9).collect();
            let wanted: Vec<i64> = (at..at + 9).map(|index| ring[index % 6]).collect();
            assert_eq!(read, wanted, "from {at}");
        }
        assert_eq!(Corpus::new(vec![]).read(3).next(), None);
    }

    /// Parts of 4 and 7 tokens; documents end at 4, 6, 9 and 11, prompts are 5, 6, 9 and 10.
    fn documents_and_prompts() -> Corpus {
        let plain = Tokens::Bytes(vec![0; 4]).into();
        Corpus::new(vec![plain, Part::in_memory(vec![0; 7], vec![2, 5, 7], vec![1, 3, 5, 7])])
    }

    #[test]
    fn prompts_are_ignored_wherever_reading_begins() {
        let corpus = documents_and_prompts();
        let is_prompt = |at: usize| [5, 6, 9, 10].contains(&(at % 11));
        for at in 0..22 {
            for count in 0..14 {
                let mut labels = vec![1; count];
                let some_left = corpus.ignore_prompts(at, &mut labels);
                let wanted: Vec<i64> =
                    (at..at + count).map(|at| if is_prompt(at) { IGNORE_LABEL } else { 1 }).collect();
                assert_eq!((&labels, some_left), (&wanted, wanted.contains(&1)), "{count} from {at}");
            }
        }
        assert_eq!((corpus.prompt_tokens(), corpus.has_prompts(), corpus.documents()), (4, true, 4));
    }

    #[test]
    fn documents_begin_before_and_behind_a_position() {
        let corpus = documents_and_prompts();
        let around = |at| corpus.document_starts(at).collect::<Vec<_>>();
        let found: Vec<_> = [0, 3, 4, 5, 6, 8, 9, 10].map(around).into();
        assert_eq!(
            found,
            [vec![4], vec![4], vec![4, 6], vec![4, 6], vec![6, 9], vec![6, 9], vec![9], vec![9]]
        );
    }
}
