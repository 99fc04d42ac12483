//! Random numbers by position: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3").
//!
//! A number depends on a seed, a stream and its index alone, never on the core that draws it or on the order. Indices come in
//! groups of 64: lane `l` of word `w` of 16 consecutive Philox blocks is index `16 w + l` of its group, so that a
//! whole group is drawn with vector instructions and stored without shuffling.

use std::ops::Range;

/// Indices drawn together.
pub const GROUP: usize = 64;

const LANES: usize = 16;
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: usize = 10;

/// A uniform number in `[0, 1)`, a multiple of 2^-24.
pub fn uniform(seed: u64, stream: u64, index: u64) -> f32 {
    unit(word(seed, stream, index))
}

/// A standard normal number: Box and Muller's transform, in which an even index and the next share their words.
pub fn normal(seed: u64, stream: u64, index: u64) -> f32 {
    let pair = [word(seed, stream, index & !1), word(seed, stream, index | 1)];
    box_muller(pair)[(index & 1) as usize] as f32
}

/// A seed for the sub-stream `(a, b)` of `seed`.
pub fn derive(seed: u64, a: u64, b: u64) -> u64 {
    let [low, high, ..] = philox([[low(a)], [high(a)], [low(b)], [high(b)]], seed);
    u64::from(low[0]) | u64::from(high[0]) << 32
}

/// Fills `out` with uniform numbers in `[low, high)`; `out[i]` is number `first_index + i` of the stream.
pub fn fill_uniform(out: &mut [f32], seed: u64, stream: u64, first_index: u64, low: f32, high: f32) {
    for piece in pieces(first_index, out.len()) {
        let words = group(seed, stream, piece.group);
        for (out, &word) in out[piece.part].iter_mut().zip(&words[piece.within..]) {
            *out = unit(word).mul_add(high - low, low);
        }
    }
}

/// Fills `out` with normal numbers; `out[i]` is number `first_index + i` of the stream.
pub fn fill_normal(out: &mut [f32], seed: u64, stream: u64, first_index: u64, mean: f32, std: f32) {
    for piece in pieces(first_index, out.len()) {
        let words = group(seed, stream, piece.group);
        let mut values = [0.0; GROUP];
        // Pairs begin at even places: the piece may begin and end inside one.
        let end = piece.within + piece.part.len();
        for pair in piece.within / 2..end.div_ceil(2) {
            let both = box_muller([words[2 * pair], words[2 * pair + 1]]);
            values[2 * pair..][..2].copy_from_slice(&both.map(|value| (value as f32).mul_add(std, mean)));
        }
        out[piece.part].copy_from_slice(&values[piece.within..end]);
    }
}

/// The 64 words of group `index` of a stream.
#[inline(always)]
pub fn group(seed: u64, stream: u64, index: u64) -> [u32; GROUP] {
    let first = index * LANES as u64;
    let mut counter = [[0; LANES], [high(first); LANES], [low(stream); LANES], [high(stream); LANES]];
    for (lane, block) in counter[0].iter_mut().enumerate() {
        // `first` is a multiple of 16: adding a lane carries nothing.
        *block = low(first) + lane as u32;
    }
    let words = philox(counter, seed);
    let mut flat = [0; GROUP];
    for (i, row) in words.iter().enumerate() {
        flat[i * LANES..][..LANES].copy_from_slice(row);
    }
    flat
}

/// The uniform number in `[0, 1)` that a random word stands for.
#[inline(always)]
pub fn unit(word: u32) -> f32 {
    // 24 bits: exact in f32, and an i32 converts with one vector instruction.
    (word >> 8) as i32 as f32 * (1.0 / 16_777_216.0)
}

/// The part of a range of indices that lies in one group.
pub struct Piece {
    /// Which group.
    pub group: u64,
    /// The place in the group at which the part begins.
    pub within: usize,
    /// The part, relative to the first index.
    pub part: Range<usize>,
}

/// Cuts the `len` indices from `first` on at group boundaries.
#[inline(always)]
pub fn pieces(first: u64, len: usize) -> impl Iterator<Item = Piece> {
    let size = GROUP as u64;
    let mut done = 0;
    std::iter::from_fn(move || {
        let index = first + done as u64;
        let within = (index % size) as usize;
        let part = done..len.min(done + GROUP - within);
        done = part.end;
        (!part.is_empty()).then_some(Piece { group: index / size, within, part })
    })
}

