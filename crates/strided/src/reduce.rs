//! Ordered reductions: element by element, sources in the order of the list, so the result does not depend on layouts,
//! runs or threads.
//!
//! A run is reduced a chunk at a time, all sources for each chunk, so that the chunk of the destination stays in the
//! nearest cache.

use arrayvec::ArrayVec;

use super::nest::{Nest, Place};
use super::{Element, Initial, MAX_LOOPS, MAX_SOURCES, Reduction};

/// The addresses of destination and sources.
pub type Addresses = ArrayVec<*mut u8, { MAX_SOURCES + 1 }>;

/// Bytes of a run that are reduced at a time.
const CHUNK: usize = 8192;

/// Reduces the sources of `nest` into its destination.
///
/// # Safety
/// Elements are numbers; every run of the nest is readable at its address, writable at the first one, and no run of the
/// destination overlaps one of a source.
pub unsafe fn reduce(nest: &Nest, element: Element, op: Reduction, start: Initial, at: &Addresses) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx") {
        // SAFETY: the machine has these registers; for the rest the caller's promise.
        return unsafe { reduce_wide(nest, element, op, start, at) };
    }
    // SAFETY: the caller's promise.
    unsafe { reduce_inline(nest, element, op, start, at) }
}

/// The same for a machine with registers of 32 bytes. Elements stay apart, so the result has the same bits.
///
/// # Safety
/// As [`reduce`], and the machine has them.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn reduce_wide(nest: &Nest, element: Element, op: Reduction, start: Initial, at: &Addresses) {
    // SAFETY: the caller's promise.
    unsafe { reduce_inline(nest, element, op, start, at) }
}

/// Inlined, as all that it calls, into callers that differ in their registers.
///
/// # Safety
/// As [`reduce`].
#[inline(always)]
unsafe fn reduce_inline(nest: &Nest, element: Element, op: Reduction, start: Initial, at: &Addresses) {
    // SAFETY: the caller's promise, for all arms.
    unsafe {
        match element {
            Element::F32 => with::<f32, 4>(nest, op, start, at),
            Element::F64 => with::<f64, 8>(nest, op, start, at),
            Element::I32 => with::<i32, 4>(nest, op, start, at),
            Element::I64 => with::<i64, 8>(nest, op, start, at),
            Element::Bytes(_) => unreachable!("plans reduce numbers only"),
        }
    }
}

/// # Safety
/// As [`reduce`].
#[inline(always)]
unsafe fn with<T: Number<N>, const N: usize>(nest: &Nest, op: Reduction, start: Initial, at: &Addresses) {
    // SAFETY: the caller's promise, for all arms.
    unsafe {
        match op {
            Reduction::Sum => rows(nest, start, at, |a, b| T::sum(T::load(a), T::load(b)).store()),
            Reduction::Max => rows(nest, start, at, |a, b| T::max(T::load(a), T::load(b)).store()),
            Reduction::Min => rows(nest, start, at, |a, b| T::min(T::load(a), T::load(b)).store()),
        }
    }
}

/// Walks over the runs. If they are single elements, the innermost loop goes over elements that are apart.
///
/// # Safety
/// As [`reduce`].
#[inline(always)]
unsafe fn rows<const N: usize>(nest: &Nest, start: Initial, at: &Addresses, op: impl Join<N>) {
    let (extents, apart) = match nest.extents.split_last() {
        Some((&inner, outer)) if nest.run == N => (outer, Some(inner)),
        _ => (&nest.extents[..], None),
    };
    let mut index: ArrayVec<usize, MAX_LOOPS> = extents.iter().map(|_| 0).collect();
    loop {
        let address = |(at, place): (&*mut u8, &Place)| at.wrapping_add(place.at(&index));
        let run: Addresses = at.iter().zip(&nest.places).map(address).collect();
        // SAFETY: one of the runs that the caller speaks of, or a row of them.
        unsafe {
            match apart {
                None => reduce_run(nest.run, start, &run, op),
                Some(elements) => reduce_apart(elements, &nest.places, start, &run, op),
            }
        }
        let next = (0..index.len()).rev().find(|&dim| index[dim] + 1 < extents[dim]);
        let Some(dim) = next else { return };
        index[dim] += 1;
        index[dim + 1..].fill(0);
    }
}

