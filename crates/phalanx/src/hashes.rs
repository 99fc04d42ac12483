//! Hashes of what a run has learned: one of every weight and optimizer state, and one over all.
//!
//! The hash of a tensor is a sum over its elements, each mixed with its place in the whole tensor. So it depends on no
//! plan, device, rank or core: the holder of a rectangle sums over it, and the sums of rectangles that cover the tensor
//! once add up to its hash. A change of one element always changes it; it does not withstand an adversary.

use std::collections::BTreeMap;

use phalanx_program::rect::Tile;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

/// Hashes of all weights and optimizer states, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateHashes {
    /// Over all tensors: their names and hashes, in name order.
    pub hash: String,
    /// Of each tensor, by name; none where only the one over all was written.
    #[serde(default)]
    pub hashes: BTreeMap<String, String>,
}

impl StateHashes {
    /// Of tensors whose elements sum up to these numbers.
    pub(crate) fn of_sums(sums: &BTreeMap<String, u64>) -> StateHashes {
        let mut all = Xxh3::new();
        for (name, sum) in sums {
            all.update(name.as_bytes());
            all.update(&sum.to_le_bytes());
        }
        let hashes = sums.iter().map(|(name, &sum)| (name.clone(), hex(sum)));
        StateHashes { hash: hex(all.digest()), hashes: hashes.collect() }
    }
}

fn hex(number: u64) -> String {
    format!("{number:016x}")
}

/// What the rectangle `rect` of a tensor, whose elements have `element` bytes, adds to the sum of the tensor.
pub(crate) fn sum_of(element: usize, shape: &[usize], rect: Tile<'_>, bytes: &[u8]) -> u64 {
    let row = rect.extents.last().copied().unwrap_or(1).max(1);
    let rows = bytes.chunks_exact(row * element).enumerate();
    let sums = rows.map(|(number, bytes)| {
        let first = index_of(number * row, shape, rect);
        match element {
            1 => sum_of_row::<1>(first, bytes),
            2 => sum_of_row::<2>(first, bytes),
            4 => sum_of_row::<4>(first, bytes),
            _ => sum_of_row::<8>(first, bytes),
        }
    });
    sums.fold(0, u64::wrapping_add)
}

/// The place in the tensor of the element that is at place `at` of the rectangle, both row-major.
fn index_of(mut at: usize, shape: &[usize], rect: Tile<'_>) -> u64 {
    let (mut index, mut stride) = (0, 1);
    for dim in (0..shape.len()).rev() {
        index += (rect.origin[dim] + at % rect.extents[dim]) * stride;
        (at, stride) = (at / rect.extents[dim], stride * shape[dim]);
    }
    index as u64
}

/// The sum of consecutive elements of `N` bytes, the first of which is at place `first` of the tensor.
fn sum_of_row<const N: usize>(first: u64, bytes: &[u8]) -> u64 {
    let bits = |element: &[u8; N]| {
        let mut all = [0; 8];
        all[..N].copy_from_slice(element);
        u64::from_le_bytes(all)
    };
    let elements = (first..).zip(bytes.as_chunks().0);
    elements.fold(0, |sum: u64, (index, element)| sum.wrapping_add(mix(index, bits(element))))
}

/// A number that, for each index, differs for any two bit patterns: the output of SplitMix64 (Steele, Lea, Flood: "Fast
/// splittable pseudorandom number generators") at `index` of the stream that begins at `bits`.
fn mix(index: u64, bits: u64) -> u64 {
    let state = bits.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a rectangle of a `[4, 6]` tensor whose element at place `i` is `values[i]`.
    fn cut(values: &[f32], rect: Tile<'_>) -> Vec<u8> {
        let rows = (0..rect.extents[0]).map(|row| (rect.origin[0] + row) * 6 + rect.origin[1]);
        rows.flat_map(|first| &values[first..first + rect.extents[1]]).flat_map(|x| x.to_le_bytes()).collect()
    }

    fn sum(values: &[f32], rects: &[([usize; 2], [usize; 2])]) -> u64 {
        let sums = rects.iter().map(|(origin, extents)| {
            let rect = Tile { origin, extents };
            sum_of(4, &[4, 6], rect, &cut(values, rect))
        });
        sums.fold(0, u64::wrapping_add)
    }

    const WHOLE: &[([usize; 2], [usize; 2])] = &[([0, 0], [4, 6])];

    #[test]
    fn any_cover_gives_the_same_sum() {
        let values: Vec<f32> = (0..24).map(|i| i as f32 / 7.0 - 1.0).collect();
        let whole = sum(&values, WHOLE);
        let columns = [([0, 4], [4, 2]), ([0, 0], [4, 4])];
        let uneven = [([0, 0], [1, 6]), ([1, 0], [3, 5]), ([1, 5], [3, 1])];
        assert_eq!([sum(&values, &columns), sum(&values, &uneven)], [whole; 2]);
        assert_ne!(sum(&values, &columns[..1]), whole);
    }

    #[test]
    fn any_bit_and_any_exchange_of_elements_changes_the_sum() {
        let values: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let whole = sum(&values, WHOLE);
        for bit in 0..24 * 32 {
            let mut changed = values.clone();
            changed[bit / 32] = f32::from_bits(changed[bit / 32].to_bits() ^ 1 << (bit % 32));
            assert_ne!(sum(&changed, WHOLE), whole, "bit {bit}");
        }
        for (left, right) in (0..24).flat_map(|left| (0..left).map(move |right| (left, right))) {
            let mut changed = values.clone();
            changed.swap(left, right);
            assert_ne!(sum(&changed, WHOLE), whole, "elements {left} and {right}");
        }
    }

    #[test]
    fn elements_of_every_size_and_scalars_count() {
        for element in [1, 2, 4, 8] {
            let rect = Tile { origin: &[], extents: &[] };
            let sums = [0, 1].map(|last| {
                let mut bytes = vec![7; element];
                bytes[element - 1] = last;
                sum_of(element, &[], rect, &bytes)
            });
            assert_ne!(sums[0], sums[1], "{element} bytes");
        }
        // The first output of the generator seeded with zero.
        assert_eq!(sum_of(8, &[1], Tile { origin: &[0], extents: &[1] }, &[0; 8]), 0xE220_A839_7B1D_CDAF);
    }

    #[test]
    fn a_hash_over_all_knows_names() {
        let of = |names: [&str; 2]| {
            StateHashes::of_sums(&names.map(String::from).into_iter().zip([1, 2]).collect())
        };
        assert_eq!(of(["a", "b"]).hashes["b"], "0000000000000002");
        assert_ne!(of(["a", "b"]).hash, of(["a", "c"]).hash);
    }
}
