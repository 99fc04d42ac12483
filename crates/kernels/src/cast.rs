//! Cast: changes the type of elements. Reads `x[n]`, writes `y[n]`.
//!
//! A float becomes `Bf16` as products read it, rounded to nearest even, denormal numbers to zeros of their sign; an integer by truncation with saturation (NaN becomes 0), a `Bool`
//! by comparison with 0. Integers wrap when they become narrower. A `Bool` is one byte; any nonzero byte reads as 1.

use bytemuck::Pod;
use phalanx_ir::DType;
use phalanx_ir::tasks::TaskView;

use crate::bf16::{round, widen};
use crate::spmd::{Launch, by_work};
use crate::{Kernel, dispatch, params, signature};

params! {
    /// The parameters of `cast`.
    pub struct CastParams {
        /// Number of elements.
        pub n: usize,
        /// The type of x.
        pub from: DType,
        /// The type of y.
        pub to: DType,
    }
}

/// What an element is between its two types: floats pass through `f32`, integers through `i64`.
#[derive(Clone, Copy)]
enum Middle {
    Float(f32),
    Integer(i64),
}

/// `y[i] = x[i]` in another type.
pub fn cast_reference(y: &mut [u8], x: &[u8], params: CastParams) {
    let (from, to) = (params.from.bytes(), params.to.bytes());
    if params.from == params.to && params.from != DType::Bool {
        return y[..params.n * to].copy_from_slice(&x[..params.n * from]);
    }
    for i in 0..params.n {
        let middle = read_one(params.from, &x[i * from..][..from]);
        write_one(params.to, &mut y[i * to..][..to], middle);
    }
}

fn read_one(from: DType, x: &[u8]) -> Middle {
    match from {
        DType::F32 => Middle::Float(bytemuck::pod_read_unaligned(x)),
        DType::Bf16 => Middle::Float(bytemuck::pod_read_unaligned::<half::bf16>(x).to_f32()),
        DType::I32 => Middle::Integer(bytemuck::pod_read_unaligned::<i32>(x).into()),
        DType::I64 => Middle::Integer(bytemuck::pod_read_unaligned(x)),
        DType::Bool => Middle::Integer((x[0] != 0).into()),
    }
}

fn write_one(to: DType, y: &mut [u8], middle: Middle) {
    match (to, middle) {
        (DType::F32, Middle::Float(v)) => y.copy_from_slice(&v.to_ne_bytes()),
        (DType::F32, Middle::Integer(v)) => y.copy_from_slice(&(v as f32).to_ne_bytes()),
        (DType::Bf16, Middle::Float(v)) => y.copy_from_slice(&nearest(v).to_ne_bytes()),
        (DType::Bf16, Middle::Integer(v)) => y.copy_from_slice(&nearest(v as f32).to_ne_bytes()),
        (DType::I32, Middle::Float(v)) => y.copy_from_slice(&(v as i32).to_ne_bytes()),
        (DType::I32, Middle::Integer(v)) => y.copy_from_slice(&(v as i32).to_ne_bytes()),
        (DType::I64, Middle::Float(v)) => y.copy_from_slice(&(v as i64).to_ne_bytes()),
        (DType::I64, Middle::Integer(v)) => y.copy_from_slice(&v.to_ne_bytes()),
        (DType::Bool, Middle::Float(v)) => y[0] = (v != 0.0).into(),
        (DType::Bool, Middle::Integer(v)) => y[0] = (v != 0).into(),
    }
}

/// The `bf16` that products read in place of `value`.
fn nearest(value: f32) -> half::bf16 {
    half::bf16::from_f32(if value.is_subnormal() { 0f32.copysign(value) } else { value })
}

/// The fast version of [`cast_reference`].
pub fn cast(y: &mut [u8], x: &[u8], params: CastParams, launch: &mut Launch<'_>) {
    let (from, to) = (params.from.bytes(), params.to.bytes());
    let (y, x) = (&mut y[..params.n * to], &x[..params.n * from]);
    launch.for_each_part(y, 64 * to, |first, y| {
        let (first, n) = (first / to, y.len() / to);
        cast_part(y, &x[first * from..][..n * from], CastParams { n, ..params });
    });
}

dispatch! {
    fn cast_part(y: &mut [u8], x: &[u8], params: CastParams) {
        use DType::{Bf16, Bool, F32, I32, I64};
        match (params.from, params.to) {
            (from, to) if from == to && from != Bool => y.copy_from_slice(x),
            (F32, Bf16) => map(y, x, round),
            (F32, I32) => map(y, x, |v: f32| v as i32),
            (F32, I64) => map(y, x, |v: f32| v as i64),
            (F32, Bool) => map(y, x, |v: f32| u8::from(v != 0.0)),
            (Bf16, F32) => map(y, x, widen),
            (Bf16, I32) => map(y, x, |v| widen(v) as i32),
            (Bf16, I64) => map(y, x, |v| widen(v) as i64),
            (Bf16, Bool) => map(y, x, |v| u8::from(widen(v) != 0.0)),
            (I32, F32) => map(y, x, |v: i32| v as f32),
            (I32, Bf16) => map(y, x, |v: i32| round(v as f32)),
            (I32, I64) => map(y, x, |v: i32| i64::from(v)),
            (I32, Bool) => map(y, x, |v: i32| u8::from(v != 0)),
            (I64, F32) => map(y, x, |v: i64| v as f32),
            (I64, Bf16) => map(y, x, |v: i64| round(v as f32)),
            (I64, I32) => map(y, x, |v: i64| v as i32),
            (I64, Bool) => map(y, x, |v: i64| u8::from(v != 0)),
            (Bool, F32) => map(y, x, |v: u8| if v != 0 { 1f32 } else { 0.0 }),
            (Bool, Bf16) => map(y, x, |v: u8| if v != 0 { ONE_BF16 } else { 0 }),
            (Bool, I32) => map(y, x, |v: u8| i32::from(v != 0)),
            (Bool, I64) => map(y, x, |v: u8| i64::from(v != 0)),
            (Bool, Bool) => map(y, x, |v: u8| u8::from(v != 0)),
            (F32, F32) | (Bf16, Bf16) | (I32, I32) | (I64, I64) => unreachable!("equal types are copied above"),
        }
    }
}

