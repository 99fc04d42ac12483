//! Where a corpus comes from: files of text or of tokens, and the tokenizer of the text.

use std::fs;
use std::path::{Path, PathBuf};

use super::cache::{Encoding, EncodingProgress};
use super::corpus::{Corpus, Part};
use super::documents::TextFile;
use super::files::{self, FileKind};
use super::token_file::TokenFile;
use super::{DataError, Tokenizer, TokenizerError};

/// Files of text or of tokens.
#[derive(Clone, Copy, Debug)]
pub struct DataSource<'a> {
    /// A file, a directory or a pattern such as `texts/*.jsonl`. Names that end in `.jsonl` have a JSON object on each
    /// line, those in `.bin` tokens of llm.c or nanoGPT; all others are UTF-8 text.
    pub path: &'a Path,
    /// A Hugging Face `tokenizer.json`; the tokens of text are its bytes if absent.
    pub tokenizer: Option<&'a Path>,
    /// The field that has the text in lines of JSON.
    pub field: &'a str,
    /// Directory in which the tokens of text are kept for the next time; in memory only if absent.
    pub cache: Option<&'a Path>,
}

/// A corpus that was read.
pub(super) struct Opened {
    pub(super) corpus: Corpus,
    pub(super) tokenizer: Tokenizer,
    pub(super) note: Option<String>,
}

/// Where tokens are kept by default: in the user's directory of caches, if there is one.
pub fn cache_dir() -> Option<PathBuf> {
    crate::cache_dir().map(|dir| dir.join("tokens"))
}

impl<'a> DataSource<'a> {
    /// Text as bytes, or files of tokens; lines of JSON have their text in the field `text`.
    pub fn new(path: &'a Path) -> DataSource<'a> {
        DataSource { path, tokenizer: None, field: "text", cache: None }
    }

    /// Writes the tokens of all text to a file as llm.c reads it; their number.
    pub fn tokenize(&self, out: &Path, progress: &mut EncodingProgress<'_>) -> Result<usize, DataError> {
        let paths = files::find(self.path)?;
        if let Some(path) = paths.iter().find(|path| FileKind::of(path) == FileKind::Tokens) {
            let reason = "it has tokens already; name files of text".into();
            return Err(DataError::TokenFile { path: path.clone(), reason });
        }
        let (tokenizer, rules) = self.rules()?;
        let files = paths.iter().map(|path| TextFile::open(path)).collect::<Result<Vec<_>, _>>()?;
        Encoding { source: self, files: &files, tokenizer: &tokenizer, rules: &rules }.write(out, progress)
    }

    /// The tokenizer and the bytes of its file.
    fn rules(&self) -> Result<(Tokenizer, Vec<u8>), DataError> {
        let Some(path) = self.tokenizer else { return Ok((Tokenizer::Bytes, Vec::new())) };
        let tokenizer = Tokenizer::open(path)?;
        let rules = fs::read(path)
            .map_err(|error| TokenizerError::Load { path: path.into(), reason: error.to_string() })?;
        Ok((tokenizer, rules))
    }

    pub(super) fn open(&self, progress: &mut EncodingProgress<'_>) -> Result<Opened, DataError> {
        let paths = files::find(self.path)?;
        let (tokens, texts): (Vec<_>, Vec<_>) =
            paths.iter().partition(|path| FileKind::of(path) == FileKind::Tokens);
        let (mut tokenizer, rules) = self.rules()?;
        if self.tokenizer.is_none() && texts.is_empty() {
            tokenizer = Tokenizer::Numbers { vocab: 0 };
        }
        let mut parts = Vec::new();
        for path in tokens {
            parts.push(Part::File(self.token_file(path, &mut tokenizer)?));
        }
        let texts = texts.into_iter().map(|path| TextFile::open(path)).collect::<Result<Vec<_>, _>>()?;
        let mut note = None;
        if self.tokenizer.is_some() && !texts.is_empty() {
            let encoding = Encoding { source: self, files: &texts, tokenizer: &tokenizer, rules: &rules };
            let (part, failure) = encoding.tokens(progress)?;
            parts.push(part);
            note = failure.map(|(path, error)| {
                format!("tokens are not kept for the next time: cannot write {}: {error}", path.display())
            });
        } else {
            for file in texts {
                parts.push(self.byte_part(file)?);
            }
        }
        let corpus = Corpus::new(parts);
        match corpus.is_empty() {
            true => Err(DataError::Empty { path: self.path.into() }),
            false => Ok(Opened { corpus, tokenizer, note }),
        }
    }

    /// A file of tokens, all of which the tokenizer has.
    fn token_file(&self, path: &Path, tokenizer: &mut Tokenizer) -> Result<TokenFile, DataError> {
        let file = TokenFile::open(path)?;
        let (found, path) = (file.vocab(), path.to_path_buf());
        match tokenizer {
            Tokenizer::Numbers { vocab } => *vocab = found.max(*vocab),
            Tokenizer::Bytes if found > 256 => return Err(DataError::Mixed { path, largest: found - 1 }),
            Tokenizer::File(_) if found > tokenizer.vocab() => {
                return Err(DataError::Vocabulary { path, largest: found - 1, vocab: tokenizer.vocab() });
            }
            Tokenizer::Bytes | Tokenizer::File(_) => {}
        }
        Ok(file)
    }

    /// Text whose tokens are its bytes. Documents of a JSON-lines file end with a line end.
    fn byte_part(&self, file: TextFile<'_>) -> Result<Part, DataError> {
        if !file.is_lines() {
            return Ok(Part::Mapped(file.into_mapping()));
        }
        let mut bytes = Vec::new();
        file.for_each_document(self.field, |text| {
            bytes.extend_from_slice(text.as_bytes());
            bytes.push(b'\n');
            Ok(())
        })?;
        Ok(Part::Bytes(bytes))
    }
}
