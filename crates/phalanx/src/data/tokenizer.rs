//! Text to tokens and back: bytes, or a `tokenizer.json`.

use std::io;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use crate::files;

/// The most bytes of a `tokenizer.json`; published ones have up to 40 MB.
const MOST_BYTES: u64 = 512 << 20;

/// Tokens that end a text, by the names that published tokenizers give them; the first that a tokenizer has is taken.
const ENDS: [&str; 6] = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eot_id|>", "<|im_end|>"];

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
    /// Nothing is known of the text of tokens.
    #[error("the data are tokens without text; name the tokenizer.json that made them")]
    NoText,
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
    /// Tokens of which nothing but the number is known: those of token files without a tokenizer.
    Numbers {
        /// One more than the largest token.
        vocab: usize,
    },
}

impl Tokenizer {
    /// Loads a `tokenizer.json`.
    pub fn open(path: &Path) -> Result<Tokenizer, TokenizerError> {
        // The library panics on some files that are no tokenizers, such as one whose decoder is no JSON.
        let reason = match catch_unwind(|| Self::file(path)?.parse::<tokenizers::Tokenizer>()) {
            Ok(Ok(tokenizer)) => return Ok(Tokenizer::File(Box::new(tokenizer))),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the tokenizers library panicked on it".into(),
        };
        Err(TokenizerError::Load { path: path.into(), reason })
    }

    /// The text of a tokenizer's file.
    pub(super) fn file(path: &Path) -> io::Result<String> {
        io::read_to_string(files::read_up_to(path, MOST_BYTES)?.as_slice())
    }

    /// One more than the largest token.
    pub fn vocab(&self) -> usize {
        match self {
            Tokenizer::Bytes => 256,
            Tokenizer::File(rules) => {
                rules.get_vocab(true).into_values().max().map_or(0, |token| token as usize + 1)
            }
            Tokenizer::Numbers { vocab } => *vocab,
        }
    }

    /// The token of this name, if there is one.
    pub(super) fn token(&self, name: &str) -> Option<u32> {
        match self {
            Tokenizer::Bytes | Tokenizer::Numbers { .. } => None,
            Tokenizer::File(rules) => rules.token_to_id(name),
        }
    }

    /// The token that ends a text, if there is one.
    pub fn end_of_text(&self) -> Option<u32> {
        ENDS.iter().find_map(|name| self.token(name))
    }

    /// The tokens of a text, without special tokens around it.
    pub fn encode(&self, text: &str) -> Result<Vec<i64>, TokenizerError> {
        let mut tokens = Vec::new();
        self.encode_into(text, &mut tokens)?;
        Ok(tokens.into_iter().map(i64::from).collect())
    }

    /// Appends the tokens of a text.
    pub(super) fn encode_into(&self, text: &str, tokens: &mut Vec<u32>) -> Result<(), TokenizerError> {
        match self {
            Tokenizer::Bytes => tokens.extend(text.bytes().map(u32::from)),
            Tokenizer::File(rules) => tokens.extend(ids(rules, text)?),
            Tokenizer::Numbers { .. } => return Err(TokenizerError::NoText),
        }
        Ok(())
    }

    /// The same, with the byte at which each token begins.
    pub(super) fn encode_with_starts(
        &self,
        text: &str,
        tokens: &mut Vec<u32>,
    ) -> Result<Vec<usize>, TokenizerError> {
        let Tokenizer::File(rules) = self else {
            self.encode_into(text, tokens)?;
            return Ok((0..text.len()).collect());
        };
        let encoding = rules.encode(text, false).map_err(|error| cannot_encode(text, &error))?;
        tokens.extend(encoding.get_ids());
        Ok(encoding.get_offsets().iter().map(|&(start, _)| start).collect())
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
            Tokenizer::Numbers { .. } => Err(TokenizerError::NoText),
        }
    }

    fn narrow<T: TryFrom<i64>>(&self, token: i64) -> Result<T, TokenizerError> {
        T::try_from(token).map_err(|_| TokenizerError::NotAToken { token, vocab: self.vocab() })
    }
}

fn ids(rules: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>, TokenizerError> {
    let encoding = rules.encode_fast(text, false).map_err(|error| cannot_encode(text, &error))?;
    Ok(encoding.get_ids().to_vec())
}

fn cannot_encode(text: &str, error: &tokenizers::Error) -> TokenizerError {
    TokenizerError::Encode { text: text.chars().take(40).collect(), reason: error.to_string() }
}
