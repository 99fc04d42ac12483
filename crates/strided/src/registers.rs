//! Transposing units of four bytes in registers of eight: every line of the source is read once and every line of the
//! destination written at once, so that lines that compete for a place in the nearest cache need not stay there.

use std::arch::x86_64::{__m256, _MM_HINT_T1, _mm_prefetch, _mm256_loadu_ps, _mm256_permute2f128_ps};
use std::arch::x86_64::{_mm256_setzero_ps, _mm256_shuffle_ps, _mm256_storeu_ps, _mm256_stream_ps};
use std::arch::x86_64::{_mm256_unpackhi_ps, _mm256_unpacklo_ps};

use super::kernel::{Axis, Fixed, LINE, bytes, nest};
use super::streamed;
use super::transpose::{Square, Transposed};

/// Units in a register.
const UNITS: usize = 8;

/// How many lines ahead a source that no cache holds is fetched.
const AHEAD: usize = 4;

/// Squares of two by two registers.
#[derive(Clone, Copy)]
pub(super) struct Registers<const PAST_CACHES: bool>;

impl<const PAST_CACHES: bool> Square for Registers<PAST_CACHES> {
    type Unit = Fixed<4>;
    const UNIT: Fixed<4> = Fixed;
    const BYTES: usize = 4;
    const SIDE: usize = LINE / Self::BYTES;

    /// Loops, not closures, here and below: those would be compiled for a machine without these registers.
    #[inline(always)]
    unsafe fn whole(self, [rows, columns]: [Axis; 2], to: *mut u8, from: *const u8) {
        for column in (0..Self::SIDE).filter(|_| PAST_CACHES) {
            let (_, from) = columns.at(column, to, from);
            // SAFETY: a hint, without effect on an address that is not good.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(AHEAD * LINE).cast()) };
        }
        for first in [0, UNITS] {
            let (to, from) = rows.at(first, to, from);
            // SAFETY: the caller's promise; the machine has these registers: only [`transpose`] runs this.
            let halves = unsafe { [turned(columns, from), turned(columns, columns.at(UNITS, to, from).1)] };
            for row in 0..UNITS {
                let (to, _) = rows.at(row, to, from);
                for (half, registers) in halves.iter().enumerate() {
                    let to = to.wrapping_add(half * LINE / 2).cast();
                    // SAFETY: as above; a line past the caches begins with a register.
                    unsafe {
                        match PAST_CACHES {
                            true => _mm256_stream_ps(to, registers[row]),
                            false => _mm256_storeu_ps(to, registers[row]),
                        }
                    }
                }
            }
        }
    }
}

/// The registers at each step of `axis` from `from` on, rows for columns: neighbors are joined unit by unit, then those
/// that are two apart pair by pair, then those that are four apart half by half.
///
/// # Safety
/// They are readable, and the machine has them.
#[inline(always)]
unsafe fn turned(axis: Axis, from: *const u8) -> [__m256; UNITS] {
    // SAFETY: the caller's promise, for all of it.
    unsafe {
        let mut rows = [_mm256_setzero_ps(); UNITS];
        for (step, row) in rows.iter_mut().enumerate() {
            *row = _mm256_loadu_ps(from.wrapping_add(step * axis.from).cast());
        }
        let mut pairs = rows;
        for row in (0..UNITS).step_by(2) {
            pairs[row] = _mm256_unpacklo_ps(rows[row], rows[row + 1]);
            pairs[row + 1] = _mm256_unpackhi_ps(rows[row], rows[row + 1]);
        }
        let mut fours = pairs;
        for (row, to) in [(0, 0), (1, 2), (4, 4), (5, 6)] {
            fours[to] = _mm256_shuffle_ps::<0x44>(pairs[row], pairs[row + 2]);
            fours[to + 1] = _mm256_shuffle_ps::<0xee>(pairs[row], pairs[row + 2]);
        }
        let mut turned = fours;
        for row in 0..UNITS / 2 {
            turned[row] = _mm256_permute2f128_ps::<0x20>(fours[row], fours[row + 4]);
            turned[row + 4] = _mm256_permute2f128_ps::<0x31>(fours[row], fours[row + 4]);
        }
        turned
    }
}

/// Transposes at every step of the loops around.
///
/// # Safety
/// As [`super::kernel::copy`], and the machine has registers of 32 bytes.
#[target_feature(enable = "avx")]
pub(super) unsafe fn transpose(outer: &[Axis], [rows, columns]: [Axis; 2], to: *mut u8, from: *const u8) {
    let all = bytes(rows.extent * columns.extent * Registers::<false>::BYTES, outer);
    let lines = outer.iter().map(|axis| axis.to).chain([rows.to]);
    // SAFETY: the caller's promise, for both arms.
    unsafe {
        match streamed::is_worth_it(all) && streamed::begin_with_lines(lines, to) {
            true => streamed::nest(outer, to, from, Transposed { rows, columns, square: Registers::<true> }),
            false => nest(outer, to, from, Transposed { rows, columns, square: Registers::<false> }),
        }
    }
}
