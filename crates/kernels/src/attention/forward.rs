//! The fast forward pass.

use super::Attention;
use super::pack::{Head, carve, pack_rows, pack_transposed, write_scaled};
use super::pairs::{self, Rounding, pack_halves, pack_pairs, round_halves};
use super::product::{LANES, Product, product};
use super::strip::{KEYS, QUERIES, STRIP, Strip};
use crate::dispatch;
use crate::math::{exp_negative, log};
use crate::rows::sum_lanes;
use crate::spmd::{Launch, Parts, Workspace};

/// Sizes of the parts of a block's workspace: transposed keys, values, and of one block of queries the queries, scores,
/// unscaled result, running maxima, running sums (one per lane) and, of one strip, the rounded weights.
pub(super) fn sizes(params: Attention) -> [usize; 8] {
    let keys = params.k_time.next_multiple_of(KEYS);
    let (dim, padded) = (params.words(params.head_dim), params.padded_dim());
    let (values, queries, result) = (params.words(keys) * padded, QUERIES * dim, QUERIES * padded);
    let weights = if params.precision.rounds() { STRIP * KEYS / 2 } else { 0 };
    [keys * dim, values, queries, QUERIES * KEYS, result, QUERIES, QUERIES * LANES, weights]
}

/// What [`attention`] works in.
pub(super) fn workspace(params: Attention) -> Workspace {
    Workspace::of::<f32>(0, sizes(params).iter().sum())
}

/// Attention of every query, fast: outputs out, lse.
pub fn attention([out, lse]: [&mut [f32]; 2], qkv: [&[f32]; 3], params: Attention, launch: &mut Launch<'_>) {
    let query_blocks = params.q_time.div_ceil(QUERIES);
    let units = [params.batch, params.kv_heads, query_blocks];
    attend((out, Some(lse)), qkv[0], units, launch, |own, batch, kv_head| {
        let work = Work::new(own, sizes(params), params, batch);
        let [k, v] = [1, 2].map(|tensor| params.heads_of(tensor).head(batch, kv_head));
        let padded = params.padded_dim();
        if params.precision.rounds() {
            // Values come later: their place holds the rows of keys meanwhile.
            pack_transposed_halves(work.keys, work.values, qkv[1], k);
            pack_pairs(work.values, padded, qkv[2], v, 0, 0);
        } else {
            pack_transposed(work.keys, qkv[1], k);
            pack_rows(work.values, padded, qkv[2], v, 0, 1.0);
        }
        work
    });
}

/// Runs blocks of queries for every (batch, key head), whose keys and values `begin` packs; outputs out and, if wanted, lse.
pub(super) fn attend(
    (out, lse): (&mut [f32], Option<&mut [f32]>),
    q: &[f32],
    [batches, kv_heads, query_blocks]: [usize; 3],
    launch: &mut Launch<'_>,
    begin: impl for<'a> Fn(&'a mut [f32], usize, usize) -> Work<'a> + Sync,
) {
    let (out, lse) = (Parts::new(out), lse.map(Parts::new));
    let pairs = batches * kv_heads;
    // Few pairs are split further, by blocks of queries in turn, which balances the causal mask.
    let splits = if pairs >= 4 * launch.blocks() { 1 } else { query_blocks.min(4 * launch.blocks()) };
    launch.run(|mut block| {
        let own: &mut [f32] = block.own();
        for unit in block.share(pairs * splits) {
            let pair = unit / splits;
            let kv_head = pair % kv_heads;
            let mut work = begin(own, pair / kv_heads, kv_head);
            let group = work.params.group();
            for head in kv_head * group..(kv_head + 1) * group {
                for query_block in (unit % splits..query_blocks).step_by(splits) {
                    work.run(q, head, query_block * QUERIES);
                    work.write(head, query_block * QUERIES, &out, lse.as_ref());
                }
            }
        }
    });
}

