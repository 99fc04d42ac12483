//! The body of every task: a number of dependent multiply-adds, the same loop in every measured system.

use std::cell::Cell;
use std::hint::black_box;
use std::time::Instant;

thread_local! {
    /// Where the chain of this thread has come to.
    static CHAIN: Cell<f64> = const { Cell::new(2.0) };
}

/// Keeps the core busy for `grain` iterations of one chain, in which each needs the one before; 0 does nothing.
///
/// A body goes on with the chain of the one before it on its thread: chains of their own would overlap in the
/// processor, and a system that runs all tasks on one core would be faster than the core.
pub fn busy(grain: u64) {
    if grain == 0 {
        return;
    }
    let mut x = CHAIN.get();
    for _ in 0..grain {
        // Tends to one, far from the slow numbers near zero and from infinity.
        x = x * 0.999_999 + 0.000_001;
    }
    // Kept, for the next body reads it: a black box would go through memory once more, in every body.
    CHAIN.set(x);
}

/// Seconds that one iteration of [`busy`] takes alone on a core: the best of several runs, which is what remains when
/// nothing disturbs.
pub fn calibrate() -> f64 {
    const ITERATIONS: u64 = 200_000;
    const ROUNDS: usize = 64;
    let run = || {
        let start = Instant::now();
        busy(black_box(ITERATIONS));
        start.elapsed().as_secs_f64()
    };
    (0..ROUNDS).map(|_| run()).fold(f64::INFINITY, f64::min) / ITERATIONS as f64
}
