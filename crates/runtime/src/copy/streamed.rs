//! Large copies of short runs, past the caches.
//!
//! A store through a cache first loads what it overwrites, and pushes out what others need. Only where all runs begin and
//! end with cache lines; everything else goes through `kernel.rs`.

use std::arch::x86_64::{_mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};

use super::kernel::{Axis, Body, LINE, bytes, fetch, nest};

/// So many bytes, whole cache lines to whole cache lines.
#[derive(Clone, Copy)]
pub(super) struct Streamed {
    run: usize,
    /// How far ahead of each piece its source is fetched.
    ahead: usize,
}

impl Streamed {
    /// Copies of fewer bytes may stay in the last cache.
    const LEAST: usize = 16 << 20;

    /// How to copy so, if it pays and all runs begin and end where it works.
    pub(super) fn new(run: usize, axes: &[Axis], to: *mut u8) -> Option<Streamed> {
        let mut places = axes.iter().map(|axis| axis.to).chain([run, to.addr()]);
        let suits = bytes(run, axes) >= Self::LEAST && places.all(|place| place.is_multiple_of(LINE));
        suits.then(|| Streamed { run, ahead: axes.last().map_or(0, |axis| 16 * axis.from) })
    }
}

impl Body for Streamed {
    #[inline(always)]
    unsafe fn run(self, to: *mut u8, from: *const u8) {
        for at in (0..self.run).step_by(LINE) {
            fetch(from.wrapping_add(at + self.ahead).cast_mut());
            for at in [at, at + LINE / 2] {
                // SAFETY: the caller's promise, and the machine has these registers: only [`copy_streamed`] runs this.
                let bytes = unsafe { _mm256_loadu_si256(from.wrapping_add(at).cast()) };
                // SAFETY: as above; by `Streamed::new` the place suits a register.
                unsafe { _mm256_stream_si256(to.wrapping_add(at).cast(), bytes) };
            }
        }
    }
}

/// # Safety
/// As `kernel::copy`, `body` was made for this copy, and the machine has registers of 32 bytes.
#[target_feature(enable = "avx")]
pub(super) unsafe fn copy_streamed(axes: &[Axis], to: *mut u8, from: *const u8, body: Streamed) {
    // SAFETY: the caller's promise.
    unsafe { nest(axes, to, from, body) };
    // What went past the caches is not ordered by what releases it to others.
    _mm_sfence();
}

#[cfg(test)]
mod tests {
    use super::super::kernel::copy_runs;
    use super::*;

    /// Copies all of `to` but a margin from every other run of `from`, and tells whether past the caches.
    fn copy(to: &mut [u8], from: &[u8], margin: usize, run: usize) -> bool {
        let extent = (to.len() - 2 * margin) / run;
        assert!(from.len() >= extent * 2 * run, "the source is long enough");
        let axes = [Axis { extent, to: run, from: 2 * run }];
        let start = to[margin..].as_mut_ptr();
        // SAFETY: runs lie inside both slices, which do not overlap.
        unsafe { copy_runs(run, &axes, start, from.as_ptr()) };
        Streamed::new(run, &axes, start).is_some()
    }

    #[test]
    fn large_copies_move_every_run_and_nothing_else() {
        const RUN: usize = 256;
        let bytes = Streamed::LEAST + 3 * RUN;
        let from: Vec<u8> = (0..2 * bytes).map(|at| (at / 7 % 251) as u8).collect();
        let mut memory = vec![0xEE; bytes + 4 * LINE];
        let skip = memory.as_ptr().align_offset(LINE);
        for (shift, streamed) in [(0, is_x86_feature_detected!("avx")), (4, false)] {
            memory.fill(0xEE);
            let to = &mut memory[skip + shift..][..bytes + 2 * LINE];
            assert_eq!(copy(to, &from, LINE, RUN), streamed, "shift {shift}");
            let (margins, runs) = ([&to[..LINE], &to[LINE + bytes..]], &to[LINE..][..bytes]);
            assert!(margins.concat().iter().all(|&byte| byte == 0xEE), "shift {shift}");
            let mut pairs = runs.chunks(RUN).zip(from.chunks(2 * RUN));
            assert!(pairs.all(|(run, pair)| run == &pair[..RUN]), "shift {shift}");
        }
    }
}
