//! The same in precisions that round: the definition, down to the bit.

use super::super::product::LANES;
use super::super::strip::{KEYS, QUERIES};
use super::{Attention, AttentionGrad, GradInputs, for_each_query, row};
use crate::bf16::{leaf, rounded};
use crate::math::{exp_negative, log};
use crate::rows::{sum, sum_lanes};

/// Attention of every query: outputs out, lse.
pub(super) fn attention([out, lse]: [&mut [f32]; 2], qkv: [&[f32]; 3], params: Attention) {
    for_each_query(params, |b, h, i| {
        let at = params.heads_of_out().start(b, i, h);
        let out = &mut out[at..at + params.head_dim];
        lse[(b * params.heads + h) * params.q_time + i] = query(out, qkv, params, [b, h, i]);
    });
}

/// Attention of one query; returns its lse.
fn query(out: &mut [f32], qkv: [&[f32]; 3], params: Attention, [b, h, i]: [usize; 3]) -> f32 {
    let mut maximum = f32::NEG_INFINITY;
    let mut sums = [0.0; LANES];
    out.fill(0.0);
    for first in (0..params.visible(i)).step_by(KEYS) {
        let scores = scores(qkv, params, [b, h, i], first);
        let larger = scores.iter().fold(maximum, |a, &b| if b > a { b } else { a });
        let rescale = exp_negative(maximum - larger);
        maximum = larger;
        let weights: Vec<f32> = scores.iter().map(|score| exp_negative(score - maximum)).collect();
        sums = sums.map(|sum| sum * rescale);
        weights.iter().enumerate().for_each(|(j, weight)| sums[j % LANES] += weight);
        for (d, out) in out.iter_mut().enumerate() {
            let value = |j: usize| row(qkv, params, 2, b, first + j, h / params.group())[d];
            *out = *out * rescale + leaf(params.precision, weights.len(), |j| (weights[j], value(j)));
        }
    }
    let total = sum_lanes(&sums);
    let inverse = if total == 0.0 { 0.0 } else { 1.0 / total };
    out.iter_mut().for_each(|out| *out = *out * inverse + 0.0);
    maximum + log(total)
}

/// The scaled scores of the block of keys from `first`; masked ones are minus infinity.
fn scores(qkv: [&[f32]; 3], params: Attention, [b, h, i]: [usize; 3], first: usize) -> Vec<f32> {
    let q = row(qkv, params, 0, b, i, h);
    let last = params.k_time.min(first + KEYS);
    let score = |j| match j < params.visible(i) {
        true => params.scale * dot(params, q, row(qkv, params, 1, b, j, h / params.group())),
        false => f32::NEG_INFINITY,
    };
    (first..last).map(score).collect()
}

/// One leaf.
fn dot(params: Attention, a: &[f32], b: &[f32]) -> f32 {
    leaf(params.precision, a.len(), |step| (a[step], b[step]))
}

/// The gradients of q, k, v.
pub(super) fn attention_grad(grads: [&mut [f32]; 3], inputs: GradInputs<'_>, params: AttentionGrad) {
    let AttentionGrad { forward: params, accumulate } = params;
    let [dq, dk, dv] = grads;
    dk.fill(0.0);
    dv.fill(0.0);
    for b in 0..params.batch {
        for h in 0..params.heads {
            for first in (0..params.q_time).step_by(QUERIES) {
                let queries: Vec<Query> = (first..params.q_time.min(first + QUERIES))
                    .map(|i| Query::new(inputs, params, [b, h, i]))
                    .collect();
                for (i, query) in queries.iter().enumerate() {
                    query.write(dq, inputs.qkv, params, [b, h, first + i], accumulate);
                }
                add_queries([dk, dv], inputs, params, [b, h, first], &queries);
            }
        }
    }
    dk.iter_mut().for_each(|dk| *dk *= params.scale);
}

/// P and dS of one query, for every key.
struct Query {
    weights: Vec<f32>,
    dscores: Vec<f32>,
}

impl Query {
    fn new(inputs: GradInputs<'_>, params: Attention, [b, h, i]: [usize; 3]) -> Query {
        let at = params.heads_of_out().start(b, i, h);
        let [out, dout] = [inputs.out, inputs.dout].map(|x| &x[at..at + params.head_dim]);
        let lse = inputs.lse[(b * params.heads + h) * params.q_time + i];
        let delta = sum([out, dout], |[out, dout]| rounded(out) * rounded(dout));
        let mut query = Query { weights: vec![0.0; params.k_time], dscores: vec![0.0; params.k_time] };
        for first in (0..params.visible(i)).step_by(KEYS) {
            for (j, score) in (first..).zip(scores(inputs.qkv, params, [b, h, i], first)) {
                let v = row(inputs.qkv, params, 2, b, j, h / params.group());
                query.weights[j] = exp_negative(score - lse);
                query.dscores[j] = query.weights[j] * (dot(params, dout, v) - delta);
            }
        }
        query
    }

    /// Writes dq of this query, or adds it.
    fn write(
        &self,
        dq: &mut [f32],
        qkv: [&[f32]; 3],
        params: Attention,
        [b, h, i]: [usize; 3],
        accumulate: bool,
    ) {
        let at = params.heads_of(0).start(b, i, h);
        for (d, dq) in dq[at..at + params.head_dim].iter_mut().enumerate() {
            let mut sum = 0.0;
            for (block, dscores) in self.dscores.chunks(KEYS).enumerate() {
                let key = |j: usize| row(qkv, params, 1, b, block * KEYS + j, h / params.group())[d];
                sum += leaf(params.precision, dscores.len(), |j| (dscores[j], key(j)));
            }
            let sum = sum * params.scale;
            *dq = if accumulate { *dq + sum } else { sum };
        }
    }
}

/// Adds a block of queries to dk, not scaled yet, and dv.
fn add_queries(
    [dk, dv]: [&mut [f32]; 2],
    inputs: GradInputs<'_>,
    params: Attention,
    [b, h, first]: [usize; 3],
    queries: &[Query],
) {
    for j in 0..params.k_time {
        let at = params.heads_of(1).start(b, j, h / params.group());
        for d in 0..params.head_dim {
            let q = |i: usize| row(inputs.qkv, params, 0, b, first + i, h)[d];
            let dout = |i: usize| inputs.dout[params.heads_of_out().start(b, first + i, h) + d];
            dk[at + d] += leaf(params.precision, queries.len(), |i| (queries[i].dscores[j], q(i)));
            dv[at + d] += leaf(params.precision, queries.len(), |i| (queries[i].weights[j], dout(i)));
        }
    }
}
