//! Work counted by hand.

use phalanx_ir::{Activation, Binary, Precision, Reduce, RopeScaling, Unary};
use phalanx_kernels::Words;
use phalanx_kernels::attention::Attention;
use phalanx_kernels::binary::{BinaryParams, Broadcast};
use phalanx_kernels::column_sum::ColumnSum;
use phalanx_kernels::conv::{ConvGradWeight, ConvParams, ConvShape};
use phalanx_kernels::cross_entropy::{ClassPick, CrossEntropy, CrossEntropyGrad, LinearCrossEntropy};
use phalanx_kernels::dropout::{DropoutParams, Mask};
use phalanx_kernels::embedding::{Embedding, EmbeddingGrad};
use phalanx_kernels::layer_norm::{Affine, LayerNormGrad};
use phalanx_kernels::matmul::MatmulParams;
use phalanx_kernels::optimizer::{AdamW, Sgd};
use phalanx_kernels::reduce::{ReduceGradParams, ReduceParams};
use phalanx_kernels::rms_norm::RmsNormGrad;
use phalanx_kernels::rotary::Rotary;
use phalanx_kernels::softmax::SoftmaxGradParams;
use phalanx_kernels::sum_squares::SumSquares;
use phalanx_kernels::unary::{UnaryGradParams, UnaryParams};
use phalanx_program::rect::Tile;

use super::*;

/// Work with operands and results of so many floats.
fn work(kernel: &str, words: Vec<u64>, reads: &[u64], writes: &[u64]) -> (u64, u64) {
    let bytes = |floats: &[u64]| floats.iter().map(|floats| 4 * floats).collect();
    let (reads, writes) = (bytes(reads), bytes(writes));
    let Work { flops, bytes } = Signature { kernel: kernel.into(), words, reads, writes, cores: 1 }.work();
    assert!(flops.fract() == 0.0 && bytes.fract() == 0.0, "{kernel}: {flops} {bytes}");
    (flops as u64, bytes as u64)
}

fn product(accumulate: bool) -> MatmulParams {
    MatmulParams {
        batch: 3,
        m: 5,
        n: 7,
        k: 8,
        trans_a: true,
        trans_b: false,
        leaves: 2,
        bias: true,
        residual: false,
        activation: Activation::GeluTanh,
        save_pre: false,
        accumulate,
        slope: Activation::None,
        precision: Precision::F32,
    }
}

#[test]
fn convolutions_count_two_for_each_position_and_channel() {
    let shape = ConvShape {
        batch: 2,
        from: [1, 4, 6],
        to: [1, 2, 3],
        kernel: [1, 3, 3],
        stride: [1, 2, 2],
        dilation: [1; 3],
        before: [0, 1, 1],
        groups: 2,
        wide: 3,
        narrow: 5,
    };
    let (wide, windows, weight) = (2 * 24 * 6, 2 * 6 * 10, 10 * 3 * 9);
    let flops = 2 * 12 * 10 * 3 * 9;
    let params = ConvParams { bias: true, activation: Activation::Relu, ..ConvParams::plain(shape) };
    let found = work("conv", params.to_words(), &[wide, weight, 10], &[windows]);
    assert_eq!(found, (flops + 2 * windows, 4 * (wide + weight + 10 + windows)));
    let params = ConvParams { adjoint: true, accumulate: true, ..ConvParams::plain(shape) };
    let found = work("conv", params.to_words(), &[windows, weight], &[wide]);
    assert_eq!(found, (flops + wide, 4 * (windows + weight + 2 * wide)));
    let params = ConvGradWeight { shape, leaves: 1, accumulate: false, precision: Precision::F32 };
    let found = work("conv_grad_weight", params.to_words(), &[windows, wide], &[weight]);
    assert_eq!(found, (flops, 4 * (windows + wide + weight)));
    for kernel in ["conv", "conv_grad_weight", "pool", "pool_grad", "resize", "resize_grad"] {
        assert_eq!(work(kernel, vec![1], &[], &[]), (0, 0), "a file may say anything");
    }
}

