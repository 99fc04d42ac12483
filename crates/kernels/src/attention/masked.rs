//! Attention with what models add to it: a bias or mask, a window, capped scores, dropout, values of another size than keys.
//!
//! `masked_attention` reads q `[batch, q_time, heads, head_dim]`, k `[batch, k_time, kv_heads, head_dim]`, v
//! `[batch, k_time, kv_heads, value_dim]`, a bias `[batch or 1, heads or 1, q_time or 1, k_time]` if there is one, and hyper
//! if it drops; it writes y `[batch, q_time, heads, value_dim]` and lse `[batch, heads, q_time]`.
//! `masked_attention_grad` reads q, k, v, y, lse, dy, bias, hyper and writes dq (accumulates on request), dk, dv and, if
//! wanted, dbias `[batch, heads, q_time, k_time]`, before any sum.
//!
//! The score of query i and key j is `scale q·k`; with a `softcap` c it is `c tanh(score / c)`; then a float bias is added.
//! Key j is hidden from query i if j > i and attention is `causal`, if i - j, or j - i, is not below the `window`, if a
//! bool bias is false, or if a float bias is -∞. A query that sees no key gives zeros and gets zeros. Dropout zeroes
//! probabilities by their index in the whole `[batch, heads, q_time, k_time]` and scales the others up.
//!
//! All of it is in single precision, whatever the precision of the model is. The fast versions walk blocks as those of
//! plain attention do; the unit of work is one (batch, key head).

mod backward;
mod forward;
mod reference;
#[cfg(test)]
mod tests;

use phalanx_ir::tasks::{Buffer, Mask as TaskMask, TaskView};
use phalanx_ir::{DType, Names, names};

use super::Heads;
use super::product::LANES;
use super::strip::{KEYS, QUERIES, STRIP, Strip};
use crate::dropout::Mask;
use crate::spmd::{Workspace, by_work};
use crate::{Call, Kernel, Sizes, Words, Work, params};

pub use backward::masked_attention_grad;
pub use forward::masked_attention;
pub use reference::{masked_attention_grad_reference, masked_attention_reference};

/// What a bias is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BiasKind {
    /// There is none.
    None,
    /// Truth values; false hides.
    Bool,
    /// Added to the scores.
    F32,
}

impl Words for BiasKind {
    fn put(&self, words: &mut Vec<u64>) {
        words.push(*self as u64);
    }
    fn take(words: &mut &[u64]) -> Self {
        match u64::take(words) {
            1 => BiasKind::Bool,
            2 => BiasKind::F32,
            _ => BiasKind::None,
        }
    }
}

params! {
    /// Settings of `masked_attention`.
    pub struct MaskedAttention {
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
        /// Elements per head of queries and keys.
        pub head_dim: usize,
        /// Elements per head of values.
        pub value_dim: usize,
        /// The factor on every score.
        pub scale: f32,
        /// Whether queries see only keys up to their own time.
        pub causal: bool,
        /// How far a query sees; 0 if there is no window.
        pub window: usize,
        /// What scores are bounded by; 0 if they are not.
        pub softcap: f32,
        /// What the bias is.
        pub bias: BiasKind,
        /// Elements between sequences, heads and queries of the bias; 0 where it is stretched.
        pub bias_strides: [usize; 3],
        /// Which probabilities are dropped; rate 0 for none.
        pub dropout: Mask,
    }
}

params! {
    /// Settings of `masked_attention_grad`.
    pub struct MaskedAttentionGrad {
        /// Those of the forward.
        pub forward: MaskedAttention,
        /// Whether dq is added to what its slice holds.
        pub accumulate: bool,
        /// Whether dbias is written.
        pub wants_bias: bool,
    }
}

/// A bias.
#[derive(Clone, Copy)]
pub enum Bias<'a> {
    /// There is none.
    None,
    /// Truth values; false hides.
    Bool(&'a [u8]),
    /// Added to the scores.
    F32(&'a [f32]),
}

/// What the forward pass reads.
#[derive(Clone, Copy)]
pub struct MaskedInputs<'a> {
    /// q, k, v.
    pub qkv: [&'a [f32]; 3],
    /// The bias.
    pub bias: Bias<'a>,
    /// The scalars of the step; empty if nothing is dropped.
    pub hyper: &'a [f32],
}

/// What the gradient reads besides.
#[derive(Clone, Copy)]
pub struct MaskedGradInputs<'a> {
    /// What the forward reads.
    pub forward: MaskedInputs<'a>,
    /// Its result.
    pub out: &'a [f32],
    /// Its log-sum-exps.
    pub lse: &'a [f32],
    /// The gradient by `out`.
    pub dout: &'a [f32],
}

