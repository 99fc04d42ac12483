//! Random operators with operands that fit them, and random tilings.

use phalanx_ir::parallel::ParallelType;
use phalanx_ir::{Activation, Binary, DType, Op, Reduce, Shape, TensorType, Unary};
use phalanx_ops::{
    Attention, BinaryOp, Broadcast, CachedAttention, Cast, Concat, CountLabels, CrossEntropy, Dropout,
    Embedding, Gather, LayerNorm, Linear, Matmul, ReduceOp, Reshape, Reverse, RmsNorm, Rotary, Softmax,
    Split, TopK, Transpose, UnaryOp,
};
use phalanx_testkit::Rng;

/// How many kinds of operators there are.
pub const KINDS: usize = 22;

fn extent(rng: &mut Rng) -> usize {
    rng.choose(&[1, 2, 2, 3, 4, 4, 6, 8])
}

fn dims(rng: &mut Rng, rank: usize) -> Vec<usize> {
    (0..rank).map(|_| extent(rng)).collect()
}

fn f32s(dims: Vec<usize>) -> TensorType {
    TensorType::f32(Shape::new(dims))
}

fn ids(dims: Vec<usize>) -> TensorType {
    TensorType::new(DType::I64, Shape::new(dims))
}

fn yes(rng: &mut Rng) -> bool {
    rng.once_in(2)
}

/// A random operator of kind `kind` (below [`KINDS`]) and the types of its operands.
pub fn operator(kind: usize, rng: &mut Rng) -> (Op, Vec<TensorType>) {
    let rank = rng.below(5);
    let x = dims(rng, rank);
    let some = if x.is_empty() { vec![extent(rng)] } else { x.clone() };
    match kind {
        0 => linear(rng, some),
        1 => matmul(rng),
        2 => embedding(rng),
        3 => binary(rng, x),
        4 => (Op::from(UnaryOp(rng.choose(&UNARIES))), vec![f32s(x)]),
        5 => (Op::from(Dropout { rate: 0.5 }), vec![f32s(x)]),
        6 => (Op::from(Cast { to: rng.choose(&[DType::F32, DType::I64, DType::Bool]) }), vec![f32s(x)]),
        7 => (Op::from(Softmax { axis: rng.below(some.len()) }), vec![f32s(some)]),
        8 => layer_norm(rng, some),
        9 => (Op::from(RmsNorm { eps: 0.1 }), vec![f32s(some.clone()), f32s(vec![some[some.len() - 1]])]),
        10 => rotary(rng),
        11 if yes(rng) => cached_attention(rng),
        11 => attention(rng),
        12 => reshape(rng),
        13 => broadcast(rng, x),
        14 => transpose(rng, x),
        15 => split(rng, some),
        16 => concat(rng, some),
        17 => reduce(rng, x),
        18 => (Op::from(Reverse { axes: vec![rng.below(some.len())] }), vec![f32s(some)]),
        19 => gather(rng, some),
        20 => (Op::from(TopK { k: 1 + rng.below(some[some.len() - 1]) }), vec![f32s(some)]),
        _ if yes(rng) => (Op::from(CountLabels { ignore: 1 }), vec![ids(x)]),
        _ => (
            Op::from(CrossEntropy { ignore: 1 }),
            vec![f32s(some.clone()), ids(some[..some.len() - 1].to_vec())],
        ),
    }
}

fn gather(rng: &mut Rng, x: Vec<usize>) -> (Op, Vec<TensorType>) {
    let axis = rng.below(x.len());
    let mut index: Vec<usize> =
        x.iter().map(|&most| if yes(rng) { most } else { 1 + rng.below(most) }).collect();
    index[axis] = extent(rng);
    (Op::from(Gather { axis }), vec![f32s(x), ids(index)])
}

const UNARIES: [Unary; 6] = [
    Unary::Identity,
    Unary::Neg,
    Unary::Exp,
    Unary::Act(Activation::Relu),
    Unary::Log,
    Unary::MulScalar(3.0),
];