/// # Safety
/// As [`reduce`], for a row of `elements` elements along the innermost loop.
#[inline(always)]
unsafe fn reduce_apart<const N: usize>(
    elements: usize,
    places: &[Place],
    start: Initial,
    at: &Addresses,
    op: impl Join<N>,
) {
    for step in 0..elements {
        let address = |place: usize| {
            let stride = places[place].strides.last().copied().unwrap_or(0);
            at[place].wrapping_add(step * stride).cast::<[u8; N]>()
        };
        // SAFETY: the caller's promise; a byte array has no alignment.
        let load = |place: usize| unsafe { address(place).read() };
        let (first, rest) = match start {
            Initial::Destination => (load(0), 1),
            Initial::FirstSource => (load(1), 2),
        };
        let value = (rest..at.len()).fold(first, |value, place| op(value, load(place)));
        // SAFETY: as above.
        unsafe { address(0).write(value) };
    }
}

/// # Safety
/// As [`reduce`], for one run of `bytes` bytes.
#[inline(always)]
unsafe fn reduce_run<const N: usize>(bytes: usize, start: Initial, at: &Addresses, op: impl Join<N>) {
    for first in (0..bytes).step_by(CHUNK) {
        let elements = CHUNK.min(bytes - first) / N;
        let address = |place: usize| at[place].wrapping_add(first).cast::<[u8; N]>();
        // SAFETY: the caller's promise: readable, and not written meanwhile.
        let source = |place: usize| unsafe { std::slice::from_raw_parts(address(place), elements) };
        // SAFETY: the caller's promise: writable, and apart from the sources.
        let to = unsafe { std::slice::from_raw_parts_mut(address(0), elements) };
        let rest = match start {
            Initial::Destination => 1,
            Initial::FirstSource if at.len() == 2 => {
                to.copy_from_slice(source(1));
                2
            }
            Initial::FirstSource => {
                let pairs = source(1).iter().zip(source(2));
                to.iter_mut().zip(pairs).for_each(|(to, (a, b))| *to = op(*a, *b));
                3
            }
        };
        for place in rest..at.len() {
            to.iter_mut().zip(source(place)).for_each(|(to, b)| *to = op(*to, *b));
        }
    }
}

/// Joins two elements, as bytes.
trait Join<const N: usize>: Fn([u8; N], [u8; N]) -> [u8; N] + Copy {}
impl<const N: usize, F: Fn([u8; N], [u8; N]) -> [u8; N] + Copy> Join<N> for F {}

/// A number of `N` bytes. Sums of integers wrap around. A NaN wins over every number, also in `max` and `min`.
trait Number<const N: usize>: Copy {
    fn load(bytes: [u8; N]) -> Self;
    fn store(self) -> [u8; N];
    fn sum(a: Self, b: Self) -> Self;
    fn max(a: Self, b: Self) -> Self;
    fn min(a: Self, b: Self) -> Self;
}

macro_rules! number {
    ($type:ty, $bytes:literal, |$a:ident, $b:ident| $sum:expr, $is_nan:expr) => {
        impl Number<$bytes> for $type {
            #[inline(always)]
            fn load(bytes: [u8; $bytes]) -> Self {
                Self::from_ne_bytes(bytes)
            }
            #[inline(always)]
            fn store(self) -> [u8; $bytes] {
                self.to_ne_bytes()
            }
            #[inline(always)]
            fn sum($a: Self, $b: Self) -> Self {
                $sum
            }
            #[inline(always)]
            fn max(a: Self, b: Self) -> Self {
                if a > b || $is_nan(a) { a } else { b }
            }
            #[inline(always)]
            fn min(a: Self, b: Self) -> Self {
                if a < b || $is_nan(a) { a } else { b }
            }
        }
    };
}

number!(f32, 4, |a, b| a + b, f32::is_nan);
number!(f64, 8, |a, b| a + b, f64::is_nan);
number!(i32, 4, |a, b| a.wrapping_add(b), |_| false);
number!(i64, 8, |a, b| a.wrapping_add(b), |_| false);
