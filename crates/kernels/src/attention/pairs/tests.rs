use super::*;
use crate::attention::product::ROWS;
use crate::bf16::{NumberClass, Samples};
use crate::samples::with_each_isa;

/// Every instruction set gives the leaves of the definition, whatever the numbers, but for the sign of zeros.
#[test]
fn products_are_as_defined() {
    let found = with_each_isa(|isa| {
        let mut found = Vec::new();
        for (class, precision) in NumberClass::ALL.into_iter().flat_map(|class| ROUNDED.map(|p| (class, p))) {
            for (depth, skipped) in [(1, 0), (16, 0), (23, 5), (32, 0), (27, 16), (75, 0)] {
                for accumulate in [false, depth <= 32] {
                    let rounding = Rounding { precision, scale: 0.5, skipped };
                    let different = differences(class, depth, accumulate, rounding);
                    found.extend((different > 0).then(|| format!("{isa:?} {class:?} {depth} {rounding:?}")));
                }
            }
        }
        found
    });
    assert!(found.is_empty(), "{found:?}");
}

/// How many elements of a product of such numbers differ from the definition.
fn differences(class: NumberClass, depth: usize, accumulate: bool, rounding: Rounding) -> usize {
    let (rows, cols, width) = (2 * ROWS, 3 * LANES, 2 * COLUMNS);
    let mut samples = Samples::new(class, depth as u64);
    let mut words = |n: usize| -> Vec<f32> {
        (0..n).map(|_| word(widen(samples.factor()), widen(samples.factor()))).collect()
    };
    let (left, right) = (words(rows * depth), words(depth * width));
    let (out_row, left_row, right_row) = (width, depth, width);
    let shape = Product { rows, cols, depth, out_row, left_row, left_step: 1, right_row, accumulate };
    let mut got = vec![1.0; rows * width];
    let mut want = got.clone();
    product(&mut got, &left, &right, shape, rounding);
    portable(&mut want, &left, &right, shape, rounding);
    let columns = got.iter().zip(&want).enumerate().filter(|(at, _)| at % width < cols);
    columns.filter(|(_, (got, want))| got != want && !(got.is_nan() && want.is_nan())).count()
}

const ROUNDED: [Precision; 2] = [Precision::Bf16, Precision::Bf16Pair];

#[test]
fn pairs_are_joined_where_two_sources_meet() {
    let head = |time: usize| Head { start: 1, row: 4, time, dim: 3 };
    let (first, second) = (crate::samples::values(29, 1), crate::samples::values(29, 2));
    for split in 0..=5 {
        let mut out = vec![f32::NAN; 4 * 5];
        pack_pairs(&mut out, 5, &first, head(split), 0, 0);
        pack_pairs(&mut out, 5, &second, head(2), 0, split);
        for (at, &found) in out.iter().enumerate() {
            let (pair, d) = (at / 5, at % 5);
            let value = |t: usize| match t {
                _ if d >= 3 => 0.0,
                t if t < split => first[head(split).at(t)][d],
                t if t < split + 2 => second[head(2).at(t - split)][d],
                _ => 0.0,
            };
            assert_eq!(
                found.to_bits(),
                word(value(2 * pair), value(2 * pair + 1)).to_bits(),
                "{split}, {at}"
            );
        }
    }
}
