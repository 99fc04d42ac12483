//! Measurements: the machine's peak, our matrix product against OpenBLAS, whole training steps, checkpoints against plain
//! files, the compiler, graphs of small tasks, copies against `memcpy`, launches of kernels, hidden communication against
//! what is predicted, and transfers between ranks.
//!
//! Everything is measured in this process with the wall clock; on a machine with other load, best times say more than
//! means.

mod checkpoints;
mod compile;
mod copies;
mod gemm;
mod launches;
mod overlap;
mod ranks;
pub mod tasks;
mod train;

pub use checkpoints::{Beside, Writing, checkpoint_writing, checkpointed_training};
pub use compile::{COMPILE_SIZES, CompileBench, CompileResult, compile};
pub use copies::{
    CopiesBench, CopiesError, CopyResult, CopyShape, REPLAYED_SIZES, ReplayedCopies, copy_sizes,
};
pub use gemm::{GemmBench, GemmResult, Shape, gemm, shapes};
pub use launches::{LaunchCost, launches};
pub use overlap::{OverlapResult, overlap};
pub use ranks::{Exchange, ExchangeRow, exchange};
pub(crate) use train::random_tokens;
pub use train::{KernelTime, TrainBench, TrainResult, train};

use std::hint::black_box;
use std::time::Instant;

use phalanx_kernels::Team;
use phalanx_kernels::matmul::{fma_burn, fma_burn_flops};

/// The most fused multiply-adds `cores` cores do at once, in GFLOP/s of 32-bit floats: the best of a few short runs.
pub fn fma_peak(cores: usize) -> f64 {
    fma_peak_on(&Team::new(cores))
}

fn fma_peak_on(team: &Team) -> f64 {
    const ROUNDS: usize = 16;
    // A new team's members may start on one core; the system takes a moment to part them.
    const SETTLE: f64 = 0.2;
    let burn = |iterations: u64| {
        let start = Instant::now();
        team.run(team.cores(), &|_, _| _ = black_box(fma_burn(black_box(iterations))));
        start.elapsed().as_secs_f64()
    };
    // A run of about ten milliseconds is long to the clock and short to the system's scheduler.
    let tried = 10_000;
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < SETTLE {
        burn(tried);
    }
    let iterations = (tried as f64 * 0.01 / burn(tried).max(1e-9)).clamp(1e3, 1e9) as u64;
    let best = (0..ROUNDS).map(|_| burn(iterations)).fold(f64::INFINITY, f64::min);
    fma_burn_flops(iterations) as f64 * team.cores() as f64 / best / 1e9
}

/// The middle of some values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n.is_multiple_of(2) => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
        n => sorted[n / 2],
    }
}
