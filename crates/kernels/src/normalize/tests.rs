use super::*;
use crate::Words;
use crate::samples::{Case, values};

fn positive(n: usize, seed: u64) -> Vec<f32> {
    values(n, seed).iter().map(|x| x.abs() + 0.1).collect()
}

fn forward(rows: usize, cols: usize, affine: bool) -> Case {
    let params = Normalize { rows, cols, eps: 1e-3, affine };
    let case = Case::new("normalize", params.to_words()).read(values(rows * cols, 1));
    let case = case.read(values(cols, 2)).read(positive(cols, 3));
    let case = if affine { case.read(values(cols, 4)).read(values(cols, 5)) } else { case };
    case.write(vec![0.0; rows * cols])
}

fn grad([outer, time, cols]: [usize; 3], [leaves, inner]: [usize; 2], keep: bool, affine: bool) -> Case {
    let accumulate = keep;
    let params = NormalizeGrad { outer, time, cols, eps: 1e-3, affine, leaves, inner, keep, accumulate };
    let n = outer * time * cols;
    let case = Case::new("normalize_grad", params.to_words()).read(values(n, 1));
    let case = case.read(values(cols, 2)).read(positive(cols, 3));
    let case = if affine { case.read(values(cols, 4)) } else { case };
    let case = case.read(values(n, 6)).write(values(n, 7));
    let size = if keep { leaves * cols } else { cols };
    (0..params.vectors()).fold(case, |case, _| case.write(vec![0.0; size]))
}

#[test]
fn fast_equals_reference_in_every_bit() {
    for affine in [false, true] {
        for (rows, cols) in [(1, 1), (2, 3), (12, 17), (7, 33), (5, 100)] {
            forward(rows, cols, affine).check(0.0);
        }
        for keep in [false, true] {
            for (shape, leaves) in [
                ([1, 1, 1], [1, 1]),
                ([4, 3, 5], [2, 1]),
                ([4, 6, 17], [2, 2]),
                ([8, 2, 33], [8, 2]),
                ([3, 4, 100], [1, 4]),
            ] {
                grad(shape, leaves, keep, affine).check(0.0);
            }
        }
    }
}

#[test]
fn bits_are_the_same_for_every_team_and_instruction_set() {
    for affine in [false, true] {
        forward(900, 67, affine).check_bits();
        grad([16, 50, 67], [8, 2], false, affine).check_bits();
    }
}
