use super::*;
use crate::attention::{Attention, attention_reference};
use crate::samples::{Case, Input, values};
use crate::{Launch, Team};
use phalanx_ir::Precision;

/// A few hundred additions of weighted values near one, each rounded to 2^-24.
const TOLERANCE: f32 = 1e-5;

/// batch, heads, kv_heads, q_time, k_time, head_dim, value_dim
type Sizes = [usize; 7];

fn plain([batch, heads, kv_heads, q_time, k_time, head_dim, value_dim]: Sizes) -> MaskedAttention {
    MaskedAttention {
        batch,
        heads,
        kv_heads,
        q_time,
        k_time,
        head_dim,
        value_dim,
        scale: 2.0 / (head_dim as f32).sqrt(),
        causal: false,
        window: 0,
        softcap: 0.0,
        bias: BiasKind::None,
        bias_strides: [0; 3],
        dropout: Mask::at_tile(TaskMask::NONE, &[1], &[0], &[1]).expect("one element"),
    }
}

/// A bias that is stretched along the dimensions that are not named.
fn with_bias(params: MaskedAttention, bias: BiasKind, own: [bool; 3]) -> MaskedAttention {
    let rows = if own[2] { params.q_time } else { 1 };
    let per_batch = if own[1] { params.heads } else { 1 };
    let keys = params.k_time;
    let strides = [per_batch * rows * keys, rows * keys, keys];
    let bias_strides = std::array::from_fn(|dim| if own[dim] { strides[dim] } else { 0 });
    MaskedAttention { bias, bias_strides, ..params }
}

fn dropping(params: MaskedAttention, rate: f32) -> MaskedAttention {
    let extents = [params.batch, params.heads, params.q_time, params.k_time];
    let mask = TaskMask { rate, seed: 3, salt: 5, ..TaskMask::NONE };
    MaskedAttention { dropout: Mask::at_tile(mask, &extents, &[0; 4], &extents).expect("whole"), ..params }
}

/// Settings of every kind.
fn variants(sizes: Sizes) -> Vec<MaskedAttention> {
    let plain = plain(sizes);
    let causal = MaskedAttention { causal: true, ..plain };
    vec![
        plain,
        causal,
        MaskedAttention { window: 5, ..plain },
        MaskedAttention { window: 70, softcap: 1.5, ..causal },
        with_bias(plain, BiasKind::Bool, [true, false, true]),
        with_bias(causal, BiasKind::Bool, [false, false, false]),
        with_bias(plain, BiasKind::F32, [true, true, true]),
        with_bias(MaskedAttention { softcap: 2.0, ..plain }, BiasKind::F32, [false, true, true]),
        dropping(causal, 0.3),
        dropping(with_bias(plain, BiasKind::F32, [true, false, false]), 0.5),
    ]
}

fn lengths(params: MaskedAttention) -> [usize; 3] {
    let MaskedAttention { batch, heads, kv_heads, q_time, k_time, head_dim, value_dim, .. } = params;
    let keys = batch * k_time * kv_heads;
    [batch * q_time * heads * head_dim, keys * head_dim, keys * value_dim]
}

/// The bias and the scalars, if there are any. One in eight rows of a mask shows nothing.
fn extras(mut case: Case, params: MaskedAttention) -> Case {
    let n = params.scores();
    let hidden = |i: usize| (i / params.k_time).is_multiple_of(8) || (i * 7919) % 11 < 4;
    case = match params.bias {
        BiasKind::None => case,
        BiasKind::Bool => case.read(Input::Bool((0..n).map(|i| u8::from(!hidden(i))).collect())),
        BiasKind::F32 => {
            let mut bias = values(n, 21);
            bias.iter_mut().step_by(13).for_each(|bias| *bias = f32::NEG_INFINITY);
            case.read(bias)
        }
    };
    if params.drops() { case.read(vec![0.0, 0.0, 0.0, 7.0, 0.0, 0.0, 0.0, 0.0]) } else { case }
}

fn forward(params: MaskedAttention) -> Case {
    let mut case = Case::new("masked_attention", params.to_words());
    for (seed, n) in lengths(params).into_iter().enumerate() {
        case = case.read(values(n, seed as u64 + 1));
    }
    let queries = params.batch * params.heads * params.q_time;
    extras(case, params).write(vec![f32::NAN; queries * params.value_dim]).write(vec![f32::NAN; queries])
}

fn backward(params: MaskedAttention, accumulate: bool, wants_bias: bool) -> Case {
    let forward = forward(params);
    let mut results = forward.reference();
    let grad = MaskedAttentionGrad { forward: params, accumulate, wants_bias };
    let mut case = Case::new("masked_attention_grad", grad.to_words());
    case.reads = forward.reads[..3].to_vec();
    let dout = values(results[0].len(), 9);
    case = extras(case.read(results.remove(0)).read(results.remove(0)).read(dout), params);
    for n in lengths(params) {
        case = case.write(values(n, 31));
    }
    if wants_bias { case.write(vec![f32::NAN; params.scores()]) } else { case }
}

