//! What a model is trained on: a corpus of tokens, and which part of it each step sees.
//!
//! The corpus is cut into windows of `context + 1` tokens. Sample `i` of step `s` is window number `s * batch + i` of an
//! endless row in which every window comes once an epoch, in an order drawn from seed and epoch. So a batch depends on
//! nothing but the step: not on plan, devices or earlier batches, and resuming needs no reader state.
//!
//! Windows can be held back to evaluate on ([`Dataset::hold_back`]). Of files these are the last ones, so the row of the
//! others is another one than without; the embedded corpus gets text of its own for it, so nothing changes.

mod cache;
mod corpus;
mod documents;
mod error;
mod files;
mod grammar;
mod order;
mod source;
mod token_file;
mod tokenizer;

pub use cache::EncodingProgress;
pub use error::DataError;
pub use grammar::Entropy;
pub use source::{DataSource, cache_dir};
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
    held: HeldBack,
    seed: u64,
    entropy: Option<f64>,
    note: Option<String>,
}

/// What is kept from training.
#[derive(Debug)]
enum HeldBack {
    Nothing,
    /// This share of the windows, the last ones.
    Last(f64),
    /// Nothing of the corpus: there is another one of the same kind.
    Apart(Corpus),
}

/// The epoch from which the order of held windows is drawn: one that no training comes to.
const HELD_EPOCH: u64 = u64::MAX;

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
            corpus: Corpus::from_bytes(grammar::text(seed, grammar::SIZE)),
            tokenizer: Tokenizer::Bytes,
            cut: Cut::From(i64::from(grammar::END)),
            held: HeldBack::Nothing,
            seed,
            entropy: Some(grammar::entropy().per_byte()),
            note: None,
        }
    }

    /// The tokens of files, which are encoded now unless the cache has them.
    pub fn open(
        source: &DataSource<'_>,
        seed: u64,
        progress: &mut EncodingProgress<'_>,
    ) -> Result<Dataset, DataError> {
        let source::Opened { corpus, tokenizer, note } = source.open(progress)?;
        Ok(Dataset { note, ..Dataset::new(source.path, corpus, tokenizer, seed) })
    }

    /// The UTF-8 text of a file, or of all files below a directory in the order of their paths, as bytes.
    pub fn open_text(path: &Path, seed: u64) -> Result<Dataset, DataError> {
        Dataset::open(&DataSource::new(path), seed, &mut |_, _| ())
    }

    fn new(path: &Path, corpus: Corpus, tokenizer: Tokenizer, seed: u64) -> Dataset {
        let name = path.display().to_string();
        Dataset {
            name,
            corpus,
            tokenizer,
            cut: Cut::Even,
            held: HeldBack::Nothing,
            seed,
            entropy: None,
            note: None,
        }
    }

    /// Keeps a share of the windows, above 0 and below 1, from training, for [`Dataset::held_batch`]. Of files these are
    /// the last windows, at least one. The embedded corpus stays as it is: other sentences of the same grammar are held,
    /// as many as the share says.
    pub fn hold_back(&mut self, share: f64) {
        self.held = match self.cut {
            Cut::Even => HeldBack::Last(share),
            Cut::From(_) => {
                let size = (grammar::SIZE as f64 * share) as usize;
                HeldBack::Apart(Corpus::from_bytes(grammar::text(order::mix(!self.seed), size)))
            }
        };
    }

    /// What the corpus is called: `grammar`, or its path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Something that the user should know about how the data was read.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
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

    /// The first tokens, at most this number.
    pub fn head(&self, count: usize) -> Vec<i64> {
        self.corpus.read(0).take(count.min(self.tokens())).collect()
    }

    /// How many windows are trained on: samples in an epoch.
    pub fn windows(&self, context: usize) -> usize {
        let all = windows_of(&self.corpus, context);
        match self.held {
            HeldBack::Nothing | HeldBack::Apart(_) => all,
            HeldBack::Last(_) => (all - self.held_windows(context)).max(1),
        }
    }

    /// How many windows are held back.
    pub fn held_windows(&self, context: usize) -> usize {
        match &self.held {
            HeldBack::Nothing => 0,
            HeldBack::Last(share) => {
                let all = windows_of(&self.corpus, context);
                ((all as f64 * share).ceil() as usize).clamp(1, all)
            }
            HeldBack::Apart(corpus) => windows_of(corpus, context),
        }
    }

    /// The least mean loss any model can reach, in nats per token, where it is known.
    pub fn entropy(&self) -> Option<f64> {
        self.entropy
    }

    /// Checks that the corpus fills a window, and a second one if some are held back.
    pub fn check(&self, context: usize) -> Result<(), DataError> {
        let (name, tokens) = (self.name.clone(), self.tokens());
        match self.held {
            _ if tokens <= context => Err(DataError::TooShort { name, tokens, context }),
            HeldBack::Last(share) if self.held_windows(context) == windows_of(&self.corpus, context) => {
                let windows = windows_of(&self.corpus, context);
                Err(DataError::AllHeld { name, windows, share })
            }
            _ => Ok(()),
        }
    }

    /// Fills in the batch of a step, samples one after another; `targets` are `tokens` one position later.
    ///
    /// Allocates nothing. A corpus that does not pass [`Dataset::check`] is repeated to fill the window.
    ///
    /// # Panics
    ///
    /// If a slice does not have `batch * context` elements.
    pub fn batch(&self, step: u64, batch: usize, context: usize, tokens: &mut [i64], targets: &mut [i64]) {
        let windows = self.windows(context) as u64;
        for (number, (tokens, targets)) in samples(step, batch, context, tokens, targets) {
            let place = order::permuted(self.seed, number / windows, number % windows, windows);
            self.window(&self.corpus, place as usize, tokens, targets);
        }
    }

    /// The same of the windows that are held back, which come in one order for ever; nothing if there are none.
    ///
    /// # Panics
    ///
    /// If a slice does not have `batch * context` elements.
    pub fn held_batch(
        &self,
        number: u64,
        batch: usize,
        context: usize,
        tokens: &mut [i64],
        targets: &mut [i64],
    ) {
        let (corpus, first) = match &self.held {
            HeldBack::Nothing => return,
            HeldBack::Last(_) => (&self.corpus, self.windows(context)),
            HeldBack::Apart(corpus) => (corpus, 0),
        };
        let windows = self.held_windows(context) as u64;
        for (number, (tokens, targets)) in samples(number, batch, context, tokens, targets) {
            let place = order::permuted(self.seed, HELD_EPOCH, number % windows, windows);
            self.window(corpus, first + place as usize, tokens, targets);
        }
    }

    /// Fills in the window at a place of a corpus.
    fn window(&self, corpus: &Corpus, place: usize, tokens: &mut [i64], targets: &mut [i64]) {
        let context = tokens.len();
        let start = self.start(corpus, place * (context + 1));
        for (position, token) in corpus.read(start).take(context + 1).enumerate() {
            if position < context {
                tokens[position] = token;
            }
            if position > 0 {
                targets[position - 1] = token;
            }
        }
    }

    /// Where the window at `place` begins.
    fn start(&self, corpus: &Corpus, place: usize) -> usize {
        match self.cut {
            Cut::Even => place,
            Cut::From(first) => {
                let ahead = corpus.read(place).take(corpus.len()).position(|token| token == first);
                place + ahead.unwrap_or(0)
            }
        }
    }
}

/// How many windows a corpus has; one that it does not fill counts.
fn windows_of(corpus: &Corpus, context: usize) -> usize {
    (corpus.len() / (context + 1)).max(1)
}

/// The samples of a batch: the number of each in the row of all batches, and where it goes.
fn samples<'a>(
    number: u64,
    batch: usize,
    context: usize,
    tokens: &'a mut [i64],
    targets: &'a mut [i64],
) -> impl Iterator<Item = (u64, (&'a mut [i64], &'a mut [i64]))> {
    assert_eq!(tokens.len(), batch * context, "tokens hold the batch");
    assert_eq!(targets.len(), batch * context, "targets hold the batch");
    let context = context.max(1);
    let first = number.wrapping_mul(batch as u64);
    let places = tokens.chunks_exact_mut(context).zip(targets.chunks_exact_mut(context));
    (0..).map(move |sample| first.wrapping_add(sample)).zip(places)
}

#[cfg(test)]
mod tests;
