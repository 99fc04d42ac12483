//! The steps of the gradient in precisions that round.

use std::ops::Range;

use super::{Work, grad_row};
use crate::attention::pairs::{Rounding, pack_halves, pack_pairs, product, round_halves, round_pairs};
use crate::attention::product::{LANES, Product};
use crate::attention::strip::{KEYS, QUERIES, STRIP, Strip};
use crate::bf16::rounded;
use crate::dispatch;
use crate::rows::sum;

/// Sizes of the parts of a block's workspace that only these precisions have: of one block of queries the queries, dout,
/// weights and gradients of scores, two queries in a word, and of one strip the gradients of scores, two keys in a word.
pub(super) fn sizes(padded: usize) -> [usize; 5] {
    let (queries, scores) = (QUERIES / 2 * padded, QUERIES / 2 * KEYS);
    [queries, queries, scores, scores, STRIP * KEYS / 2]
}

impl Work<'_> {
    /// Packs the block of queries, and what belongs to it.
    pub(super) fn load_queries_rounded(&mut self, head: usize, first: usize, last: usize) {
        let (params, inputs) = (self.params, self.inputs);
        let (words, padded) = (params.words(params.head_dim), params.padded_dim());
        let (q, rows) =
            (params.heads_of(0).head(self.batch, head), params.heads_of_out().head(self.batch, head));
        pack_halves(&mut self.queries[..QUERIES * words], words, inputs.qkv[0], q, first);
        pack_halves(&mut self.dout[..QUERIES * words], words, inputs.dout, rows, first);
        pack_pairs(self.query_pairs, padded, inputs.qkv[0], q, first, 0);
        pack_pairs(self.dout_pairs, padded, inputs.dout, rows, first, 0);
        let lse = &inputs.lse[(self.batch * params.heads + head) * params.q_time..];
        for (row, i) in (first..=last).enumerate() {
            self.lse[row] = lse[i];
            self.deltas[row] = dot_rounded(&inputs.out[rows.at(i)], &inputs.dout[rows.at(i)]);
        }
    }

    /// Weights, gradients of scores and dq of a strip of queries.
    pub(super) fn run_query_strip_rounded(&mut self, strip: &Strip, key_block: usize, rounding: Rounding) {
        let (words, padded) = (self.params.words(self.params.head_dim), self.params.padded_dim());
        let &Strip { start, rows, cols, .. } = strip;
        let (weights, dscores) = (&mut self.weights[..STRIP * KEYS], &mut self.dscores[..STRIP * KEYS]);
        let (shape, block) = (Product::scores(strip, words, words), key_block * KEYS * words);
        let (queries, dout) = (&self.queries[start * words..], &self.dout[start * words..]);
        product(weights, queries, &self.keys_transposed[block..], shape, rounding);
        let unscaled = Rounding { scale: 1.0, ..rounding };
        product(dscores, dout, &self.values_transposed[block..], shape, unscaled);
        for row in 0..rows {
            let at = row * KEYS..row * KEYS + cols;
            let (lse, delta) = (self.lse[start + row], self.deltas[start + row]);
            grad_row(&mut weights[at.clone()], &mut dscores[at], strip.visible[row], lse, delta);
        }
        round_pairs(&mut self.weight_pairs[start / 2 * KEYS..], weights, strip);
        round_pairs(&mut self.dscore_pairs[start / 2 * KEYS..], dscores, strip);
        round_halves(self.dscore_halves, dscores, strip);
        let keys = &self.keys[key_block * KEYS / 2 * padded..];
        let shape = Product::weighted(strip, padded).of_pairs(self.params);
        product(&mut self.dq[start * padded..], self.dscore_halves, keys, shape, rounding);
    }

    /// Adds some queries of the block to dk and dv of the strip of keys from `strip`.
    ///
    /// The query before an odd first one is in the same strip of queries, so its masked weights are zeros; so are those of
    /// the query behind an odd last one, which is padding.
    pub(super) fn run_key_strip_rounded(&mut self, strip: usize, queries: Range<usize>, rounding: Rounding) {
        let padded = self.params.padded_dim();
        let pairs = queries.start / 2..queries.end.div_ceil(2);
        let cols = self.params.head_dim.next_multiple_of(LANES);
        let shape = Product { cols, ..Product::transposed(padded, pairs.len()) };
        let rounding = Rounding { skipped: pairs.start, ..rounding };
        let (at, left, right) = (strip * padded, pairs.start * KEYS + strip % KEYS, pairs.start * padded);
        product(&mut self.dv[at..], &self.weight_pairs[left..], &self.dout_pairs[right..], shape, rounding);
        product(&mut self.dk[at..], &self.dscore_pairs[left..], &self.query_pairs[right..], shape, rounding);
    }
}

dispatch! {
    fn dot_rounded(a: &[f32], b: &[f32]) -> f32 {
        sum([a, b], |[a, b]| rounded(a) * rounded(b))
    }
}
