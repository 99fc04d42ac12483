//! The fast gradient.

mod rounded;

use std::ops::Range;

use super::forward::pack_transposed_halves;
use super::pack::{add_scaled, carve, pack_rows, pack_transposed, write_scaled};
use super::pairs::{Rounding, pack_pairs};
use super::product::{Product, product};
use super::strip::{KEYS, QUERIES, STRIP, Strip};
use super::{Attention, AttentionGrad, GradInputs, Heads};
use crate::dispatch;
use crate::math::exp_negative;
use crate::rows::sum;
use crate::spmd::{Launch, Parts, Workspace};

/// Sizes of the parts of a block's workspace: transposed keys and values, keys, dk, dv, and of one block of queries
/// the queries, dout, dq, weights, gradients of scores, per query the log-sum-exp and the product of out and dout, and the
/// parts of a precision that rounds.
fn sizes(params: Attention) -> [usize; 17] {
    let keys = params.k_time.next_multiple_of(KEYS);
    let (dim, padded) = (params.words(params.head_dim), params.padded_dim());
    let (narrow, wide, queries) = (keys * dim, keys * padded, QUERIES * padded);
    let (packed_keys, scores) = (params.words(keys) * padded, QUERIES * KEYS);
    let [a, b, c, d, e] = if params.precision.rounds() { rounded::sizes(padded) } else { [0; 5] };
    [
        narrow,
        narrow,
        packed_keys,
        wide,
        wide,
        queries,
        queries,
        queries,
        scores,
        scores,
        QUERIES,
        QUERIES,
        a,
        b,
        c,
        d,
        e,
    ]
}

/// What [`attention_grad`] works in.
pub(super) fn workspace(params: Attention) -> Workspace {
    Workspace::of::<f32>(0, sizes(params).iter().sum())
}

/// The gradients of q, k, v, fast.
pub fn attention_grad(
    grads: [&mut [f32]; 3],
    inputs: GradInputs<'_>,
    params: AttentionGrad,
    launch: &mut Launch<'_>,
) {
    let (AttentionGrad { forward: params, accumulate }, grads) = (params, grads.map(Parts::new));
    let write_dq = |out: &mut [f32], values: &[f32]| match accumulate {
        true => add_scaled(out, values, params.scale),
        false => write_scaled(out, values, params.scale),
    };
    // Unless operands are rounded, queries are scaled before they are multiplied.
    let dk_scale = if params.precision.rounds() { params.scale } else { 1.0 };
    let write_dk = |out: &mut [f32], values: &[f32]| write_scaled(out, values, dk_scale);
    let write_dv = |out: &mut [f32], values: &[f32]| write_scaled(out, values, 1.0);
    launch.run(|mut block| {
        let (own, padded): (&mut [f32], _) = (block.own(), params.padded_dim());
        for pair in block.share(params.batch * params.kv_heads) {
            let (batch, kv_head) = (pair / params.kv_heads, pair % params.kv_heads);
            let mut work = Work::new(own, inputs, params, batch, kv_head);
            for head in kv_head * params.group()..(kv_head + 1) * params.group() {
                for first in (0..params.q_time).step_by(QUERIES) {
                    work.run(head, first);
                    let rows = QUERIES.min(params.q_time - first);
                    let at = [batch, head, first];
                    write_rows(&grads, params.heads_of(0), at, (work.dq, padded), rows, write_dq);
                }
            }
            write_rows(
                &grads,
                params.heads_of(1),
                [batch, kv_head, 0],
                (work.dk, padded),
                params.k_time,
                write_dk,
            );
            write_rows(
                &grads,
                params.heads_of(2),
                [batch, kv_head, 0],
                (work.dv, padded),
                params.k_time,
                write_dv,
            );
        }
    });
}

/// Writes `rows` padded rows from (batch, head, time) on.
fn write_rows(
    grads: &[Parts<'_, f32>; 3],
    heads: Heads,
    [batch, head, first]: [usize; 3],
    (values, padded): (&[f32], usize),
    rows: usize,
    write: impl Fn(&mut [f32], &[f32]),
) {
    let head = heads.head(batch, head);
    for (row, values) in values.chunks_exact(padded).take(rows).enumerate() {
        // SAFETY: this head's rows of a gradient are written by the unit that owns its (batch, key head) alone.
        let out = unsafe { grads[heads.slot].part(head.at(first + row)) };
        write(out, values);
    }
}

/// A block's work on one (batch, key head).
struct Work<'a> {
    params: Attention,
    inputs: GradInputs<'a>,
    batch: usize,
    keys_transposed: &'a mut [f32],
    values_transposed: &'a mut [f32],
    keys: &'a mut [f32],
    dk: &'a mut [f32],
    dv: &'a mut [f32],
    queries: &'a mut [f32],
    dout: &'a mut [f32],
    dq: &'a mut [f32],
    weights: &'a mut [f32],
    dscores: &'a mut [f32],
    lse: &'a mut [f32],
    deltas: &'a mut [f32],
    query_pairs: &'a mut [f32],
    dout_pairs: &'a mut [f32],
    weight_pairs: &'a mut [f32],
    dscore_pairs: &'a mut [f32],
    dscore_halves: &'a mut [f32],
}

