//! The fast gradient.

use std::ops::Range;

use super::forward::{drop_row, mask_row};
use super::{MaskedAttention, MaskedAttentionGrad, MaskedGradInputs};
use crate::attention::Heads;
use crate::attention::pack::{add_scaled, carve, pack_rows, pack_transposed, write_scaled};
use crate::attention::product::{Product, product};
use crate::attention::strip::{KEYS, QUERIES, STRIP, Strip};
use crate::dispatch;
use crate::dropout::Drawn;
use crate::math::exp_negative;
use crate::rows::sum;
use crate::spmd::{Launch, Parts, Workspace};

/// Sizes of the parts of a block's workspace: transposed keys and values, keys, dk, dv, and of one block of queries the
/// queries, dout, dq, weights, gradients of scores, per query the log-sum-exp and the product of out and dout, and of one row
/// the slopes of capped scores.
fn sizes(params: MaskedAttention) -> [usize; 13] {
    let keys = params.k_time.next_multiple_of(KEYS);
    let [dim, value_dim] = [params.head_dim, params.value_dim];
    let [padded, value_padded] = [dim, value_dim].map(MaskedAttention::padded);
    let (queries, scores) = (QUERIES * padded, QUERIES * KEYS);
    [
        keys * dim,
        keys * value_dim,
        keys * padded,
        keys * padded,
        keys * value_padded,
        queries,
        QUERIES * value_padded,
        queries,
        scores,
        scores,
        QUERIES,
        QUERIES,
        KEYS,
    ]
}

/// What [`masked_attention_grad`] works in.
pub(super) fn workspace(params: MaskedAttention) -> Workspace {
    Workspace::of::<f32>(0, sizes(params).iter().sum())
}

/// The gradients of q, k, v and, if wanted, of every score's bias, fast.
pub fn masked_attention_grad(
    [dq, dk, dv, dbias]: [&mut [f32]; 4],
    inputs: MaskedGradInputs<'_>,
    params: MaskedAttentionGrad,
    launch: &mut Launch<'_>,
) {
    let (grads, dbias) = ([dq, dk, dv].map(Parts::new), Parts::new(dbias));
    let MaskedAttentionGrad { forward: params, accumulate, wants_bias } = params;
    let write_dq = |out: &mut [f32], values: &[f32]| match accumulate {
        true => add_scaled(out, values, params.scale),
        false => write_scaled(out, values, params.scale),
    };
    let write = |out: &mut [f32], values: &[f32]| write_scaled(out, values, 1.0);
    let padded = MaskedAttention::padded(params.head_dim);
    let value_padded = MaskedAttention::padded(params.value_dim);
    launch.run(|mut block| {
        let own: &mut [f32] = block.own();
        for pair in block.share(params.batch * params.kv_heads) {
            let (batch, kv_head) = (pair / params.kv_heads, pair % params.kv_heads);
            let mut work = Work::new(own, inputs, params, [batch, kv_head]);
            for head in kv_head * params.group()..(kv_head + 1) * params.group() {
                for first in (0..params.q_time).step_by(QUERIES) {
                    work.run(head, first, wants_bias.then_some(&dbias));
                    let (rows, at) = (QUERIES.min(params.q_time - first), [batch, head, first]);
                    write_rows(&grads[0], params.heads_of(0), at, (work.dq, padded), rows, write_dq);
                }
            }
            let at = [batch, kv_head, 0];
            write_rows(&grads[1], params.heads_of(1), at, (work.dk, padded), params.k_time, write);
            write_rows(&grads[2], params.heads_of(2), at, (work.dv, value_padded), params.k_time, write);
        }
    });
}

/// Writes `rows` padded rows from (batch, head, time) on.
fn write_rows(
    grad: &Parts<'_, f32>,
    heads: Heads,
    [batch, head, first]: [usize; 3],
    (values, padded): (&[f32], usize),
    rows: usize,
    write: impl Fn(&mut [f32], &[f32]),
) {
    let head = heads.head(batch, head);
    for (row, values) in values.chunks_exact(padded).take(rows).enumerate() {
        // SAFETY: this head's rows of a gradient are written by the unit that owns its (batch, key head) alone.
        let out = unsafe { grad.part(head.at(first + row)) };
        write(out, values);
    }
}

/// A block's work on one (batch, key head).
struct Work<'a> {
    params: MaskedAttention,
    inputs: MaskedGradInputs<'a>,
    drawn: Option<Drawn>,
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
    slopes: &'a mut [f32],
}

