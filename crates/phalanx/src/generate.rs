//! Text from a trained model, one token at a time.

mod decoder;
mod sample;

pub use decoder::Decoder;
pub use sample::Sampling;

use std::path::PathBuf;
use std::time::Instant;

use phalanx_ir::Precision;
use phalanx_kernels::random;

use crate::data::{ChatError, ChatTemplate, Tokenizer, TokenizerError};
use crate::setters::with_setters;
use crate::{Error, hf};

/// The stream of random numbers that sampling draws from.
const STREAM: u64 = 0x7E47;

with_setters! {
    /// What to write.
    #[derive(Clone, Debug)]
    pub struct Request {
        /// A Hugging Face directory.
        pub hf: PathBuf,
        /// A tokenizer.json; the one in the directory if absent, bytes if there is none.
        pub tokenizer: Option<PathBuf>,
        /// How the text begins.
        pub prompt: String,
        /// The most tokens to add; fewer if the model ends its text.
        pub tokens: usize,
        /// How they are drawn.
        pub sampling: Sampling,
        /// Whether to go on past a token that ends the text.
        pub ignore_end: bool,
        /// Texts before which the continuation ends.
        pub stops: Vec<String>,
        /// Seed of the draws.
        pub seed: u64,
        /// Cores to use.
        pub cores: usize,
        /// What matrix products are computed in.
        pub precision: Precision,
    }
}

impl Request {
    /// Adds at most 100 tokens to `prompt`, with the model in the directory `hf`, on all cores.
    pub fn new(hf: PathBuf, prompt: String) -> Request {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let sampling = Sampling::default();
        let (tokens, ignore_end, stops, seed) = (100, false, Vec::new(), 0);
        let precision = Precision::F32;
        Request { hf, tokenizer: None, prompt, tokens, sampling, ignore_end, stops, seed, cores, precision }
    }
}

/// What was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Prompt and continuation.
    pub text: String,
    /// The continuation alone.
    pub continuation: String,
    /// Tokens of the prompt.
    pub prompt: Vec<i64>,
    /// Tokens of the continuation.
    pub tokens: Vec<i64>,
    /// Whether the model ended its text.
    pub ended: bool,
    /// Seconds from the prompt to the last token.
    pub seconds: f64,
    /// Those of them before the first token: for reading the prompt.
    pub prompt_seconds: f64,
}

