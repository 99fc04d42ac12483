//! How fast a GPT-2 trains.

use std::time::Instant;

use phalanx::internals::roofline::{fma_peak, random_tokens};
use phalanx::ir::Precision;
use phalanx::pipeline::{Fusion, Settings};
use phalanx::{Decays, Error, Goal, Optimizer, Profile, Trainer, UpdateRule};
use phalanx_models::{Gpt2Config, LanguageModel, ModelConfig};
use serde::Serialize;

use super::median;

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TrainBench {
    /// Transformer blocks.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Tokens in a sequence.
    pub context: usize,
    /// Sequences in a step.
    pub batch: usize,
    /// Tokens the model knows.
    pub vocab: usize,
    /// Cores to use.
    pub cores: usize,
    /// Steps to time.
    pub steps: usize,
    /// Steps before those.
    pub warmup_steps: usize,
    /// Whether element-wise tasks are joined.
    pub fusion: Fusion,
    /// What matrix products are computed in.
    pub precision: Precision,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrainResult {
    /// What was asked for.
    #[serde(flatten)]
    pub bench: TrainBench,
    /// Tokens per second of the median step.
    pub tokens_per_s: f64,
    /// Tokens per second of the fastest step.
    pub best_tokens_per_s: f64,
    /// Milliseconds of the median step.
    pub ms_per_step: f64,
    /// Milliseconds of the fastest step.
    pub best_ms_per_step: f64,
    /// Arithmetic of the median step: 6 operations a weight of a matrix product and token, and attention's products
    /// over the half of the scores that a causal model needs.
    pub gflops: f64,
    /// The machine's peak on these cores.
    pub fma_peak_gflops: f64,
    /// `gflops` of `fma_peak_gflops`.
    pub peak_share: f64,
    /// Bytes of the arena.
    pub peak_bytes: usize,
    /// Trained numbers.
    pub parameters: u64,
    /// The loss of the last step.
    pub loss: f32,
    /// Where the time went, longest first.
    pub kernels: Vec<KernelTime>,
}

/// Time of one kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelTime {
    /// The kernel.
    pub kernel: String,
    /// Milliseconds in a step.
    pub ms: f64,
    /// Share of all kernels' time.
    pub share: f64,
}

impl TrainBench {
    fn model(&self) -> Result<Gpt2Config, Error> {
        let ModelConfig::Gpt2(base) =
            ModelConfig::preset("gpt2", "tiny").map_err(phalanx::train::ConfigError::from)?
        else {
            unreachable!("a preset is of the family it is asked for");
        };
        let &TrainBench { layers, heads, width, context, vocab, .. } = self;
        Ok(Gpt2Config { layers, heads, width, hidden: 4 * width, vocab, context, ..base })
    }

    /// Floating-point operations of a step.
    fn flops(&self) -> f64 {
        let [layers, width, context, batch, vocab] =
            [self.layers, self.width, self.context, self.batch, self.vocab].map(|size| size as f64);
        let weights = 12.0 * layers * width * width + vocab * width;
        let attention = 12.0 * layers * width * context / 2.0;
        (6.0 * weights + attention) * batch * context
    }
}

/// Trains on random tokens and measures the steps.
pub fn train(bench: &TrainBench) -> Result<TrainResult, Error> {
    let model = bench.model()?;
    let graph = model.training_graph(bench.batch, bench.context)?;
    let rule = UpdateRule::Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8, decoupled: true };
    let optimizer = Optimizer::new(rule).decay(0.1).decays(Decays::Matrices);
    let &TrainBench { cores, fusion, precision, .. } = bench;
    let settings = Settings::new(Goal::Train(optimizer)).cores(cores).fusion(fusion).precision(precision);
    let mut trainer = Trainer::with_settings(&graph, &settings)?;
    let peak_before = fma_peak(bench.cores);
    for step in 0..bench.warmup_steps {
        timed_step(&mut trainer, bench, step)?;
    }
    let profile = trainer.session_mut().profile();
    let (mut seconds, mut loss) = (Vec::new(), f32::NAN);
    for step in 0..bench.steps.max(1) {
        let taken;
        (taken, loss) = timed_step(&mut trainer, bench, bench.warmup_steps + step)?;
        seconds.push(taken);
    }
    let peak = fma_peak(bench.cores).max(peak_before);
    let (middle, best) = (median(&seconds), seconds.iter().copied().fold(f64::INFINITY, f64::min));
    let tokens = (bench.batch * bench.context) as f64;
    let gflops = bench.flops() / middle / 1e9;
    Ok(TrainResult {
        bench: *bench,
        tokens_per_s: tokens / middle,
        best_tokens_per_s: tokens / best,
        ms_per_step: 1e3 * middle,
        best_ms_per_step: 1e3 * best,
        gflops,
        fma_peak_gflops: peak,
        peak_share: gflops / peak,
        peak_bytes: trainer.session().arena_bytes(),
        parameters: model.parameters(),
        loss,
        kernels: kernel_times(&profile, &trainer),
    })
}

/// One step on fresh random tokens: its seconds and its loss.
fn timed_step(trainer: &mut Trainer, bench: &TrainBench, step: usize) -> Result<(f64, f32), Error> {
    let tokens = random_tokens(bench.batch * bench.context, bench.vocab, step);
    let start = Instant::now();
    for (name, tokens) in ["tokens", "targets"].into_iter().zip(&tokens) {
        trainer.session_mut().feed(name, tokens)?;
    }
    let loss = trainer.run(1e-3)?.loss;
    Ok((start.elapsed().as_secs_f64(), loss))
}

/// How long each kernel took in a step, longest first.
pub(crate) fn kernel_times(profile: &Profile, trainer: &Trainer) -> Vec<KernelTime> {
    let sums = profile.by_kernel(trainer.session().program());
    let all: f64 = sums.iter().map(|(_, seconds)| seconds).sum();
    let runs = profile.runs().max(1) as f64;
    let time = |(kernel, seconds): (String, f64)| KernelTime {
        kernel,
        ms: 1e3 * seconds / runs,
        share: seconds / all.max(f64::MIN_POSITIVE),
    };
    sums.into_iter().map(time).collect()
}