/// The random word of one index.
fn word(seed: u64, stream: u64, index: u64) -> u32 {
    let within = (index % GROUP as u64) as usize;
    let block = index / GROUP as u64 * LANES as u64 + (within % LANES) as u64;
    philox([[low(block)], [high(block)], [low(stream)], [high(stream)]], seed)[within / LANES][0]
}

/// Philox4x32-10 of `N` counters under one key.
#[inline(always)]
fn philox<const N: usize>(counter: [[u32; N]; 4], key: u64) -> [[u32; N]; 4] {
    let [mut a, mut b, mut c, mut d] = counter;
    let mut key = [low(key), high(key)];
    for _ in 0..ROUNDS {
        for (((a, b), c), d) in a.iter_mut().zip(&mut b).zip(&mut c).zip(&mut d) {
            let first = u64::from(*a) * u64::from(MULTIPLIERS[0]);
            let second = u64::from(*c) * u64::from(MULTIPLIERS[1]);
            (*a, *b) = (high(second) ^ *b ^ key[0], low(second));
            (*c, *d) = (high(first) ^ *d ^ key[1], low(first));
        }
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    [a, b, c, d]
}

/// Two independent standard normal numbers from two random words.
fn box_muller(words: [u32; 2]) -> [f64; 2] {
    const UNIT: f64 = 1.0 / 4_294_967_296.0;
    // The first lies in (0, 1], so its logarithm is finite.
    let radius = (-2.0 * ((f64::from(words[0]) + 1.0) * UNIT).ln()).sqrt();
    let (sin, cos) = (f64::from(words[1]) * UNIT * std::f64::consts::TAU).sin_cos();
    [radius * cos, radius * sin]
}

#[inline(always)]
fn low(word: u64) -> u32 {
    word as u32
}

#[inline(always)]
fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_known_answers() {
        let answer = |counter: [u32; 4], key: [u32; 2]| {
            let key = u64::from(key[0]) | u64::from(key[1]) << 32;
            philox(counter.map(|word| [word]), key).map(|words| words[0])
        };
        assert_eq!(answer([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            answer([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            answer([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn a_filled_element_depends_on_its_global_index_only() {
        for first in [0u64, 1, 63, 64, 100, (1 << 36) - 5] {
            for n in [0, 1, 2, 3, 63, 64, 65, 200] {
                let (mut flat, mut bell) = (vec![0.0; n], vec![0.0; n]);
                fill_uniform(&mut flat, 7, 3, first, 0.0, 1.0);
                fill_normal(&mut bell, 7, 3, first, 0.0, 1.0);
                for i in 0..n {
                    assert_eq!(flat[i], uniform(7, 3, first + i as u64));
                    assert_eq!(bell[i], normal(7, 3, first + i as u64));
                }
            }
        }
    }

    #[test]
    fn fills_have_their_range_and_moments() {
        const N: usize = 1 << 18;
        // Five standard errors: sqrt(1/12 / N) and sqrt(1 / N) for the means, sqrt(2 / N) for the variance.
        const MEAN_ERROR: f64 = 5.0 / 512.0;
        let mut values = vec![0.0; N];
        fill_uniform(&mut values, 1, 2, 0, -1.0, 3.0);
        assert!(values.iter().all(|&x| (-1.0..3.0).contains(&x)));
        let mean = |values: &[f32]| values.iter().map(|&x| f64::from(x)).sum::<f64>() / N as f64;
        assert!((mean(&values) - 1.0).abs() < 4.0 * MEAN_ERROR);
        fill_normal(&mut values, 1, 2, 0, 5.0, 2.0);
        assert!((mean(&values) - 5.0).abs() < 2.0 * MEAN_ERROR);
        let squares: Vec<f32> = values.iter().map(|x| (x - 5.0) * (x - 5.0)).collect();
        assert!((mean(&squares) - 4.0).abs() < 4.0 * 1.5 * MEAN_ERROR);
    }

    #[test]
    fn seeds_streams_and_derived_seeds_differ() {
        let draw = |seed, stream| (0..4).map(|i| word(seed, stream, i)).collect::<Vec<_>>();
        let all = [
            draw(1, 0),
            draw(0, 1),
            draw(1 << 32, 0),
            draw(0, 1 << 32),
            draw(derive(1, 2, 3), 0),
            draw(derive(1, 3, 2), 0),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|other| one != other));
        }
    }
}
