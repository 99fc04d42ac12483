//! Causal attention of new tokens over earlier ones, whose keys and values lie in caches, and over each other.
//!
//! `cached_attention` reads q `[batch, time, heads, head_dim]`, k and v (as q with `kv_heads`), the caches
//! `[batch, capacity, kv_heads, head_dim]` and past `[batch]`: how many rows of a sequence's caches count. It writes y (as
//! q). Query i sees the rows that count and the new keys up to i: y has the bits of `attention` over all of them in one
//! piece. Rows of the caches behind those that count are never read.

use phalanx_ir::Precision;
use phalanx_ir::tasks::TaskView;

use super::forward::{Work, attend, sizes};
use super::pack::{Head, pack_rows, pack_transposed};
use super::pairs::{pack_halves, pack_pairs};
use super::strip::{KEYS, QUERIES};
use super::{Attention, Heads, attention_reference};
use crate::ids::Ids;
use crate::spmd::{Launch, Workspace, by_work};
use crate::{Call, Kernel, Sizes, params, signature};

params! {
    /// Settings of `cached_attention`.
    pub struct CachedAttentionParams {
        /// Sequences.
        pub batch: usize,
        /// Query heads.
        pub heads: usize,
        /// Key and value heads, a divisor of `heads`.
        pub kv_heads: usize,
        /// New tokens of each sequence.
        pub time: usize,
        /// Rows of a sequence's caches.
        pub capacity: usize,
        /// Elements per head.
        pub head_dim: usize,
        /// The factor on every score.
        pub scale: f32,
        /// Whether `past` has 32-bit integers.
        pub past_i32: bool,
        /// How products read their operands and add.
        pub precision: Precision,
    }
}

/// What `cached_attention` reads.
#[derive(Clone, Copy)]
pub struct CachedInputs<'a> {
    /// q, k, v of the new tokens.
    pub qkv: [&'a [f32]; 3],
    /// Keys and values of earlier tokens.
    pub caches: [&'a [f32]; 2],
    /// How many of them there are in each sequence.
    pub past: Ids<'a>,
}

impl CachedAttentionParams {
    /// The attention over all keys of one sequence that has `past` earlier ones.
    fn whole(self, past: usize) -> Attention {
        let CachedAttentionParams { heads, kv_heads, time, head_dim, scale, precision, .. } = self;
        let (q_time, k_time) = (time, past + time);
        Attention { batch: 1, heads, kv_heads, q_time, k_time, head_dim, scale, causal: true, precision }
    }

    /// Where the rows of keys or values lie that have room for `time` tokens of a sequence.
    fn rows(self, time: usize) -> Heads {
        Heads { slot: 0, row: self.kv_heads * self.head_dim, time, dim: self.head_dim }
    }

    fn inputs<'a>(&self, call: &Call<'a>) -> CachedInputs<'a> {
        CachedInputs {
            qkv: [0, 1, 2].map(|i| call.read(i)),
            caches: [3, 4].map(|i| call.read(i)),
            past: Ids::read(call, 5, self.past_i32),
        }
    }
}

/// Joins the rows of each sequence and attends to them.
pub fn cached_attention_reference(y: &mut [f32], inputs: CachedInputs<'_>, params: CachedAttentionParams) {
    let row = params.kv_heads * params.head_dim;
    let queries = params.time * params.heads * params.head_dim;
    for (batch, y) in y.chunks_exact_mut(queries).enumerate() {
        let past = inputs.past.row(batch, params.capacity + 1);
        let joined = |slot: usize| {
            let earlier = &inputs.caches[slot][batch * params.capacity * row..][..past * row];
            [earlier, &inputs.qkv[1 + slot][batch * params.time * row..][..params.time * row]].concat()
        };
        let (keys, values) = (joined(0), joined(1));
        let mut lse = vec![0.0; params.heads * params.time];
        let q = &inputs.qkv[0][batch * queries..][..queries];
        attention_reference([y, &mut lse], [q, &keys, &values], params.whole(past));
    }
}

/// The same, fast.
pub fn cached_attention(
    y: &mut [f32],
    inputs: CachedInputs<'_>,
    params: CachedAttentionParams,
    launch: &mut Launch<'_>,
) {
    let units = [params.batch, params.kv_heads, params.time.div_ceil(QUERIES)];
    attend((y, None), inputs.qkv[0], units, launch, |own, batch, kv_head| {
        let past = inputs.past.row(batch, params.capacity + 1);
        let mut work = Work::new(own, sizes(params.whole(params.capacity)), params.whole(past), batch);
        let pack = if params.precision.rounds() { pack_rounded } else { pack };
        pack(&mut work, inputs, params, [batch, kv_head, past]);
        work
    });
}