/// Why no text can be written.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum GenerateError {
    /// The model is not a language model.
    #[error("a model of family `{family}` writes no text; use gpt2, llama or another model of text")]
    Family { family: &'static str },
    /// There is nothing to continue.
    #[error("the prompt has no tokens; give at least one character")]
    EmptyPrompt,
    /// The tokens are not bytes and nothing says what they are.
    #[error("the model knows {vocab} tokens but {} has no tokenizer.json and bytes are only 256; pass a tokenizer", hf.display())]
    NoTokenizer { vocab: usize, hf: PathBuf },
    /// A token of the prompt is none of the model's.
    #[error("the prompt has token {token} but the model knows 0 to {}; pass the tokenizer it was trained with", vocab - 1)]
    Vocabulary { token: i64, vocab: usize },
    /// A setting of the draws is out of range.
    #[error("the {name} is {value}; it must be {wanted}")]
    Sampling { name: &'static str, value: f32, wanted: &'static str },
    /// The tokenizer refuses.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The template of conversations cannot be used.
    #[error(transparent)]
    Chat(#[from] ChatError),
}

/// Writes text; `emit` is shown it piece by piece, beginning with the prompt.
///
/// A prompt longer than the model's context is continued from its tail.
pub fn generate(request: &Request, mut emit: impl FnMut(&str)) -> Result<Outcome, Error> {
    let mut writer = TextWriter::open(request, None)?;
    let prompt = writer.encode(&request.prompt)?;
    emit(&writer.tokenizer.decode(&prompt).map_err(GenerateError::from)?);
    writer.continue_tokens(prompt, emit)
}

/// A model that continues one text after the other, and reads of each only what does not begin like the one before.
pub struct TextWriter {
    request: Request,
    tokenizer: Tokenizer,
    vocab: usize,
    decoder: Decoder,
    /// Tokens that end a text.
    ends: Vec<i64>,
    /// Draws so far.
    drawn: u64,
}

impl TextWriter {
    /// Loads the model of a request. It can look back at `window` tokens, or at as many as its context has; if that is not
    /// given, at as many as the prompt of the request and its continuation have.
    pub fn open(request: &Request, window: Option<usize>) -> Result<TextWriter, Error> {
        request.sampling.check()?;
        let model = hf::read_config(&request.hf)?.with_dropout(0.0);
        let (Some(vocab), Some(context)) = (model.vocab(), model.context()) else {
            return Err(GenerateError::Family { family: model.family() }.into());
        };
        let tokenizer = tokenizer(request, vocab)?;
        let window = match window {
            Some(window) => window,
            None => encode(&tokenizer, &request.prompt, vocab)?.len().saturating_add(request.tokens),
        };
        let mut decoder = Decoder::new(&model, context.min(window).max(1), request.cores, request.precision)?;
        for (name, values) in &hf::read_weights(&request.hf, &hf::tensors(&model)?)? {
            decoder.feed(name, values)?;
        }
        let ends = if request.ignore_end { Vec::new() } else { hf::end_tokens(&request.hf)? };
        Ok(TextWriter { request: request.clone(), tokenizer, vocab, decoder, ends, drawn: 0 })
    }

    /// The template of conversations with the model: one of a name or file, else the model's own. What ends an answer in it
    /// ends texts from now on.
    pub fn converse(&mut self, template: Option<&str>) -> Result<ChatTemplate, Error> {
        let beside = self.request.hf.join("tokenizer.json");
        let file = self.request.tokenizer.as_deref().unwrap_or(&beside);
        let template =
            ChatTemplate::choose(template, Some(file), &self.tokenizer).map_err(GenerateError::from)?;
        self.request.stops = template.answer_ends().map_err(GenerateError::from)?;
        Ok(template)
    }

    /// Continues `prompt`; `emit` is shown the continuation piece by piece.
    pub fn continue_text(&mut self, prompt: &str, emit: impl FnMut(&str)) -> Result<Outcome, Error> {
        let prompt = self.encode(prompt)?;
        self.continue_tokens(prompt, emit)
    }

    fn encode(&self, text: &str) -> Result<Vec<i64>, GenerateError> {
        encode(&self.tokenizer, text, self.vocab)
    }

    fn continue_tokens(&mut self, prompt: Vec<i64>, mut emit: impl FnMut(&str)) -> Result<Outcome, Error> {
        let start = Instant::now();
        let mut prompt_seconds = None;
        let mut ended = false;
        let mut text = Text::new(&self.tokenizer, &self.request.stops, &prompt)?;
        for _ in 0..self.request.tokens {
            let logits = self.decoder.next_logits(&text.tokens)?;
            prompt_seconds.get_or_insert_with(|| start.elapsed().as_secs_f64());
            let draw = random::uniform(self.request.seed, STREAM, self.drawn);
            let token = self.request.sampling.pick(&logits, &text.tokens, draw);
            self.drawn += 1;
            ended = self.ends.contains(&token);
            if ended {
                break;
            }
            text.tokens.push(token);
            emit(text.piece(false)?);
            ended = text.is_stopped();
            if ended {
                break;
            }
        }
        emit(text.piece(true)?);
        let seconds = start.elapsed().as_secs_f64();
        let continuation = text.shown[text.prompt..].to_string();
        let tokens = text.tokens.split_off(prompt.len());
        let (text, prompt_seconds) = (text.shown, prompt_seconds.unwrap_or(seconds));
        Ok(Outcome { text, continuation, prompt, tokens, ended, seconds, prompt_seconds })
    }
}

fn tokenizer(request: &Request, vocab: usize) -> Result<Tokenizer, GenerateError> {
    let beside = request.hf.join("tokenizer.json");
    match &request.tokenizer {
        Some(path) => Ok(Tokenizer::open(path)?),
        None if beside.is_file() => Ok(Tokenizer::open(&beside)?),
        None if vocab <= 256 => Ok(Tokenizer::Bytes),
        None => Err(GenerateError::NoTokenizer { vocab, hf: request.hf.clone() }),
    }
}

fn encode(tokenizer: &Tokenizer, prompt: &str, vocab: usize) -> Result<Vec<i64>, GenerateError> {
    let tokens = tokenizer.encode(prompt)?;
    if let Some(&token) = tokens.iter().find(|&&token| token >= vocab as i64) {
        return Err(GenerateError::Vocabulary { token, vocab });
    }
    if tokens.is_empty() { Err(GenerateError::EmptyPrompt) } else { Ok(tokens) }
}

/// Tokens and how much of their text was shown.
struct Text<'a> {
    tokenizer: &'a Tokenizer,
    /// Texts before which it ends.
    stops: &'a [String],
    tokens: Vec<i64>,
    shown: String,
    /// Bytes of the prompt.
    prompt: usize,
}

