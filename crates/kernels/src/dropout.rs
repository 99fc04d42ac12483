//! Dropout: zeroes random elements and scales up the others.
//!
//! Reads `x[n]` and `hyper[8]`, whose element 3 is the step number; writes `y[n]`, and adds to it if `accumulate`. Element i is
//! kept iff the uniform number of (seed, salt, step, offset + i) is at least `rate`. The gradient of the kernel is
//! the kernel itself, applied to dy.

use crate::call::{Call, Kernel, no_scratch};
use crate::{Team, dispatch, params, random};

params! {
    /// The parameters of `dropout`.
    pub struct DropoutParams {
        /// Number of elements.
        pub n: usize,
        /// The probability of zeroing an element, below 1.
        pub rate: f32,
        /// The seed of the training run.
        pub seed: u64,
        /// Tells this dropout from the others of the model.
        pub salt: u64,
        /// The global index of element 0.
        pub offset: u64,
        /// Whether y is added to instead of overwritten.
        pub accumulate: bool,
    }
}

/// The element of hyper that holds the step number.
const STEP: usize = 3;

/// `y[i] = x[i] / (1 - rate)` where element i is kept, else 0.
pub fn dropout_reference(y: &mut [f32], x: &[f32], hyper: &[f32], params: DropoutParams) {
    let seed = random::derive(params.seed, params.salt, hyper[STEP] as u64);
    let scale = 1.0 / (1.0 - params.rate);
    for i in 0..params.n {
        let keep = random::uniform(seed, 0, params.offset + i as u64) >= params.rate;
        let value = if keep { x[i] * scale } else { 0.0 };
        y[i] = if params.accumulate { y[i] + value } else { value };
    }
}

/// The fast version of [`dropout_reference`].
pub fn dropout(y: &mut [f32], x: &[f32], hyper: &[f32], params: DropoutParams, team: &Team) {
    let seed = random::derive(params.seed, params.salt, hyper[STEP] as u64);
    let (y, x) = (&mut y[..params.n], &x[..params.n]);
    team.for_each_part(y, random::GROUP, |first, y| {
        let part = DropoutParams { seed, offset: params.offset + first as u64, ..params };
        apply(y, &x[first..first + y.len()], part);
    });
}

dispatch! {
    /// Drops elements of one part; `part.seed` is the derived one.
    fn apply(y: &mut [f32], x: &[f32], part: DropoutParams) {
        let scale = 1.0 / (1.0 - part.rate);
        for piece in random::pieces(part.offset, y.len()) {
            let words = random::group(part.seed, 0, piece.group);
            let (y, x) = (&mut y[piece.part.clone()], &x[piece.part]);
            for ((y, &x), &word) in y.iter_mut().zip(x).zip(&words[piece.within..]) {
                let value = if random::unit(word) >= part.rate { x * scale } else { 0.0 };
                *y = if part.accumulate { *y + value } else { value };
            }
        }
    }
}

fn call_reference(call: &mut Call<'_>) {
    let y = call.write(0);
    dropout_reference(y, call.read(0), call.read(1), DropoutParams::from_words(call.params));
}

fn call_fast(call: &mut Call<'_>) {
    let y = call.write(0);
    dropout(y, call.read(0), call.read(1), DropoutParams::from_words(call.params), call.team);
}

/// The kernels of this file.
pub const KERNELS: &[Kernel] =
    &[Kernel { name: "dropout", fast: call_fast, reference: call_reference, scratch: no_scratch }];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    const HYPER: [f32; 8] = [0.1, 0.2, 0.3, 17.0, 0.0, 0.0, 0.0, 0.0];

    fn params(n: usize, offset: u64, accumulate: bool) -> DropoutParams {
        DropoutParams { n, rate: 0.3, seed: 11, salt: 5, offset, accumulate }
    }

    fn run(params: DropoutParams, cores: usize) -> Vec<f32> {
        let x: Vec<f32> = (0..params.n).map(|i| i as f32 * 0.25 + 1.0).collect();
        let mut y = vec![3.0; params.n];
        dropout(&mut y, &x, &HYPER, params, &Team::new(cores));
        y
    }

    #[test]
    fn fast_equals_reference_in_every_bit() {
        for n in [0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 200] {
            for (offset, accumulate) in [(0, false), (1, true), (64, false), (1000, true)] {
                let params = params(n, offset, accumulate);
                let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.25 + 1.0).collect();
                let mut want = vec![3.0; n];
                dropout_reference(&mut want, &x, &HYPER, params);
                assert_eq!(run(params, 1), want, "{n} elements from {offset}");
            }
        }
    }

    #[test]
    fn bits_are_the_same_for_every_team_tile_and_instruction_set() {
        let n = crate::spmd::ALONE + 77;
        let want = run(params(n, 0, false), 1);
        for cores in 2..5 {
            assert_eq!(run(params(n, 0, false), cores), want, "{cores} cores");
        }
        let tail: Vec<f32> =
            run(params(n - 100, 100, false), 2).iter().map(|y| f32::from(*y != 0.0)).collect();
        assert_eq!(tail, want[100..].iter().map(|y| f32::from(*y != 0.0)).collect::<Vec<_>>());
        for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
            Isa::select(isa);
            assert_eq!(run(params(n, 0, false), 1), want, "{isa:?}");
        }
        Isa::select(Isa::best());
    }

    #[test]
    fn the_rate_is_met_and_steps_differ() {
        let n = 1 << 16;
        // Five standard deviations of a binomial: 5 sqrt(0.3 · 0.7 / n).
        const DEVIATION: f64 = 0.009;
        let y = run(params(n, 0, false), 1);
        let dropped = y.iter().filter(|&&y| y == 0.0).count() as f64 / n as f64;
        assert!((dropped - 0.3).abs() < DEVIATION, "dropped {dropped}");
        let (mut other, mut hyper) = (vec![0.0; n], HYPER);
        hyper[STEP] = 18.0;
        let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.25 + 1.0).collect();
        dropout(&mut other, &x, &hyper, params(n, 0, false), &Team::new(1));
        assert_ne!(other, y);
    }
}
