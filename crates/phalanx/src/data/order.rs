//! The order of windows in an epoch: a pseudo-random permutation, computed element by element.
//!
//! A four-round Feistel network permutes the numbers of an even count of bits; results outside the wanted range are
//! permuted again until they fall inside, which keeps it a permutation. No table, so an epoch costs no memory.

/// The element that comes at `place` in epoch `epoch` of `0..count`.
pub(super) fn permuted(seed: u64, epoch: u64, place: u64, count: u64) -> u64 {
    debug_assert!(place < count, "a place in the order");
    let half_bits = (u64::BITS - count.saturating_sub(1).leading_zeros()).div_ceil(2).max(1);
    let keys = [0, 1, 2, 3].map(|round| mix(mix(seed ^ 0x5068_616C_616E_7821) ^ mix(epoch) ^ (round << 62)));
    let mut element = shuffle(place, half_bits, keys);
    while element >= count {
        element = shuffle(element, half_bits, keys);
    }
    element
}

fn shuffle(element: u64, half_bits: u32, keys: [u64; 4]) -> u64 {
    let mask = (1 << half_bits) - 1;
    let (mut left, mut right) = (element >> half_bits, element & mask);
    for key in keys {
        (left, right) = (right, left ^ (mix(right ^ key) & mask));
    }
    left << half_bits | right
}

/// The finalizer of SplitMix64: every input bit changes about half of the output bits.
pub(super) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_is_permuted() {
        for count in (1..70).chain([1000, 4096, 4097]) {
            let mut seen: Vec<u64> = (0..count).map(|place| permuted(7, 3, place, count)).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..count), "{count}");
        }
    }

    #[test]
    fn seeds_and_epochs_give_unrelated_orders() {
        let fixed = |a: (u64, u64), b: (u64, u64)| {
            (0..4000).filter(|&i| permuted(a.0, a.1, i, 4000) == permuted(b.0, b.1, i, 4000)).count()
        };
        assert!(fixed((1, 0), (1, 1)) < 12, "unrelated orders agree once on average");
        assert!(fixed((1, 0), (2, 0)) < 12);
        let moved: f64 =
            (0..4000).map(|i| (permuted(1, 0, i, 4000) as f64 - i as f64).abs()).sum::<f64>() / 4000.0;
        assert!(
            (moved - 4000.0 / 3.0).abs() < 150.0,
            "a random order moves by a third of the range: {moved}"
        );
    }
}
