//! Scaled dot-product attention and its gradient, without the matrix of scores ever in memory.
//!
//! `attention` reads q, k, v (`[batch, time, heads, head_dim]`; k and v have `kv_heads`) and writes y (as q) and lse
//! `[batch, heads, q_time]`, the log-sum-exp of the scaled scores. `attention_grad` reads the same, then y, lse and
//! dy, and writes dq (accumulates on request), dk and dv.
//! Head h uses key head h / (heads / kv_heads). With `causal`, query i sees keys up to i + k_time - q_time; a query
//! that sees none gives zeros.
//!
//! `masked_attention` has masks, biases and more (`masked.rs`).
//! `cached_attention` is the same for tokens that follow others whose keys and values are kept (`cached.rs`).
//!
//! The fast versions walk blocks of queries and keys with a running maximum and sum (blocks of keys ascend, so a
//! query's bits depend on its keys alone). The gradient's unit of work is one (batch, key head): its sums into dk and
//! dv are chains over heads and queries in ascending order.
//!
//! In a precision that rounds, the definition is down to the bit that of `reference/rounded.rs`:
//!
//! * Both products of the forward and all five of the gradient round their operands where they read them and add as
//!   `bf16::leaf` does. Scores are scaled after the product, dq and dk at their end.
//! * Keys, in P·V and dS·K, and queries, in dk and dv, are cut into blocks of 64 from the first. Of each block there is
//!   one leaf; leaves are added in single precision, blocks (and, in dk and dv, heads) ascending.
//! * P of a block of keys is relative to the running maximum of that and earlier blocks, and rounded without having been
//!   normalized; in the gradient it is `exp(score - lse)`. Masked elements of P and dS are +0.0.
//! * Maxima, exponentials, sums of P and lse are in single precision, of P before it is rounded. The products of y and
//!   dy that enter dS take both rounded.
//!
//! No result shows the sign of a zero inside: sums start from +0.0, and zeros of y are positive. Therefore steps at the
//! edges of a chunk that are masked or beyond the last may be left out, and are.

mod backward;
mod cached;
mod forward;
pub mod masked;
mod pack;
mod pairs;
mod product;
mod reference;
mod strip;
#[cfg(test)]
mod tests;

use phalanx_ir::tasks::TaskView;
use phalanx_ir::{Precision, Shape};

use crate::spmd::{Workspace, by_work};
use crate::{Call, Kernel, Sizes, Words, Work, params, signature};

pub use backward::attention_grad;
pub use cached::{CachedAttentionParams, CachedInputs, cached_attention, cached_attention_reference};
pub use forward::attention;
pub use reference::{attention_grad_reference, attention_reference};

params! {
    /// Settings of `attention`.
    pub struct Attention {
        /// Sequences.
        pub batch: usize,
        /// Query heads.
        pub heads: usize,
        /// Key and value heads, a divisor of `heads`.
        pub kv_heads: usize,
        /// Queries per sequence.
        pub q_time: usize,
        /// Keys per sequence.
        pub k_time: usize,
        /// Elements per head.
        pub head_dim: usize,
        /// The factor on every score.
        pub scale: f32,
        /// Whether queries see only keys up to their own time.
        pub causal: bool,
        /// How products read their operands and add.
        pub precision: Precision,
    }
}

/// Settings of `attention_grad`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionGrad {
    /// Those of the forward.
    pub forward: Attention,
    /// Whether dq is added to what its slice holds.
    pub accumulate: bool,
}

/// The words of the forward; one more if dq is added to.
impl Words for AttentionGrad {
    fn put(&self, words: &mut Vec<u64>) {
        self.forward.put(words);
        words.extend(self.accumulate.then_some(1));
    }
    fn take(words: &mut &[u64]) -> Self {
        AttentionGrad { forward: Words::take(words), accumulate: Words::take(words) }
    }
}

/// Where the rows of one of q, k, v lie: row (batch, time, head) starts at `(batch * time + t) * row + h * dim` of slice
/// `slot`.
#[derive(Clone, Copy, Debug)]
struct Heads {
    slot: usize,
    row: usize,
    time: usize,
    dim: usize,
}

impl Heads {
    /// The first element of head `head` of sequence `batch` at time `t`.
    fn start(self, batch: usize, t: usize, head: usize) -> usize {
        (batch * self.time + t) * self.row + head * self.dim
    }
}

impl Attention {
    /// Where q (0), k (1) or v (2) and their gradients lie.
    fn heads_of(self, tensor: usize) -> Heads {
        let dim = self.head_dim;
        let counts = [self.heads, self.kv_heads, self.kv_heads];
        let time = if tensor == 0 { self.q_time } else { self.k_time };
        Heads { slot: tensor, row: counts[tensor] * dim, time, dim }
    }

    /// Where out and dout lie.
    fn heads_of_out(self) -> Heads {
        let dim = self.head_dim;
        Heads { slot: 0, row: self.heads * dim, time: self.q_time, dim }
    }

    /// Query heads that share a key head.
    fn group(self) -> usize {
        self.heads / self.kv_heads
    }

