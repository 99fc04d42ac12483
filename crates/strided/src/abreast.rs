//! Large copies of short runs with wide gaps in the source: two runs abreast, line by line.
//!
//! A machine that sees the lines of a run in their order goes on to fetch the gap behind it, and moves more than the
//! copy does. It does not where no line follows its neighbour; what comes next is then fetched by name.

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
use std::arch::x86_64::{_mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256};

use super::kernel::{Axis, Body, LINE, bytes, nest};
use super::streamed;

/// How many runs are copied at a time.
const RUNS: usize = 2;

/// How many lines of each run are written out at most.
const MAX_LINES: usize = 8;

/// All runs along an axis, which are at least [`RUNS`], each of so many lines; [`MAX_LINES`] stands for any multiple of
/// it.
#[derive(Clone, Copy)]
struct Abreast<const LINES: usize, const PAST_CACHES: bool> {
    run: usize,
    axis: Axis,
}

impl<const LINES: usize, const PAST_CACHES: bool> Body for Abreast<LINES, PAST_CACHES> {
    #[inline(always)]
    unsafe fn run(self, to: *mut u8, from: *const u8) {
        for first in (0..self.axis.extent).step_by(RUNS) {
            // The last ones may be copied twice.
            let (to, from) = self.axis.at(first.min(self.axis.extent - RUNS), to, from);
            // SAFETY: the caller's promise, for both arms.
            unsafe {
                if LINES < MAX_LINES {
                    self.block(to, from);
                } else {
                    for block in (0..self.run).step_by(LINES * LINE) {
                        self.block(to.wrapping_add(block), from.wrapping_add(block));
                    }
                }
            }
        }
    }
}

impl<const LINES: usize, const PAST_CACHES: bool> Abreast<LINES, PAST_CACHES> {
    /// How many runs ahead the source is fetched.
    const AHEAD: usize = if PAST_CACHES { 32 } else { 16 };

    /// Copies that many lines of each of [`RUNS`] runs. Written out, so that to the machine each line of a run is a
    /// sequence of its own, with one step.
    ///
    /// # Safety
    /// As [`Body::run`], for these lines.
    #[inline(always)]
    unsafe fn block(self, to: *mut u8, from: *const u8) {
        for place in 0..LINES {
            let line = odd_first(place, LINES) * LINE;
            for step in (0..RUNS).rev() {
                let (to, from) = self.axis.at(step, to.wrapping_add(line), from.wrapping_add(line));
                // SAFETY: a hint, without effect on an address that is not good.
                unsafe {
                    _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(Self::AHEAD * self.axis.from).cast())
                };
                // SAFETY: the caller's promise.
                unsafe { Self::line(to, from) };
            }
        }
    }

    /// # Safety
    /// As [`Body::run`], for a line, and the machine has registers of 32 bytes; a line past the caches begins with one.
    #[inline(always)]
    unsafe fn line(to: *mut u8, from: *const u8) {
        // SAFETY: the caller's promise, for all of it.
        unsafe {
            let halves = [0, LINE / 2].map(|half| _mm256_loadu_si256(from.wrapping_add(half).cast()));
            for (half, bytes) in [0, LINE / 2].into_iter().zip(halves) {
                match PAST_CACHES {
                    true => _mm256_stream_si256(to.wrapping_add(half).cast(), bytes),
                    false => _mm256_storeu_si256(to.wrapping_add(half).cast(), bytes),
                }
            }
        }
    }
}

/// Which of so many lines comes in place `place`: odd ones from the last on, then even ones.
#[inline(always)]
const fn odd_first(place: usize, lines: usize) -> usize {
    let odd = lines / 2;
    if place < odd { 2 * (odd - place) - 1 } else { 2 * (lines - 1 - place) }
}

/// Whether a copy gains from this: not one that the nearest caches hold, nor one with narrow gaps.
pub(super) fn suits(run: usize, axes: &[Axis]) -> bool {
    const LEAST: usize = 256 << 10;
    const BLOCK: usize = MAX_LINES * LINE;
    let lines = run.is_multiple_of(if run <= BLOCK { LINE } else { BLOCK });
    let wide = |axis: &Axis| axis.extent >= RUNS && 2 * axis.from > 3 * run;
    lines && axes.last().is_some_and(wide) && bytes(run, axes) >= LEAST
}

/// # Safety
/// As `kernel::copy`, the copy [`suits`], and the machine has registers of 32 bytes.
#[target_feature(enable = "avx")]
pub(super) unsafe fn copy(run: usize, axes: &[Axis], to: *mut u8, from: *const u8) {
    // SAFETY: the caller's promise, for all arms.
    unsafe {
        match run / LINE {
            1 => copy_lines::<1>(run, axes, to, from),
            2 => copy_lines::<2>(run, axes, to, from),
            3 => copy_lines::<3>(run, axes, to, from),
            4 => copy_lines::<4>(run, axes, to, from),
            5 => copy_lines::<5>(run, axes, to, from),
            6 => copy_lines::<6>(run, axes, to, from),
            7 => copy_lines::<7>(run, axes, to, from),
            _ => copy_lines::<MAX_LINES>(run, axes, to, from),
        }
    }
}

/// # Safety
/// As [`copy`], for runs of so many lines.
#[target_feature(enable = "avx")]
unsafe fn copy_lines<const LINES: usize>(run: usize, axes: &[Axis], to: *mut u8, from: *const u8) {
    let (&axis, outer) = axes.split_last().expect("a copy that suits has an axis");
    // SAFETY: the caller's promise, for both arms.
    unsafe {
        match streamed::suits(run, axes, to) {
            true => streamed::nest(outer, to, from, Abreast::<LINES, true> { run, axis }),
            false => nest(outer, to, from, Abreast::<LINES, false> { run, axis }),
        }
    }
}