#[test]
fn fast_equals_reference() {
    let sizes: [Sizes; 7] = [
        [1, 1, 1, 1, 1, 1, 1],
        [2, 3, 1, 5, 5, 7, 3],
        [1, 4, 2, 33, 33, 17, 17],
        [1, 1, 1, 100, 130, 8, 20],
        [1, 2, 1, 130, 70, 8, 8],
        [2, 2, 2, 17, 150, 16, 1],
        [1, 2, 1, 7, 65, 33, 48],
    ];
    for sizes in sizes {
        for params in variants(sizes) {
            forward(params).check(TOLERANCE);
            backward(params, false, params.bias == BiasKind::F32).check(TOLERANCE);
            backward(params, true, false).check(TOLERANCE);
        }
    }
}

#[test]
fn bits_are_the_same_for_every_team_and_instruction_set() {
    for params in variants([2, 2, 1, 70, 90, 20, 12]) {
        forward(params).check_bits();
        backward(params, false, params.bias == BiasKind::F32).check_bits();
    }
}

/// Without anything added the meaning is that of plain attention.
#[test]
fn plain_attention_is_a_special_case() {
    let params = plain([2, 4, 2, 9, 9, 5, 5]);
    for causal in [false, true] {
        let found = forward(MaskedAttention { causal, ..params }).reference();
        let MaskedAttention { batch, heads, kv_heads, q_time, k_time, head_dim, scale, .. } = params;
        let precision = Precision::F32;
        let other = Attention { batch, heads, kv_heads, q_time, k_time, head_dim, scale, causal, precision };
        let qkv = lengths(params).into_iter().enumerate().map(|(seed, n)| values(n, seed as u64 + 1));
        let qkv: Vec<_> = qkv.collect();
        let (mut y, mut lse) = (vec![0.0; found[0].len()], vec![0.0; found[1].len()]);
        attention_reference([&mut y, &mut lse], [&qkv[0], &qkv[1], &qkv[2]], other);
        assert_eq!([y, lse], [found[0].clone(), found[1].clone()]);
    }
}

/// Tiles of batch and heads drop what the whole drops.
#[test]
fn tiles_drop_the_probabilities_of_the_whole() {
    let whole = dropping(plain([4, 2, 2, 3, 5, 4, 4]), 0.4);
    let all = forward(whole).fast(&Team::new(1));
    let inputs: Vec<Vec<f32>> =
        lengths(whole).into_iter().enumerate().map(|(seed, n)| values(n, seed as u64 + 1)).collect();
    let mask = TaskMask { rate: 0.4, seed: 3, salt: 5, ..TaskMask::NONE };
    for batch in 0..4 {
        let dropout = Mask::at_tile(mask, &[1, 2, 3, 5], &[batch, 0, 0, 0], &[4, 2, 3, 5]).expect("a tile");
        let params = MaskedAttention { batch: 1, dropout, ..whole };
        let part = |slot: usize| {
            let n = inputs[slot].len() / 4;
            &inputs[slot][batch * n..][..n]
        };
        let hyper = [0.0, 0.0, 0.0, 7.0, 0.0, 0.0, 0.0, 0.0];
        let inputs = MaskedInputs { qkv: [part(0), part(1), part(2)], bias: Bias::None, hyper: &hyper };
        let (mut y, mut lse) = (vec![0.0; 24], vec![0.0; 6]);
        let team = Team::new(1);
        let mut scratch = vec![0.0f32; 1 << 16];
        let entry = crate::table::find("masked_attention").expect("there is such a kernel");
        let memory = bytemuck::cast_slice_mut(&mut scratch);
        let needed = entry.plan(&params.to_words(), 1).expect("it fits").bytes as usize;
        let mut launch: Launch<'_> =
            entry.launch(&params.to_words(), 1, &mut memory[..needed], &team).expect("one block");
        masked_attention([&mut y, &mut lse], inputs, params, &mut launch);
        assert_eq!(y, all[0][batch * 24..][..24], "sequence {batch}");
    }
}

#[test]
fn a_query_that_sees_nothing_gives_and_gets_zeros() {
    let params = with_bias(plain([1, 1, 1, 3, 2, 2, 2]), BiasKind::Bool, [false, false, true]);
    let shown = [1, 1, 0, 0, 1, 0];
    let mut case = forward(params);
    case.reads[3] = Input::Bool(shown.to_vec());
    for results in [case.reference(), case.fast(&Team::new(1))] {
        assert_eq!(results[0][2..4], [0.0, 0.0]);
        assert_eq!(results[1][1], f32::NEG_INFINITY);
        let mut grad = backward(params, false, true);
        grad.reads[3] = Input::F32(results[0].clone());
        grad.reads[4] = Input::F32(results[1].clone());
        grad.reads[6] = Input::Bool(shown.to_vec());
        for grads in [grad.reference(), grad.fast(&Team::new(1))] {
            assert_eq!(grads[0][2..4], [0.0, 0.0], "dq");
            assert!(grads.concat().iter().all(|x| x.is_finite()), "{grads:?}");
            assert_eq!(grads[3][2..4], [0.0, 0.0], "dbias");
        }
    }
}