impl MaskedAttention {
    /// Where q (0), k (1) or v (2) and their gradients lie.
    fn heads_of(self, tensor: usize) -> Heads {
        let (heads, time) =
            if tensor == 0 { (self.heads, self.q_time) } else { (self.kv_heads, self.k_time) };
        let dim = if tensor == 2 { self.value_dim } else { self.head_dim };
        Heads { slot: tensor, row: heads * dim, time, dim }
    }

    /// Where out and dout lie.
    fn heads_of_out(self) -> Heads {
        let dim = self.value_dim;
        Heads { slot: 0, row: self.heads * dim, time: self.q_time, dim }
    }

    /// Query heads that share a key head.
    fn group(self) -> usize {
        self.heads / self.kv_heads
    }

    /// The keys that query `i` may see, by its place alone.
    fn seen(self, i: usize) -> std::ops::Range<usize> {
        let window = if self.window == 0 { self.q_time + self.k_time } else { self.window };
        let end = if self.causal { i + 1 } else { i.saturating_add(window) };
        (i + 1).saturating_sub(window).min(self.k_time)..end.min(self.k_time)
    }

    /// The blocks of keys that the queries `first..=last` may see some of.
    fn key_blocks(self, first: usize, last: usize) -> std::ops::Range<usize> {
        self.seen(first).start / KEYS..self.seen(last).end.div_ceil(KEYS)
    }

    /// The last query of the block from `first`.
    fn last_query(self, first: usize) -> usize {
        (first + QUERIES).min(self.q_time) - 1
    }

    /// The strips of the queries from `first` to `last`, one block, against one block of keys. Which of these keys a query sees
    /// is decided element by element.
    fn strips(self, first: usize, last: usize, key_block: usize) -> impl Iterator<Item = Strip> {
        (0..=last - first).step_by(STRIP).map(move |start| {
            let present = STRIP.min(last - first - start + 1);
            let end = self.seen(first + start + present - 1).end;
            let cols = end.saturating_sub(key_block * KEYS).min(KEYS);
            let visible = std::array::from_fn(|row| if row < present { cols } else { 0 });
            Strip {
                start,
                rows: present.next_multiple_of(super::product::ROWS),
                cols: cols.next_multiple_of(LANES),
                visible,
            }
        })
    }

    /// The place of a row of scores among all of this tile.
    fn row(self, [batch, head, i]: [usize; 3]) -> usize {
        (batch * self.heads + head) * self.q_time + i
    }

    /// Where the bias of a row of scores starts.
    fn bias_row(self, at: [usize; 3]) -> usize {
        at.iter().zip(self.bias_strides).map(|(at, stride)| at * stride).sum()
    }

    fn drops(self) -> bool {
        self.dropout.rate > 0.0
    }

    fn padded(dim: usize) -> usize {
        dim.next_multiple_of(LANES)
    }

    /// The settings of a task whose result, or what that was, is `y` and whose bias and scalars are read from `slot` on.
    fn of(task: &TaskView<'_>, y: &Buffer, slot: usize) -> Result<Self, String> {
        let (q, k) = (task.read(0)?, task.read(1)?);
        let (&[batch, q_time, heads, head_dim], &[_, k_time, kv_heads, _]) = (q.dims(), k.dims()) else {
            return Err(format!("it takes [batch, time, heads, elements], not {q}"));
        };
        let dropout = task.attr_or("dropout", TaskMask::NONE)?;
        let scores = [batch, heads, q_time, k_time];
        let whole = y.tile.as_ref().map_or([batch, q_time, heads, 0], |tile| {
            let dims = tile.global.dims();
            [dims[0], q_time, dims[2], 0]
        });
        let origin = [y.origin(0), y.origin(2), 0, 0];
        let global = [whole[0], whole[2], q_time, k_time];
        let dropout = Mask::at_tile(dropout, &scores, &origin, &global)
            .ok_or("its tile cuts the blocks of the batch; use fewer microbatches")?;
        let hyper = usize::from(dropout.rate > 0.0);
        let (bias, bias_strides) = match task.sources().count() > slot + hyper {
            false => (BiasKind::None, [0; 3]),
            true => bias_of(task, slot)?,
        };
        Ok(MaskedAttention {
            batch,
            heads,
            kv_heads,
            q_time,
            k_time,
            head_dim,
            value_dim: task.read(2)?.last(),
            scale: task.attr("scale")?,
            causal: task.is("causal"),
            window: task.attr_or("window", 0)?,
            softcap: task.attr_or("softcap", 0.0)?,
            bias,
            bias_strides,
            dropout,
        })
    }

