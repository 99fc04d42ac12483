//! A model that remembers: the keys and values of tokens it has read stay in memory, so that another token costs one row.
//!
//! Two programs share the work. `decode` takes one token and gives the scores of the next; `prefill` takes a block of
//! tokens and gives no scores. It is compiled when a text has enough tokens for it, and again when one has more. Each has its own copy of weights
//! and caches; after each run the new rows go to both. All sums have a fixed order, so the scores have the bits of one
//! pass over the whole text.

use phalanx_ir::Precision;

use crate::models::{CachedGraph, ModelConfig};
use crate::pipeline::Settings;
use crate::{Error, Goal, Session};

use super::GenerateError;

/// The most tokens that `prefill` takes at once.
const MOST: usize = 512;

/// With fewer tokens than this, reading them one by one is faster than compiling `prefill`.
const WORTH_COMPILING: usize = 32;

/// With fewer tokens than this, or fewer than this part of what `prefill` takes, one by one is faster than running it.
const WORTH_A_BLOCK: (usize, usize) = (8, 16);

/// The weights of a model and the tokens it has read.
pub struct Decoder {
    model: ModelConfig,
    settings: Settings,
    /// The most tokens the model sees at once: rows of the caches.
    capacity: usize,
    decode: Pass,
    prefill: Option<Pass>,
    /// The tokens whose keys and values are cached.
    read: Vec<i64>,
}

/// A program over a fixed number of tokens.
struct Pass {
    session: Session,
    time: usize,
    /// Outputs and the caches to which they are added.
    caches: Vec<(String, String)>,
}

impl Pass {
    fn new(graph: CachedGraph, time: usize, settings: &Settings) -> Result<Pass, Error> {
        Ok(Pass { session: Session::without_weights(&graph.graph, settings)?, time, caches: graph.caches })
    }

    /// Runs over `tokens`, at most as many as it takes, behind `past` cached ones; positions are below `limit`.
    fn run(&mut self, tokens: &[i64], past: usize, limit: usize) -> Result<(), Error> {
        // A causal model does not see what stands behind the last token.
        let mut padded = tokens.to_vec();
        padded.resize(self.time, 0);
        let positions: Vec<i64> = (past..past + self.time).map(|at| at.min(limit - 1) as i64).collect();
        self.session.feed("tokens", &padded)?;
        self.session.feed("positions", &positions)?;
        self.session.feed("past", &vec![past as i64])?;
        self.session.run()
    }

    /// The first `count` new rows of each cache.
    fn rows(&self, count: usize) -> Result<Vec<Vec<f32>>, Error> {
        let rows = |(rows, _): &(String, String)| {
            let all = self.session.read(rows)?;
            Ok(all[..all.len() / self.time * count].to_vec())
        };
        self.caches.iter().map(rows).collect()
    }

    /// Puts rows into the caches behind `past` others.
    fn keep(&mut self, rows: &[Vec<f32>], count: usize, past: usize) -> Result<(), Error> {
        for ((_, cache), rows) in self.caches.iter().zip(rows) {
            self.session.feed_part(cache, past * rows.len() / count, rows)?;
        }
        Ok(())
    }
}

impl Decoder {
    /// A model that sees at most `capacity` tokens at once; its weights are still to be fed.
    pub fn new(
        model: &ModelConfig,
        capacity: usize,
        cores: usize,
        precision: Precision,
    ) -> Result<Decoder, Error> {
        let settings = Settings { cores, precision, ..Settings::new(Goal::Infer) };
        let graph = model.decode_graph(capacity)?;
        let graph = graph.ok_or(GenerateError::Family { family: model.family() })?;
        let decode = Pass::new(graph, 1, &settings)?;
        Ok(Decoder { model: model.clone(), settings, capacity, decode, prefill: None, read: Vec::new() })
    }

    /// Sets the parameter called `name`. What was read before is read again.
    pub fn feed(&mut self, name: &str, values: &Vec<f32>) -> Result<(), Error> {
        (self.prefill, self.read) = (None, Vec::new());
        self.decode.session.feed(name, values)
    }

    /// The scores of the token after `tokens`, of which at least one is there, from as many of the last ones as the model
    /// sees. Only what does not begin like the tokens of the last call is read; when the window over a long text moves
    /// on, that is all of it.
    pub fn next_logits(&mut self, tokens: &[i64]) -> Result<Vec<f32>, Error> {
        let window = &tokens[tokens.len().saturating_sub(self.capacity)..];
        let Some((&last, before)) = window.split_last() else {
            return Err(GenerateError::EmptyPrompt.into());
        };
        let same = self.read.iter().zip(before).take_while(|(a, b)| a == b).count();
        self.read.truncate(same);
        while self.read.len() < before.len() {
            let new = &before[self.read.len()..];
            let time = self.block_for(new.len());
            let is_there = self.prefill.as_ref().is_some_and(|prefill| prefill.time == time);
            let least = if is_there { WORTH_A_BLOCK.0.max(time / WORTH_A_BLOCK.1) } else { WORTH_COMPILING };
            match new.len() >= least {
                true => self.read_block(&new[..new.len().min(time)], time)?,
                false => self.read_one(new[0])?,
            }
        }
        self.read_one(last)?;
        Ok(self.decode.session.read("logits")?.into_owned())
    }

    fn read_one(&mut self, token: i64) -> Result<(), Error> {
        self.decode.run(&[token], self.read.len(), self.capacity)?;
        let rows = self.decode.rows(1)?;
        self.keep(&rows, &[token])
    }

    /// How many tokens `prefill` is to take when so many are to be read: what it takes now, if they are not more.
    fn block_for(&self, count: usize) -> usize {
        let wanted = count.next_multiple_of(WORTH_A_BLOCK.1).min(MOST).min(self.capacity);
        self.prefill.as_ref().map_or(wanted, |prefill| prefill.time.max(wanted))
    }

    /// Reads at most `time` tokens with a `prefill` that takes `time`.
    fn read_block(&mut self, tokens: &[i64], time: usize) -> Result<(), Error> {
        if self.prefill.as_ref().is_none_or(|prefill| prefill.time != time) {
            let graph = self.model.prefill_graph(time, self.capacity)?;
            let graph = graph.ok_or(GenerateError::Family { family: self.model.family() })?;
            let mut prefill = Pass::new(graph, time, &self.settings)?;
            // Caches are parameters: they come along.
            prefill.session.copy_weights(&mut self.decode.session)?;
            self.prefill = Some(prefill);
        }
        let Some(prefill) = &mut self.prefill else { return Ok(()) };
        prefill.run(tokens, self.read.len(), self.capacity)?;
        let rows = prefill.rows(tokens.len())?;
        self.keep(&rows, tokens)
    }

    /// Caches the rows of tokens that were read.
    fn keep(&mut self, rows: &[Vec<f32>], tokens: &[i64]) -> Result<(), Error> {
        for pass in [Some(&mut self.decode), self.prefill.as_mut()].into_iter().flatten() {
            pass.keep(rows, tokens.len(), self.read.len())?;
        }
        self.read.extend(tokens);
        Ok(())
    }
}
