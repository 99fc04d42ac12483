mod rounded;

use super::*;
use crate::Team;
use crate::samples::{Case, Input, assert_gradient, values, weighted};

/// A few hundred additions of weighted values near one, each rounded to 2^-24.
const TOLERANCE: f32 = 1e-5;

/// batch, heads, kv_heads, q_time, k_time, head_dim
type Sizes = [usize; 6];

fn params([batch, heads, kv_heads, q_time, k_time, head_dim]: Sizes, causal: bool) -> Attention {
    let scale = 2.0 / (head_dim as f32).sqrt();
    let precision = Precision::F32;
    Attention { batch, heads, kv_heads, q_time, k_time, head_dim, scale, causal, precision }
}

/// The lengths of the slices that hold q, k, v.
fn lengths(params: Attention) -> Vec<usize> {
    let Attention { batch, heads, kv_heads, q_time, k_time, head_dim, .. } = params;
    let keys = batch * k_time * kv_heads * head_dim;
    vec![batch * q_time * heads * head_dim, keys, keys]
}

fn forward(params: Attention) -> Case {
    let Attention { batch, heads, q_time, head_dim, .. } = params;
    let mut case = Case::new("attention", params.to_words());
    for (seed, n) in lengths(params).into_iter().enumerate() {
        case = case.read(values(n, seed as u64 + 1));
    }
    let queries = batch * heads * q_time;
    case.write(vec![f32::NAN; queries * head_dim]).write(vec![f32::NAN; queries])
}

fn backward(params: Attention) -> Case {
    let forward = forward(params);
    let mut results = forward.reference();
    let grad = AttentionGrad { forward: params, accumulate: false };
    let mut case = Case::new("attention_grad", grad.to_words());
    case.reads = forward.reads.clone();
    let dout = values(results[0].len(), 9);
    case = case.read(results.remove(0)).read(results.remove(0)).read(dout);
    for n in lengths(params) {
        case = case.write(vec![f32::NAN; n]);
    }
    case
}

#[test]
fn fast_equals_reference() {
    let sizes: [Sizes; 10] = [
        [1, 1, 1, 1, 1, 1],
        [1, 1, 1, 2, 2, 3],
        [2, 3, 1, 5, 5, 7],
        [1, 2, 2, 17, 17, 16],
        [1, 4, 2, 33, 33, 17],
        [2, 2, 1, 65, 65, 64],
        [1, 1, 1, 100, 100, 80],
        [1, 2, 1, 7, 150, 48],
        [1, 2, 1, 130, 70, 8],
        [1, 2, 2, 200, 200, 32],
    ];
    for sizes in sizes {
        for causal in [false, true] {
            forward(params(sizes, causal)).check(TOLERANCE);
            backward(params(sizes, causal)).check(TOLERANCE);
        }
    }
}

#[test]
fn bits_are_the_same_for_every_team_and_instruction_set() {
    for causal in [false, true] {
        forward(params([2, 4, 2, 100, 100, 40], causal)).check_bits();
        forward(params([1, 1, 1, 150, 170, 20], causal)).check_bits();
        backward(params([2, 4, 2, 100, 100, 40], causal)).check_bits();
        backward(params([2, 2, 1, 70, 90, 20], causal)).check_bits();
    }
}

#[test]
fn dq_is_added_to_what_is_there() {
    for &precision in Precision::ALL {
        let params = Attention { precision, ..params([2, 2, 1, 70, 66, 20], true) };
        let (plain, mut onto) = (backward(params), backward(params));
        onto.params = AttentionGrad { forward: params, accumulate: true }.to_words();
        let before = values(plain.writes[0].len(), 7);
        onto.writes[0] = before.clone();
        onto.check(TOLERANCE);
        let (plain, onto) = (plain.fast(&Team::new(2)), onto.fast(&Team::new(2)));
        assert!(plain[0].iter().zip(before).zip(&onto[0]).all(|((dq, before), sum)| before + dq == *sum));
        assert_eq!(plain[1..], onto[1..]);
    }
}

#[test]
fn a_query_keeps_its_bits_when_others_are_left_out() {
    let (time, dim) = (150, 20);
    for (kept, &precision) in
        [70, 37].into_iter().flat_map(|kept| Precision::ALL.iter().map(move |p| (kept, p)))
    {
        let with = |q_time: usize| Attention { precision, ..params([1, 1, 1, q_time, time, dim], true) };
        let (whole, mut part) = (forward(with(time)), forward(with(kept)));
        let Input::F32(q) = &whole.reads[0] else { panic!("q is f32") };
        part.reads = whole.reads.clone();
        part.reads[0] = q[(time - kept) * dim..].to_vec().into();
        let team = Team::new(1);
        let (whole, part) = (whole.fast(&team), part.fast(&team));
        assert_eq!(whole[0][(time - kept) * dim..], part[0]);
        assert_eq!(whole[1][time - kept..], part[1]);
    }
}

#[test]
fn gradients_equal_finite_differences() {
    let params = params([1, 2, 1, 4, 5, 3], true);
    let case = backward(params);
    let grads = case.fast(&Team::new(1));
    let inputs: Vec<Vec<f32>> = case.reads[..3]
        .iter()
        .map(|input| match input {
            Input::F32(x) => x.clone(),
            _ => panic!("q, k, v are f32"),
        })
        .collect();
    let dout = values(grads[0].len(), 9);
    for tensor in 0..3 {
        assert_gradient(&grads[tensor], &inputs[tensor], f64::from(TOLERANCE), |x| {
            let mut qkv =
                inputs.iter().map(|x| x.iter().map(|&x| f64::from(x)).collect()).collect::<Vec<_>>();
            qkv[tensor] = x.to_vec();
            weighted(&exact(&qkv, params), &dout)
        });
    }
}

/// The output in f64.
fn exact(qkv: &[Vec<f64>], params: Attention) -> Vec<f64> {
    let Attention { heads, q_time, head_dim, .. } = params;
    let row = |tensor: usize, t: usize, h: usize| {
        let start = params.heads_of(tensor).start(0, t, h);
        &qkv[tensor][start..start + head_dim]
    };
    let mut out = vec![0.0; q_time * heads * head_dim];
    for (i, h) in (0..q_time).flat_map(|i| (0..heads).map(move |h| (i, h))) {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let weight = |j| (f64::from(params.scale) * dot(row(0, i, h), row(1, j, h / params.group()))).exp();
        let weights: Vec<f64> = (0..params.visible(i)).map(weight).collect();
        let total: f64 = weights.iter().sum();
        for (j, weight) in weights.iter().enumerate() {
            for d in 0..head_dim {
                out[(i * heads + h) * head_dim + d] += weight / total * row(2, j, h / params.group())[d];
            }
        }
    }
    out
}
