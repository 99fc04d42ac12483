//! What a model is trained on: corpora of tokens, and which part of them each step sees.
//!
//! A corpus is cut into windows of `context + 1` tokens. Sample `i` of step `s` is window number `s * batch + i` of an
//! endless row in which every window comes once an epoch, in an order drawn from seed and epoch. So a batch depends on
//! nothing but the step: not on plan, devices or earlier batches, and resuming needs no reader state. Of several corpora
//! each has such a row, and the number of a sample also decides from which one it is taken.
//!
//! Windows can be held back to evaluate on ([`Dataset::hold_back`]). Of files these are the last ones, so the row of the
//! others is another one than without; the embedded corpus gets text of its own for it, so nothing changes.

mod cache;
mod chat;
mod corpus;
mod documents;
mod error;
mod files;
mod grammar;
mod identity;
mod mixture;
mod offsets;
mod order;
mod parquet;
mod records;
mod source;
mod stamp;
mod token_file;
mod token_set;
mod tokenizer;
mod windows;

pub use cache::EncodingProgress;
pub use chat::{ChatError, ChatMessage, ChatTemplate, Conversation};
pub use error::DataError;
pub use grammar::Entropy;
pub use identity::DataIdentity;
pub use source::{DataSource, cache_dir};
pub use tokenizer::{Tokenizer, TokenizerError};

use std::path::Path;

use corpus::Corpus;
use mixture::Mixture;
use windows::{Cut, WindowedCorpus};

/// Corpora with their tokenizer and the order in which their windows are seen.
#[derive(Debug)]
pub struct Dataset {
    name: String,
    /// One or more, with their names.
    corpora: Vec<(String, WindowedCorpus)>,
    /// Their weights.
    weights: Vec<f64>,
    mixture: Mixture,
    tokenizer: Tokenizer,
    entropy: Option<f64>,
    note: Option<String>,
}

/// One of several corpora.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixedCorpus<'a> {
    /// Its path.
    pub name: &'a str,
    /// Its share of the samples.
    pub share: f64,
    /// How many tokens it has.
    pub tokens: usize,
    /// How many of its windows are trained on.
    pub windows: usize,
}

