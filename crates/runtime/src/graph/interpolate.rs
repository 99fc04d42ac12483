//! A run's own arguments put into those of its operations.

use crate::flow::{Flow, Interpolation, Patch};

/// The arguments of all operations for a run with arguments `given`.
pub(super) fn interpolate(args: &mut [u8], flow: &Flow, given: &[u8]) {
    if flow.interpolations().is_empty() {
        return;
    }
    args.copy_from_slice(flow.args());
    for &Interpolation { from, bytes, to, patch } in flow.interpolations() {
        let given = &given[from as usize..(from + bytes) as usize];
        let place = &mut args[to as usize..(to + bytes) as usize];
        match patch {
            Patch::Overwrite => place.copy_from_slice(given),
            Patch::AddI64 => add(place, given, |a, b| {
                i64::from_ne_bytes(a).wrapping_add(i64::from_ne_bytes(b)).to_ne_bytes()
            }),
            Patch::AddF64 => {
                add(place, given, |a, b| (f64::from_ne_bytes(a) + f64::from_ne_bytes(b)).to_ne_bytes())
            }
        }
    }
}

fn add(place: &mut [u8], given: &[u8], sum: impl Fn([u8; 8], [u8; 8]) -> [u8; 8]) {
    let (Some(place), Some(&given)) = (place.first_chunk_mut(), given.first_chunk()) else { return };
    *place = sum(*place, given);
}
