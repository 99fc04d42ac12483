//! Where a corpus comes from: files of text or of tokens, and the tokenizer of the text.

use std::path::{Path, PathBuf};

use super::cache::{self, Encoding, EncodingProgress};
use super::chat::{ChatError, ChatTemplate};
use super::corpus::{Corpus, Part, Tokens};
use super::documents::TextFile;
use super::files::{self, FileKind};
use super::mixture::{self, Weighted};
use super::records::{Records, TEXT_FIELD};
use super::stamp::{Findings, Stamp, TokenBound};
use super::{DataError, Tokenizer, TokenizerError};

/// The most files whose bytes are mapped as they are: a process can map some ten thousand.
const MOST_MAPPED: usize = 1024;

/// Files of text or of tokens.
#[derive(Clone, Copy, Debug)]
pub struct DataSource<'a> {
    /// A file, a directory or a pattern such as `texts/*.jsonl`, or several of them: `PATH=WEIGHT;PATH=WEIGHT`. Names that
    /// end in `.jsonl` have a JSON object on each line, those in `.parquet` a column of text (in builds with the feature
    /// `parquet`), those in `.bin` tokens of llm.c or nanoGPT; all others are UTF-8 text.
    pub path: &'a Path,
    /// A Hugging Face `tokenizer.json`; the tokens of text are its bytes if absent.
    pub tokenizer: Option<&'a Path>,
    /// The field that has the text in lines of JSON, or the column.
    pub field: &'a str,
    /// The chat template of conversations, by name or file; the one of the tokenizer if absent.
    pub chat_template: Option<&'a str>,
    /// Whether only answers are trained on.
    pub mask_prompt: bool,
    /// Directory in which the tokens of text are kept for the next time; in memory only if absent.
    pub cache: Option<&'a Path>,
}

/// What was read.
pub(super) struct Opened {
    /// One or more.
    pub(super) corpora: Vec<(Weighted, Corpus)>,
    pub(super) tokenizer: Tokenizer,
    pub(super) note: Option<String>,
}

/// How text becomes tokens.
struct Rules {
    tokenizer: Tokenizer,
    /// The bytes of its file.
    file: Vec<u8>,
    template: Result<ChatTemplate, ChatError>,
}

/// What one path stands for.
struct OpenedPath {
    corpus: Corpus,
    has_text: bool,
    /// The file of tokens with the largest one.
    largest: Option<TokenBound>,
    note: Option<String>,
}

/// Where tokens are kept by default: in the user's directory of caches, if there is one.
pub fn cache_dir() -> Option<PathBuf> {
    crate::cache_dir().map(|dir| dir.join("tokens"))
}

impl<'a> DataSource<'a> {
    /// Text as bytes, or files of tokens; lines of JSON have their text in the field `text`.
    pub fn new(path: &'a Path) -> DataSource<'a> {
        let (field, mask_prompt) = (TEXT_FIELD, false);
        DataSource { path, tokenizer: None, field, chat_template: None, mask_prompt, cache: None }
    }

    /// Writes the tokens of all text to a file as llm.c reads it, and beside it where documents and prompts are; the number
    /// of tokens.
    pub fn tokenize(&self, out: &Path, progress: &mut EncodingProgress<'_>) -> Result<usize, DataError> {
        let mut paths = Vec::new();
        for Weighted { path, weight } in mixture::parse(self.path)? {
            if weight.is_some() {
                let (text, reason) = (self.path.display().to_string(), "tokens have no weights".into());
                return Err(DataError::Mixture { text, reason });
            }
            paths.extend(files::find(&path)?);
        }
        if let Some(path) = paths.iter().find(|path| FileKind::of(path) == FileKind::Tokens) {
            let reason = "it has tokens already; name files of text".into();
            return Err(DataError::TokenFile { path: path.clone(), reason });
        }
        let rules = self.rules()?;
        let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
        self.encoding(&paths, &rules).write(out, progress)
    }

    fn rules(&self) -> Result<Rules, DataError> {
        let (tokenizer, file) = match self.tokenizer {
            None => (Tokenizer::Bytes, Vec::new()),
            Some(path) => {
                let tokenizer = Tokenizer::open(path)?;
                let unread = |error: std::io::Error| TokenizerError::Load {
                    path: path.into(),
                    reason: error.to_string(),
                };
                (tokenizer, Tokenizer::file(path).map_err(unread)?.into_bytes())
            }
        };
        let template = ChatTemplate::choose(self.chat_template, self.tokenizer, &tokenizer);
        match (template, self.chat_template) {
            (Err(error), Some(_)) => Err(error.into()),
            (template, _) => Ok(Rules { tokenizer, file, template }),
        }
    }

    fn encoding<'b>(&'b self, paths: &'b [&'b Path], rules: &'b Rules) -> Encoding<'b> {
        let records = Records { field: self.field, template: &rules.template };
        Encoding { paths, records, tokenizer: &rules.tokenizer, rules: &rules.file }
    }

