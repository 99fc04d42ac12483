//! What checkpoints cost: training with them beside training without, and writing one beside writing plain bytes.
//!
//! Both sides are measured in turns, so that a noisy machine hits them alike.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use phalanx::ckpt::{self, Disk, FORMAT, Manifest, RunState, SaveError, Snapshot, Storage, Writer};
use phalanx::internals::roofline::random_tokens;
use phalanx::train::{Run, TrainConfig};
use phalanx::{Error, Trainer};
use serde::Serialize;

use super::median;

/// Tokens that the model whose checkpoints are written knows: bytes.
const VOCAB: usize = 256;

/// Bytes of a write to the plain file.
const CHUNK: usize = 4 << 20;

/// Rates beside those of a reference that was measured in turns with them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Beside {
    /// The rate of each round.
    pub rates: Vec<f64>,
    /// That of the reference.
    pub reference: Vec<f64>,
    /// The rate as a share of the reference's of the same round, the median.
    pub median_ratio: f64,
    /// The best rate as a share of the reference's.
    pub best_ratio: f64,
}

/// Checkpoints of one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Writing {
    /// Bytes of a checkpoint.
    pub bytes: u64,
    /// MB/s of a checkpoint from the copy of the state to its commit; the reference is a plain file of the same bytes.
    #[serde(flatten)]
    pub mb_per_s: Beside,
}

impl Beside {
    fn new(rounds: Vec<(f64, f64)>) -> Beside {
        let ratios: Vec<f64> = rounds.iter().map(|(rate, reference)| rate / reference).collect();
        let (rates, reference): (Vec<f64>, Vec<f64>) = rounds.into_iter().unzip();
        let best = |rates: &[f64]| rates.iter().copied().fold(0.0, f64::max);
        let median_ratio = median(&ratios);
        let best_ratio = best(&rates) / best(&reference);
        Beside { rates, reference, median_ratio, best_ratio }
    }
}

/// Tokens per second with a checkpoint every `every` steps, below `dir`, beside those without any, `rounds` times.
pub fn checkpointed_training(
    config: &TrainConfig,
    dir: &Path,
    every: u64,
    rounds: usize,
) -> Result<Beside, Error> {
    // A block ends long before the run does: the end of a run waits for its last checkpoint.
    let without = config.clone().steps(every.saturating_mul(2));
    let checkpoint = dir.join("training");
    let with = without.clone().checkpoint(Some(checkpoint.clone())).every(Some(every));
    let saving = || -> Result<f64, Error> {
        let rate = block(&with, every)?;
        remove(&checkpoint)?;
        Ok(rate)
    };
    // As below, the order alternates.
    let round = |number: usize| match number % 2 {
        0 => Ok((saving()?, block(&without, every)?)),
        _ => {
            let reference = block(&without, every)?;
            Ok((saving()?, reference))
        }
    };
    Ok(Beside::new((0..rounds).map(round).collect::<Result<_, Error>>()?))
}

/// Tokens per second of as many steps as there are between checkpoints. One is due in their middle, so that it is
/// copied and written while they are timed.
fn block(config: &TrainConfig, every: u64) -> Result<f64, Error> {
    let mut run = Run::new(config.clone())?;
    for _ in 0..every / 2 {
        run.step()?;
    }
    let start = Instant::now();
    for _ in 0..every {
        run.step()?;
    }
    let tokens = every as usize * config.batch * config.context_of(run.model());
    Ok(tokens as f64 / start.elapsed().as_secs_f64())
}

/// MB/s of checkpoints that are waited for, below `dir`, beside plain files of the same bytes, `rounds` times. All of
/// them stay until the end: what a disk does with blocks that were freed would be counted as part of a write.
pub fn checkpoint_writing(config: &TrainConfig, dir: &Path, rounds: usize) -> Result<Writing, Error> {
    let mut subject = Subject::new(config, dir, rounds + 1)?;
    let (mut times, mut bytes) = (Vec::new(), 0);
    for round in 0..=rounds as u64 {
        let plain = dir.join(format!("plain-{round}"));
        let write_plain = |subject: &Subject| {
            write_plain(&plain, &subject.snapshot.contents()).map_err(|source| at("write", &plain, source))
        };
        // The second write finds the disk as the first one has left it, so the order alternates.
        times.push(match round % 2 {
            0 => (subject.save(round)?, write_plain(&subject)?),
            _ => {
                let plain = write_plain(&subject)?;
                (subject.save(round)?, plain)
            }
        });
        bytes = subject.manifest.files[0].bytes;
    }
    // The first round only makes memory and disk ready.
    let rate = |seconds: f64| bytes as f64 / seconds / 1e6;
    let rates = times.iter().skip(1).map(|&(ours, plain)| (rate(ours), rate(plain)));
    Ok(Writing { bytes, mb_per_s: Beside::new(rates.collect()) })
}

/// What is saved, and what is needed for it.
struct Subject {
    trainer: Trainer,
    writer: Writer,
    snapshot: Snapshot,
    manifest: Manifest,
}

impl Subject {
    /// A model after its first step: before it, the state of the optimizer would be all zeros.
    fn new(config: &TrainConfig, dir: &Path, keep: usize) -> Result<Subject, Error> {
        let model = config.language_model(VOCAB)?;
        let context = config.context_of(&model);
        let graph = config.training_graph(&model)?;
        let settings = config.settings(&graph)?;
        let mut trainer = Trainer::with_settings(&graph, &settings)?;
        let tokens = random_tokens(config.batch * context, VOCAB, 0);
        for (name, tokens) in ["tokens", "targets"].into_iter().zip(&tokens) {
            trainer.session_mut().feed(name, tokens)?;
        }
        trainer.run(1e-3)?;
        let session = trainer.session();
        let run = RunState::before_first_step(config, &model, &settings, session)?;
        let manifest = Manifest { format: FORMAT, run, tensors: ckpt::tensors(session), files: Vec::new() };
        let snapshot = Snapshot::of(session)?;
        let writer = Writer::new(Arc::new(Disk), dir.join("writing"), keep);
        writer.prepare()?;
        Ok(Subject { trainer, writer, snapshot, manifest })
    }

    /// Seconds to copy the state and to commit it as the checkpoint of `step`.
    fn save(&mut self, step: u64) -> Result<f64, Error> {
        let start = Instant::now();
        self.snapshot.take(self.trainer.session_mut())?;
        self.manifest.run.step = step;
        self.manifest.files = vec![self.writer.write_file(step, 0, &self.snapshot)?];
        self.writer.commit(&self.manifest)?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Seconds to write a file and to sync it.
fn write_plain(path: &Path, contents: &[&[u8]]) -> io::Result<f64> {
    let start = Instant::now();
    let mut file = File::create(path)?;
    for chunk in contents.iter().flat_map(|content| content.chunks(CHUNK)) {
        file.write_all(chunk)?;
    }
    file.sync_all()?;
    Ok(start.elapsed().as_secs_f64())
}

fn remove(path: &Path) -> Result<(), SaveError> {
    Disk.remove(path).map_err(|source| at("remove", path, source))
}

fn at(call: &'static str, path: &Path, source: io::Error) -> SaveError {
    SaveError::Storage { call, path: path.into(), source }
}
