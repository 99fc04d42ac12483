//! Convolutions, pools and resizing: values, gradients and bits of every legal cut, and a network under several plans.

use phalanx::Trainer;
use phalanx::ir::graph::{BuildError, Builder, Graph};
use phalanx::ir::{
    Activation, Binary, DType, Init, Op, Pooling, Resampling, ScaleFactors, Shape, TensorType,
};
use phalanx::ops::{Conv, Layers, Pool, Resize};
use phalanx::testing::check_operator;

use crate::training::{ONE, settings, train};

fn f32s(shapes: &[&[usize]]) -> Vec<TensorType> {
    shapes.iter().map(|&shape| TensorType::f32(Shape::new(shape))).collect()
}

fn check(cases: Vec<(Op, Vec<TensorType>)>) {
    for (op, operands) in cases {
        let what = format!("{op:?} {operands:?}");
        check_operator(op, &operands).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

#[test]
fn convolutions() {
    let plain = Conv::default();
    let strided =
        Conv { stride: vec![2, 3], padding: vec![1, 0, 2, 1], dilation: vec![1, 2], ..plain.clone() };
    let same = Conv { padding: vec![1; 4], ..plain.clone() };
    check(vec![
        (plain.clone().into(), f32s(&[&[4, 5, 4], &[4, 4, 3]])),
        (
            Conv { stride: vec![2], padding: vec![1, 2], ..plain.clone() }.into(),
            f32s(&[&[2, 6, 3], &[5, 3, 4], &[5]]),
        ),
        (same.clone().into(), f32s(&[&[4, 4, 3, 8], &[4, 8, 3, 3]])),
        (Conv { activation: Activation::Silu, ..same }.into(), f32s(&[&[2, 3, 4, 4], &[6, 4, 3, 3], &[6]])),
        (strided.clone().into(), f32s(&[&[2, 5, 7, 4], &[4, 4, 3, 2], &[4]])),
        (Conv { groups: 2, ..strided.clone() }.into(), f32s(&[&[2, 5, 6, 4], &[8, 2, 2, 2], &[8]])),
        (Conv { groups: 4, ..strided }.into(), f32s(&[&[2, 5, 6, 4], &[8, 1, 3, 2]])),
        (
            Conv { groups: 4, padding: vec![1; 4], ..plain.clone() }.into(),
            f32s(&[&[2, 4, 3, 4], &[4, 1, 3, 3], &[4]]),
        ),
        (plain.clone().into(), f32s(&[&[4, 2, 3, 4], &[4, 4, 1, 1]])),
        (
            Conv { stride: vec![1, 2, 1], padding: vec![1, 1, 0, 1, 0, 0], ..plain }.into(),
            f32s(&[&[2, 2, 3, 3, 2], &[4, 2, 2, 2, 3]]),
        ),
    ]);
}

#[test]
fn adjoint_convolutions() {
    let plain = Conv { adjoint: true, ..Conv::default() };
    let strided = Conv { stride: vec![2, 3], padding: vec![1, 1, 0, 1], ..plain.clone() };
    check(vec![
        (plain.clone().into(), f32s(&[&[4, 3, 4], &[4, 4, 3]])),
        (strided.clone().into(), f32s(&[&[2, 3, 2, 4], &[4, 4, 3, 2], &[4]])),
        (
            Conv { output_padding: vec![1, 2], ..strided.clone() }.into(),
            f32s(&[&[2, 2, 3, 4], &[4, 2, 3, 3]]),
        ),
        (
            Conv { groups: 2, activation: Activation::Tanh, ..strided.clone() }.into(),
            f32s(&[&[2, 2, 3, 4], &[4, 2, 3, 4], &[4]]),
        ),
        (Conv { groups: 4, ..strided }.into(), f32s(&[&[2, 2, 3, 4], &[4, 1, 3, 3]])),
        (Conv { stride: vec![2], dilation: vec![2], ..plain }.into(), f32s(&[&[2, 4, 2], &[2, 6, 3]])),
    ]);
}

#[test]
fn pools() {
    for kind in [Pooling::Max, Pooling::Avg] {
        let two = Pool { kind, kernel: vec![3, 2], ..Pool::default() };
        let padded =
            Pool { stride: vec![2, 1], padding: vec![1, 1, 0, 1], count_padding: false, ..two.clone() };
        check(vec![
            (Pool { kind, kernel: vec![2], ..Pool::default() }.into(), f32s(&[&[4, 6, 4]])),
            (two.into(), f32s(&[&[2, 6, 5, 4]])),
            (Pool { ceil: true, ..padded.clone() }.into(), f32s(&[&[2, 6, 5, 2]])),
            (padded.into(), f32s(&[&[2, 6, 5, 2]])),
            (
                Pool { kind, kernel: vec![2, 2, 3], stride: vec![1, 2, 2], ..Pool::default() }.into(),
                f32s(&[&[2, 3, 4, 5, 2]]),
            ),
            (Pool { kind, adaptive: vec![3, 2], ..Pool::default() }.into(), f32s(&[&[2, 5, 4, 4]])),
        ]);
    }
}

#[test]
fn resizing() {
    for &kind in Resampling::ALL {
        let to = |size: &[usize]| Resize {
            kind,
            align: false,
            size: size.to_vec(),
            scale: ScaleFactors::default(),
        };
        let scaled = Resize { size: Vec::new(), scale: ScaleFactors(vec![1.6, 0.7]), ..to(&[]) };
        check(vec![
            (to(&[7]).into(), f32s(&[&[4, 5, 4]])),
            (to(&[3, 9]).into(), f32s(&[&[2, 5, 4, 2]])),
            (scaled.into(), f32s(&[&[2, 5, 6, 2]])),
            (to(&[3, 2, 4]).into(), f32s(&[&[2, 2, 3, 3, 2]])),
        ]);
    }
    let aligned =
        Resize { kind: Resampling::Linear, align: true, size: vec![7, 1], scale: ScaleFactors::default() };
    check(vec![(aligned.into(), f32s(&[&[2, 4, 5, 2]]))]);
}

/// Convolutions of every kind with a residual connection, pools, an upsampled branch and a linear layer.
fn network() -> Result<Graph, BuildError> {
    let mut model = Builder::new("net");
    let images = model.input("images", TensorType::f32([16, 8, 8, 3]))?;
    let labels = model.input("labels", TensorType::new(DType::I64, [16]))?;
    let same = Conv { padding: vec![1; 4], ..Conv::default() };
    let active = Conv { activation: Activation::Relu, ..same.clone() };
    let weight = |model: &mut Builder, name: &str, shape: &[usize]| {
        model.param(name, Shape::new(shape), Init::Normal(0.3))
    };
    let [w1, w2, w3] = [
        weight(&mut model, "stem.weight", &[8, 3, 3, 3])?,
        weight(&mut model, "block.weight", &[8, 8, 3, 3])?,
        weight(&mut model, "depth.weight", &[16, 1, 3, 3])?,
    ];
    let (b1, b2) = (weight(&mut model, "stem.bias", &[8])?, weight(&mut model, "block.bias", &[8])?);
    let x = model.add_one("stem", active, &[images, w1, b1])?;
    let y = model.add_one("block", same.clone(), &[x, w2, b2])?;
    let y = model.binary("sum", Binary::Add, y, x)?;
    let y = model.add_one(
        "pool",
        Pool { kernel: vec![3, 3], stride: vec![2, 2], padding: vec![1; 4], ..Pool::default() },
        &[y],
    )?;
    let y = model.add_one("depth", Conv { groups: 8, stride: vec![2, 2], ..same }, &[y, w3])?;
    let w4 = weight(&mut model, "up.weight", &[16, 8, 2, 2])?;
    let up = Conv { adjoint: true, stride: vec![2, 2], activation: Activation::Silu, ..Conv::default() };
    let y = model.add_one("up", up, &[y, w4])?;
    let resize =
        Resize { kind: Resampling::Linear, align: false, size: vec![7, 5], scale: ScaleFactors::default() };
    let y = model.add_one("resize", resize, &[y])?;
    let y =
        model.add_one("mean", Pool { kind: Pooling::Avg, adaptive: vec![2, 2], ..Pool::default() }, &[y])?;
    let y = model.reshape("flat", y, [16, 32])?;
    let w5 = weight(&mut model, "head.weight", &[10, 32])?;
    let logits = model.linear("head", y, w5, None)?;
    let loss = model.cross_entropy("loss", logits, labels, -100)?;
    Ok(model.finish([loss]))
}

#[test]
fn plans_do_not_change_a_convolutional_network() {
    let model = network().expect("the sizes are legal");
    let answer = |case| {
        let settings = settings(&model, case);
        train(Trainer::with_settings(&model, &settings).expect("the plan compiles"), &model, 10, 3)
    };
    let one = answer(ONE);
    assert!(one.0[0] != one.0[2], "something is trained");
    for case in
        [("dp", 2, None), ("dp", 4, None), ("fsdp", 2, None), ("fsdp", 4, Some(2)), ("one", 1, Some(4))]
    {
        assert_eq!(answer(case), one, "{case:?}");
    }
}
