use super::*;
use crate::samples::{Case, Input, assert_gradient, tile, values, weighted};
use crate::{Team, Words};

/// A few hundred additions of values near one, each rounded to 2^-24.
const TOLERANCE: f32 = 2e-5;
const EPS: f32 = 1e-5;

fn forward(rows: usize, cols: usize) -> Case {
    Case::new("rms_norm", RmsNorm { rows, cols, eps: EPS }.to_words())
        .read(values(rows * cols, 1))
        .read(values(cols, 2))
        .write(vec![0.0; rows * cols])
        .write(vec![0.0; rows])
}

fn backward(params: RmsNormGrad) -> Case {
    let (rows, cols) = (params.rows(), params.cols);
    let sums = if params.keep { params.leaves } else { 1 };
    Case::new("rms_norm_grad", params.to_words())
        .read(values(rows * cols, 1))
        .read(values(cols, 2))
        .read(forward(rows, cols).reference()[1].clone())
        .read(values(rows * cols, 4))
        .write(values(rows * cols, 5))
        .write(vec![0.0; sums * cols])
}

fn sizes([outer, time, cols]: [usize; 3], leaves: usize, inner: usize) -> RmsNormGrad {
    RmsNormGrad { outer, time, heads: 1, cols, leaves, inner, keep: false, accumulate: false }
}

#[test]
fn fast_equals_reference() {
    let orders = [(1, 1, 1, 1), (2, 1, 2, 1), (7, 1, 1, 1), (1, 100, 4, 1), (8, 12, 4, 2)];
    for cols in [1, 2, 3, 5, 7, 15, 16, 17, 33, 100, 384] {
        for (outer, time, leaves, inner) in orders {
            forward(outer * time, cols).check(TOLERANCE);
            for (keep, accumulate) in [(false, false), (false, true), (true, false)] {
                let params = sizes([outer, time, cols], leaves, inner);
                backward(RmsNormGrad { keep, accumulate, ..params }).check(TOLERANCE);
            }
        }
    }
}

#[test]
fn bits_are_the_same_for_every_team_and_instruction_set() {
    forward(130, 133).check_bits();
    for (inner, keep) in [(1, false), (1, true), (4, false), (4, true)] {
        backward(RmsNormGrad { keep, accumulate: true, ..sizes([8, 20, 133], 8, inner) }).check_bits();
    }
}

#[test]
fn tiles_along_batch_and_time_add_up_to_the_bits_of_the_whole() {
    let (dims, leaves, inner) = ([8, 16, 21], 4, 4);
    let whole = backward(sizes(dims, leaves, inner));
    let want = whole.fast(&Team::new(1));
    for (batch_cut, time_cut) in [(1, 2), (1, 4), (2, 1), (4, 1), (2, 2), (4, 4)] {
        let size = [8 / batch_cut, 16 / time_cut, 21];
        let part = RmsNormGrad { keep: true, ..sizes(size, leaves / batch_cut, inner / time_cut) };
        let mut sums = Vec::new();
        for i in 0..batch_cut {
            let mut shards = Vec::new();
            for j in 0..time_cut {
                let corner = [i * size[0], j * size[1], 0];
                let outs = backward_tile(&whole, part, corner).fast(&Team::new(2));
                assert_eq!(outs[0], tile(&want[0], dims, corner, size), "dx at {corner:?}");
                shards.extend(&outs[1]);
            }
            tree_rows(&mut shards, time_cut, part.leaves * 21);
            sums.extend(&shards[..part.leaves * 21]);
        }
        tree_rows(&mut sums, leaves, 21);
        assert_eq!(sums[..21], want[1], "batch in {batch_cut}, time in {time_cut}");
    }
}

/// The call on the tile of `whole`, of sizes 8, 16, 21, that starts at `corner`.
fn backward_tile(whole: &Case, params: RmsNormGrad, corner: [usize; 3]) -> Case {
    let mut case = backward(params);
    for (slot, cols) in [(0, 21), (2, 1), (3, 21)] {
        let Input::F32(read) = &whole.reads[slot] else { panic!("all reads are f32") };
        case.reads[slot] = tile(read, [8, 16, cols], corner, [params.outer, params.time, cols]).into();
    }
    case
}

#[test]
fn gradients_equal_finite_differences() {
    let (rows, cols) = (4, 5);
    let case = backward(sizes([2, 2, cols], 2, 2));
    let grads = case.fast(&Team::new(2));
    let [x, gamma, dy] = [values(rows * cols, 1), values(cols, 2), values(rows * cols, 4)];
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let y = |x: &[f64], gamma: &[f64]| -> Vec<f64> {
        let row = |x: &[f64]| {
            let mean_square = x.iter().map(|x| x * x).sum::<f64>() / cols as f64;
            let r = 1.0 / (mean_square + f64::from(EPS)).sqrt();
            (0..cols).map(|i| x[i] * r * gamma[i]).collect::<Vec<_>>()
        };
        x.chunks(cols).flat_map(row).collect()
    };
    let tolerance = f64::from(TOLERANCE);
    assert_gradient(&grads[0], &x, tolerance, |x| weighted(&y(x, &wide(&gamma)), &dy));
    assert_gradient(&grads[1], &gamma, tolerance, |gamma| weighted(&y(&wide(&x), gamma), &dy));
}

/// Rows of several heads are those of one head each, their sums side by side.
#[test]
fn heads_have_sums_of_their_own() {
    let (params, heads, cols) = (sizes([4, 6, 5], 2, 2), 3, 5);
    let params = RmsNormGrad { heads, keep: true, ..params };
    let rows = params.rows();
    let case = |params: RmsNormGrad, ins: [Vec<f32>; 4]| {
        let case =
            ins.into_iter().fold(Case::new("rms_norm_grad", params.to_words()), |case, x| case.read(x));
        case.write(vec![0.0; params.rows() * cols]).write(vec![0.0; params.leaves * params.width()])
    };
    let ins = [values(rows * cols, 1), values(cols, 2), values(rows, 3), values(rows * cols, 4)];
    let all = case(params, ins.clone());
    all.check_bits();
    let found = all.fast(&Team::new(2));
    for head in 0..heads {
        let of_head = |x: &[f32], width: usize| -> Vec<f32> {
            x.chunks(width).skip(head).step_by(heads).flatten().copied().collect()
        };
        let own = [of_head(&ins[0], cols), ins[1].clone(), of_head(&ins[2], 1), of_head(&ins[3], cols)];
        let one = case(RmsNormGrad { heads: 1, ..params }, own).fast(&Team::new(1));
        assert_eq!(of_head(&found[0], cols), one[0], "dx of head {head}");
        assert_eq!(of_head(&found[1], cols), one[1], "sums of head {head}");
    }
}
