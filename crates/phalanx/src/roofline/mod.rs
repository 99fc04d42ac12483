//! Where the time of a step goes, and how far that is from what the machine could do.
//!
//! A kernel takes at least as long as its operations at the peak of its device's cores, and as its bytes at the peak of
//! memory: its *roofline*. [`measure`] runs steps, takes the time of every operation and sums both by kernel, layer or
//! operation, over all lanes that compute. Rows and idle time add up to the time of these lanes; a lane that only moves
//! bytes beside a computing one takes none of its time and is told apart. What kernels do is counted in
//! [`costs`](crate::costs); here is no second count.

mod peaks;
mod sums;
#[cfg(test)]
mod tests;

pub use peaks::{Peaks, fma_peak};

use std::ops::Range;
use std::time::Instant;

use phalanx_ir::graph::Graph;
use phalanx_kernels::random;
use serde::Serialize;

use crate::pipeline::Settings;
use crate::{Error, Trainer};
use sums::Times;

/// What operations have in common that are one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Their kernel.
    #[default]
    Kernel,
    /// Their layer, forward and backward.
    Layer,
    /// Kernel, layer and sizes.
    Operation,
}

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bench {
    /// Steps to measure, at least one.
    pub steps: usize,
    /// Steps before those.
    pub warmup: usize,
    /// Tokens the model knows: random ones are fed.
    pub vocab: usize,
    /// What a row is.
    pub by: By,
}

/// Where the time of a step goes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Roofline {
    /// What a row is.
    pub by: By,
    /// Steps measured.
    pub steps: usize,
    /// Devices of the plan.
    pub devices: usize,
    /// What the cores of one device reach: the roofline of a kernel.
    pub device_peaks: Peaks,
    /// Fused multiply-adds of the cores of all devices together, in 10⁹ floating-point operations a second.
    pub fma_peak_gflops: f64,
    /// Milliseconds of a step.
    pub ms_per_step: f64,
    /// 10⁹ floating-point operations a second of the whole step.
    pub gflops: f64,
    /// `gflops` of `fma_peak_gflops`.
    pub peak_share: f64,
    /// Milliseconds in which computing lanes do nothing, of all together.
    pub idle_ms: f64,
    /// The share of `idle_ms` in the time of these lanes.
    pub idle_share: f64,
    /// Longest first.
    pub rows: Vec<Row>,
    /// All lanes, those of transfers too.
    pub lanes: Vec<LaneTime>,
}

/// Operations of one kind, in a step, on all computing lanes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Kernel, layer or operation.
    pub name: String,
    /// Milliseconds.
    pub ms: f64,
    /// Share of the time of all computing lanes.
    pub share: f64,
    /// How many operations.
    pub launches: usize,
    /// 10⁹ floating-point operations a second.
    pub gflops: f64,
    /// 10⁹ bytes a second.
    pub gb_per_s: f64,
    /// The least time by the device's peaks as a share of the time taken; above one if operands were in a cache.
    pub roofline_share: f64,
    /// What that least time is.
    pub bound_by: RooflineLimit,
    /// Milliseconds more than the least.
    pub lost_ms: f64,
}

/// What a kernel's time depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RooflineLimit {
    /// Its floating-point operations.
    Compute,
    /// Its bytes.
    Memory,
    /// Neither: they explain less than a tenth of it.
    Overhead,
}

/// What a lane does in a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LaneTime {
    /// Its device.
    pub device: u32,
    /// Whether it only moves bytes, beside the lane that computes.
    pub beside: bool,
    /// Milliseconds in kernels.
    pub computing_ms: f64,
    /// Milliseconds in transfers, to and from other devices and the host.
    pub moving_ms: f64,
    /// The rest: milliseconds without anything to do.
    pub idle_ms: f64,
}

/// The learning rate of the steps, which plays no part in their time.
const RATE: f32 = 1e-3;

/// Trains `model`, a language model, on random tokens and tells where the time goes. Peaks are measured first; let nothing
/// else run meanwhile.
pub fn measure(model: &Graph, settings: &Settings, bench: &Bench) -> Result<Roofline, Error> {
    let (devices, cores) = (settings.plan.mesh.devices(), settings.cores);
    let device = Peaks::measure(cores)?;
    let available = std::thread::available_parallelism().map_or(cores, usize::from);
    let fma = if devices == 1 { device.gflops } else { fma_peak(available.min(devices * cores)) };
    let (mut trainer, steps) = (Trainer::with_settings(model, settings)?, bench.steps.max(1));
    run(&mut trainer, bench.vocab, 0..bench.warmup)?;
    let (profile, start) = (trainer.session_mut().profile(), Instant::now());
    run(&mut trainer, bench.vocab, bench.warmup..bench.warmup + steps)?;
    let wall = start.elapsed().as_secs_f64();
    let seconds: Vec<f64> = profile.seconds().collect();
    let times = Times { program: trainer.session().part(), seconds: &seconds, wall, steps };
    Ok(times.roofline(bench.by, device, fma))
}

/// Runs steps as training does: each is launched before the one before it has ended.
fn run(trainer: &mut Trainer, vocab: usize, steps: Range<usize>) -> Result<(), Error> {
    let mut ports = trainer.session().program().ports().iter();
    let count = ports.find(|port| port.name == "tokens").map_or(0, |port| port.ty.shape.elements());
    let mut before = None;
    for step in steps {
        for (name, tokens) in ["tokens", "targets"].into_iter().zip(&random_tokens(count, vocab, step)) {
            trainer.session_mut().feed(name, tokens)?;
        }
        let launched = trainer.launch(RATE)?;
        before.replace(launched).map(|run| trainer.wait(run)).transpose()?;
    }
    before.map(|run| trainer.wait(run)).transpose()?;
    Ok(())
}

/// The `count` tokens of a step and their targets, drawn from `vocab`.
pub fn random_tokens(count: usize, vocab: usize, step: usize) -> [Vec<i64>; 2] {
    let pick = |stream, index| (random::derive(step as u64, stream, index) % vocab.max(1) as u64) as i64;
    [0, 1].map(|stream| (0..count as u64).map(|index| pick(stream, index)).collect())
}
