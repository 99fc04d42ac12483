//! Moving bytes: nested loops over runs, for copies and fills.
//!
//! Loops are compiled once for each way of moving a run, with the two innermost ones written out, so a short run costs
//! its load and its store; and once more for machines with wider registers. Kernels know addresses and steps only; that
//! the addresses are good is the caller's promise.

use arrayvec::ArrayVec;

use super::MAX_LOOPS;
use super::nest::{Nest, Place};
use super::transpose;
#[cfg(target_arch = "x86_64")]
use super::{abreast, streamed};

/// What a cache moves at a time.
pub(super) const LINE: usize = 64;

/// One loop: how often, and how far both sides step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub(super) extent: usize,
    pub(super) to: usize,
    pub(super) from: usize,
}

/// Loops, outermost first.
pub(super) type Axes = ArrayVec<Axis, MAX_LOOPS>;

/// What is moved from each place to the other.
pub(super) trait Body: Copy {
    /// Moves it from `from` to `to`.
    ///
    /// # Safety
    /// All bytes of it are readable at `from` and writable at `to`, and the two do not overlap.
    unsafe fn run(self, to: *mut u8, from: *const u8);
}

/// `N` bytes.
#[derive(Clone, Copy)]
pub(super) struct Fixed<const N: usize>;

impl<const N: usize> Body for Fixed<N> {
    #[inline(always)]
    unsafe fn run(self, to: *mut u8, from: *const u8) {
        // SAFETY: the caller's promise, for `N` bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, to, N) };
    }
}

/// So many bytes.
#[derive(Clone, Copy)]
struct Bytes(usize);

impl Body for Bytes {
    #[inline(always)]
    unsafe fn run(self, to: *mut u8, from: *const u8) {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, self.0) };
    }
}

/// `N` bytes at a time, at least `N` in all: for runs that take less time than a function call to move them.
/// The last ones may be moved twice.
#[derive(Clone, Copy)]
struct Pieces<const N: usize> {
    run: usize,
    /// How far ahead of each piece its destination is fetched: the machine foresees loads, and stores not so well.
    ahead: usize,
}

impl<const N: usize> Body for Pieces<N> {
    #[inline(always)]
    unsafe fn run(self, to: *mut u8, from: *const u8) {
        let last = self.run - N;
        let mut at = 0;
        while at < last {
            fetch(to.wrapping_add(at + self.ahead));
            // SAFETY: the caller's promise: `N` bytes from here on are before the end.
            unsafe { Fixed::<N>.run(to.wrapping_add(at), from.wrapping_add(at)) };
            at += N;
        }
        fetch(to.wrapping_add(last + self.ahead));
        // SAFETY: the caller's promise: these are the last `N` bytes.
        unsafe { Fixed::<N>.run(to.wrapping_add(last), from.wrapping_add(last)) };
    }
}

/// Tells the machine that the cache line of `at` is needed soon. The address need not be good.
#[inline(always)]
pub(super) fn fetch(at: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, without effect on an address that is not good.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast())
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// How far ahead to fetch the destination of runs along `axes`: two runs. Not if runs are whole pages apart, which
/// share few places in the nearest cache: what is fetched would push out what is in use.
fn ahead(axes: &[Axis]) -> usize {
    const PAGE: usize = 4096;
    axes.last().map_or(0, |axis| if axis.to.is_multiple_of(PAGE) { 0 } else { 2 * axis.to })
}

/// All that is moved.
pub(super) fn bytes(run: usize, axes: &[Axis]) -> usize {
    axes.iter().fold(run, |bytes, axis| bytes.saturating_mul(axis.extent))
}

/// A run of `run` bytes that repeats the `stamp` bytes at `from`.
#[derive(Clone, Copy)]
struct Repeated {
    run: usize,
    stamp: usize,
}

impl Body for Repeated {
    #[inline(always)]
    unsafe fn run(self, to: *mut u8, from: *const u8) {
        for at in (0..self.run).step_by(self.stamp) {
            let bytes = self.stamp.min(self.run - at);
            // SAFETY: the caller's promise: `stamp` bytes are readable, `run` writable.
            unsafe { std::ptr::copy_nonoverlapping(from, to.wrapping_add(at), bytes) };
        }
    }
}

/// A run of `run` bytes like the one at `from`.
#[derive(Clone, Copy)]
struct Same(usize);

impl Body for Same {
    #[inline(always)]
    unsafe fn run(self, to: *mut u8, from: *const u8) {
        // SAFETY: the caller's promise: one byte is readable, `self.0` writable.
        unsafe { to.write_bytes(*from, self.0) };
    }
}

/// Copies a run of `nest` for each of its steps; the places are those of destination and source.
///
/// # Safety
/// Every run of the nest is readable at `from` and writable at `to`, and no two overlap.
pub unsafe fn copy<P: AsRef<[Place]>>(nest: &Nest<P>, to: *mut u8, from: *const u8) {
    if nest.bytes() == 0 {
        return;
    }
    let axes = axes(nest);
    let (to, from) = start(nest, to, from);
    // SAFETY: the caller's promise, for all arms.
    unsafe {
        match transpose::split(&axes, nest.run) {
            Some((outer, rows, columns)) => transpose::run(nest.run, &outer, [rows, columns], to, from),
            None => copy_runs(nest.run, &axes, to, from),
        }
    }
}