    /// How many keys, counted from the first, query `i` sees.
    fn visible(self, i: usize) -> usize {
        if self.causal {
            (i + 1 + self.k_time).saturating_sub(self.q_time).min(self.k_time)
        } else {
            self.k_time
        }
    }

    /// The first query that sees key `j`.
    fn first_query(self, j: usize) -> usize {
        if self.causal { (j + self.q_time).saturating_sub(self.k_time) } else { 0 }
    }

    /// How many scores there are, masked ones too.
    fn scores(self) -> usize {
        self.batch * self.heads * self.q_time * self.k_time
    }

    /// `head_dim` rounded up to whole tiles of a product.
    fn padded_dim(self) -> usize {
        self.head_dim.next_multiple_of(if self.precision.rounds() { pairs::COLUMNS } else { product::LANES })
    }

    /// Words of `n` steps of a packed operand: each holds one, or two of a precision that rounds.
    fn words(self, n: usize) -> usize {
        if self.precision.rounds() { n.div_ceil(2) } else { n }
    }
}

/// What the gradient reads.
#[derive(Clone, Copy)]
pub struct GradInputs<'a> {
    /// q, k, v.
    pub qkv: [&'a [f32]; 3],
    /// The forward's result.
    pub out: &'a [f32],
    /// The forward's log-sum-exps.
    pub lse: &'a [f32],
    /// The gradient by `out`.
    pub dout: &'a [f32],
}

impl<'a> GradInputs<'a> {
    fn of(call: &Call<'a>) -> Self {
        let [q, k, v, out, lse, dout] = [0, 1, 2, 3, 4, 5].map(|i| call.read(i));
        GradInputs { qkv: [q, k, v], out, lse, dout }
    }
}

impl Attention {
    /// The settings of a task whose result, or what that was, has the shape `y`.
    fn of(task: &TaskView<'_>, y: &Shape) -> Result<Self, String> {
        let (&[batch, q_time, heads, head_dim], &[_, k_time, kv_heads, _]) = (y.dims(), task.read(1)?.dims())
        else {
            return Err(format!("it takes [batch, time, heads, elements], not {y}"));
        };
        let (scale, causal) = (task.attr("scale")?, task.is("causal"));
        let precision = task.attr_or("precision", Precision::F32)?;
        Ok(Attention { batch, heads, kv_heads, q_time, k_time, head_dim, scale, causal, precision })
    }

    /// Operations: of each element of a query and key that it sees, of each such pair, and of each element of a query.
    fn flops(&self, element: f64, pair: f64, query: f64) -> f64 {
        let of = [self.batch, self.heads, self.q_time, self.k_time, self.head_dim];
        let [batch, heads, queries, keys, dim] = of.map(|size| size as f64);
        // The last query sees all keys; with `causal` the one before it sees one less, as long as there are any.
        let seeing = queries.min(keys);
        let hidden = queries * keys - seeing * (2.0 * keys - seeing + 1.0) / 2.0;
        let pairs = queries * keys - if self.causal { hidden } else { 0.0 };
        batch * heads * (pairs * (element * dim + pair) + queries * dim * query)
    }
}

impl Kernel for Attention {
    signature!("attention": q, k, v => y, lse);
    const IS_PRODUCT: bool = true;

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        Attention::of(task, task.write(0)?)
    }

    fn reference(&self, call: &mut Call<'_>) {
        attention_reference([0, 1].map(|i| call.write(i)), [0, 1, 2].map(|i| call.read(i)), *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        attention([0, 1].map(|i| call.write(i)), [0, 1, 2].map(|i| call.read(i)), *self, &mut call.launch);
    }

    /// Of a pair: scale, maximum, difference, exponential and sum beside two products; of a query: the quotients.
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(self.flops(4.0, 5.0, 1.0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.scores(), cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        forward::workspace(*self)
    }

    fn sizes(&self) -> Option<String> {
        let Attention { batch, heads, q_time, k_time, head_dim, .. } = self;
        Some(format!("{batch} of {q_time} x {k_time}, {heads} heads of {head_dim}"))
    }
}

impl Kernel for AttentionGrad {
    signature!("attention_grad": q, k, v, y, lse, dy => dq, dk, dv);
    const IS_PRODUCT: bool = true;

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let forward = Attention::of(task, task.read(3)?)?;
        Ok(AttentionGrad { forward, accumulate: task.is("accumulate") })
    }

    fn reference(&self, call: &mut Call<'_>) {
        attention_grad_reference([0, 1, 2].map(|i| call.write(i)), GradInputs::of(call), *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        attention_grad([0, 1, 2].map(|i| call.write(i)), GradInputs::of(call), *self, &mut call.launch);
    }

    /// Of a pair: scale twice, differences, exponential, product beside five products; of a query: its delta.
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(self.forward.flops(10.0, 6.0, 2.0), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.forward.scores(), cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        backward::workspace(self.forward)
    }

    fn sizes(&self) -> Option<String> {
        self.forward.sizes()
    }
}
