//! The meaning of masked attention: plain loops over one query at a time.

use super::{Bias, MaskedAttention, MaskedAttentionGrad, MaskedGradInputs, MaskedInputs};
use crate::dropout::{DropoutParams, dropout_reference};

/// One score: what it is, and its slope by `scale q·k`; none if the key is hidden.
type Score = Option<(f32, f32)>;

/// Attention of every query: outputs out, lse.
pub fn masked_attention_reference(
    [out, lse]: [&mut [f32]; 2],
    inputs: MaskedInputs<'_>,
    params: MaskedAttention,
) {
    out.fill(0.0);
    for_each_query(params, |at| {
        let [b, h, i] = at;
        let scores = scores(inputs, params, at);
        let m = scores.iter().flatten().map(|score| score.0).fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = scores.iter().flatten().map(|score| (score.0 - m).exp()).sum();
        lse[params.row(at)] = if sum == 0.0 { f32::NEG_INFINITY } else { m + sum.ln() };
        let start = params.heads_of_out().start(b, i, h);
        for (j, score) in scores.iter().enumerate() {
            let Some((score, _)) = score else { continue };
            let p = kept(inputs.hyper, params, at, j, (score - m).exp() / sum);
            let v = row(inputs.qkv, params, 2, b, j, h / params.group());
            (0..params.value_dim).for_each(|d| out[start + d] += p * v[d]);
        }
    });
}

/// The gradients of q, k, v and, if wanted, of every score's bias.
pub fn masked_attention_grad_reference(
    mut grads: [&mut [f32]; 4],
    inputs: MaskedGradInputs<'_>,
    params: MaskedAttentionGrad,
) {
    let MaskedAttentionGrad { forward: params, accumulate, wants_bias } = params;
    let MaskedGradInputs { forward, out, lse, dout } = inputs;
    let before = if accumulate { grads[0].to_vec() } else { Vec::new() };
    grads.iter_mut().for_each(|grad| grad.fill(0.0));
    for_each_query(params, |at| {
        let [b, h, i] = at;
        let kv_head = h / params.group();
        let start = params.heads_of_out().start(b, i, h);
        let [out, dout] = [out, dout].map(|x| &x[start..start + params.value_dim]);
        let (delta, lse) = (dot(out, dout), lse[params.row(at)]);
        for (j, score) in scores(forward, params, at).iter().enumerate() {
            let Some((score, slope)) = *score else { continue };
            let [q, k, v] = [(0, i, h), (1, j, kv_head), (2, j, kv_head)]
                .map(|(tensor, t, head)| row(forward.qkv, params, tensor, b, t, head));
            let p = (score - lse).exp();
            let dp = kept(forward.hyper, params, at, j, dot(dout, v));
            let dbias = p * (dp - delta);
            if wants_bias {
                grads[3][params.row(at) * params.k_time + j] = dbias;
            }
            let ds = dbias * slope * params.scale;
            let mut add = |tensor: usize, t: usize, head: usize, d: usize, value: f32| {
                grads[tensor][params.heads_of(tensor).start(b, t, head) + d] += value;
            };
            for d in 0..params.head_dim {
                add(0, i, h, d, ds * k[d]);
                add(1, j, kv_head, d, ds * q[d]);
            }
            let p = kept(forward.hyper, params, at, j, p);
            (0..params.value_dim).for_each(|d| add(2, j, kv_head, d, p * dout[d]));
        }
    });
    grads[0].iter_mut().zip(before).for_each(|(dq, before)| *dq += before);
}

/// Calls `body([batch, head, query])` for every query, in ascending order.
fn for_each_query(params: MaskedAttention, mut body: impl FnMut([usize; 3])) {
    for b in 0..params.batch {
        for h in 0..params.heads {
            (0..params.q_time).for_each(|i| body([b, h, i]));
        }
    }
}

/// The scores of all keys.
fn scores(inputs: MaskedInputs<'_>, params: MaskedAttention, at: [usize; 3]) -> Vec<Score> {
    let [b, h, i] = at;
    let q = row(inputs.qkv, params, 0, b, i, h);
    let score = |j: usize| {
        let near = !params.causal || j <= i;
        let inside = params.window == 0 || i.abs_diff(j) < params.window;
        let (shown, bias) = match inputs.bias {
            Bias::None => (true, 0.0),
            Bias::Bool(shown) => (shown[params.bias_row(at) + j] != 0, 0.0),
            Bias::F32(bias) => {
                let bias = bias[params.bias_row(at) + j];
                (bias != f32::NEG_INFINITY, bias)
            }
        };
        let score = params.scale * dot(q, row(inputs.qkv, params, 1, b, j, h / params.group()));
        let (score, slope) = match params.softcap {
            0.0 => (score, 1.0),
            cap => (cap * (score / cap).tanh(), 1.0 - (score / cap).tanh().powi(2)),
        };
        (near && inside && shown).then_some((score + bias, slope))
    };
    (0..params.k_time).map(score).collect()
}

/// `value` of one pair after dropout.
fn kept(hyper: &[f32], params: MaskedAttention, at: [usize; 3], j: usize, value: f32) -> f32 {
    if !params.drops() {
        return value;
    }
    let mask = params.dropout.element(params.row(at) * params.k_time + j);
    let mut kept = [0.0];
    dropout_reference(&mut kept, &[value], hyper, DropoutParams { n: 1, accumulate: false, mask });
    kept[0]
}

/// One head of q (0), k (1) or v (2) at one time.
fn row(qkv: [&[f32]; 3], params: MaskedAttention, tensor: usize, b: usize, t: usize, head: usize) -> &[f32] {
    let heads = params.heads_of(tensor);
    &qkv[tensor][heads.start(b, t, head)..][..heads.dim]
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