impl<'a> Work<'a> {
    /// Packs the keys and values and clears their gradients.
    fn new(
        scratch: &'a mut [f32],
        inputs: MaskedGradInputs<'a>,
        params: MaskedAttention,
        [batch, kv_head]: [usize; 2],
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
            slopes,
        ] = carve(scratch, sizes(params));
        let [k, v] = [1, 2].map(|tensor| params.heads_of(tensor).head(batch, kv_head));
        let [_, keys_in, values_in] = inputs.forward.qkv;
        pack_transposed(keys_transposed, keys_in, k);
        pack_transposed(values_transposed, values_in, v);
        pack_rows(keys, MaskedAttention::padded(params.head_dim), keys_in, k, 0, 1.0);
        dk.fill(0.0);
        dv.fill(0.0);
        let drawn = params.drops().then(|| params.dropout.at(inputs.forward.hyper));
        Work {
            params,
            inputs,
            drawn,
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
            slopes,
        }
    }

    /// Runs all blocks of keys that are seen for the block of queries from `first`; leaves dq to be written.
    fn run(&mut self, head: usize, first: usize, dbias: Option<&Parts<'_, f32>>) {
        let params = self.params;
        let last = params.last_query(first);
        self.load_queries(head, first, last);
        self.dq.fill(0.0);
        if let Some(dbias) = dbias {
            let rows = params.row([self.batch, head, first])..params.row([self.batch, head, last]) + 1;
            // SAFETY: these rows belong to this head, whose unit alone writes them.
            let rows = unsafe { dbias.part(rows.start * params.k_time..rows.end * params.k_time) };
            rows.fill(0.0);
        }
        for key_block in params.key_blocks(first, last) {
            for strip in params.strips(first, last, key_block) {
                self.run_query_strip(&strip, head, first, key_block, dbias);
            }
            let keys = KEYS.min(params.k_time - key_block * KEYS);
            for strip in (0..keys).step_by(STRIP) {
                self.run_key_strip(key_block * KEYS + strip, 0..last + 1 - first);
            }
        }
    }

    /// Packs the block of queries, scaled, and what belongs to it.
    fn load_queries(&mut self, head: usize, first: usize, last: usize) {
        let (params, inputs) = (self.params, self.inputs);
        let rows = params.heads_of_out().head(self.batch, head);
        let q = params.heads_of(0).head(self.batch, head);
        let [padded, value_padded] = [params.head_dim, params.value_dim].map(MaskedAttention::padded);
        pack_rows(self.queries, padded, inputs.forward.qkv[0], q, first, params.scale);
        pack_rows(self.dout, value_padded, inputs.dout, rows, first, 1.0);
        for (row, i) in (first..=last).enumerate() {
            self.lse[row] = inputs.lse[params.row([self.batch, head, i])];
            self.deltas[row] = dot(&inputs.out[rows.at(i)], &inputs.dout[rows.at(i)]);
        }
    }

    /// Weights, gradients of scores and dq of a strip of queries.
    fn run_query_strip(
        &mut self,
        strip: &Strip,
        head: usize,
        first: usize,
        key_block: usize,
        dbias: Option<&Parts<'_, f32>>,
    ) {
        let params = self.params;
        let (dim, value_dim) = (params.head_dim, params.value_dim);
        let [padded, value_padded] = [dim, value_dim].map(MaskedAttention::padded);
        let &Strip { start, rows, cols, .. } = strip;
        let weights = &mut self.weights[start * KEYS..][..STRIP * KEYS];
        let dscores = &mut self.dscores[start * KEYS..][..STRIP * KEYS];
        // Columns that no query of the strip sees, and rows of padding, take part in products over all queries of the block.
        weights.fill(0.0);
        dscores.fill(0.0);
        let block = key_block * KEYS;
        let shape = Product::scores(strip, dim, padded);
        product(weights, &self.queries[start * padded..], &self.keys_transposed[block * dim..], shape);
        let shape = Product::scores(strip, value_dim, value_padded);
        product(
            dscores,
            &self.dout[start * value_padded..],
            &self.values_transposed[block * value_dim..],
            shape,
        );
        for row in 0..rows {
            let range = row * KEYS..row * KEYS + cols;
            let (weights, dscores) = (&mut weights[range.clone()], &mut dscores[range]);
            let lse = self.lse[start + row];
            if strip.visible[row] == 0 || lse == f32::NEG_INFINITY {
                weights.fill(0.0);
                dscores.fill(0.0);
                continue;
            }
            let at = [self.batch, head, first + start + row];
            let slopes = &mut self.slopes[..cols];
            mask_row(weights, Some(slopes), params, self.inputs.forward, at, block);
            drop_row(dscores, self.drawn.as_ref(), params, at, block);
            grad_row(weights, dscores, lse, self.deltas[start + row]);
            if let Some(dbias) = dbias {
                let count = cols.min(params.k_time - block);
                let place = params.row(at) * params.k_time + block;
                // SAFETY: this row belongs to this head, whose unit alone writes it.
                let out = unsafe { dbias.part(place..place + count) };
                out.copy_from_slice(&dscores[..count]);
            }
            if params.softcap != 0.0 {
                dscores.iter_mut().zip(&*slopes).for_each(|(dscore, slope)| *dscore *= slope);
            }
            drop_row(weights, self.drawn.as_ref(), params, at, block);
        }
        let keys = &self.keys[block * padded..];
        product(&mut self.dq[start * padded..], dscores, keys, Product::weighted(strip, padded));
    }

    /// Adds the queries of the block to dk and dv of the strip of keys from `strip`.
    fn run_key_strip(&mut self, strip: usize, queries: Range<usize>) {
        let [padded, value_padded] =
            [self.params.head_dim, self.params.value_dim].map(MaskedAttention::padded);
        let left = strip % KEYS;
        let shape = Product::transposed(value_padded, queries.len());
        product(&mut self.dv[strip * value_padded..], &self.weights[left..], self.dout, shape);
        let shape = Product::transposed(padded, queries.len());
        product(&mut self.dk[strip * padded..], &self.dscores[left..], self.queries, shape);
    }
}

dispatch! {
    fn dot(a: &[f32], b: &[f32]) -> f32 {
        sum([a, b], |[a, b]| a * b)
    }
}

dispatch! {
    /// Turns a row of scores into weights, and of gradients by weights into gradients by scores.
    fn grad_row(weights: &mut [f32], dscores: &mut [f32], lse: f32, delta: f32) {
        for (score, dscore) in weights.iter_mut().zip(dscores) {
            *score = exp_negative(*score - lse);
            *dscore = *score * (*dscore - delta);
        }
    }
}
