//! Copying bytes from one grid of runs into another.

use phalanx_strided::{ByteRuns, Nest};

use crate::Region;

/// Copies all bytes of `from` to `to`, in order. Both have the same number of bytes.
///
/// # Safety
/// All bytes of both regions are in live memory; no two runs of `to` share a byte, and none shares one with `from`;
/// nothing else writes `from` or touches `to` meanwhile.
pub(super) unsafe fn copy(from: &Region, to: &Region) {
    debug_assert_eq!(from.bytes(), to.bytes(), "a message has as many bytes as it has room");
    if let Some(nest) = to.runs.with_source(&from.runs) {
        // SAFETY: the caller's promise; the loops go over the bytes of both regions.
        return unsafe { phalanx_strided::copy(&nest, to.base, from.base) };
    }
    // Grids that have no common loops meet in memory without gaps.
    let mut bytes = vec![0_u8; from.bytes()];
    let nest = |runs: &ByteRuns, places| Nest { run: runs.run, extents: runs.extents.clone(), places };
    let places = |runs: &ByteRuns| [runs.dense(0), runs.places[0].clone()];
    let gather = nest(&from.runs, places(&from.runs));
    // SAFETY: the caller's promise for `from`; the runs fill the vector.
    unsafe { phalanx_strided::copy(&gather, bytes.as_mut_ptr(), from.base) };
    let [dense, apart] = places(&to.runs);
    let scatter = nest(&to.runs, [apart, dense]);
    // SAFETY: the caller's promise for `to`; the runs lie in the vector.
    unsafe { phalanx_strided::copy(&scatter, to.base, bytes.as_ptr()) };
}
