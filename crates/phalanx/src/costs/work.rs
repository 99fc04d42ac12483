//! What kernels do: floating-point operations and bytes, counted from their parameters and sizes alone.
//!
//! Bytes are those of a cache that keeps everything while a kernel runs and nothing longer: each operand is read once, each
//! result written once, and what is added to is both. Operations are those of the formula: an addition, a product, a
//! comparison or a function of one element is one, whatever it takes inside. Random numbers, integers and what happens once
//! in a row do not count. Words may come from a file, so that none of them is relied on.

#[cfg(test)]
mod tests;

use phalanx_kernels::call::Sizes;
pub use phalanx_kernels::call::Work;
use phalanx_kernels::table;
use phalanx_program::{Piece, traffic};

use super::Signature;

/// What a movement does.
pub fn movement_work(pieces: &[Piece]) -> Work {
    let (read, written) = traffic(pieces);
    // Each further part of a sum is one addition of 32-bit floats.
    let added = read.saturating_sub(written) / 4;
    Work { flops: added as f64, bytes: read as f64 + written as f64 }
}

impl Signature {
    /// What the kernel does.
    pub fn work(&self) -> Work {
        let work = table::find(&self.kernel).and_then(|kernel| kernel.work);
        if let Some(work) = work {
            return work(&Sizes { words: &self.words, reads: &self.reads, writes: &self.writes });
        }
        let added_to = self.is(self.accumulate()) * self.result(0);
        Work { flops: self.flops() + added_to, bytes: self.bytes() }
    }

    /// Whether its time is that of matrix products.
    pub fn is_product(&self) -> bool {
        ["matmul", "attention", "attention_grad"].contains(&self.kernel.as_str())
    }

    /// Operations, but for adding to what the first result holds.
    fn flops(&self) -> f64 {
        match self.kernel.as_str() {
            "matmul" => {
                let [batch, m, n, k] = [0, 1, 2, 3].map(|at| self.word(at));
                let after: f64 = EPILOGUE.map(|at| self.is(Some(at))).iter().sum();
                batch * m * n * (2.0 * k + after)
            }
            // Of a pair: scale, maximum, difference, exponential and sum beside two products; of a query: the quotients.
            "attention" => self.attention(4.0, 5.0, 1.0),
            // Of a pair: scale twice, differences, exponential, product beside five products; of a query: its delta.
            "attention_grad" => self.attention(10.0, 6.0, 2.0),
            // The first of all functions is the identity.
            "unary" => self.is(Some(1)) * self.result(0),
            "unary_grad" => 2.0 * self.is(Some(1)) * self.result(0),
            "binary" | "binary_grad" => self.result(0),
            // One function a step.
            "chain" => self.word(0) * self.word(2),
            "reduce" | "column_sum" | "class_max" => self.operand(0),
            "reduce_grad" | "dropout" => self.result(0),
            "rotary" => 3.0 * self.result(0),
            "embedding" => (self.word(BAG) - 1.0).max(0.0) * self.result(0),
            "embedding_grad" => self.word(BAG) * self.operand(1),
            // Maximum, difference, exponential, sum.
            "cross_entropy" => 4.0 * self.operand(0),
            "class_sum" | "cross_entropy_grad" => 3.0 * self.operand(0),
            "linear_cross_entropy" => (2.0 * self.word(2) + 7.0) * self.result(0),
            "class_join" => 3.0 * self.result(0),
            "sum_squares" => 2.0 * self.operand(0),
            // The gradient's scale if it is clipped, decay, both moments (7), the update (6).
            "adamw" => (15.0 - self.is(Some(5)) + self.is(Some(6))) * self.result(0),
            // Scale, decay (2), momentum (2, looking ahead 2 more), the update (2).
            "sgd" => {
                let momentum = self.is(Some(1)) * (2.0 + 2.0 * self.is(Some(3)));
                (2.0 + 2.0 * self.is(Some(2)) + momentum + self.is(Some(4))) * self.result(0)
            }
            _ => 0.0,
        }
    }

    /// Operations of attention: of each element of a query and key that it sees, of each such pair, and of each element of
    /// a query.
    fn attention(&self, element: f64, pair: f64, query: f64) -> f64 {
        let [batch, heads, queries, keys, dim] = [0, 1, 3, 4, 5].map(|at| self.word(at));
        // The last query sees all keys; with `causal` the one before it sees one less, as long as there are any.
        let seeing = queries.min(keys);
        let hidden = queries * keys - seeing * (2.0 * keys - seeing + 1.0) / 2.0;
        let pairs = queries * keys - self.is(Some(7)) * hidden;
        batch * heads * (pairs * (element * dim + pair) + queries * dim * query)
    }

    fn bytes(&self) -> f64 {
        let all = |sizes: &[u64]| sizes.iter().map(|&bytes| bytes as f64).sum::<f64>();
        let (read, written) = (all(&self.reads), all(&self.writes));
        match self.kernel.as_str() {
            // Parameters and moments are read as well.
            "adamw" | "sgd" => read + 2.0 * written,
            // Of the table at most the rows that are looked up.
            "embedding" => {
                let looked_up = 4.0 * self.operand(1).min(self.word(BAG) * self.result(0));
                read - 4.0 * self.operand(1) + looked_up + written
            }
            // Of the logits one a row.
            "class_pick" => read - 4.0 * self.operand(0) + 2.0 * written,
            _ => read + written + self.is(self.accumulate()) * 4.0 * self.result(0),
        }
    }

    /// The word that tells whether the kernel adds to its first result.
    fn accumulate(&self) -> Option<usize> {
        match self.kernel.as_str() {
            "dropout" => Some(1),
            "unary_grad" => Some(3),
            "cross_entropy_grad" => Some(4),
            "column_sum" | "embedding_grad" => Some(6),
            "rotary" => Some(7),
            "matmul" => Some(11),
            "reduce_grad" => Some(14),
            _ => None,
        }
    }

    fn word(&self, at: usize) -> f64 {
        self.words.get(at).copied().unwrap_or(0) as f64
    }

    /// One if the word is there and not zero.
    fn is(&self, at: Option<usize>) -> f64 {
        f64::from(at.and_then(|at| self.words.get(at)).is_some_and(|&word| word != 0))
    }

    /// Floats in a slice that is only read.
    fn operand(&self, slot: usize) -> f64 {
        self.reads.get(slot).copied().unwrap_or(0) as f64 / 4.0
    }

    /// Floats in a slice that is written.
    fn result(&self, slot: usize) -> f64 {
        self.writes.get(slot).copied().unwrap_or(0) as f64 / 4.0
    }
}

/// Words of `matmul`: whether a bias and a residual are added, and the activation, of which zero is none.
const EPILOGUE: [usize; 4] = [7, 8, 9, 12];

/// The word of `embedding` and its gradient with the ids of a row.
const BAG: usize = 3;
