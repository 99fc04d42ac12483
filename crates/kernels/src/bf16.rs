//! Arithmetic of products whose operands are rounded to `bf16`: the definition, one element at a time.
//!
//! It is what the instructions do that are made for it (TDPBF16PS multiplies tiles, VDPBF16PS pairs), whatever machine it
//! runs on. Both read denormal numbers as zeros and flush results below 2⁻¹²⁶ to zero, after rounding as if exponents had no
//! lower end. A NaN is a NaN: its payload is not part of the definition.

#[cfg(target_arch = "x86_64")]
mod flushing;
mod samples;

use phalanx_ir::Precision;

#[cfg(target_arch = "x86_64")]
pub(crate) use flushing::{FLUSHING, flushing};
pub use samples::NumberClass;
pub(crate) use samples::Samples;

/// Steps of one tile multiplication: sums over fewer are filled up with zeros.
pub(crate) const TILE_STEPS: usize = 32;

/// The bits of the least normal number, 2⁻¹²⁶.
const LEAST_NORMAL: u32 = 0x0080_0000;
/// The bits of infinity; those of higher magnitudes are no numbers.
const INFINITY: u32 = 0x7f80_0000;
/// The bit of a number's sign.
const SIGN: u32 = 0x8000_0000;

/// The `bf16` nearest to `x`, to even on a tie; a denormal number becomes a zero of its sign.
#[inline(always)]
pub(crate) fn round(x: f32) -> u16 {
    (rounded(x).to_bits() >> 16) as u16
}

/// The number that a `bf16` is.
#[inline(always)]
pub(crate) fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// `x` as a product reads it: the `bf16` nearest to it. Written without branches, so that loops over it become vector code.
#[inline(always)]
pub(crate) fn rounded(x: f32) -> f32 {
    let bits = x.to_bits();
    let magnitude = bits & !SIGN;
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let number = if magnitude < LEAST_NORMAL { bits & SIGN } else { nearest };
    let quiet = if magnitude > INFINITY { bits | 0x0040_0000 } else { number };
    f32::from_bits(quiet & 0xffff_0000)
}

/// `a · b + c`, rounded once, flushed at both ends.
pub(crate) fn fma(a: f32, b: f32, c: f32) -> f32 {
    let [a, b, c] = [a, b, c].map(without_denormals);
    flushed(a.mul_add(b, c), || {
        // The product of two floats is exact in double precision, and so is the error of one more addition.
        let (product, addend) = (f64::from(a) * f64::from(b), f64::from(c));
        let sum = product + addend;
        let back = sum - product;
        (sum, (product - (sum - back)) + (addend - back))
    })
}

/// `a + b`, flushed at both ends.
pub(crate) fn add(a: f32, b: f32) -> f32 {
    let [a, b] = [a, b].map(without_denormals);
    flushed(a + b, || (f64::from(a) + f64::from(b), 0.0))
}

/// The sum of `steps` products, of which `operands` says the factors: one leaf of a product's tree.
pub(crate) fn leaf(precision: Precision, steps: usize, operands: impl Fn(usize) -> (f32, f32)) -> f32 {
    let factors = |step: usize| match step < steps {
        true => {
            let (a, b) = operands(step);
            (rounded(a), rounded(b))
        }
        false => (0.0, 0.0),
    };
    let multiply = |sum: f32, step: usize| fma(factors(step).0, factors(step).1, sum);
    match precision {
        Precision::F32 => (0..steps).fold(0.0, |sum, step| {
            let (a, b) = operands(step);
            a.mul_add(b, sum)
        }),
        Precision::Bf16 => (0..steps).step_by(TILE_STEPS).fold(0.0, |sum, first| {
            let every_second = |first: usize| (first..).step_by(2).take(TILE_STEPS / 2).fold(0.0, multiply);
            add(sum, add(every_second(first), every_second(first + 1)))
        }),
        Precision::Bf16Pair => {
            (0..steps).step_by(2).fold(0.0, |sum, even| multiply(multiply(sum, even + 1), even))
        }
    }
}

fn without_denormals(x: f32) -> f32 {
    if x.to_bits() & 0x7f80_0000 == 0 { zero_like(x) } else { x }
}

fn zero_like(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & SIGN)
}

/// `x`, which was rounded with gradual underflow, flushed if the `exact` value (a sum and its error) lies too low.
///
/// Rounded to 24 bits, values from 2⁻¹²⁶ - 2⁻¹⁵¹ become the least normal number and are kept; gradual underflow has made
/// that number of lower ones too.
fn flushed(x: f32, exact: impl Fn() -> (f64, f64)) -> f32 {
    let magnitude = x.to_bits() & !SIGN;
    if magnitude == 0 || magnitude > LEAST_NORMAL {
        return x;
    }
    if magnitude < LEAST_NORMAL {
        return zero_like(x);
    }
    let (sum, error) = exact();
    let (sum, error) = if sum < 0.0 { (-sum, -error) } else { (sum, error) };
    let limit = 2f64.powi(-126) - 2f64.powi(-151);
    if sum < limit || sum == limit && error < 0.0 { zero_like(x) } else { x }
}

/// What an instruction made of pairs of numbers of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Of which numbers.
    pub class: NumberClass,
    /// How many results were compared.
    pub results: u64,
    /// How many of them differ from the definition.
    pub differences: u64,
}

/// Compares sums of 16 elements, each plus two products, by `instruction` (of the addends and both operands in pairs) with
/// the definition.
pub(crate) fn compare_pairs(
    class: NumberClass,
    rounds: u64,
    mut instruction: impl FnMut([f32; 16], [u32; 16], [u32; 16]) -> [f32; 16],
) -> Comparison {
    let mut samples = Samples::new(class, 1);
    let mut differences = 0;
    for _ in 0..rounds {
        let addends = std::array::from_fn(|_| samples.addend());
        let [a, b] = std::array::from_fn(|_| {
            std::array::from_fn(|_| u32::from(samples.factor()) | u32::from(samples.factor()) << 16)
        });
        let found = instruction(addends, a, b);
        for (i, found) in found.into_iter().enumerate() {
            let [(even_a, odd_a), (even_b, odd_b)] =
                [a[i], b[i]].map(|pair| (widen(pair as u16), widen((pair >> 16) as u16)));
            let expected = fma(even_a, even_b, fma(odd_a, odd_b, addends[i]));
            let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
            differences += u64::from(!same);
        }
    }
    Comparison { class, results: 16 * rounds, differences }
}