    pub(super) fn open(&self, progress: &mut EncodingProgress<'_>) -> Result<Opened, DataError> {
        let rules = self.rules()?;
        let sources = mixture::parse(self.path)?;
        let opened = sources.iter().map(|source| self.open_path(&source.path, &rules, progress));
        let opened = opened.collect::<Result<Vec<OpenedPath>, DataError>>()?;
        let largest = opened.iter().filter_map(|path| path.largest.clone()).max_by_key(|(_, vocab)| *vocab);
        let has_text = opened.iter().any(|path| path.has_text);
        let tokenizer = match (rules.tokenizer, &largest) {
            (Tokenizer::Bytes, Some((_, vocab))) if !has_text => Tokenizer::Numbers { vocab: *vocab },
            (tokenizer, _) => tokenizer,
        };
        if let Some((path, found)) = largest.filter(|(_, found)| *found > tokenizer.vocab()) {
            let (largest, vocab) = (found - 1, tokenizer.vocab());
            return Err(match tokenizer {
                Tokenizer::Bytes => DataError::Mixed { path, largest },
                _ => DataError::Vocabulary { path, largest, vocab },
            });
        }
        let note = opened.iter().find_map(|path| path.note.clone());
        let corpora: Vec<_> = sources.into_iter().zip(opened.into_iter().map(|path| path.corpus)).collect();
        self.check_prompts(&corpora)?;
        Ok(Opened { corpora, tokenizer, note })
    }

    /// Options about prompts are useless without any.
    fn check_prompts(&self, corpora: &[(Weighted, Corpus)]) -> Result<(), DataError> {
        let set = self.chat_template.map(|_| "chat_template").or(self.mask_prompt.then_some("mask_prompt"));
        match set.filter(|_| !corpora.iter().any(|(_, corpus)| corpus.has_prompts())) {
            Some(option) => Err(DataError::NoPrompts { name: self.path.display().to_string(), option }),
            None => Ok(()),
        }
    }

    fn open_path(
        &self,
        path: &Path,
        rules: &Rules,
        progress: &mut EncodingProgress<'_>,
    ) -> Result<OpenedPath, DataError> {
        let paths = files::find(path)?;
        let (tokens, texts): (Vec<&Path>, Vec<&Path>) =
            paths.iter().map(PathBuf::as_path).partition(|path| FileKind::of(path) == FileKind::Tokens);
        let encoding = self.encoding(&texts, rules);
        let identity = encoding.records.identity();
        let stamp = Stamp::new(self.cache, &paths, &[cache::FORMAT, &rules.file, identity.as_bytes()]);
        let known = stamp.read();
        let (mut parts, largest) = token_parts(&tokens, known.as_ref())?;
        let mut findings =
            Findings { tokens: known.as_ref().and_then(|known| known.tokens.clone()), largest };
        let mut note = None;
        if self.reads_bytes(&texts) {
            parts.extend(byte_parts(&texts, known.as_ref())?);
        } else if let Some(part) = self.cache.zip(known.as_ref()).and_then(|(dir, known)| known.part(dir)) {
            parts.push(part);
        } else if !texts.is_empty() {
            let encoded = encoding.tokens(self.cache, progress)?;
            parts.push(encoded.part);
            findings.tokens = encoded.name.map(|name| format!("{name:032x}"));
            note = encoded.failure.map(|(path, error)| {
                format!("tokens are not kept for the next time: cannot write {}: {error}", path.display())
            });
        }
        let corpus = Corpus::new(parts);
        if corpus.is_empty() {
            return Err(DataError::Empty { path: path.into() });
        }
        if known.as_ref() != Some(&findings) {
            stamp.write(&findings);
        }
        Ok(OpenedPath { corpus, has_text: !texts.is_empty(), largest: findings.largest, note })
    }

    /// Whether the bytes of text files are tokens as they stand.
    fn reads_bytes(&self, texts: &[&Path]) -> bool {
        let is_text = |path: &&Path| FileKind::of(path) == FileKind::Text;
        self.tokenizer.is_none() && texts.len() <= MOST_MAPPED && texts.iter().all(is_text)
    }
}

/// Files of tokens, and the one of them with the largest token.
fn token_parts(
    paths: &[&Path],
    known: Option<&Findings>,
) -> Result<(Vec<Part>, Option<TokenBound>), DataError> {
    let parts = paths.iter().map(|path| Part::open(path)).collect::<Result<Vec<Part>, _>>()?;
    let largest = match known {
        Some(known) => known.largest.clone(),
        None => {
            let vocabs =
                paths.iter().zip(&parts).map(|(path, part)| (path.to_path_buf(), part.token_file_vocab()));
            vocabs.max_by_key(|(_, vocab)| *vocab)
        }
    };
    Ok((parts, largest))
}

/// Files of text whose bytes are tokens.
fn byte_parts(paths: &[&Path], known: Option<&Findings>) -> Result<Vec<Part>, DataError> {
    let part = |path: &&Path| {
        let file = TextFile::open(path)?;
        if known.is_none() {
            file.check(|_| ())?;
        }
        Ok(Tokens::Mapped(file.into_mapping()).into())
    };
    paths.iter().map(part).collect()
}