impl<'a> Text<'a> {
    /// The text of a prompt, which was shown.
    fn new(tokenizer: &'a Tokenizer, stops: &'a [String], prompt: &[i64]) -> Result<Text<'a>, GenerateError> {
        let shown = tokenizer.decode(prompt)?;
        Ok(Text { tokenizer, stops, tokens: prompt.to_vec(), prompt: shown.len(), shown })
    }

    /// The text not shown yet, held back while its last character may be incomplete or its end may begin a stop, unless it
    /// is `whole`. A stop and what is behind it are never shown.
    fn piece(&mut self, whole: bool) -> Result<&str, GenerateError> {
        let mut text = self.tokenizer.decode(&self.tokens)?;
        let from = self.shown.len();
        if let Some(at) = self.stop_in(&text) {
            text.truncate(at);
        } else if !whole {
            text.truncate(text.len() - self.held_back(&text));
        }
        if whole || !text.ends_with(char::REPLACEMENT_CHARACTER) && text.starts_with(&self.shown) {
            self.shown = text;
        }
        Ok(self.shown.get(from..).unwrap_or(""))
    }

    /// Where the first stop begins in the continuation.
    fn stop_in(&self, text: &str) -> Option<usize> {
        let continuation = text.get(self.prompt..)?;
        let first = self.stops.iter().filter_map(|stop| continuation.find(stop.as_str())).min();
        first.map(|at| self.prompt + at)
    }

    /// Bytes at the end of `text` with which a stop may begin.
    fn held_back(&self, text: &str) -> usize {
        let continuation = text.get(self.prompt..).unwrap_or("");
        let begun = |stop: &String| {
            let starts = (1..stop.len()).rev().filter(|&length| stop.is_char_boundary(length));
            starts.into_iter().find(|&length| continuation.ends_with(&stop[..length])).unwrap_or(0)
        };
        self.stops.iter().map(begun).max().unwrap_or(0)
    }

    /// Whether the tokens contain a stop.
    fn is_stopped(&self) -> bool {
        !self.stops.is_empty()
            && self.tokenizer.decode(&self.tokens).is_ok_and(|text| self.stop_in(&text).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_is_shown_when_it_is_whole() {
        let mut text = Text::new(&Tokenizer::Bytes, &[], &[]).unwrap();
        text.tokens = vec![97, 0xC3];
        assert_eq!(text.piece(false).unwrap(), "");
        text.tokens.push(0xA4);
        assert_eq!(text.piece(false).unwrap(), "aä");
        text.tokens.push(0xC3);
        assert_eq!(text.piece(true).unwrap(), "\u{FFFD}");
    }

    #[test]
    fn a_stop_is_never_shown_and_what_may_begin_one_only_when_it_does_not() {
        let stops = ["\nUser:".to_string(), "###".to_string()];
        let prompt: Vec<i64> = "###\nUser: hi\n".bytes().map(i64::from).collect();
        let mut text = Text::new(&Tokenizer::Bytes, &stops, &prompt).unwrap();
        let mut shown = Vec::new();
        for byte in "a\nUs b##c\nUser: more".bytes() {
            text.tokens.push(i64::from(byte));
            shown.push(text.piece(false).unwrap().to_string());
            if text.is_stopped() {
                break;
            }
        }
        shown.push(text.piece(true).unwrap().to_string());
        let want = ["a", "", "", "", "\nUs ", "b", "", "", "##c", "", "", "", "", "", "", ""];
        assert_eq!(shown, want);
    }
}