/// Packs the keys and values of a head: first the cached rows, then the new ones behind them.
fn pack(
    work: &mut Work<'_>,
    inputs: CachedInputs<'_>,
    params: CachedAttentionParams,
    [batch, kv_head, past]: [usize; 3],
) {
    let CachedAttentionParams { time, head_dim: dim, .. } = params;
    let padded = work.params.padded_dim();
    let cached = Head { time: past, ..params.rows(params.capacity).head(batch, kv_head) };
    let new = params.rows(time).head(batch, kv_head);
    let whole = (past + time).next_multiple_of(KEYS);
    let (keys, values) = (&mut work.keys[..whole * dim], &mut work.values[..whole * padded]);
    pack_transposed(keys, inputs.caches[0], cached);
    for t in 0..time {
        let (block, column) = ((past + t) / KEYS, (past + t) % KEYS);
        let out = keys[block * KEYS * dim + column..].iter_mut().step_by(KEYS);
        out.zip(&inputs.qkv[1][new.at(t)]).for_each(|(out, x)| *out = *x);
    }
    pack_rows(values, padded, inputs.caches[1], cached, 0, 1.0);
    pack_rows(&mut values[past * padded..(past + time) * padded], padded, inputs.qkv[2], new, 0, 1.0);
}

/// The same for a precision that rounds.
fn pack_rounded(
    work: &mut Work<'_>,
    inputs: CachedInputs<'_>,
    params: CachedAttentionParams,
    [batch, kv_head, past]: [usize; 3],
) {
    let (words, padded) = (work.params.words(params.head_dim), work.params.padded_dim());
    let cached = Head { time: past, ..params.rows(params.capacity).head(batch, kv_head) };
    let new = params.rows(params.time).head(batch, kv_head);
    let all = past + params.time;
    let whole = all.next_multiple_of(KEYS);
    let (keys, values) = (&mut work.keys[..whole * words], &mut work.values[..whole / 2 * padded]);
    // Values come later: their place holds the rows of keys meanwhile.
    pack_halves(&mut values[..past * words], words, inputs.caches[0], cached, 0);
    pack_halves(&mut values[past * words..all * words], words, inputs.qkv[1], new, 0);
    pack_transposed(keys, values, Head { start: 0, row: words, time: all, dim: words });
    pack_pairs(values, padded, inputs.caches[1], cached, 0, 0);
    pack_pairs(values, padded, inputs.qkv[2], new, 0, past);
}

