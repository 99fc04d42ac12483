//! The meaning of attention: plain loops over one query at a time.

mod rounded;

use super::{Attention, AttentionGrad, GradInputs};

/// Attention of every query: outputs out, lse.
pub fn attention_reference([out, lse]: [&mut [f32]; 2], qkv: [&[f32]; 3], params: Attention) {
    if params.precision.rounds() {
        return rounded::attention([out, lse], qkv, params);
    }
    out.fill(0.0);
    for_each_query(params, |b, h, i| {
        let scores = scores(qkv, params, b, h, i);
        let m = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = scores.iter().map(|s| (s - m).exp()).sum();
        let at = params.heads_of_out().start(b, i, h);
        for (j, s) in scores.iter().enumerate() {
            let v = row(qkv, params, 2, b, j, h / params.group());
            (0..params.head_dim).for_each(|d| out[at + d] += (s - m).exp() / sum * v[d]);
        }
        lse[(b * params.heads + h) * params.q_time + i] = m + sum.ln();
    });
}

/// The gradients of q, k, v.
pub fn attention_grad_reference(mut grads: [&mut [f32]; 3], inputs: GradInputs<'_>, params: AttentionGrad) {
    if params.forward.precision.rounds() {
        return rounded::attention_grad(grads, inputs, params);
    }
    let AttentionGrad { forward: params, accumulate } = params;
    let GradInputs { qkv, out, lse, dout } = inputs;
    let before = if accumulate { grads[0].to_vec() } else { Vec::new() };
    grads.iter_mut().for_each(|grad| grad.fill(0.0));
    let dim = params.head_dim;
    for_each_query(params, |b, h, i| {
        let kv_head = h / params.group();
        let at = params.heads_of_out().start(b, i, h);
        let (out, dout) = (&out[at..at + dim], &dout[at..at + dim]);
        let delta = dot(out, dout);
        let lse = lse[(b * params.heads + h) * params.q_time + i];
        for (j, s) in scores(qkv, params, b, h, i).iter().enumerate() {
            let [q, k, v] = [(0, i, h), (1, j, kv_head), (2, j, kv_head)]
                .map(|(tensor, t, head)| row(qkv, params, tensor, b, t, head));
            let p = (s - lse).exp();
            let ds = p * (dot(dout, v) - delta) * params.scale;
            let mut add = |tensor: usize, t: usize, head: usize, d: usize, value: f32| {
                let heads = params.heads_of(tensor);
                grads[heads.slot][heads.start(b, t, head) + d] += value;
            };
            for d in 0..dim {
                add(0, i, h, d, ds * k[d]);
                add(1, j, kv_head, d, ds * q[d]);
                add(2, j, kv_head, d, p * dout[d]);
            }
        }
    });
    grads[0].iter_mut().zip(before).for_each(|(dq, before)| *dq += before);
}

/// Calls `body(batch, head, query)` for every query, in ascending order.
fn for_each_query(params: Attention, mut body: impl FnMut(usize, usize, usize)) {
    for b in 0..params.batch {
        for h in 0..params.heads {
            (0..params.q_time).for_each(|i| body(b, h, i));
        }
    }
}

/// The scaled scores of the keys that query `i` sees.
fn scores(qkv: [&[f32]; 3], params: Attention, b: usize, h: usize, i: usize) -> Vec<f32> {
    let q = row(qkv, params, 0, b, i, h);
    let score = |j| params.scale * dot(q, row(qkv, params, 1, b, j, h / params.group()));
    (0..params.visible(i)).map(score).collect()
}

/// One head of q (0), k (1) or v (2) at one time.
fn row(qkv: [&[f32]; 3], params: Attention, tensor: usize, b: usize, t: usize, head: usize) -> &[f32] {
    let heads = params.heads_of(tensor);
    &qkv[heads.slot][heads.start(b, t, head)..][..params.head_dim]
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
