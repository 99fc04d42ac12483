//! Fast convolutions against plain ones: the same bits for all sizes, epilogues, cores, instruction sets and precisions.

use super::*;
use crate::Words;
use crate::matmul::{MatmulParams, matmul_reference};
use crate::samples::{Case, values};

/// A small convolution: extents, kernel, stride, dilation, padding in front and behind.
type Sizes3 = [[usize; 3]; 6];

fn shape(
    batch: usize,
    [from, kernel, stride, dilation, before, after]: Sizes3,
    channels: [usize; 3],
) -> ConvShape {
    let to = [0, 1, 2].map(|dim| {
        (from[dim] + before[dim] + after[dim] - dilation[dim] * (kernel[dim] - 1) - 1) / stride[dim] + 1
    });
    let [groups, wide, narrow] = channels;
    ConvShape { batch, from, to, kernel, stride, dilation, before, groups, wide, narrow }
}

/// Two dimensions.
fn flat(batch: usize, sizes: [[usize; 2]; 6], channels: [usize; 3]) -> ConvShape {
    let neutral = [1, 1, 1, 1, 0, 0];
    let sizes = std::array::from_fn(|i| [neutral[i], sizes[i][0], sizes[i][1]]);
    shape(batch, sizes, channels)
}

/// Shapes that reach every path.
fn shapes() -> Vec<ConvShape> {
    let same = |extent: usize| [[extent; 2], [3; 2], [1; 2], [1; 2], [1; 2], [1; 2]];
    vec![
        flat(2, same(7), [1, 8, 16]),
        flat(3, same(5), [1, 32, 5]),
        flat(1, same(9), [1, 64, 40]),
        // A first layer: few channels, so that a whole row of the kernel is one run.
        flat(2, [[11, 13], [5, 4], [2, 2], [1, 1], [2, 1], [2, 3]], [1, 3, 20]),
        flat(2, [[9, 8], [3, 2], [2, 3], [2, 1], [1, 0], [0, 2]], [1, 12, 7]),
        flat(1, [[6, 10], [2, 2], [1, 3], [3, 2], [0, 3], [1, 0]], [3, 4, 6]),
        flat(2, [[6, 5], [1, 1], [1, 1], [1, 1], [0, 0], [0, 0]], [1, 16, 33]),
        flat(2, [[6, 5], [1, 1], [2, 2], [1, 1], [0, 0], [0, 0]], [2, 16, 8]),
        flat(4, [[4, 4], [4, 4], [4, 4], [1, 1], [0, 0], [0, 0]], [1, 3, 24]),
        shape(2, [[4, 5, 6], [2, 3, 2], [1, 2, 1], [1, 1, 2], [1, 1, 0], [0, 1, 1]], [1, 8, 9]),
        shape(2, [[1, 1, 20], [1, 1, 7], [1, 1, 3], [1, 1, 2], [0, 0, 5], [0, 0, 4]], [2, 8, 4]),
        // Depthwise, with one, two and three channels of the result for each.
        flat(2, same(6), [24, 1, 1]),
        flat(1, [[7, 9], [3, 5], [2, 2], [1, 2], [1, 4], [1, 4]], [19, 1, 2]),
        flat(2, [[5, 5], [3, 3], [1, 2], [1, 1], [1, 0], [1, 0]], [5, 1, 3]),
    ]
}

fn case(params: &ConvParams) -> Case {
    let shape = &params.shape;
    let rows = shape.batch * shape.from.iter().product::<usize>();
    let ends = [rows * shape.groups * shape.wide, shape.windows() * shape.groups * shape.narrow];
    let [x, y] = if params.adjoint { [ends[1], ends[0]] } else { ends };
    let mut case = Case::new("conv", params.to_words()).read(values(x, 1));
    case = case.read(values(shape.groups * shape.narrow * shape.wide * shape.positions(), 2));
    if params.bias {
        case = case.read(values(shape.groups * params.outer(), 3));
    }
    if params.residual {
        case = case.read(values(y, 4));
    }
    if params.slope != Activation::None {
        case = case.read(values(y, 5));
    }
    case = case.write(values(y, 6));
    if params.save_pre { case.write(vec![0.0; y]) } else { case }
}

fn grad_case(params: &ConvGradWeight) -> Case {
    let shape = &params.shape;
    let rows = shape.batch * shape.from.iter().product::<usize>();
    Case::new("conv_grad_weight", params.to_words())
        .read(values(shape.windows() * shape.groups * shape.narrow, 1))
        .read(values(rows * shape.groups * shape.wide, 2))
        .write(values(shape.groups * shape.narrow * shape.wide * shape.positions(), 3))
}

/// The most leaves up to 4 that divide `n`.
fn leaves(n: usize) -> usize {
    1 << n.trailing_zeros().min(2)
}

