//! Text to tokens and back: bytes, or a `tokenizer.json`.

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use super::corpus::{Corpus, Part};

/// Bytes of text encoded at a time, to bound the memory that encoding takes.
const CHUNK: usize = 4 << 20;

/// Why a tokenizer does not work.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum TokenizerError {
    /// The file is missing or not a tokenizer.
    #[error("cannot load the tokenizer {}: {reason}; give a tokenizer.json", path.display())]
    Load { path: PathBuf, reason: String },
    /// Text has no tokens under this tokenizer.
    #[error("the tokenizer cannot encode `{text}`: {reason}")]
    Encode { text: String, reason: String },
    /// Tokens have no text under this tokenizer.
    #[error("the tokenizer cannot decode {count} tokens: {reason}")]
    Decode { count: usize, reason: String },
    /// Something is no token at all.
    #[error("{token} is not a token; tokens are 0 to {}", vocab.saturating_sub(1))]
    NotAToken { token: i64, vocab: usize },
}

/// Turns text into tokens and back.
#[derive(Debug)]
pub enum Tokenizer {
    /// Each byte of the UTF-8 text is a token.
    Bytes,
    /// The rules of a `tokenizer.json`.
    File(Box<tokenizers::Tokenizer>),
}

impl Tokenizer {
    /// Loads a `tokenizer.json`.
    pub fn open(path: &Path) -> Result<Tokenizer, TokenizerError> {
        // The library panics on some files that are no tokenizers, such as one whose decoder is no JSON.
        let reason = match catch_unwind(|| tokenizers::Tokenizer::from_file(path)) {
            Ok(Ok(tokenizer)) => return Ok(Tokenizer::File(Box::new(tokenizer))),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the tokenizers library panicked on it".into(),
        };
        Err(TokenizerError::Load { path: path.into(), reason })
    }

    /// One more than the largest token.
    pub fn vocab(&self) -> usize {
        match self {
            Tokenizer::Bytes => 256,
            Tokenizer::File(rules) => {
                rules.get_vocab(true).into_values().max().map_or(0, |token| token as usize + 1)
            }
        }
    }

    /// The tokens of a text, without special tokens around it.
    pub fn encode(&self, text: &str) -> Result<Vec<i64>, TokenizerError> {
        match self {
            Tokenizer::Bytes => Ok(text.bytes().map(i64::from).collect()),
            Tokenizer::File(rules) => Ok(ids(rules, text)?.into_iter().map(i64::from).collect()),
        }
    }

    /// The text of tokens; bytes that are not UTF-8 become replacement characters.
    pub fn decode(&self, tokens: &[i64]) -> Result<String, TokenizerError> {
        match self {
            Tokenizer::Bytes => {
                let bytes = tokens.iter().map(|&token| self.narrow(token)).collect::<Result<Vec<u8>, _>>()?;
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            Tokenizer::File(rules) => {
                let ids = tokens.iter().map(|&token| self.narrow(token)).collect::<Result<Vec<u32>, _>>()?;
                let failed = |reason: tokenizers::Error| reason.to_string();
                rules
                    .decode(&ids, false)
                    .map_err(|error| TokenizerError::Decode { count: ids.len(), reason: failed(error) })
            }
        }
    }

    fn narrow<T: TryFrom<i64>>(&self, token: i64) -> Result<T, TokenizerError> {
        T::try_from(token).map_err(|_| TokenizerError::NotAToken { token, vocab: self.vocab() })
    }
}

/// All text of a byte corpus as tokens, in memory.
pub(super) fn encode_corpus(tokenizer: &Tokenizer, text: &Corpus) -> Result<Corpus, TokenizerError> {
    let Tokenizer::File(rules) = tokenizer else {
        return Ok(Corpus::new(text.byte_parts().map(|bytes| Part::Bytes(bytes.to_vec())).collect()));
    };
    let mut all = Vec::new();
    for bytes in text.byte_parts() {
        let text = String::from_utf8_lossy(bytes);
        let mut rest = &*text;
        while !rest.is_empty() {
            let (chunk, tail) = rest.split_at(chunk_len(rest));
            all.extend(ids(rules, chunk)?);
            rest = tail;
        }
    }
    Ok(Corpus::new(vec![Part::Ids(all)]))
}

/// How much of `text` to encode at once: up to the first line that ends past [`CHUNK`] before a line that does not
/// begin with white space, as no tokenizer joins tokens across such a place.
fn chunk_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_seam = |&end: &usize| bytes[end - 1] == b'\n' && bytes[end].is_ascii_graphic();
    (CHUNK..bytes.len()).find(is_seam).unwrap_or(bytes.len())
}

fn ids(rules: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>, TokenizerError> {
    match rules.encode_fast(text, false) {
        Ok(encoding) => Ok(encoding.get_ids().to_vec()),
        Err(error) => {
            let text = text.chars().take(40).collect();
            Err(TokenizerError::Encode { text, reason: error.to_string() })
        }
    }
}