fn linear(rng: &mut Rng, x: Vec<usize>) -> (Op, Vec<TensorType>) {
    let transposed = yes(rng);
    let (inner, outer) = (x[x.len() - 1], extent(rng));
    let weight = if transposed { vec![inner, outer] } else { vec![outer, inner] };
    let mut operands = vec![f32s(x), f32s(weight)];
    if rng.once_in(3) {
        operands.push(f32s(vec![outer]));
    }
    let activation = rng.choose(&[Activation::None, Activation::None, Activation::Silu]);
    (Op::from(Linear { transposed, activation }), operands)
}

fn matmul(rng: &mut Rng) -> (Op, Vec<TensorType>) {
    let (transpose_a, transpose_b) = (yes(rng), yes(rng));
    let rank = rng.below(3);
    let lead = dims(rng, rank);
    let [m, k, n] = [extent(rng), extent(rng), extent(rng)];
    let matrix = |transposed, rows, columns| {
        let pair = if transposed { [columns, rows] } else { [rows, columns] };
        f32s([lead.clone(), pair.to_vec()].concat())
    };
    (
        Op::from(Matmul { transpose_a, transpose_b }),
        vec![matrix(transpose_a, m, k), matrix(transpose_b, k, n)],
    )
}

fn embedding(rng: &mut Rng) -> (Op, Vec<TensorType>) {
    let bag = yes(rng);
    let rank = rng.below(3) + usize::from(bag);
    let index = dims(rng, rank);
    (Op::from(Embedding { bag, padding: None }), vec![ids(index), f32s(dims(rng, 2))])
}

/// Both operands may be stretched, along the same or different dimensions, and may lack outer ones.
fn binary(rng: &mut Rng, shape: Vec<usize>) -> (Op, Vec<TensorType>) {
    let kind = rng.choose(&[Binary::Add, Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Max]);
    let mut operand = || {
        let lacks = if rng.once_in(3) { rng.below(shape.len() + 1) } else { 0 };
        f32s(shape[lacks..].iter().map(|&size| if rng.once_in(3) { 1 } else { size }).collect())
    };
    let operands = vec![operand(), operand()];
    (Op::from(BinaryOp(kind)), operands)
}

fn layer_norm(rng: &mut Rng, x: Vec<usize>) -> (Op, Vec<TensorType>) {
    let axes = 1 + rng.below(x.len());
    let weight = f32s(x[x.len() - axes..].to_vec());
    let weights = if yes(rng) { vec![weight; 2] } else { Vec::new() };
    (Op::from(LayerNorm { axes, eps: 0.1 }), [vec![f32s(x)], weights].concat())
}

fn attention(rng: &mut Rng) -> (Op, Vec<TensorType>) {
    let causal = yes(rng);
    let [batch, time, heads, group, dim] = [(); 5].map(|()| rng.choose(&[1, 2, 2, 4]));
    let keys = if causal { time } else { extent(rng) };
    let key = f32s(vec![batch, keys, heads, dim]);
    (
        Op::from(Attention { causal, scale: 0.5 }),
        vec![f32s(vec![batch, time, heads * group, dim]), key.clone(), key],
    )
}

/// Six operands are rarely cut alike by chance: most extents cannot be cut at all.
fn cached_attention(rng: &mut Rng) -> (Op, Vec<TensorType>) {
    let [batch, heads] = [(); 2].map(|()| rng.choose(&[2, 4]));
    let [time, capacity, group, dim] = [(); 4].map(|()| rng.choose(&[1, 1, 1, 2, 3]));
    let (key, cache) = (f32s(vec![batch, time, heads, dim]), f32s(vec![batch, capacity, heads, dim]));
    let query = f32s(vec![batch, time, heads * group, dim]);
    let operands = vec![query, key.clone(), key, cache.clone(), cache, ids(vec![batch])];
    (Op::from(CachedAttention { scale: 0.5 }), operands)
}