impl<'a> Work<'a> {
    /// Packs the keys and values and clears their gradients.
    fn new(
        scratch: &'a mut [f32],
        inputs: GradInputs<'a>,
        params: Attention,
        batch: usize,
        kv_head: usize,
    ) -> Work<'a> {
        let [
            keys_transposed,
            values_transposed,
            keys,
            dk,
            dv,
            queries,
            dout,
            dq,
            weights,
            dscores,
            lse,
            deltas,
            query_pairs,
            dout_pairs,
            weight_pairs,
            dscore_pairs,
            dscore_halves,
        ] = carve(scratch, sizes(params));
        let [k, v] = [1, 2].map(|tensor| params.heads_of(tensor).head(batch, kv_head));
        let (padded, [_, keys_in, values_in]) = (params.padded_dim(), inputs.qkv);
        if params.precision.rounds() {
            // The gradients are not there yet: the place of dk holds rows meanwhile.
            pack_transposed_halves(keys_transposed, dk, keys_in, k);
            pack_transposed_halves(values_transposed, dk, values_in, v);
            pack_pairs(keys, padded, keys_in, k, 0, 0);
        } else {
            pack_transposed(keys_transposed, keys_in, k);
            pack_transposed(values_transposed, values_in, v);
            pack_rows(keys, padded, keys_in, k, 0, 1.0);
        }
        dk.fill(0.0);
        dv.fill(0.0);
        Work {
            params,
            inputs,
            batch,
            keys_transposed,
            values_transposed,
            keys,
            dk,
            dv,
            queries,
            dout,
            dq,
            weights,
            dscores,
            lse,
            deltas,
            query_pairs,
            dout_pairs,
            weight_pairs,
            dscore_pairs,
            dscore_halves,
        }
    }

    /// Runs all visible blocks of keys for the block of queries from `first`; leaves dq to be written.
    fn run(&mut self, head: usize, first: usize) {
        let params = self.params;
        let last = params.last_query(first);
        let rounding = Rounding::of(params);
        match rounding {
            None => self.load_queries(head, first, last),
            Some(_) => self.load_queries_rounded(head, first, last),
        }
        self.dq.fill(0.0);
        for key_block in 0..params.visible(last).div_ceil(KEYS) {
            for strip in params.strips(first, last, key_block) {
                match rounding {
                    None => self.run_query_strip(&strip, key_block),
                    Some(rounding) => self.run_query_strip_rounded(&strip, key_block, rounding),
                }
            }
            let keys = KEYS.min(params.k_time - key_block * KEYS);
            for strip in (0..keys).step_by(STRIP) {
                let start = params.first_query(key_block * KEYS + strip).max(first);
                if start > last {
                    continue;
                }
                let (strip, queries) = (key_block * KEYS + strip, start - first..last + 1 - first);
                match rounding {
                    None => self.run_key_strip(strip, queries),
                    Some(rounding) => self.run_key_strip_rounded(strip, queries, rounding),
                }
            }
        }
    }

    /// Packs the block of queries, scaled, and what belongs to it.
    fn load_queries(&mut self, head: usize, first: usize, last: usize) {
        let (params, inputs) = (self.params, self.inputs);
        let (q, rows, padded) = (params.heads_of(0), params.heads_of_out(), params.padded_dim());
        let rows = rows.head(self.batch, head);
        pack_rows(self.queries, padded, inputs.qkv[q.slot], q.head(self.batch, head), first, params.scale);
        pack_rows(self.dout, padded, inputs.dout, rows, first, 1.0);
        let lse = &inputs.lse[(self.batch * params.heads + head) * params.q_time..];
        for (row, i) in (first..=last).enumerate() {
            self.lse[row] = lse[i];
            self.deltas[row] = dot(&inputs.out[rows.at(i)], &inputs.dout[rows.at(i)]);
        }
    }

    /// Weights, gradients of scores and dq of a strip of queries.
    fn run_query_strip(&mut self, strip: &Strip, key_block: usize) {
        let (dim, padded) = (self.params.head_dim, self.params.padded_dim());
        let &Strip { start, rows, cols, .. } = strip;
        let weights = &mut self.weights[start * KEYS..][..STRIP * KEYS];
        let dscores = &mut self.dscores[start * KEYS..][..STRIP * KEYS];
        let (shape, block) = (Product::scores(strip, dim, padded), key_block * KEYS * dim);
        product(weights, &self.queries[start * padded..], &self.keys_transposed[block..], shape);
        product(dscores, &self.dout[start * padded..], &self.values_transposed[block..], shape);
        for row in 0..rows {
            let at = row * KEYS..row * KEYS + cols;
            let (lse, delta) = (self.lse[start + row], self.deltas[start + row]);
            grad_row(&mut weights[at.clone()], &mut dscores[at], strip.visible[row], lse, delta);
        }
        let keys = &self.keys[key_block * KEYS * padded..];
        product(&mut self.dq[start * padded..], dscores, keys, Product::weighted(strip, padded));
    }

    /// Adds some queries of the block to dk and dv of the strip of keys from `strip`.
    fn run_key_strip(&mut self, strip: usize, queries: Range<usize>) {
        let (padded, row) = (self.params.padded_dim(), queries.start);
        let shape = Product::transposed(padded, queries.len());
        let (at, left) = (strip * padded, row * KEYS + strip % KEYS);
        product(&mut self.dv[at..], &self.weights[left..], &self.dout[row * padded..], shape);
        product(&mut self.dk[at..], &self.dscores[left..], &self.queries[row * padded..], shape);
    }
}

dispatch! {
    fn dot(a: &[f32], b: &[f32]) -> f32 {
        sum([a, b], |[a, b]| a * b)
    }
}

dispatch! {
    /// Turns a row of scores into weights, and of gradients by weights into gradients by scores.
    fn grad_row(weights: &mut [f32], dscores: &mut [f32], visible: usize, lse: f32, delta: f32) {
        if visible == 0 {
            weights.fill(0.0);
            dscores.fill(0.0);
            return;
        }
        weights[visible..].fill(f32::NEG_INFINITY);
        for (score, dscore) in weights.iter_mut().zip(dscores) {
            *score = exp_negative(*score - lse);
            *dscore = *score * (*dscore - delta);
        }
    }
}