impl Dataset {
    /// The embedded corpus: a few megabytes of simple English sentences from a random grammar, as bytes.
    pub fn grammar(seed: u64) -> Dataset {
        let corpus = Corpus::from_bytes(grammar::text(seed, grammar::SIZE));
        let corpus = WindowedCorpus::new(corpus, Cut::From(i64::from(grammar::END)), seed);
        Dataset {
            name: "grammar".into(),
            corpora: vec![("grammar".into(), corpus)],
            weights: vec![1.0],
            mixture: Mixture::new(&[1.0], seed),
            tokenizer: Tokenizer::Bytes,
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
        let source::Opened { corpora, tokenizer, note } = source.open(progress)?;
        // Without weights every window comes equally often.
        let weight =
            |(weighted, corpus): &(mixture::Weighted, Corpus)| weighted.weight.unwrap_or(corpus.len() as f64);
        let weights: Vec<f64> = corpora.iter().map(weight).collect();
        let windowed = |(number, (weighted, corpus)): (u64, (mixture::Weighted, Corpus))| {
            let seed = if number == 0 { seed } else { order::mix(seed ^ order::mix(number)) };
            let windowed = WindowedCorpus::new(corpus, Cut::Even, seed);
            let windowed = if source.mask_prompt { windowed.ignore_prompts() } else { windowed };
            (weighted.path.display().to_string(), windowed)
        };
        let corpora = (0..).zip(corpora).map(windowed).collect();
        let (name, mixture) = (source.path.display().to_string(), Mixture::new(&weights, seed));
        Ok(Dataset { name, corpora, weights, mixture, tokenizer, entropy: None, note })
    }

    /// The UTF-8 text of a file, or of all files below a directory in the order of their paths, as bytes.
    pub fn open_text(path: &Path, seed: u64) -> Result<Dataset, DataError> {
        Dataset::open(&DataSource::new(path), seed, &mut |_, _| ())
    }

    /// Keeps about a share of the windows, above 0 and below 1, from training, for [`Dataset::held_batch`]. Of files these
    /// are the last documents, or the last windows if no document begins about there; at least one. The embedded corpus
    /// stays as it is: other sentences of the same grammar are held, as many as the share says.
    pub fn hold_back(&mut self, share: f64) {
        self.corpora.iter_mut().for_each(|(_, corpus)| corpus.hold_back(share));
    }

    /// What the data is called: `grammar`, or its path.
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

    /// How many tokens there are.
    pub fn tokens(&self) -> usize {
        self.all().map(Corpus::len).sum()
    }

    /// How many documents there are. A file of tokens that tells nothing of documents counts as one.
    pub fn documents(&self) -> usize {
        self.all().map(Corpus::documents).sum()
    }

    /// How many tokens are prompts, on which a run with `mask_prompt` does not train.
    pub fn prompt_tokens(&self) -> usize {
        self.all().map(Corpus::prompt_tokens).sum()
    }

    /// The first tokens, at most this number.
    pub fn head(&self, count: usize) -> Vec<i64> {
        self.all().flat_map(|corpus| corpus.read(0).take(corpus.len())).take(count).collect()
    }

    /// How many windows are trained on: samples in an epoch.
    pub fn windows(&self, context: usize) -> usize {
        self.corpora.iter().map(|(_, corpus)| corpus.trained(context)).sum()
    }

    /// How many windows are held back.
    pub fn held_windows(&self, context: usize) -> usize {
        self.corpora.iter().map(|(_, corpus)| corpus.held(context)).sum()
    }

    /// Whether the windows that are held back are those of whole documents.
    pub fn holds_documents(&self, context: usize) -> bool {
        self.corpora.iter().all(|(_, corpus)| corpus.holds_documents(context))
    }

    /// What the data is mixed of; one entry if it is not.
    pub fn mixed(&self, context: usize) -> Vec<MixedCorpus<'_>> {
        let sum: f64 = self.weights.iter().sum();
        let corpora = self.corpora.iter().zip(&self.weights);
        let describe = corpora.map(|((name, corpus), weight)| MixedCorpus {
            name,
            share: weight / sum,
            tokens: corpus.corpus.len(),
            windows: corpus.trained(context),
        });
        describe.collect()
    }

    fn all(&self) -> impl Iterator<Item = &Corpus> {
        self.corpora.iter().map(|(_, corpus)| &corpus.corpus)
    }

    /// The least mean loss any model can reach, in nats per token, where it is known.
    pub fn entropy(&self) -> Option<f64> {
        self.entropy
    }

    /// Checks that each corpus fills a window, and a second one if some are held back.
    pub fn check(&self, context: usize) -> Result<(), DataError> {
        self.corpora.iter().try_for_each(|(name, corpus)| corpus.check(name, context))
    }

    /// Fills in the batch of a step, samples one after another; `targets` are `tokens` one position later. Targets that are
    /// not trained on are [`IGNORE_LABEL`](crate::models::IGNORE_LABEL).
    ///
    /// Allocates nothing. A corpus that does not pass [`Dataset::check`] is repeated to fill the window.
    ///
    /// # Panics
    ///
    /// If a slice does not have `batch * context` elements.
    pub fn batch(&self, step: u64, batch: usize, context: usize, tokens: &mut [i64], targets: &mut [i64]) {
        for (number, (tokens, targets)) in samples(step, batch, context, tokens, targets) {
            let (corpus, number) = self.mixture.place(number);
            self.corpora[corpus].1.fill(number, tokens, targets);
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
        for (number, (tokens, targets)) in samples(number, batch, context, tokens, targets) {
            let (corpus, number) = self.mixture.place(number);
            self.corpora[corpus].1.fill_held(number, tokens, targets);
        }
    }
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