#[test]
fn products_count_two_for_each_term_and_their_epilogue() {
    let (reads, writes) = ([120, 168, 7], [105]);
    let found = work("matmul", product(false).to_words(), &reads, &writes);
    assert_eq!(found, (105 * (2 * 8 + 1 + 1), 4 * (120 + 168 + 7 + 105)));
    assert_eq!(work("matmul", vec![1], &[], &[]), (0, 0), "a file may say anything");
}

#[test]
fn attention_counts_the_pairs_that_are_seen() {
    let all = Attention {
        batch: 2,
        heads: 6,
        kv_heads: 3,
        q_time: 5,
        k_time: 7,
        head_dim: 4,
        scale: 0.5,
        causal: false,
        precision: Precision::F32,
    };
    let flops = |kernel: &str, params: Attention| work(kernel, params.to_words(), &[], &[]).0;
    assert_eq!(flops("attention", all), 12 * (35 * (4 * 4 + 5) + 5 * 4));
    assert_eq!(flops("attention_grad", all), 12 * (35 * (10 * 4 + 6) + 5 * 2 * 4));
    let causal = Attention { causal: true, ..all };
    assert_eq!(flops("attention", causal), 12 * ((3 + 4 + 5 + 6 + 7) * (4 * 4 + 5) + 5 * 4));
    let blind = Attention { q_time: 3, k_time: 2, ..causal };
    assert_eq!(flops("attention", blind), 12 * ((1 + 2) * (4 * 4 + 5) + 3 * 4));
}

#[test]
fn elements_count_once_for_each_operation() {
    let unary = |kind| UnaryParams { n: 10, kind }.to_words();
    assert_eq!(work("unary", unary(Unary::Act(Activation::GeluTanh)), &[10], &[10]), (10, 80));
    assert_eq!(work("unary", unary(Unary::Identity), &[10], &[10]), (0, 80));
    let sum = BinaryParams { kind: Binary::Add, broadcast: Broadcast::new(&[4, 3], &[3]) };
    assert_eq!(work("binary", sum.to_words(), &[12, 3], &[12]), (12, 4 * 27));
    let adam =
        AdamW { n: 10, beta1: 0.9, beta2: 0.9, eps: 0.0, weight_decay: 0.1, decoupled: true, clip: true };
    assert_eq!(work("adamw", adam.to_words(), &[10, 8, 2], &[10; 3]), (150, 4 * (20 + 2 * 30)));
    assert_eq!(work("transpose", vec![], &[6], &[6]), (0, 48));
}

#[test]
fn sums_losses_and_updates_count_what_they_look_at() {
    let squares = SumSquares { rows: 6, middle: 1, cols: 10, row_leaves: 2, middle_leaves: 1, col_leaves: 2 };
    assert_eq!(work("sum_squares", squares.to_words(), &[60], &[4]), (120, 4 * 64));
    let (rows, classes, ignore_index, labels_i32) = (6, 10, -100, false);
    let losses = CrossEntropy { rows, classes, ignore_index, labels_i32, leaves: 2 };
    assert_eq!(work("cross_entropy", losses.to_words(), &[60, 12], &[6, 6]), (240, 4 * 84));
    let pick = ClassPick { rows, classes, first: 3, labels_i32: true };
    assert_eq!(work("class_pick", pick.to_words(), &[60, 6], &[6]), (0, 4 * 18), "one logit a row");
    let (features, transposed, bias, leaves, class_leaves) = (8, false, false, 2, 2);
    let head = LinearCrossEntropy {
        rows,
        classes,
        features,
        transposed,
        bias,
        leaves,
        class_leaves,
        ignore_index,
        labels_i32,
        precision: Precision::F32,
    };
    let found = work("linear_cross_entropy", head.to_words(), &[48, 80, 12, 1], &[60, 6]);
    assert_eq!(found, (60 * (2 * 8 + 7), 4 * 207));
    let sgd = Sgd { n: 10, momentum: 0.9, weight_decay: 0.1, nesterov: true, clip: true };
    assert_eq!(work("sgd", sgd.to_words(), &[10, 8, 2], &[10, 10]), (90, 4 * (20 + 2 * 20)));
    let plain = Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false, clip: false, ..sgd };
    assert_eq!(work("sgd", plain.to_words(), &[10, 8], &[10]), (20, 4 * (18 + 2 * 10)));
}