/// Positions may be given.
fn rotary(rng: &mut Rng) -> (Op, Vec<TensorType>) {
    let x = [dims(rng, 3), vec![rng.choose(&[2, 4])]].concat();
    let positions = yes(rng).then(|| ids(x[..2].to_vec()));
    (Op::from(Rotary::new(100.0)), [f32s(x)].into_iter().chain(positions).collect())
}

/// The same row of factors, grouped in two ways.
fn reshape(rng: &mut Rng) -> (Op, Vec<TensorType>) {
    let count = rng.below(6);
    let factors: Vec<usize> = (0..count).map(|_| rng.choose(&[1, 2, 2, 3, 4])).collect();
    let mut grouped = || {
        let mut dims: Vec<usize> = Vec::new();
        for &factor in &factors {
            match dims.last_mut() {
                Some(last) if rng.once_in(2) => *last *= factor,
                _ => dims.push(factor),
            }
        }
        dims
    };
    let (from, to) = (grouped(), grouped());
    (Op::from(Reshape { shape: Shape::new(to) }), vec![f32s(from)])
}

fn broadcast(rng: &mut Rng, shape: Vec<usize>) -> (Op, Vec<TensorType>) {
    let lacks = rng.below(shape.len() + 1);
    let x = shape[lacks..].iter().map(|&size| if yes(rng) { 1 } else { size }).collect();
    (Op::from(Broadcast { shape: Shape::new(shape) }), vec![f32s(x)])
}

fn transpose(rng: &mut Rng, x: Vec<usize>) -> (Op, Vec<TensorType>) {
    let mut perm: Vec<_> = (0..x.len()).collect();
    rng.shuffle(&mut perm);
    (Op::from(Transpose { perm }), vec![f32s(x)])
}

fn split(rng: &mut Rng, mut x: Vec<usize>) -> (Op, Vec<TensorType>) {
    let (axis, blocks) = (rng.below(x.len()), rng.choose(&[1, 2, 4]));
    let sizes: Vec<_> = (0..1 + rng.below(3)).map(|_| blocks * (1 + rng.below(3))).collect();
    x[axis] = sizes.iter().sum();
    (Op::from(Split { axis, sizes, blocks }), vec![f32s(x)])
}

fn concat(rng: &mut Rng, x: Vec<usize>) -> (Op, Vec<TensorType>) {
    let (axis, blocks) = (rng.below(x.len()), rng.choose(&[1, 2, 4]));
    let operand = |size: usize| {
        let mut dims = x.clone();
        dims[axis] = size;
        f32s(dims)
    };
    let operands = (0..1 + rng.below(3)).map(|_| operand(blocks * (1 + rng.below(3)))).collect();
    (Op::from(Concat { axis, blocks }), operands)
}

fn reduce(rng: &mut Rng, x: Vec<usize>) -> (Op, Vec<TensorType>) {
    let kind = rng.choose(&[Reduce::Sum, Reduce::Sum, Reduce::Mean, Reduce::Max]);
    let axes = (0..x.len()).filter(|_| rng.once_in(2)).collect();
    (Op::from(ReduceOp { kind, axes, keep: yes(rng) }), vec![f32s(x)])
}

/// A random tiling of `ty`: mostly whole dimensions, few partial sums. A tiling that does not divide is refused.
pub fn tiling(ty: &TensorType, rng: &mut Rng) -> ParallelType {
    loop {
        let degrees: Vec<usize> =
            ty.shape.dims().iter().map(|_| rng.choose(&[1, 1, 1, 2, 2, 3, 4])).collect();
        let (sum, copy) = (rng.choose(&[1, 1, 1, 1, 2, 3, 4]), rng.choose(&[1, 1, 1, 2, 3, 4]));
        let divides = degrees.iter().zip(ty.shape.dims()).all(|(degree, size)| size % degree == 0);
        let tiled = ParallelType::tiled(ty, &degrees, sum, copy);
        assert_eq!(tiled.is_some(), divides, "{ty} in {degrees:?}");
        if let Some(tiled) = tiled {
            return tiled;
        }
    }
}
