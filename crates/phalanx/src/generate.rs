//! Text from a trained model: one token at a time, each from a whole pass over the context.

mod sample;

pub use sample::Sampling;

use std::path::PathBuf;
use std::time::Instant;

use phalanx_kernels::random;

use crate::data::{Tokenizer, TokenizerError};
use crate::pipeline::Settings;
use crate::setters::with_setters;
use crate::{Error, Goal, Session, hf};

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
        /// Seed of the draws.
        pub seed: u64,
        /// Cores to use.
        pub cores: usize,
    }
}

impl Request {
    /// Adds at most 100 tokens to `prompt`, with the model in the directory `hf`, on all cores.
    pub fn new(hf: PathBuf, prompt: String) -> Request {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let sampling = Sampling::default();
        Request { hf, tokenizer: None, prompt, tokens: 100, sampling, ignore_end: false, seed: 0, cores }
    }
}

/// What was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Prompt and continuation.
    pub text: String,
    /// Tokens of the prompt.
    pub prompt: Vec<i64>,
    /// Tokens of the continuation.
    pub tokens: Vec<i64>,
    /// Whether the model ended its text.
    pub ended: bool,
    /// Seconds spent on the continuation.
    pub seconds: f64,
}

/// Why no text can be written.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum GenerateError {
    /// The model is not a language model.
    #[error("a model of family `{family}` writes no text; use gpt2 or llama")]
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
}

/// Writes text; `emit` is shown it piece by piece, beginning with the prompt.
///
/// A prompt longer than the model's context is continued from its tail.
pub fn generate(request: &Request, mut emit: impl FnMut(&str)) -> Result<Outcome, Error> {
    request.sampling.check()?;
    let model = hf::read_config(&request.hf)?.with_dropout(0.0);
    let (Some(vocab), Some(context)) = (model.vocab(), model.context()) else {
        return Err(GenerateError::Family { family: model.family() }.into());
    };
    let tokenizer = tokenizer(request, vocab)?;
    let prompt = encode(&tokenizer, &request.prompt, vocab)?;
    let time = context.min(prompt.len().saturating_add(request.tokens));
    let settings = Settings { cores: request.cores, ..Settings::new(Goal::Infer) };
    let mut session = Session::new(&model.logits_graph(1, time)?, &settings)?;
    for (name, values) in &hf::read_weights(&request.hf, &hf::tensors(&model)?)? {
        session.feed(name, values)?;
    }
    let ends = if request.ignore_end { Vec::new() } else { hf::end_tokens(&request.hf)? };
    let start = Instant::now();
    let mut ended = false;
    let mut text = Text { tokenizer: &tokenizer, tokens: prompt.clone(), shown: String::new() };
    for index in 0..request.tokens {
        emit(text.piece(false)?);
        let logits = next_logits(&mut session, &text.tokens, time, vocab)?;
        let draw = random::uniform(request.seed, STREAM, index as u64);
        let token = request.sampling.pick(&logits, &text.tokens, draw);
        ended = ends.contains(&token);
        if ended {
            break;
        }
        text.tokens.push(token);
    }
    emit(text.piece(true)?);
    let seconds = start.elapsed().as_secs_f64();
    let tokens = text.tokens.split_off(prompt.len());
    Ok(Outcome { text: text.shown, prompt, tokens, ended, seconds })
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

/// The scores of the token after `tokens`, from the last `time` of them.
fn next_logits(session: &mut Session, tokens: &[i64], time: usize, vocab: usize) -> Result<Vec<f32>, Error> {
    let tail = &tokens[tokens.len().saturating_sub(time)..];
    let mut window = tail.to_vec();
    // A causal model does not see what stands after the last token.
    window.resize(time, 0);
    session.feed("tokens", &window)?;
    session.run()?;
    let last = (tail.len() - 1) * vocab;
    Ok(session.read("logits")?[last..last + vocab].to_vec())
}

/// Tokens and how much of their text was shown.
struct Text<'a> {
    tokenizer: &'a Tokenizer,
    tokens: Vec<i64>,
    shown: String,
}

impl Text<'_> {
    /// The text not shown yet, held back while its last character may be incomplete, unless it is `whole`.
    fn piece(&mut self, whole: bool) -> Result<&str, GenerateError> {
        let text = self.tokenizer.decode(&self.tokens)?;
        let from = self.shown.len();
        if whole || !text.ends_with(char::REPLACEMENT_CHARACTER) && text.starts_with(&self.shown) {
            self.shown = text;
        }
        Ok(self.shown.get(from..).unwrap_or(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_is_shown_when_it_is_whole() {
        let mut text = Text { tokenizer: &Tokenizer::Bytes, tokens: vec![97, 0xC3], shown: String::new() };
        assert_eq!(text.piece(false).unwrap(), "");
        text.tokens.push(0xA4);
        assert_eq!(text.piece(false).unwrap(), "aä");
        text.tokens.push(0xC3);
        assert_eq!(text.piece(true).unwrap(), "\u{FFFD}");
    }
}