#[test]
fn of_a_table_only_what_is_looked_up_is_read() {
    let bag =
        Embedding { n: 6, cols: 4, vocab: 100, bag: 3, ids_i32: true, first: 0, padding: None }.to_words();
    assert_eq!(work("embedding", bag, &[18, 400], &[24]), (2 * 24, 4 * (18 + 72 + 24)));
    let table =
        |vocab| Embedding { n: 6, cols: 4, vocab, bag: 1, ids_i32: true, first: 0, padding: None }.to_words();
    assert_eq!(work("embedding", table(100), &[6, 400], &[24]), (0, 4 * (6 + 24 + 24)));
    assert_eq!(work("embedding", table(2), &[6, 8], &[24]), (0, 4 * (6 + 8 + 24)));
}

#[test]
fn movements_count_their_pieces() {
    let (rect, tile) = ([0], [5]);
    let all = Tile { origin: &rect, extents: &tile };
    let work = |parts: &[(u32, Tile<'_>)]| {
        let Work { flops, bytes } = movement_work(&[Piece::new(4, all, (0, all), parts)]);
        (flops, bytes)
    };
    assert_eq!(work(&[(0, all)]), (0.0, 40.0), "a copy of five floats");
    assert_eq!(work(&[(0, all), (1, all), (2, all)]), (10.0, 80.0));
}

#[test]
fn what_is_added_to_is_read_too() {
    let forward = ReduceParams::new(Reduce::Sum, 1, &[2, 5], &[0]);
    let words = |accumulate: bool| {
        let (extents, strides) = ([1, 1, 1, 10], [10, 10, 10, 1]);
        let mask = Mask { rate: 0.5, seed: 0, salt: 0, extents, strides, start: 0 };
        let dropout = DropoutParams { n: 10, accumulate, mask };
        let (outer, time, cols, leaves, inner, keep) = (2, 1, 5, 1, 1, false);
        let affine = Affine::None;
        let norm = LayerNormGrad { outer, time, heads: 1, cols, leaves, inner, keep, affine, accumulate };
        let (batch, heads, dim, first) = (1, 1, 10, 0);
        [
            ("matmul", product(accumulate).to_words()),
            ("dropout", dropout.to_words()),
            (
                "unary_grad",
                UnaryGradParams { n: 10, kind: Unary::Exp, accumulate, rounded: false }.to_words(),
            ),
            ("softmax_grad", SoftmaxGradParams { outer: 2, axis: 5, inner: 1, accumulate }.to_words()),
            (
                "cross_entropy_grad",
                CrossEntropyGrad {
                    rows: 2,
                    classes: 5,
                    ignore_index: 0,
                    labels_i32: false,
                    accumulate,
                    first,
                }
                .to_words(),
            ),
            (
                "column_sum",
                ColumnSum { outer, time, cols, leaves, inner, keep, accumulate, rounded: false }.to_words(),
            ),
            (
                "rms_norm_grad",
                RmsNormGrad { outer, time, heads: 1, cols, leaves, inner, keep, accumulate }.to_words(),
            ),
            (
                "embedding_grad",
                EmbeddingGrad {
                    n: 2,
                    cols,
                    vocab: 2,
                    bag: 1,
                    ids_i32: false,
                    leaves,
                    accumulate,
                    first,
                    padding: None,
                }
                .to_words(),
            ),
            ("layer_norm_grad", norm.to_words()),
            (
                "rotary",
                Rotary {
                    batch,
                    time,
                    first,
                    heads,
                    dim,
                    base: 1e4,
                    scaling: RopeScaling::None,
                    inverse: false,
                    accumulate,
                }
                .to_words(),
            ),
            ("reduce_grad", ReduceGradParams { forward, accumulate }.to_words()),
        ]
    };
    for ((kernel, over), (_, onto)) in words(false).into_iter().zip(words(true)) {
        let [over, onto] = [over, onto].map(|words| work(kernel, words, &[10, 10], &[10, 5]));
        assert_eq!((onto.0 - over.0, onto.1 - over.1), (10, 40), "{kernel}");
    }
}
