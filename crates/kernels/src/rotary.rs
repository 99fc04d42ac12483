//! Positions as rotations of `[batch, time, heads, dim]`.
//!
//! `rotary` reads x and writes y (accumulates on request); the first step has the time `first`. `rotary_at` reads x and
//! positions `[batch, time]`, the time of each step. Elements i and i + dim/2 of a head form a pair, rotated at time t by
//! the angle t * base^(-2i/dim), the frequency scaled; both frequencies and the angle are rounded to `f32`, as Hugging Face
//! models do. The gradient is the inverse rotation.

use phalanx_ir::RopeScaling;
use phalanx_ir::tasks::TaskView;

use crate::ids::Ids;
use crate::spmd::{Launch, Workspace, by_work};
use crate::{Call, Kernel, Sizes, Work, dispatch, params, signature};

params! {
    /// Settings of `rotary`.
    pub struct Rotary {
        /// Sequences.
        pub batch: usize,
        /// Steps per sequence.
        pub time: usize,
        /// The time of the first step.
        pub first: usize,
        /// Heads per step.
        pub heads: usize,
        /// Elements per head, an even number.
        pub dim: usize,
        /// The base of the frequencies.
        pub base: f32,
        /// What becomes of the frequencies.
        pub scaling: RopeScaling,
        /// Whether to rotate backward.
        pub inverse: bool,
        /// Whether the result is added to what y holds.
        pub accumulate: bool,
    }
}

params! {
    /// Settings of `rotary_at`.
    pub struct RotaryAt {
        /// Those of `rotary`; `first` does not count.
        pub rotary: Rotary,
        /// Whether positions are 32-bit.
        pub positions_i32: bool,
    }
}

impl Rotary {
    fn elements(self) -> usize {
        self.batch * self.time * self.heads * self.dim
    }

    /// Time number `step`; every step of every sequence has its own if they are given.
    fn time(self, step: usize, given: Option<Ids<'_>>) -> f32 {
        given.map_or((self.first + step) as f32, |given| given.get(step) as f32)
    }

    /// How many times there are.
    fn times(self, given: bool) -> usize {
        if given { self.batch * self.time } else { self.time }
    }
}

/// The frequency of pair `i`.
fn frequency(i: usize, params: Rotary) -> f32 {
    let plain = f64::from(params.base).powf(-2.0 * i as f64 / params.dim as f64) as f32;
    params.scaling.scaled(f64::from(plain)) as f32
}

/// The sine and cosine of the angle that pairs of this frequency have at time `t`.
fn sin_cos(t: f32, frequency: f32, inverse: bool) -> (f32, f32) {
    let (sin, cos) = f64::from(t * frequency).sin_cos();
    (if inverse { -sin as f32 } else { sin as f32 }, cos as f32)
}

/// Rotates every pair.
pub fn rotary_reference(y: &mut [f32], x: &[f32], positions: Option<Ids<'_>>, params: Rotary) {
    let Rotary { heads, dim, .. } = params;
    for (row, (x, y)) in x.chunks_exact(dim).zip(y.chunks_exact_mut(dim)).enumerate() {
        let t = params.time(row / heads % params.times(positions.is_some()), positions);
        for i in 0..dim / 2 {
            let (sin, cos) = sin_cos(t, frequency(i, params), params.inverse);
            let (a, b) = (x[i], x[i + dim / 2]);
            let rotated = [(i, a * cos - b * sin), (i + dim / 2, b * cos + a * sin)];
            for (i, value) in rotated {
                y[i] = if params.accumulate { y[i] + value } else { value };
            }
        }
    }
}

/// What [`rotary`] works in: the frequencies, and a sine and a cosine per time step and pair.
fn workspace(params: Rotary, given: bool) -> Workspace {
    Workspace::of::<f32>(params.dim / 2 + params.times(given) * params.dim, 0)
}

