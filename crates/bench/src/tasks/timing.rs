//! Timing something again and again: the median, and the best, which is what remains when nothing disturbs.

use std::time::Instant;

use serde::Serialize;

use crate::median;

/// How some times lie.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle.
    pub median: f64,
    /// The least.
    pub best: f64,
}

impl Spread {
    /// Of these seconds, in units of which a second has `per_second`.
    pub(super) fn of(seconds: &[f64], per_second: f64) -> Self {
        let best = seconds.iter().copied().fold(f64::INFINITY, f64::min);
        Self { median: median(seconds) * per_second, best: best * per_second }
    }
}

/// Seconds of each of `repeat` calls of `run`, after one that is not timed.
pub(super) fn timed<E>(repeat: usize, mut run: impl FnMut() -> Result<(), E>) -> Result<Vec<f64>, E> {
    run()?;
    let time = |_| {
        let start = Instant::now();
        run()?;
        Ok(start.elapsed().as_secs_f64())
    };
    (0..repeat).map(time).collect()
}
