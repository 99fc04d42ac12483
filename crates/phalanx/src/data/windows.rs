//! A corpus cut into windows, and which of them are kept from training.
//!
//! Held back is the end of the corpus, from the beginning of a document if one begins about there. Where none does, it is
//! the last windows.

use super::corpus::Corpus;
use super::{DataError, grammar, order};

/// The epoch from which the order of held windows is drawn: one that no training comes to.
const HELD_EPOCH: u64 = u64::MAX;

/// How much more or less than its share may be held back so that it begins with a document.
const LEEWAY: f64 = 2.0;

/// A corpus and the order in which its windows are seen.
#[derive(Debug)]
pub(super) struct WindowedCorpus {
    pub(super) corpus: Corpus,
    cut: Cut,
    held: HeldBack,
    seed: u64,
    /// Whether prompts are left out of the loss.
    ignores_prompts: bool,
}

/// Where windows begin.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cut {
    /// At every multiple of their length.
    Even,
    /// At the first such token from there on: nothing that a window predicts depends on what came before it.
    From(i64),
}

/// What is kept from training.
#[derive(Debug)]
enum HeldBack {
    Nothing,
    /// About this share of the tokens, the last ones.
    Last(f64),
    /// Nothing of the corpus: there is another one of the same kind.
    Apart(Corpus),
}

/// Windows one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    /// Where the first one begins.
    start: usize,
    count: usize,
}

impl WindowedCorpus {
    pub(super) fn new(corpus: Corpus, cut: Cut, seed: u64) -> WindowedCorpus {
        WindowedCorpus { corpus, cut, held: HeldBack::Nothing, seed, ignores_prompts: false }
    }

    /// Leaves prompts out of the loss.
    pub(super) fn ignore_prompts(self) -> WindowedCorpus {
        WindowedCorpus { ignores_prompts: true, ..self }
    }

    pub(super) fn hold_back(&mut self, share: f64) {
        self.held = match self.cut {
            Cut::Even => HeldBack::Last(share),
            Cut::From(_) => {
                let size = (grammar::SIZE as f64 * share) as usize;
                HeldBack::Apart(Corpus::from_bytes(grammar::text(order::mix(!self.seed), size)))
            }
        };
    }

    /// How many windows are trained on.
    pub(super) fn trained(&self, context: usize) -> usize {
        self.rows(context).0.count
    }

    /// How many windows are held back.
    pub(super) fn held(&self, context: usize) -> usize {
        self.rows(context).1.count
    }

    /// Whether the held part begins with a document.
    pub(super) fn holds_documents(&self, context: usize) -> bool {
        matches!(self.held, HeldBack::Last(share) if self.document_split(context, share).is_some())
    }

    /// The windows that are trained on and those that are held back.
    fn rows(&self, context: usize) -> (Row, Row) {
        let all = Row { start: 0, count: windows_of(self.corpus.len(), context) };
        match &self.held {
            HeldBack::Nothing => (all, Row { start: 0, count: 0 }),
            HeldBack::Apart(corpus) => (all, Row { start: 0, count: windows_of(corpus.len(), context) }),
            &HeldBack::Last(share) => match self.document_split(context, share) {
                Some(split) => {
                    let trained = windows_of(split, context);
                    let held = windows_of(self.corpus.len() - split, context);
                    (Row { start: 0, count: trained }, Row { start: split, count: held })
                }
                None => {
                    let held = ((all.count as f64 * share).ceil() as usize).clamp(1, all.count);
                    let trained = (all.count - held).max(1);
                    let start = trained * (context + 1);
                    (Row { start: 0, count: trained }, Row { start, count: held })
                }
            },
        }
    }

    /// The beginning of the document from which on about a share of the tokens is held back, if there is one that leaves
    /// windows on both sides.
    fn document_split(&self, context: usize, share: f64) -> Option<usize> {
        let all = self.corpus.len();
        let wanted = all as f64 * share;
        let is_fit = |&split: &usize| {
            let held = all - split;
            let is_near = (wanted / LEEWAY..=wanted * LEEWAY).contains(&(held as f64));
            is_near && split > context && held > context
        };
        let starts = self.corpus.document_starts(all - wanted as usize);
        starts.filter(is_fit).min_by_key(|&split| (all - split).abs_diff(wanted as usize))
    }

    /// Checks that the corpus fills a window, and a second one if some are held back, and that both have something to
    /// predict.
    pub(super) fn check(&self, name: &str, context: usize) -> Result<(), DataError> {
        let (name, tokens) = (name.to_string(), self.corpus.len());
        if tokens <= context {
            return Err(DataError::TooShort { name, tokens, context });
        }
        let (trained, held) = self.rows(context);
        let windows = windows_of(tokens, context);
        match self.held {
            HeldBack::Last(share) if held.count == windows => {
                return Err(DataError::AllHeld { name, windows, share });
            }
            _ => {}
        }
        let mut labels = vec![0; context];
        let mut has_answer = |row: Row| {
            (0..row.count)
                .any(|place| self.answers(&self.corpus, row.start + place * (context + 1), &mut labels))
        };
        let has_answers = [trained, held].into_iter().filter(|row| row.count > 0).all(&mut has_answer);
        match !self.ignores_prompts || has_answers {
            true => Ok(()),
            false => Err(DataError::NoAnswers { name, context }),
        }
    }

    /// Fills in a window to train on, by its number in the row of all epochs.
    pub(super) fn fill(&self, number: u64, tokens: &mut [i64], targets: &mut [i64]) {
        let row = self.rows(tokens.len()).0;
        let (epoch, place) = (number / row.count as u64, number % row.count as u64);
        let place = order::permuted(self.seed, epoch, place, row.count as u64);
        self.window(&self.corpus, row, place as usize, tokens, targets);
    }

    /// Fills in a window that is held back; they come in one order for ever. Nothing if there are none.
    pub(super) fn fill_held(&self, number: u64, tokens: &mut [i64], targets: &mut [i64]) {
        let row = self.rows(tokens.len()).1;
        let Some(place) = number.checked_rem(row.count as u64) else { return };
        let corpus = if let HeldBack::Apart(corpus) = &self.held { corpus } else { &self.corpus };
        let place = order::permuted(self.seed, HELD_EPOCH, place, row.count as u64);
        self.window(corpus, row, place as usize, tokens, targets);
    }

    /// Fills in the window at a place of a row, or the next one that has something to predict.
    fn window(&self, corpus: &Corpus, row: Row, place: usize, tokens: &mut [i64], targets: &mut [i64]) {
        let context = tokens.len();
        for place in (place..row.count).chain(0..place) {
            let start = self.start(corpus, row.start + place * (context + 1));
            for (position, token) in corpus.read(start).take(context + 1).enumerate() {
                if position < context {
                    tokens[position] = token;
                }
                if position > 0 {
                    targets[position - 1] = token;
                }
            }
            if self.answers(corpus, start, targets) {
                return;
            }
        }
    }

    /// Takes prompts out of the targets of the window at `start`, if they are not trained on; whether any target is left.
    fn answers(&self, corpus: &Corpus, start: usize, targets: &mut [i64]) -> bool {
        !self.ignores_prompts || corpus.ignore_prompts(start + 1, targets)
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

/// How many windows a number of tokens has; one that they do not fill counts.
fn windows_of(tokens: usize, context: usize) -> usize {
    (tokens / (context + 1)).max(1)
}