/// The same between slices, in which all runs must lie.
pub fn copy_slices(nest: &Nest<[Place; 2]>, to: &mut [u8], from: &[u8]) {
    for (place, bytes) in nest.places.iter().zip([to.len(), from.len()]) {
        let is_inside = nest.bytes() == 0 || nest.end(place).is_some_and(|end| end <= bytes);
        assert!(is_inside, "{nest:?} lies outside of {bytes} bytes");
    }
    // SAFETY: all runs lie inside the slices, of which the one to be written overlaps nothing.
    unsafe { copy(nest, to.as_mut_ptr(), from.as_ptr()) };
}

/// Writes the bytes of `stamp`, again and again, into the runs of `nest`, which has one place.
///
/// # Safety
/// Every run of the nest is writable at `to`.
pub unsafe fn fill(nest: &Nest, to: *mut u8, stamp: &[u8]) {
    let axes = axes(nest);
    let (to, from) = start(nest, to, stamp.as_ptr());
    let run = nest.run;
    // SAFETY: the caller's promise for `to`; the stamp is its own memory and long enough for each arm.
    unsafe {
        match stamp.len() {
            1 => self::nest(&axes, to, from, Same(run)),
            stamp if run <= stamp => copy_runs(run, &axes, to, from),
            stamp => self::nest(&axes, to, from, Repeated { run, stamp }),
        }
    }
}

/// # Safety
/// As [`copy`].
pub(super) unsafe fn copy_runs(run: usize, axes: &[Axis], to: *mut u8, from: *const u8) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx") {
        // SAFETY: the machine has these registers; for the rest the caller's promise.
        return unsafe { copy_runs_wide(run, axes, to, from) };
    }
    // SAFETY: the caller's promise.
    unsafe { copy_runs_inline(run, axes, to, from) }
}

/// The same for a machine with registers of 32 bytes.
///
/// # Safety
/// As [`copy`], and the machine has them.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn copy_runs_wide(run: usize, axes: &[Axis], to: *mut u8, from: *const u8) {
    // SAFETY: the caller's promise.
    unsafe {
        if abreast::suits(run, axes) {
            abreast::copy(run, axes, to, from)
        } else if streamed::suits(run, axes, to) {
            streamed::copy(run, axes, to, from)
        } else {
            copy_runs_inline(run, axes, to, from)
        }
    }
}

/// Inlined, as all that it calls, into callers that differ in their registers.
///
/// # Safety
/// As [`copy`].
#[inline(always)]
unsafe fn copy_runs_inline(run: usize, axes: &[Axis], to: *mut u8, from: *const u8) {
    let ahead = ahead(axes);
    // SAFETY: the caller's promise, for all arms.
    unsafe {
        match run {
            1 => nest(axes, to, from, Fixed::<1>),
            2 => nest(axes, to, from, Fixed::<2>),
            4 => nest(axes, to, from, Fixed::<4>),
            8 => nest(axes, to, from, Fixed::<8>),
            16 => nest(axes, to, from, Fixed::<16>),
            17..=31 => nest(axes, to, from, Pieces::<16> { run, ahead: 0 }),
            32..=63 => nest(axes, to, from, Pieces::<32> { run, ahead }),
            64..=512 => nest(axes, to, from, Pieces::<64> { run, ahead }),
            run => nest(axes, to, from, Bytes(run)),
        }
    }
}

/// Runs `body` at every step of the loops.
///
/// # Safety
/// What `body` needs holds at every step.
#[inline(always)]
pub(super) unsafe fn nest<B: Body>(axes: &[Axis], to: *mut u8, from: *const u8, body: B) {
    let (outer, inner) = axes.split_at(axes.len().saturating_sub(2));
    let mut index = [0; MAX_LOOPS];
    loop {
        let place = |(to, from), (axis, &step): (&Axis, &usize)| axis.at(step, to, from);
        let (to, from) = outer.iter().zip(&index).fold((to, from), place);
        // SAFETY: the caller's promise, for all arms.
        unsafe {
            match inner {
                [rows, axis] => {
                    for step in 0..rows.extent {
                        let (to, from) = rows.at(step, to, from);
                        row(*axis, to, from, body);
                    }
                }
                [axis] => row(*axis, to, from, body),
                _ => body.run(to, from),
            }
        }
        let Some(dim) = (0..outer.len()).rev().find(|&dim| index[dim] + 1 < outer[dim].extent) else {
            return;
        };
        index[dim] += 1;
        index[dim + 1..].fill(0);
    }
}

/// # Safety
/// As [`nest`].
#[inline(always)]
pub(super) unsafe fn row<B: Body>(axis: Axis, to: *mut u8, from: *const u8, body: B) {
    for step in 0..axis.extent {
        let (to, from) = axis.at(step, to, from);
        // SAFETY: the caller's promise.
        unsafe { body.run(to, from) };
    }
}

impl Axis {
    #[inline(always)]
    pub(super) fn at(self, step: usize, to: *mut u8, from: *const u8) -> (*mut u8, *const u8) {
        (to.wrapping_add(step * self.to), from.wrapping_add(step * self.from))
    }
}

/// The loops of destination and source; a nest without source stands still there.
fn axes<P: AsRef<[Place]>>(nest: &Nest<P>) -> Axes {
    let places = nest.places.as_ref();
    let from = |dim: usize| places.get(1).map_or(0, |place| place.strides[dim]);
    let axis = |(dim, &extent)| Axis { extent, to: places[0].strides[dim], from: from(dim) };
    nest.extents.iter().enumerate().map(axis).collect()
}

/// The first run on both sides.
fn start<P: AsRef<[Place]>>(nest: &Nest<P>, to: *mut u8, from: *const u8) -> (*mut u8, *const u8) {
    let skip = |place: usize| nest.places.as_ref().get(place).map_or(0, |place| place.start);
    (to.wrapping_add(skip(0)), from.wrapping_add(skip(1)))
}