const ONE_BF16: u16 = 0x3f80;

#[inline(always)]
fn map<T: Pod, U: Pod>(y: &mut [u8], x: &[u8], f: impl Fn(T) -> U) {
    let (y, x): (&mut [U], &[T]) = (bytemuck::cast_slice_mut(y), bytemuck::cast_slice(x));
    for (y, &x) in y.iter_mut().zip(x) {
        *y = f(x);
    }
}

impl Kernel for CastParams {
    signature!("cast": x => y by cast_reference, cast);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (from, to) = (&task.source(0)?.ty, &task.target(0)?.ty);
        Ok(CastParams { n: to.shape.elements(), from: from.dtype, to: to.dtype })
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.n, cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Team;
    use crate::isa::Isa;

    const FLOATS: [f32; 16] = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        2.75,
        1e20,
        -1e20,
        3.4e38,
        1e-40,
        -1e-40,
        f32::MIN_POSITIVE,
        1.003_906_3,
        1.011_718_8,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];

    /// Clears the bit that all bf16 infinities and NaNs have; a NaN may turn quiet on one path only.
    const FINITE_BF16: u16 = 0xbfff;

    /// `n` elements of a type as words, aligned to eight bytes.
    fn input(from: DType, n: usize) -> Vec<u64> {
        let mut words = vec![0u64; n];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        for i in 0..n {
            let float = FLOATS[i % FLOATS.len()] + if i < FLOATS.len() { 0.0 } else { i as f32 };
            let integer = i as i64 * 0x1234_5678_9abc - (1 << 40);
            match from {
                DType::F32 => bytes[i * 4..][..4].copy_from_slice(&float.to_ne_bytes()),
                DType::Bf16 => {
                    bytes[i * 2..][..2].copy_from_slice(&((i * 7919) as u16 & FINITE_BF16).to_ne_bytes())
                }
                DType::I32 => bytes[i * 4..][..4].copy_from_slice(&(integer as i32).to_ne_bytes()),
                DType::I64 => bytes[i * 8..][..8].copy_from_slice(&integer.to_ne_bytes()),
                DType::Bool => bytes[i] = (i % 3) as u8,
            }
        }
        words
    }

    #[test]
    fn fast_equals_reference_for_every_pair_team_and_instruction_set() {
        for from in DType::ALL {
            for to in DType::ALL {
                for n in [0, 1, 3, 16, 17, 33, 100, crate::spmd::ALONE + 9] {
                    let params = CastParams { n, from, to };
                    let x = input(from, n);
                    let (mut got, mut want) = (vec![7u64; n], vec![7u64; n]);
                    cast_reference(bytemuck::cast_slice_mut(&mut want), bytemuck::cast_slice(&x), params);
                    for cores in 1..5 {
                        cast(
                            bytemuck::cast_slice_mut(&mut got),
                            bytemuck::cast_slice(&x),
                            params,
                            &mut Launch::plain(&Team::new(cores)),
                        );
                        assert!(got == want, "{n} elements, {from:?} to {to:?}, {cores} cores");
                    }
                    for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
                        Isa::select(isa);
                        cast(
                            bytemuck::cast_slice_mut(&mut got),
                            bytemuck::cast_slice(&x),
                            params,
                            &mut Launch::plain(&Team::new(1)),
                        );
                        assert!(got == want, "{n} elements, {from:?} to {to:?}, {isa:?}");
                    }
                    Isa::select(Isa::best());
                }
            }
        }
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        // 1 + 2^-8 lies between 1 and 1 + 2^-7 and goes to the even 1; 1 + 3·2^-8 goes up to 1 + 2^-6.
        assert_eq!(widen(round(1.0 + 1.0 / 256.0)), 1.0);
        assert_eq!(widen(round(1.0 + 3.0 / 256.0)), 1.0 + 1.0 / 64.0);
        assert_eq!(widen(round(f32::MAX)), f32::INFINITY);
        // What is denormal as f32 would be so as bf16, and becomes a zero.
        assert_eq!([1e-40, -1e-40].map(round), [0, 0x8000]);
        assert_eq!(widen(round(f32::MIN_POSITIVE)), f32::MIN_POSITIVE);
        assert!(widen(round(f32::from_bits(0x7f80_0001))).is_nan());
    }
}
