//! The fast forward pass, and the scores that the gradient computes again.

use super::{Bias, MaskedAttention, MaskedInputs};
use crate::attention::forward::{finish, max_lanes, weigh};
use crate::attention::pack::{carve, pack_rows, pack_transposed, write_scaled};
use crate::attention::product::{LANES, Product, product};
use crate::attention::strip::{KEYS, QUERIES, STRIP, Strip};
use crate::dispatch;
use crate::dropout::Drawn;
use crate::math::{exp_negative, tanh};
use crate::spmd::{Launch, Parts, Workspace};

/// Sizes of the parts of a block's workspace: transposed keys, values, and of one block of queries the queries, scores,
/// unscaled result, running maxima and running sums (one per lane).
fn sizes(params: MaskedAttention) -> [usize; 7] {
    let keys = params.k_time.next_multiple_of(KEYS);
    let padded = MaskedAttention::padded(params.value_dim);
    let (queries, result) = (QUERIES * params.head_dim, QUERIES * padded);
    [keys * params.head_dim, keys * padded, queries, QUERIES * KEYS, result, QUERIES, QUERIES * LANES]
}

/// What [`masked_attention`] works in.
pub(super) fn workspace(params: MaskedAttention) -> Workspace {
    Workspace::of::<f32>(0, sizes(params).iter().sum())
}

/// Attention of every query, fast: outputs out, lse.
pub fn masked_attention(
    [out, lse]: [&mut [f32]; 2],
    inputs: MaskedInputs<'_>,
    params: MaskedAttention,
    launch: &mut Launch<'_>,
) {
    let (out, lse, query_blocks) = (Parts::new(out), Parts::new(lse), params.q_time.div_ceil(QUERIES));
    let pairs = params.batch * params.kv_heads;
    // Few pairs are split further, by blocks of queries in turn, which balances masks.
    let splits = if pairs >= 4 * launch.blocks() { 1 } else { query_blocks.min(4 * launch.blocks()) };
    launch.run(|mut block| {
        let own: &mut [f32] = block.own();
        for unit in block.share(pairs * splits) {
            let (batch, kv_head) = (unit / splits / params.kv_heads, unit / splits % params.kv_heads);
            let mut work = Work::new(own, inputs, params, [batch, kv_head]);
            for head in kv_head * params.group()..(kv_head + 1) * params.group() {
                for query_block in (unit % splits..query_blocks).step_by(splits) {
                    work.run(head, query_block * QUERIES);
                    work.write(head, query_block * QUERIES, &out, &lse);
                }
            }
        }
    });
}

/// A block's work on one (batch, key head).
struct Work<'a> {
    params: MaskedAttention,
    inputs: MaskedInputs<'a>,
    drawn: Option<Drawn>,
    batch: usize,
    keys: &'a mut [f32],
    values: &'a mut [f32],
    queries: &'a mut [f32],
    scores: &'a mut [f32],
    result: &'a mut [f32],
    maxima: &'a mut [f32],
    sums: &'a mut [f32],
}

impl<'a> Work<'a> {
    /// Packs the keys and values.
    fn new(
        scratch: &'a mut [f32],
        inputs: MaskedInputs<'a>,
        params: MaskedAttention,
        [batch, kv_head]: [usize; 2],
    ) -> Work<'a> {
        let [keys, values, queries, scores, result, maxima, sums] = carve(scratch, sizes(params));
        let [k, v] = [1, 2].map(|tensor| params.heads_of(tensor).head(batch, kv_head));
        pack_transposed(keys, inputs.qkv[1], k);
        pack_rows(values, MaskedAttention::padded(params.value_dim), inputs.qkv[2], v, 0, 1.0);
        let drawn = params.drops().then(|| params.dropout.at(inputs.hyper));
        Work { params, inputs, drawn, batch, keys, values, queries, scores, result, maxima, sums }
    }

    /// Runs all blocks of keys that are seen for the block of queries from `first`.
    fn run(&mut self, head: usize, first: usize) {
        let params = self.params;
        let q = params.heads_of(0).head(self.batch, head);
        pack_rows(self.queries, params.head_dim, self.inputs.qkv[0], q, first, params.scale);
        self.result.fill(0.0);
        self.sums.fill(0.0);
        self.maxima.fill(f32::NEG_INFINITY);
        let last = params.last_query(first);
        for key_block in params.key_blocks(first, last) {
            for strip in params.strips(first, last, key_block) {
                self.run_strip(&strip, head, first, key_block);
            }
        }
    }

    /// Adds one block of keys to a strip of queries.
    fn run_strip(&mut self, strip: &Strip, head: usize, first: usize, key_block: usize) {
        let (params, inputs) = (self.params, self.inputs);
        let (dim, padded) = (params.head_dim, MaskedAttention::padded(params.value_dim));
        let &Strip { start, rows, cols, .. } = strip;
        let scores = &mut self.scores[start * KEYS..][..STRIP * KEYS];
        let keys = &self.keys[key_block * KEYS * dim..];
        product(scores, &self.queries[start * dim..], keys, Product::scores(strip, dim, dim));
        for row in 0..rows {
            let scores = &mut scores[row * KEYS..][..cols];
            if strip.visible[row] == 0 {
                scores.fill(0.0);
                continue;
            }
            let at = [self.batch, head, first + start + row];
            mask_row(scores, None, params, inputs, at, key_block * KEYS);
            let sums = self.sums[(start + row) * LANES..][..LANES].as_chunks_mut().0;
            let state = RowState {
                maximum: &mut self.maxima[start + row],
                sums: &mut sums[0],
                result: &mut self.result[(start + row) * padded..][..padded],
            };
            weigh_row(scores, state);
            drop_row(scores, self.drawn.as_ref(), params, at, key_block * KEYS);
        }
        let values = &self.values[key_block * KEYS * padded..];
        product(&mut self.result[start * padded..], scores, values, Product::weighted(strip, padded));
    }

    /// Writes the finished block of queries from `first`.
    fn write(&mut self, head: usize, first: usize, out: &Parts<'_, f32>, lse: &Parts<'_, f32>) {
        let params = self.params;
        let rows = params.heads_of_out().head(self.batch, head);
        let inverses = finish(self.maxima, self.sums.as_chunks().0);
        for (row, inverse) in inverses.into_iter().enumerate().take(params.q_time - first) {
            // SAFETY: this query's row of `out` is written by this unit alone.
            let out = unsafe { out.part(rows.at(first + row)) };
            write_scaled(out, &self.result[row * MaskedAttention::padded(params.value_dim)..], inverse);
            let at = params.row([self.batch, head, first + row]);
            // SAFETY: as above.
            let lse = unsafe { lse.part(at..at + 1) };
            lse[0] = self.maxima[row];
        }
    }
}