/// Rotates every pair, fast.
pub fn rotary(y: &mut [f32], x: &[f32], positions: Option<Ids<'_>>, params: Rotary, launch: &mut Launch<'_>) {
    let times = params.times(positions.is_some());
    let Rotary { batch, time, heads, dim, .. } = params;
    let (frequencies, angles) = launch.common().split_at_mut(dim / 2);
    frequencies.iter_mut().enumerate().for_each(|(i, out)| *out = frequency(i, params));
    let frequencies = &*frequencies;
    launch.split_rows(times, [(&mut *angles, dim)], |range, [angles], _| {
        for (step, angles) in range.zip(angles.chunks_exact_mut(dim)) {
            let (sins, coss) = angles.split_at_mut(dim / 2);
            for ((sin, cos), frequency) in sins.iter_mut().zip(coss).zip(frequencies) {
                (*sin, *cos) = sin_cos(params.time(step, positions), *frequency, params.inverse);
            }
        }
    });
    let (angles, width) = (&*angles, heads * dim);
    launch.split_rows(batch * time, [(y, width)], |range, [y], _| {
        for (row, y) in range.zip(y.chunks_exact_mut(width)) {
            let angles = &angles[row % times * dim..][..dim];
            rotate(y, &x[row * width..][..width], angles, params.accumulate);
        }
    });
}

dispatch! {
    /// Rotates the heads of one time step; `angles` holds its sines, then its cosines.
    fn rotate(y: &mut [f32], x: &[f32], angles: &[f32], accumulate: bool) {
        let half = angles.len() / 2;
        let (sin, cos) = angles.split_at(half);
        for (x, y) in x.chunks_exact(2 * half).zip(y.chunks_exact_mut(2 * half)) {
            let ((a, b), (low, high)) = (x.split_at(half), y.split_at_mut(half));
            for (((((low, high), a), b), sin), cos) in
                low.iter_mut().zip(high).zip(a).zip(b).zip(sin).zip(cos)
            {
                let (first, second) = (a.mul_add(*cos, -(b * sin)), b.mul_add(*cos, a * sin));
                *low = if accumulate { *low + first } else { first };
                *high = if accumulate { *high + second } else { second };
            }
        }
    }
}