    /// The bias and scalars among the reads of a call, from `slot` on.
    fn inputs<'a>(&self, call: &Call<'a>, slot: usize) -> MaskedInputs<'a> {
        let bias = match self.bias {
            BiasKind::None => Bias::None,
            BiasKind::Bool => Bias::Bool(call.read(slot)),
            BiasKind::F32 => Bias::F32(call.read(slot)),
        };
        let after = slot + usize::from(self.bias != BiasKind::None);
        let hyper = if self.drops() { call.read(after) } else { &[] };
        MaskedInputs { qkv: [0, 1, 2].map(|slot| call.read(slot)), bias, hyper }
    }

    /// Operations: of each element of keys and of values, of each pair, of each element of a result.
    fn flops(&self, keys: f64, values: f64, pair: f64, query: f64) -> f64 {
        let seen: usize = (0..self.q_time).map(|i| self.seen(i).len()).sum();
        let [heads, queries] = [self.batch * self.heads, self.q_time].map(|size| size as f64);
        let [dim, value_dim] = [self.head_dim, self.value_dim].map(|size| size as f64);
        heads * (seen as f64 * (keys * dim + values * value_dim + pair) + queries * value_dim * query)
    }

    fn scores(&self) -> usize {
        self.batch * self.heads * self.q_time * self.k_time
    }
}

/// What the bias in `slot` is, and its strides.
fn bias_of(task: &TaskView<'_>, slot: usize) -> Result<(BiasKind, [usize; 3]), String> {
    let bias = &task.source(slot)?.ty;
    let &[batch, heads, queries, keys] = bias.shape.dims() else {
        return Err(format!("a bias is [batch, heads, queries, keys], not {bias}"));
    };
    let kind = if bias.dtype == DType::Bool { BiasKind::Bool } else { BiasKind::F32 };
    let stride = |extent: usize, stride: usize| if extent == 1 { 0 } else { stride };
    let strides =
        [stride(batch, heads * queries * keys), stride(heads, queries * keys), stride(queries, keys)];
    Ok((kind, strides))
}

impl Kernel for MaskedAttention {
    const NAME: &'static str = "masked_attention";
    const IS_PRODUCT: bool = true;

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        MaskedAttention::of(task, task.target(0)?, 3)
    }

    fn arguments(&self) -> Names {
        names!(q, k, v, bias if self.bias != BiasKind::None, hyper if self.drops() => y, lse)
    }

    fn reference(&self, call: &mut Call<'_>) {
        masked_attention_reference([0, 1].map(|i| call.write(i)), self.inputs(call, 3), *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        masked_attention([0, 1].map(|i| call.write(i)), self.inputs(call, 3), *self, &mut call.launch);
    }

    /// Two products; of a pair: scale, bias, maximum, difference, exponential and sum; of a query: the quotients.
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(self.flops(2.0, 2.0, 6.0, 1.0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.scores(), cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        forward::workspace(*self)
    }

    fn anywhere(self) -> Self {
        MaskedAttention { dropout: self.dropout.anywhere(), ..self }
    }

    fn sizes(&self) -> Option<String> {
        let MaskedAttention { batch, heads, q_time, k_time, head_dim, .. } = self;
        Some(format!("{batch} of {q_time} x {k_time}, {heads} heads of {head_dim}"))
    }
}

impl Kernel for MaskedAttentionGrad {
    const NAME: &'static str = "masked_attention_grad";
    const IS_PRODUCT: bool = true;

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let forward = MaskedAttention::of(task, task.source(3)?, 6)?;
        let wants_bias = task.targets().count() == 4;
        Ok(MaskedAttentionGrad { forward, accumulate: task.is("accumulate"), wants_bias })
    }

    fn arguments(&self) -> Names {
        let MaskedAttentionGrad { forward, wants_bias, .. } = *self;
        let has_bias = forward.bias != BiasKind::None;
        names!(q, k, v, y, lse, dy, bias if has_bias, hyper if forward.drops() => dq, dk, dv, dbias if wants_bias)
    }

    fn reference(&self, call: &mut Call<'_>) {
        let (grads, inputs) = self.slices(call);
        masked_attention_grad_reference(grads, inputs, *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let (grads, inputs) = self.slices(call);
        masked_attention_grad(grads, inputs, *self, &mut call.launch);
    }

    /// Five products; of a pair: scale twice, bias, differences, exponential, product; of a query: its delta.
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(self.forward.flops(6.0, 4.0, 8.0, 2.0), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.forward.scores(), cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        backward::workspace(self.forward)
    }

    fn anywhere(self) -> Self {
        MaskedAttentionGrad { forward: self.forward.anywhere(), ..self }
    }

    fn sizes(&self) -> Option<String> {
        self.forward.sizes()
    }
}

impl MaskedAttentionGrad {
    /// dq, dk, dv and dbias, which is empty if it is not wanted, and what is read.
    fn slices<'a>(&self, call: &mut Call<'a>) -> ([&'a mut [f32]; 4], MaskedGradInputs<'a>) {
        let [out, lse, dout] = [3, 4, 5].map(|slot| call.read(slot));
        let inputs = MaskedGradInputs { forward: self.forward.inputs(call, 6), out, lse, dout };
        let grads = [0, 1, 2, 3].map(|slot| match slot < 3 || self.wants_bias {
            true => call.write(slot),
            false => &mut [],
        });
        (grads, inputs)
    }
}