/// Turns `scale q·k` of consecutive keys from `from` on into scores, those of hidden keys into -∞, and writes the slopes of
/// capped scores.
pub(super) fn mask_row(
    scores: &mut [f32],
    slopes: Option<&mut [f32]>,
    params: MaskedAttention,
    inputs: MaskedInputs<'_>,
    at: [usize; 3],
    from: usize,
) {
    if params.softcap != 0.0 {
        cap_row(scores, slopes, params.softcap);
    }
    let count = scores.len().min(params.k_time - from);
    let seen = params.seen(at[2]);
    let start = seen.start.saturating_sub(from).min(count);
    let end = seen.end.saturating_sub(from).clamp(start, count);
    scores[..start].fill(f32::NEG_INFINITY);
    scores[end..].fill(f32::NEG_INFINITY);
    let first = params.bias_row(at) + from;
    match inputs.bias {
        Bias::None => {}
        Bias::Bool(shown) => hide_row(&mut scores[start..end], &shown[first + start..first + end]),
        Bias::F32(bias) => add_row(&mut scores[start..end], &bias[first + start..first + end]),
    }
}

dispatch! {
    /// Bounds scores smoothly; their slopes are 1 - tanh².
    fn cap_row(scores: &mut [f32], slopes: Option<&mut [f32]>, cap: f32) {
        for score in scores.iter_mut() {
            *score = tanh(*score / cap);
        }
        if let Some(slopes) = slopes {
            slopes.iter_mut().zip(&*scores).for_each(|(slope, t)| *slope = (-t).mul_add(*t, 1.0));
        }
        scores.iter_mut().for_each(|score| *score *= cap);
    }
}

dispatch! {
    fn hide_row(scores: &mut [f32], shown: &[u8]) {
        for (score, shown) in scores.iter_mut().zip(shown) {
            *score = if *shown != 0 { *score } else { f32::NEG_INFINITY };
        }
    }
}

dispatch! {
    fn add_row(scores: &mut [f32], bias: &[f32]) {
        scores.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
    }
}

/// Drops some of the weights of consecutive keys from `from` on; what is beyond the last key is left as it is.
pub(super) fn drop_row(
    weights: &mut [f32],
    drawn: Option<&Drawn>,
    params: MaskedAttention,
    at: [usize; 3],
    from: usize,
) {
    let Some(drawn) = drawn else { return };
    let count = weights.len().min(params.k_time - from);
    let mut kept = [0.0; KEYS];
    drawn.apply(&mut kept[..count], &weights[..count], params.row(at) * params.k_time + from, false);
    weights[..count].copy_from_slice(&kept[..count]);
}

/// What a query carries from one block of keys to the next.
struct RowState<'a> {
    maximum: &'a mut f32,
    sums: &'a mut [f32; LANES],
    result: &'a mut [f32],
}

dispatch! {
    /// Turns a row of scores into weights relative to the new maximum and rescales the state.
    fn weigh_row(scores: &mut [f32], state: RowState<'_>) {
        let maximum = max_lanes(scores, *state.maximum);
        if maximum == f32::NEG_INFINITY {
            scores.fill(0.0);
            return;
        }
        let rescale = exp_negative(*state.maximum - maximum);
        *state.maximum = maximum;
        *state.sums = weigh(scores, maximum, state.sums.map(|sum| sum * rescale));
        if rescale != 1.0 {
            state.result.iter_mut().for_each(|x| *x *= rescale);
        }
    }
}