impl Kernel for Rotary {
    signature!("rotary": x => y);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let x = task.source(0)?;
        let &[batch, time, heads, dim] = x.ty.shape.dims() else {
            return Err(format!("it rotates [batch, time, heads, elements], not {}", x.ty));
        };
        let (first, base) = (x.origin(1), task.attr("base")?);
        let scaling = task.attr_or("scaling", RopeScaling::None)?;
        let (inverse, accumulate) = (task.is("inverse"), task.is("accumulate"));
        Ok(Rotary { batch, time, first, heads, dim, base, scaling, inverse, accumulate })
    }

    fn reference(&self, call: &mut Call<'_>) {
        rotary_reference(call.write(0), call.read(0), None, *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        rotary(call.write(0), call.read(0), None, *self, &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(3.0 * sizes.result(0), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.elements(), cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        workspace(*self, false)
    }

    fn anywhere(self) -> Self {
        Rotary { first: 0, ..self }
    }
}

impl Kernel for RotaryAt {
    signature!("rotary_at": x, positions => y);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let rotary = Rotary { first: 0, ..Rotary::from_task(task)? };
        Ok(RotaryAt { rotary, positions_i32: task.is_i32(1)? })
    }

    fn reference(&self, call: &mut Call<'_>) {
        let positions = Ids::read(call, 1, self.positions_i32);
        rotary_reference(call.write(0), call.read(0), Some(positions), self.rotary);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let positions = Ids::read(call, 1, self.positions_i32);
        rotary(call.write(0), call.read(0), Some(positions), self.rotary, &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        self.rotary.work(sizes)
    }

    fn blocks(&self, cores: usize) -> i64 {
        self.rotary.blocks(cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        workspace(self.rotary, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Case, Input, assert_close, values};
    use crate::{Team, Words};

    /// Two products and a sum of values below two, each rounded to 2^-24.
    const TOLERANCE: f32 = 5e-7;

    fn case(params: Rotary) -> Case {
        let n = params.batch * params.time * params.heads * params.dim;
        Case::new("rotary", params.to_words()).read(values(n, 1)).write(values(n, 2))
    }

    fn sizes(batch: usize, time: usize, heads: usize, dim: usize) -> Rotary {
        let scaling = RopeScaling::None;
        Rotary {
            batch,
            time,
            first: 0,
            heads,
            dim,
            base: 10_000.0,
            scaling,
            inverse: false,
            accumulate: false,
        }
    }

    #[test]
    fn fast_equals_reference() {
        for dim in [2, 4, 6, 16, 30, 64, 66] {
            for (batch, time, heads) in [(1, 1, 1), (2, 3, 5), (3, 100, 2)] {
                for flag in [false, true] {
                    let params = sizes(batch, time, heads, dim);
                    case(Rotary { inverse: flag, ..params }).check(TOLERANCE);
                    case(Rotary { accumulate: flag, ..params }).check(TOLERANCE);
                    case(Rotary { first: 17, inverse: flag, ..params }).check(TOLERANCE);
                    let scaling = RopeScaling::Llama3 { factor: 4.0, low: 1.0, high: 4.0, original: 32 };
                    case(Rotary { scaling, inverse: flag, ..params }).check(TOLERANCE);
                }
            }
        }
    }

    #[test]
    fn bits_are_the_same_for_every_team_and_instruction_set() {
        case(Rotary { accumulate: true, ..sizes(3, 33, 3, 66) }).check_bits();
    }

    #[test]
    fn a_tile_of_the_time_has_the_bits_of_the_whole() {
        let whole = sizes(1, 24, 3, 10);
        let want = case(whole).fast(&Team::new(1)).remove(0);
        for (first, time) in [(0, 12), (12, 12), (6, 6), (23, 1)] {
            let mut tile = case(Rotary { first, time, ..whole });
            let part = first * 30..(first + time) * 30;
            tile.reads[0] = values(24 * 30, 1)[part.clone()].to_vec().into();
            assert_eq!(tile.fast(&Team::new(2))[0], want[part]);
        }
    }

    #[test]
    fn given_times_have_the_bits_of_counted_ones() {
        let whole = sizes(1, 24, 3, 10);
        let want = case(whole).fast(&Team::new(1)).remove(0);
        let x = values(24 * 30, 1);
        let order: Vec<i64> = (0..24).map(|i| i * 7 % 24).collect();
        let pick =
            |x: &[f32]| order.iter().flat_map(|&t| x[t as usize * 30..][..30].to_vec()).collect::<Vec<_>>();
        for positions_i32 in [false, true] {
            // Two sequences of twelve steps, each with times of its own.
            let rotary = sizes(2, 12, 3, 10);
            let words = RotaryAt { rotary, positions_i32 }.to_words();
            let given = Case::new("rotary_at", words).read(pick(&x)).read(Input::ids(&order, positions_i32));
            let given = given.write(vec![f32::NAN; x.len()]);
            given.check(TOLERANCE);
            assert_eq!(given.fast(&Team::new(2))[0], pick(&want));
        }
    }

    #[test]
    fn the_inverse_undoes_the_rotation() {
        let params = sizes(2, 50, 2, 16);
        let forward = case(params);
        let mut back = case(Rotary { inverse: true, ..params });
        back.reads[0] = forward.fast(&Team::new(1)).remove(0).into();
        assert_close(&back.fast(&Team::new(1))[0], &values(2 * 50 * 2 * 16, 1), TOLERANCE, "x");
    }

    #[test]
    fn angles_are_those_of_the_definition() {
        let mut case = case(sizes(1, 3, 1, 4));
        case.reads[0] = [1.0, 1.0, 0.0, 0.0].repeat(3).into();
        let want: Vec<f32> = (0..3)
            .flat_map(|t| {
                [
                    f64::from(t).cos(),
                    (0.01 * f64::from(t)).cos(),
                    f64::from(t).sin(),
                    (0.01 * f64::from(t)).sin(),
                ]
            })
            .map(|x| x as f32)
            .collect();
        assert_close(&case.fast(&Team::new(1))[0], &want, TOLERANCE, "y");
    }
}