#[test]
fn every_shape_gives_the_bits_of_the_reference() {
    for (index, shape) in shapes().into_iter().enumerate() {
        for adjoint in [false, true] {
            let plain = ConvParams { adjoint, accumulate: index % 2 == 0, ..ConvParams::plain(shape) };
            case(&plain).check_reference_bits();
            case(&ConvParams { leaves: leaves(plain.inner()), ..plain }).check_reference_bits();
        }
        for leaves in [1, leaves(shape.windows())] {
            let (accumulate, precision) = (leaves > 1, Precision::F32);
            grad_case(&ConvGradWeight { shape, leaves, accumulate, precision }).check_reference_bits();
        }
    }
}

#[test]
fn instruction_sets_and_blocks_give_the_same_bits() {
    for shape in shapes().into_iter().step_by(2).take(6) {
        for adjoint in [false, true] {
            let plain = ConvParams { adjoint, ..ConvParams::plain(shape) };
            case(&ConvParams { leaves: leaves(plain.inner()), ..plain }).check_bits();
        }
        let (leaves, accumulate, precision) = (leaves(shape.windows()), true, Precision::F32);
        grad_case(&ConvGradWeight { shape, leaves, accumulate, precision }).check_bits();
    }
}

#[test]
fn rounded_operands_give_the_defined_bits() {
    for shape in shapes() {
        for precision in [Precision::Bf16, Precision::Bf16Pair] {
            for adjoint in [false, true] {
                let plain = ConvParams { adjoint, precision, ..ConvParams::plain(shape) };
                let slope = Activation::Silu;
                case(&ConvParams { leaves: leaves(plain.inner()), slope, ..plain }).check_reference_bits();
            }
            let (leaves, accumulate) = (leaves(shape.windows()), false);
            grad_case(&ConvGradWeight { shape, leaves, accumulate, precision }).check_reference_bits();
        }
    }
}

#[test]
fn every_epilogue_equals_the_reference() {
    let all = shapes();
    for shape in [all[0], all[4], all[5], all[12]] {
        for flags in 0..16 {
            let flag = |bit: usize| flags >> bit & 1 == 1;
            let activation = Activation::ALL[flags % Activation::ALL.len()];
            let params = ConvParams {
                adjoint: flags % 3 == 0,
                bias: flag(0),
                residual: flag(1),
                save_pre: flag(2),
                accumulate: flag(3),
                activation,
                slope: if flags % 5 == 0 { Activation::Tanh } else { Activation::None },
                ..ConvParams::plain(shape)
            };
            case(&params).check_reference_bits();
        }
    }
}

/// Sums longer than a block, so that chains and trees go over several.
#[test]
fn long_sums_keep_their_order() {
    let same = [[4; 2], [3; 2], [1; 2], [1; 2], [1; 2], [1; 2]];
    for (channels, leaves) in [([1, 200, 18], 1), ([1, 200, 18], 8), ([1, 512, 6], 4)] {
        let shape = flat(1, same, channels);
        case(&ConvParams { leaves, ..ConvParams::plain(shape) }).check_reference_bits();
        let turned = flat(1, same, [1, channels[2], channels[1]]);
        case(&ConvParams { adjoint: true, leaves, ..ConvParams::plain(turned) }).check_reference_bits();
    }
    let shape = flat(2, [[40, 41], [3, 3], [1, 1], [1, 1], [1, 1], [1, 1]], [1, 4, 3]);
    for leaves in [1, 8] {
        let params = ConvGradWeight { shape, leaves, accumulate: false, precision: Precision::F32 };
        grad_case(&params).check_reference_bits();
    }
}

#[test]
fn one_position_is_a_linear_layer() {
    let shape = flat(3, [[4, 5], [1, 1], [1, 1], [1, 1], [0, 0], [0, 0]], [1, 24, 10]);
    let found = case(&ConvParams { leaves: 8, ..ConvParams::plain(shape) }).reference();
    let (x, w) = (values(60 * 24, 1), values(240, 2));
    let params = MatmulParams { m: 60, n: 10, k: 24, trans_b: true, leaves: 8, ..MatmulParams::PLAIN };
    let mut y = vec![0.0; 600];
    let operands = Operands { a: &x, b: &w, bias: None, residual: None, points: None };
    matmul_reference(Outputs { out: &mut y, pre: None }, operands, &params);
    assert_eq!(found[0], y);
}

#[test]
fn a_convolution_and_its_adjoint_are_adjoint() {
    for shape in shapes() {
        let forward = case(&ConvParams::plain(shape));
        let y = forward.reference().remove(0);
        let adjoint = ConvParams { adjoint: true, ..ConvParams::plain(shape) };
        let dy = values(y.len(), 1);
        let dx = case(&adjoint).reference().remove(0);
        let x = values(dx.len(), 1);
        let dot =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
        let (forward, backward) = (dot(&y, &dy), dot(&x, &dx));
        assert!((forward - backward).abs() < 1e-3 * (1.0 + forward.abs()), "{shape:?}: {forward} {backward}");
    }
}
