//! The two rates that bound a kernel: what cores compute at most, and what memory brings them.

use std::hint::black_box;
use std::time::Instant;

use phalanx_ir::Binary;
use phalanx_kernels::binary::{BinaryParams, Broadcast, binary};
use phalanx_kernels::matmul::{fma_burn, fma_burn_flops};
use phalanx_kernels::{Launch, Team};
use serde::Serialize;

use crate::costs::Work;
use crate::{Error, memory};

/// What some cores reach at most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Peaks {
    /// The cores.
    pub cores: usize,
    /// Fused multiply-adds, in 10⁹ floating-point operations a second.
    pub gflops: f64,
    /// Bytes to and from memory, in 10⁹ a second.
    pub gb_per_s: f64,
}

/// Bytes of the arrays that are streamed: more than the caches of most processors.
const STREAMED: usize = 256 << 20;

/// How often they are.
const ROUNDS: usize = 7;

impl Peaks {
    /// Measures a team of `cores` cores, with nothing else running.
    pub fn measure(cores: usize) -> Result<Peaks, Error> {
        Ok(Peaks { cores, gflops: fma_peak(cores), gb_per_s: bandwidth(cores)? })
    }

    /// The least seconds that some work takes, by what it computes and by what it moves.
    pub(super) fn seconds(&self, work: Work) -> (f64, f64) {
        (work.flops / (1e9 * self.gflops), work.bytes / (1e9 * self.gb_per_s))
    }
}

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

/// The best rate of adding two arrays into a third, in 10⁹ bytes a second. As those of kernels, bytes are of operands and
/// results; that a processor may read what it is about to overwrite is part of its rate.
fn bandwidth(cores: usize) -> Result<f64, Error> {
    memory::check(STREAMED as u64)?;
    let (team, n) = (Team::new(cores), STREAMED / 12);
    let (mut sum, a, b) = (vec![0.0; n], vec![1.0; n], vec![2.0; n]);
    let params = BinaryParams { kind: Binary::Add, broadcast: Broadcast::new(&[n], &[n]) };
    let mut round = || {
        let start = Instant::now();
        binary(&mut sum, &a, &b, params, &mut Launch::plain(&team));
        (12 * n) as f64 / start.elapsed().as_secs_f64() / 1e9
    };
    // The first round also makes the pages of the sum.
    round();
    Ok((0..ROUNDS).map(|_| round()).fold(0.0, f64::max))
}