impl Kernel for CachedAttentionParams {
    signature!("cached_attention": q, k, v, past_k, past_v, past => y);
    const IS_PRODUCT: bool = true;

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (&[batch, time, heads, head_dim], &[_, capacity, kv_heads, _]) =
            (task.write(0)?.dims(), task.read(3)?.dims())
        else {
            return Err("it takes [batch, time, heads, elements]".into());
        };
        let precision = task.attr_or("precision", Precision::F32)?;
        let (scale, past_i32) = (task.attr("scale")?, task.is_i32(5)?);
        Ok(CachedAttentionParams {
            batch,
            heads,
            kv_heads,
            time,
            capacity,
            head_dim,
            scale,
            past_i32,
            precision,
        })
    }

    fn reference(&self, call: &mut Call<'_>) {
        cached_attention_reference(call.write(0), self.inputs(call), *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        cached_attention(call.write(0), self.inputs(call), *self, &mut call.launch);
    }

    /// As if the caches were full.
    fn work(&self, sizes: &Sizes<'_>) -> crate::Work {
        sizes.work(self.batch as f64 * self.whole(self.capacity).flops(4.0, 5.0, 1.0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.batch * self.whole(self.capacity).scores(), cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        Workspace::of::<f32>(0, sizes(self.whole(self.capacity)).iter().sum())
    }

    fn ids(&self) -> usize {
        self.capacity + 1
    }

    fn sizes(&self) -> Option<String> {
        let CachedAttentionParams { batch, heads, time, capacity, head_dim, .. } = self;
        Some(format!("{batch} of {time} x {capacity}, {heads} heads of {head_dim}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Attention;
    use super::*;
    use crate::samples::{Case, Input, values};
    use crate::{Team, Words};

    /// As for `attention`.
    const TOLERANCE: f32 = 1e-5;

    fn params(
        kv_heads: usize,
        group: usize,
        time: usize,
        capacity: usize,
        head_dim: usize,
    ) -> CachedAttentionParams {
        let (heads, scale) = (kv_heads * group, 2.0 / (head_dim as f32).sqrt());
        let (past_i32, precision) = (false, Precision::F32);
        CachedAttentionParams {
            batch: 2,
            heads,
            kv_heads,
            time,
            capacity,
            head_dim,
            scale,
            past_i32,
            precision,
        }
    }

    /// A call with these numbers of cached rows; what does not count is no number.
    fn case(params: CachedAttentionParams, past: [usize; 2]) -> Case {
        let row = params.kv_heads * params.head_dim;
        let queries = params.batch * params.time * params.heads * params.head_dim;
        let mut case = Case::new("cached_attention", params.to_words()).read(values(queries, 1));
        for (seed, rows) in [(2, params.time), (3, params.time), (4, params.capacity), (5, params.capacity)] {
            let mut x = values(params.batch * rows * row, seed);
            if rows == params.capacity && seed > 3 {
                for (x, past) in x.chunks_exact_mut(rows * row).zip(past) {
                    x[past * row..].fill(f32::NAN);
                }
            }
            case = case.read(x);
        }
        let past = past.map(|past| past as i64);
        case.read(Input::ids(&past, params.past_i32)).write(vec![f32::NAN; queries])
    }

    #[test]
    fn fast_equals_reference() {
        for (kv_heads, group, time, capacity, dim) in
            [(1, 1, 1, 1, 1), (2, 1, 1, 70, 16), (1, 3, 5, 33, 7), (2, 2, 65, 100, 20), (1, 1, 16, 200, 64)]
        {
            let params = params(kv_heads, group, time, capacity, dim);
            for past in [[0, capacity], [capacity / 2, 1]] {
                case(params, past).check(TOLERANCE);
            }
        }
        case(CachedAttentionParams { past_i32: true, ..params(1, 2, 3, 9, 4) }, [4, 9]).check(TOLERANCE);
    }

    #[test]
    fn bits_are_the_same_for_every_team_and_instruction_set() {
        for &precision in Precision::ALL {
            let with = |params| CachedAttentionParams { precision, ..params };
            case(with(params(2, 2, 3, 150, 40)), [97, 150]).check_bits();
            case(with(params(1, 1, 70, 90, 20)), [63, 64]).check_bits();
        }
    }

    #[test]
    fn fast_equals_reference_to_the_bit_where_operands_are_rounded() {
        for &precision in &Precision::ALL[1..] {
            let with = |params| CachedAttentionParams { precision, ..params };
            for past in [[0, 33], [17, 1]] {
                case(with(params(2, 1, 1, 70, 16)), past).check_reference_bits();
                case(with(params(1, 3, 5, 33, 7)), past).check_reference_bits();
                case(with(params(2, 2, 65, 100, 20)), past).check_reference_bits();
            }
        }
    }

    #[test]
    fn the_bits_are_those_of_attention_in_one_piece() {
        Precision::ALL.iter().for_each(|&precision| compare_with_one_piece(precision));
    }

    fn compare_with_one_piece(precision: Precision) {
        let (total, dim, group) = (150, 20, 2);
        let whole = Attention {
            batch: 1,
            heads: group,
            kv_heads: 1,
            q_time: total,
            k_time: total,
            head_dim: dim,
            scale: 0.3,
            causal: true,
            precision,
        };
        let (q, k, v) = (values(total * group * dim, 1), values(total * dim, 2), values(total * dim, 3));
        let team = Team::new(1);
        let mut all = Case::new("attention", whole.to_words());
        all = all.read(q.clone()).read(k.clone()).read(v.clone());
        let want = all.write(vec![0.0; q.len()]).write(vec![0.0; total * group]).fast(&team).remove(0);
        for (past, time) in [(0, 1), (0, 64), (63, 1), (64, 1), (64, 64), (17, 100), (149, 1), (100, 50)] {
            let params = params(1, group, time, total, dim);
            let params = CachedAttentionParams { batch: 1, scale: 0.3, precision, ..params };
            let rows = |x: &[f32], row: usize| x[past * row..(past + time) * row].to_vec();
            let cache = |x: &[f32]| [&x[..past * dim], &vec![f32::NAN; (total - past) * dim]].concat();
            let mut case = Case::new("cached_attention", params.to_words()).read(rows(&q, group * dim));
            case = case.read(rows(&k, dim)).read(rows(&v, dim)).read(cache(&k)).read(cache(&v));
            let case = case.read(Input::ids(&[past as i64], false)).write(vec![0.0; time * group * dim]);
            assert_eq!(case.fast(&team)[0], rows(&want, group * dim), "{past} and {time}, {precision}");
        }
    }
}