/// A block's work on one (batch, key head).
pub(super) struct Work<'a> {
    /// Of all sequences, or of this one alone.
    pub params: Attention,
    batch: usize,
    /// Transposed blocks.
    pub keys: &'a mut [f32],
    pub values: &'a mut [f32],
    queries: &'a mut [f32],
    scores: &'a mut [f32],
    result: &'a mut [f32],
    maxima: &'a mut [f32],
    sums: &'a mut [f32],
    weights: &'a mut [f32],
}

impl<'a> Work<'a> {
    /// Work on a sequence, in scratch of these sizes; keys and values are still to come.
    pub fn new(scratch: &'a mut [f32], sizes: [usize; 8], params: Attention, batch: usize) -> Work<'a> {
        let [keys, values, queries, scores, result, maxima, sums, weights] = carve(scratch, sizes);
        Work { params, batch, keys, values, queries, scores, result, maxima, sums, weights }
    }

    /// Runs all visible blocks of keys for the block of queries from `first`.
    fn run(&mut self, q: &[f32], head: usize, first: usize) {
        let head = self.params.heads_of(0).head(self.batch, head);
        let dim = self.params.words(self.params.head_dim);
        match self.params.precision.rounds() {
            true => pack_halves(self.queries, dim, q, head, first),
            false => pack_rows(self.queries, dim, q, head, first, self.params.scale),
        }
        self.result.fill(0.0);
        self.sums.fill(0.0);
        self.maxima.fill(f32::NEG_INFINITY);
        let last = self.params.last_query(first);
        for key_block in 0..self.params.visible(last).div_ceil(KEYS) {
            for strip in self.params.strips(first, last, key_block) {
                self.run_strip(&strip, key_block);
            }
        }
    }

    /// Adds one block of keys to a strip of queries.
    fn run_strip(&mut self, strip: &Strip, key_block: usize) {
        let (dim, padded) = (self.params.words(self.params.head_dim), self.params.padded_dim());
        let &Strip { start, rows, .. } = strip;
        let scores = &mut self.scores[start * KEYS..][..STRIP * KEYS];
        let (queries, keys) = (&self.queries[start * dim..], &self.keys[key_block * KEYS * dim..]);
        let rounding = Rounding::of(self.params);
        match rounding {
            None => product(scores, queries, keys, Product::scores(strip, dim, dim)),
            Some(rounding) => {
                pairs::product(scores, queries, keys, Product::scores(strip, dim, dim), rounding);
            }
        }
        let state = State {
            result: &mut self.result[start * padded..][..rows * padded],
            maxima: (&mut self.maxima[start..][..STRIP]).try_into().expect("one maximum per query"),
            sums: self.sums[start * LANES..][..rows * LANES].as_chunks_mut().0,
        };
        weigh_strip(scores, strip, state);
        let values = &self.values[key_block * self.params.words(KEYS) * padded..];
        let result = &mut self.result[start * padded..];
        match rounding {
            None => product(result, scores, values, Product::weighted(strip, padded)),
            Some(rounding) => {
                round_halves(self.weights, scores, strip);
                let shape = Product::weighted(strip, padded).of_pairs(self.params);
                pairs::product(result, self.weights, values, shape, rounding);
            }
        }
    }

    /// Writes the finished block of queries from `first`.
    fn write(&mut self, head: usize, first: usize, out: &Parts<'_, f32>, lse: Option<&Parts<'_, f32>>) {
        let params = self.params;
        let rows = params.heads_of_out().head(self.batch, head);
        let inverses = finish(self.maxima, self.sums.as_chunks().0);
        for (row, inverse) in inverses.into_iter().enumerate().take(params.q_time - first) {
            // SAFETY: this query's row of `out` is written by this unit alone.
            let out = unsafe { out.part(rows.at(first + row)) };
            let result = &self.result[row * params.padded_dim()..];
            match params.precision.rounds() {
                true => write_unsigned_zeros(out, result, inverse),
                false => write_scaled(out, result, inverse),
            }
            let Some(lse) = lse else { continue };
            let at = (self.batch * params.heads + head) * params.q_time + first + row;
            // SAFETY: as above.
            let lse = unsafe { lse.part(at..at + 1) };
            lse[0] = self.maxima[row];
        }
    }
}

/// Packs all rows of a head, rounded, as transposed blocks `[words, KEYS]`, by way of `rows`.
pub(super) fn pack_transposed_halves(out: &mut [f32], rows: &mut [f32], x: &[f32], head: Head) {
    let words = head.dim.div_ceil(2);
    pack_halves(&mut rows[..head.time * words], words, x, head, 0);
    pack_transposed(out, rows, Head { start: 0, row: words, time: head.time, dim: words });
}

dispatch! {
    /// Writes `values` times `scale` to `out`, which may be shorter; zeros become positive.
    fn write_unsigned_zeros(out: &mut [f32], values: &[f32], scale: f32) {
        out.iter_mut().zip(values).for_each(|(out, x)| *out = x * scale + 0.0);
    }
}

dispatch! {
    /// Turns the maxima of a block of queries into log-sum-exps and returns the factors that finish its results.
    pub(super) fn finish(maxima: &mut [f32], sums: &[[f32; LANES]]) -> [f32; QUERIES] {
        let totals: [f32; QUERIES] = std::array::from_fn(|row| sum_lanes(&sums[row]));
        maxima.iter_mut().zip(&totals).for_each(|(maximum, total)| *maximum += log(*total));
        totals.map(|total| if total == 0.0 { 0.0 } else { 1.0 / total })
    }
}

/// What the queries of a strip carry from one block of keys to the next.
struct State<'a> {
    result: &'a mut [f32],
    maxima: &'a mut [f32; STRIP],
    sums: &'a mut [[f32; LANES]],
}

