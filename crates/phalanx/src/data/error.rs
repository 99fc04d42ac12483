//! Why there is no data to train on.

use std::io;
use std::path::PathBuf;

use super::chat::ChatError;
use super::tokenizer::TokenizerError;

/// Why there is no data to train on.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message explains the fields")]
pub enum DataError {
    /// A file or directory cannot be read.
    #[error("cannot read {}: {source}; give a file, a directory or a pattern such as 'texts/*.txt'", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A pipe, a socket or a device.
    #[error("{} is a pipe or a device, and data is read more than once: write it to a file first, as in `cat {} > data.txt`", path.display(), path.display())]
    Stream { path: PathBuf },
    /// There is no text at all.
    #[error("{} has no text; give a file with at least context + 1 tokens", path.display())]
    Empty { path: PathBuf },
    /// A file is not UTF-8.
    #[error("{} is not UTF-8 at byte {offset}; convert it, e.g. with iconv -t utf-8", path.display())]
    NotUtf8 { path: PathBuf, offset: usize },
    /// A line of a JSON-lines file has no document.
    #[error("{}:{line}: {reason}", path.display())]
    JsonLine { path: PathBuf, line: usize, reason: String },
    /// A file is no Parquet file, or this build reads none.
    #[error("{} is no Parquet file that can be read: {reason}", path.display())]
    Parquet { path: PathBuf, reason: String },
    /// A file is no file of tokens.
    #[error("{} is no file of tokens: {reason}", path.display())]
    TokenFile { path: PathBuf, reason: String },
    /// A list beside a file of tokens is of others.
    #[error("{} does not belong to the {tokens} tokens of {}; remove it", path.display(), tokens_path.display())]
    Offsets { path: PathBuf, tokens_path: PathBuf, tokens: usize },
    /// Several sources are not named as they should be.
    #[error(
        "`{text}` is no list of data: {reason}; write PATH=WEIGHT;PATH=WEIGHT, or PATH;PATH without weights"
    )]
    Mixture { text: String, reason: String },
    /// An option about prompts is set, but there are none.
    #[error(
        "`{option}` is set, but {name} has no prompts: leave it out, or give .jsonl lines with messages, with prompt and completion, or with instruction and output"
    )]
    NoPrompts { name: String, option: &'static str },
    /// No window has an answer.
    #[error(
        "{name} has no answers in windows of {context} tokens: add conversations, or leave out --mask-prompt"
    )]
    NoAnswers { name: String, context: usize },
    /// A file of tokens beside text, whose tokens are bytes.
    #[error("{} has tokens up to {largest}, but text without a tokenizer has tokens up to 255; name the tokenizer", path.display())]
    Mixed { path: PathBuf, largest: usize },
    /// A token that the tokenizer does not have.
    #[error("{} has token {largest}, but the tokenizer has {vocab} tokens; name the tokenizer that made it", path.display())]
    Vocabulary { path: PathBuf, largest: usize, vocab: usize },
    /// A file of tokens cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// The text does not fill one window.
    #[error("{name} has {tokens} tokens but a context of {context} needs {}; add text or use a shorter context", context + 1)]
    TooShort { name: String, tokens: usize, context: usize },
    /// Nothing would remain to train on.
    #[error(
        "a share of {share} held back leaves nothing of {name} to train on, whose text is cut into {windows}; add text, use a shorter context or evaluate nothing"
    )]
    AllHeld { name: String, windows: usize, share: f64 },
    /// Conversations cannot be read.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// The tokenizer does not work.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}
