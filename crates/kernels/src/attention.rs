//! Scaled dot-product attention and its gradient, without the matrix of scores ever in memory.
//!
//! `attention` reads q, k, v (`[batch, time, heads, head_dim]`; k and v have `kv_heads`) and writes y (as q) and lse
//! `[batch, heads, q_time]`, the log-sum-exp of the scaled scores. `attention_grad` reads the same, then y, lse and
//! dy, and overwrites dq, dk, dv.
//! Head h uses key head h / (heads / kv_heads). With `causal`, query i sees keys up to i + k_time - q_time; a query
//! that sees none gives zeros.
//!
//! The fast versions walk blocks of queries and keys with a running maximum and sum (blocks of keys ascend, so a
//! query's bits depend on its keys alone). The gradient's unit of work is one (batch, key head): its sums into dk and
//! dv are chains over heads and queries in ascending order.

mod backward;
mod forward;
mod pack;
mod product;
mod reference;
mod strip;
#[cfg(test)]
mod tests;

use phalanx_ir::names;

use crate::spmd::by_work;
use crate::{Call, Kernel, params};

pub use backward::attention_grad;
pub use forward::attention;
pub use reference::{attention_grad_reference, attention_reference};

params! {
    /// Settings of `attention` and `attention_grad`.
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

    /// `head_dim` rounded up to whole vectors.
    fn padded_dim(self) -> usize {
        self.head_dim.next_multiple_of(product::LANES)
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

fn forward_call(call: &mut Call<'_>, fast: bool) {
    let params = Attention::from_words(call.params);
    let qkv = [0, 1, 2].map(|i| call.read(i));
    let outs = [call.write(0), call.write(1)];
    if fast {
        attention(outs, qkv, params, &mut call.launch);
    } else {
        attention_reference(outs, qkv, params);
    }
}

fn grad_call(call: &mut Call<'_>, fast: bool) {
    let params = Attention::from_words(call.params);
    let qkv = [0, 1, 2].map(|i| call.read(i));
    let [out, lse, dout] = [3, 4, 5].map(|i| call.read(i));
    let inputs = GradInputs { qkv, out, lse, dout };
    let grads = [0, 1, 2].map(|i| call.write(i));
    if fast {
        attention_grad(grads, inputs, params, &mut call.launch);
    } else {
        attention_grad_reference(grads, inputs, params);
    }
}

/// The kernels of this file.
pub const KERNELS: &[Kernel] = &[
    Kernel {
        task: None,
        work: None,
        name: "attention",
        arguments: |_| names!(q, k, v => y, lse),
        fast: |call| forward_call(call, true),
        reference: |call| forward_call(call, false),
        blocks: |params, cores| by_work(Attention::from_words(params).scores(), cores),
        workspace: |params, _| forward::workspace(Attention::from_words(params)),
    },
    Kernel {
        task: None,
        work: None,
        name: "attention_grad",
        arguments: |_| names!(q, k, v, y, lse, dy => dq, dk, dv),
        fast: |call| grad_call(call, true),
        reference: |call| grad_call(call, false),
        blocks: |params, cores| by_work(Attention::from_words(params).scores(), cores),
        workspace: |params, _| backward::workspace(Attention::from_words(params)),
    },
];
