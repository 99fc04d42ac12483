//! The largest copies of runs, past the caches.
//!
//! A store through a cache first loads what it overwrites, and pushes out what others need. Only where all runs begin
//! and end with cache lines; and not for runs so long that moving each of them is left to the system's library.

use std::arch::x86_64::{_mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};

use super::kernel::{self, Axis, Body, LINE, bytes, fetch};

/// So many bytes, whole cache lines to whole cache lines.
#[derive(Clone, Copy)]
struct Streamed {
    run: usize,
    /// How far ahead of each piece its source is fetched.
    ahead: usize,
}

impl Body for Streamed {
    #[inline(always)]
    unsafe fn run(self, to: *mut u8, from: *const u8) {
        for at in (0..self.run).step_by(LINE) {
            fetch(from.wrapping_add(at + self.ahead).cast_mut());
            for at in [at, at + LINE / 2] {
                // SAFETY: the caller's promise, and the machine has these registers: only [`copy`] runs this.
                let bytes = unsafe { _mm256_loadu_si256(from.wrapping_add(at).cast()) };
                // SAFETY: as above; the copy [`suits`], and so does this place.
                unsafe { _mm256_stream_si256(to.wrapping_add(at).cast(), bytes) };
            }
        }
    }
}

/// Whether a copy of runs should go past the caches, and can.
pub(super) fn suits(run: usize, axes: &[Axis], to: *mut u8) -> bool {
    const LONGEST: usize = 64 << 10;
    let steps = axes.iter().map(|axis| axis.to).chain([run]);
    run <= LONGEST && is_worth_it(bytes(run, axes)) && begin_with_lines(steps, to)
}

/// Whether this many bytes should bypass the caches, which may hold fewer.
pub(super) fn is_worth_it(bytes: usize) -> bool {
    const LEAST: usize = 12 << 20;
    bytes >= LEAST
}

/// Whether all that is written in such `steps` from `to` begins with a line.
pub(super) fn begin_with_lines(steps: impl Iterator<Item = usize>, to: *mut u8) -> bool {
    steps.chain([to.addr()]).all(|place| place.is_multiple_of(LINE))
}

/// # Safety
/// As `kernel::copy`, the copy [`suits`], and the machine has registers of 32 bytes.
#[target_feature(enable = "avx")]
pub(super) unsafe fn copy(run: usize, axes: &[Axis], to: *mut u8, from: *const u8) {
    const RUNS_AHEAD: usize = 16;
    let ahead = axes.last().map_or(0, |axis| RUNS_AHEAD * axis.from);
    // SAFETY: the caller's promise.
    unsafe { nest(axes, to, from, Streamed { run, ahead }) };
}

/// As [`kernel::nest`], for a body that stores past the caches.
///
/// # Safety
/// As [`kernel::nest`].
#[inline(always)]
pub(super) unsafe fn nest<B: Body>(axes: &[Axis], to: *mut u8, from: *const u8, body: B) {
    // SAFETY: the caller's promise.
    unsafe { kernel::nest(axes, to, from, body) };
    // What went past the caches is not ordered by what releases it to others.
    // SAFETY: every x86-64 has it.
    unsafe { _mm_sfence() };
}
