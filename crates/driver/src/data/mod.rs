//! What a model is trained on: a corpus of tokens, and which part of it each step sees.
//!
//! The corpus is cut into windows of `context + 1` tokens. Sample `i` of step `s` is window number `s * batch + i` of an
//! endless row in which every window comes once an epoch, in an order drawn from seed and epoch. So a batch depends on
//! nothing but the step: not on plan, devices or earlier batches, and resuming needs no reader state.

mod corpus;
mod grammar;
mod order;
mod text;
mod tokenizer;

pub use grammar::Entropy;
pub use text::DataError;
pub use tokenizer::{Tokenizer, TokenizerError};

use std::path::Path;

use corpus::Corpus;

/// A corpus with its tokenizer and the order in which its windows are seen.
#[derive(Debug)]
pub struct Dataset {
    name: String,
    corpus: Corpus,
    tokenizer: Tokenizer,
    cut: Cut,
    seed: u64,
    entropy: Option<f64>,
}

/// Where windows begin.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// At every multiple of their length.
    Even,
    /// At the first such token from there on: nothing that a window predicts depends on what came before it.
    From(i64),
}

impl Dataset {
    /// The embedded corpus: a few megabytes of simple English sentences from a random grammar, as bytes.
    pub fn grammar(seed: u64) -> Dataset {
        Dataset {
            name: "grammar".into(),
            corpus: Corpus::from_bytes(grammar::text(seed)),
            tokenizer: Tokenizer::Bytes,
            cut: Cut::From(i64::from(grammar::END)),
            seed,
            entropy: Some(grammar::entropy().per_byte()),
        }
    }

    /// The UTF-8 text of a file, or of all files below a directory in the order of their paths, as bytes.
    pub fn open_text(path: &Path, seed: u64) -> Result<Dataset, DataError> {
        let corpus = text::open(path)?;
        Ok(Dataset::new(path, corpus, Tokenizer::Bytes, seed))
    }

    /// The same text as tokens of a `tokenizer.json`, all encoded now.
    pub fn open_tokenized(path: &Path, tokenizer: &Path, seed: u64) -> Result<Dataset, DataError> {
        let text = text::open(path)?;
        let tokenizer = Tokenizer::open(tokenizer)?;
        let corpus = tokenizer::encode_corpus(&tokenizer, &text)?;
        if corpus.is_empty() {
            return Err(DataError::Empty { path: path.into() });
        }
        Ok(Dataset::new(path, corpus, tokenizer, seed))
    }

    fn new(path: &Path, corpus: Corpus, tokenizer: Tokenizer, seed: u64) -> Dataset {
        Dataset { name: path.display().to_string(), corpus, tokenizer, cut: Cut::Even, seed, entropy: None }
    }

    /// What the corpus is called: `grammar`, or its path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One more than the largest token.
    pub fn vocab(&self) -> usize {
        self.tokenizer.vocab()
    }

    /// Turns text into tokens and back.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// How many tokens the corpus has.
    pub fn tokens(&self) -> usize {
        self.corpus.len()
    }

    /// How many windows there are: samples in an epoch.
    pub fn windows(&self, context: usize) -> usize {
        (self.tokens() / (context + 1)).max(1)
    }

    /// The least mean loss any model can reach, in nats per token, where it is known.
    pub fn entropy(&self) -> Option<f64> {
        self.entropy
    }

    /// Checks that the corpus fills a window.
    pub fn check(&self, context: usize) -> Result<(), DataError> {
        if self.tokens() > context {
            return Ok(());
        }
        Err(DataError::TooShort { name: self.name.clone(), tokens: self.tokens(), context })
    }

    /// Fills in the batch of a step, samples one after another; `targets` are `tokens` one position later.
    ///
    /// Allocates nothing. A corpus that does not pass [`Dataset::check`] is repeated to fill the window.
    ///
    /// # Panics
    ///
    /// If a slice does not have `batch * context` elements.
    pub fn batch(&self, step: u64, batch: usize, context: usize, tokens: &mut [i64], targets: &mut [i64]) {
        assert_eq!(tokens.len(), batch * context, "tokens hold the batch");
        assert_eq!(targets.len(), batch * context, "targets hold the batch");
        for sample in 0..batch {
            let number = step.wrapping_mul(batch as u64).wrapping_add(sample as u64);
            let range = sample * context..(sample + 1) * context;
            self.window(number, &mut tokens[range.clone()], &mut targets[range]);
        }
    }

    /// Fills in window `number` of the endless row.
    fn window(&self, number: u64, tokens: &mut [i64], targets: &mut [i64]) {
        let context = tokens.len();
        let windows = self.windows(context) as u64;
        let place = order::permuted(self.seed, number / windows, number % windows, windows);
        let start = self.start(place as usize * (context + 1));
        for (position, token) in self.corpus.read(start).take(context + 1).enumerate() {
            if position < context {
                tokens[position] = token;
            }
            if position > 0 {
                targets[position - 1] = token;
            }
        }
    }

    /// Where the window at `place` begins.
    fn start(&self, place: usize) -> usize {
        match self.cut {
            Cut::Even => place,
            Cut::From(first) => {
                let ahead = self.corpus.read(place).take(self.tokens()).position(|token| token == first);
                place + ahead.unwrap_or(0)
            }
        }
    }
}

#[cfg(test)]
mod tests;