dispatch! {
    /// Turns rows of scores into weights relative to the new maxima and rescales the state.
    fn weigh_strip(scores: &mut [f32], strip: &Strip, state: State<'_>) {
        let &Strip { rows, cols, ref visible, .. } = strip;
        let mut maxima = *state.maxima;
        for (row, scores) in scores.chunks_exact_mut(KEYS).take(rows).enumerate() {
            scores[visible[row]..cols].fill(f32::NEG_INFINITY);
            maxima[row] = max_lanes(&scores[..cols], maxima[row]);
        }
        let mut rescales = [0.0; STRIP];
        for ((rescale, before), after) in rescales.iter_mut().zip(&*state.maxima).zip(&maxima) {
            *rescale = exp_negative(before - after);
        }
        *state.maxima = maxima;
        let width = state.result.len() / rows;
        for (row, scores) in scores.chunks_exact_mut(KEYS).take(rows).enumerate() {
            if visible[row] == 0 {
                scores[..cols].fill(0.0);
                continue;
            }
            let (maximum, rescale) = (maxima[row], rescales[row]);
            state.sums[row] = weigh(&mut scores[..cols], maximum, state.sums[row].map(|sum| sum * rescale));
            if rescale != 1.0 {
                state.result[row * width..][..width].iter_mut().for_each(|x| *x *= rescale);
            }
        }
    }
}

/// Turns scores into weights and adds them to the sums of their lanes.
#[inline(always)]
pub(super) fn weigh(scores: &mut [f32], maximum: f32, mut sums: [f32; LANES]) -> [f32; LANES] {
    for chunk in scores.as_chunks_mut::<LANES>().0 {
        for (score, sum) in chunk.iter_mut().zip(&mut sums) {
            *score = exp_negative(*score - maximum);
            *sum += *score;
        }
    }
    sums
}

/// The largest of the scores, whole vectors of them, and `start`.
#[inline(always)]
pub(super) fn max_lanes(scores: &[f32], start: f32) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let mut lanes = [start; LANES];
    for chunk in scores.as_chunks::<LANES>().0 {
        for (lane, &score) in lanes.iter_mut().zip(chunk) {
            *lane = larger(score, *lane);
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = larger(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}
