use super::*;
use crate::samples::{Case, Input, assert_gradient, tile, values, weighted};
use crate::{Team, Words};

/// A few hundred additions of values near one, each rounded to 2^-24.
const TOLERANCE: f32 = 2e-5;
/// As `TOLERANCE`, for gradients that a small variance magnifies.
const GRADIENT: f64 = 2e-4;
const EPS: f32 = 1e-5;

fn forward(rows: usize, cols: usize, affine: Affine) -> Case {
    let params = LayerNorm { rows, cols, eps: EPS, affine };
    let mut case = Case::new("layer_norm", params.to_words()).read(values(rows * cols, 1));
    for weight in 0..affine.count() {
        case = case.read(values(cols, 2 + weight as u64));
    }
    case.write(vec![0.0; rows * cols]).write(vec![0.0; rows]).write(vec![0.0; rows])
}

fn backward(params: LayerNormGrad) -> Case {
    let LayerNormGrad { cols, affine, .. } = params;
    let (rows, sums) = (params.rows(), if params.keep { params.leaves } else { 1 });
    let statistics = forward(rows, cols, affine).reference();
    let mut case = Case::new("layer_norm_grad", params.to_words()).read(values(rows * cols, 1));
    if affine.gamma() {
        case = case.read(values(cols, 2));
    }
    case = case.read(statistics[1].clone()).read(statistics[2].clone()).read(values(rows * cols, 4));
    case = case.write(values(rows * cols, 5));
    for _ in 0..affine.count() {
        case = case.write(vec![0.0; sums * cols]);
    }
    case
}

fn sizes([outer, time, cols]: [usize; 3], leaves: usize, inner: usize) -> LayerNormGrad {
    let affine = Affine::Both;
    LayerNormGrad { outer, time, heads: 1, cols, leaves, inner, keep: false, affine, accumulate: false }
}

#[test]
fn fast_equals_reference() {
    let orders = [(1, 1, 1, 1), (2, 1, 2, 1), (7, 1, 1, 1), (1, 100, 4, 1), (8, 12, 4, 2)];
    for affine in Affine::ALL {
        for cols in [2, 3, 5, 7, 15, 16, 17, 33, 100, 384] {
            for (outer, time, leaves, inner) in orders {
                forward(outer * time, cols, affine).check(TOLERANCE);
                let params = LayerNormGrad { affine, ..sizes([outer, time, cols], leaves, inner) };
                for (keep, accumulate) in [(false, false), (false, true), (true, false)] {
                    backward(LayerNormGrad { keep, accumulate, ..params }).check(GRADIENT as f32);
                }
            }
        }
    }
}

#[test]
fn bits_are_the_same_for_every_team_and_instruction_set() {
    for affine in Affine::ALL {
        forward(130, 133, affine).check_bits();
        for (inner, keep) in [(1, false), (1, true), (4, false), (4, true)] {
            let params = sizes([8, 20, 133], 8, inner);
            backward(LayerNormGrad { keep, affine, accumulate: true, ..params }).check_bits();
        }
    }
}

#[test]
fn tiles_along_batch_and_time_add_up_to_the_bits_of_the_whole() {
    let (dims, leaves, inner) = ([8, 16, 21], 4, 4);
    let whole = backward(sizes(dims, leaves, inner));
    let want = whole.fast(&Team::new(1));
    for (batch_cut, time_cut) in [(1, 2), (1, 4), (2, 1), (4, 1), (2, 2), (4, 4)] {
        let size = [8 / batch_cut, 16 / time_cut, 21];
        let part = LayerNormGrad { keep: true, ..sizes(size, leaves / batch_cut, inner / time_cut) };
        let mut sums = [Vec::new(), Vec::new()];
        for i in 0..batch_cut {
            let mut shards = [Vec::new(), Vec::new()];
            for j in 0..time_cut {
                let corner = [i * size[0], j * size[1], 0];
                let outs = backward_tile(&whole, part, corner).fast(&Team::new(2));
                assert_eq!(outs[0], tile(&want[0], dims, corner, size), "dx at {corner:?}");
                shards.iter_mut().zip(&outs[1..]).for_each(|(shard, sums)| shard.extend(sums));
            }
            for (sums, shards) in sums.iter_mut().zip(&mut shards) {
                tree_rows(shards, time_cut, part.leaves * 21);
                sums.extend_from_slice(&shards[..part.leaves * 21]);
            }
        }
        for (sums, want) in sums.iter_mut().zip(&want[1..]) {
            tree_rows(sums, leaves, 21);
            assert_eq!(sums[..21], want[..], "batch in {batch_cut}, time in {time_cut}");
        }
    }
}

/// The call on the tile of `whole`, of sizes 8, 16, 21, that starts at `corner`.
fn backward_tile(whole: &Case, params: LayerNormGrad, corner: [usize; 3]) -> Case {
    let mut case = backward(params);
    let size = [params.outer, params.time, params.cols];
    for (slot, cols) in [(0, 21), (2, 1), (3, 1), (4, 21)] {
        let Input::F32(read) = &whole.reads[slot] else { panic!("all reads are f32") };
        case.reads[slot] = tile(read, [8, 16, cols], corner, [size[0], size[1], cols]).into();
    }
    case
}

#[test]
fn gradients_equal_finite_differences() {
    let (rows, cols) = (4, 5);
    let case = backward(sizes([2, 2, cols], 2, 2));
    let grads = case.fast(&Team::new(2));
    let dy = values(rows * cols, 4);
    let [x, gamma, beta] = [values(rows * cols, 1), values(cols, 2), values(cols, 3)];
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let y = |x: &[f64], gamma: &[f64], beta: &[f64]| -> Vec<f64> {
        let row = |x: &[f64]| {
            let mu = x.iter().sum::<f64>() / cols as f64;
            let variance = x.iter().map(|x| (x - mu).powi(2)).sum::<f64>() / cols as f64;
            let r = 1.0 / (variance + f64::from(EPS)).sqrt();
            (0..cols).map(|i| (x[i] - mu) * r * gamma[i] + beta[i]).collect::<Vec<_>>()
        };
        x.chunks(cols).flat_map(row).collect()
    };
    assert_gradient(&grads[0], &x, GRADIENT, |x| weighted(&y(x, &wide(&gamma), &wide(&beta)), &dy));
    assert_gradient(&grads[1], &gamma, GRADIENT, |gamma| weighted(&y(&wide(&x), gamma, &wide(&beta)), &dy));
    assert_gradient(&grads[2], &beta, GRADIENT, |beta| weighted(&y(&wide(&x), &wide(&gamma), beta), &dy));
}
