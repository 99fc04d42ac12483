//! What an operator's author is handed, on ours and on wrong ones.

use phalanx::ir::sharded::Operand;
use phalanx::ir::tasks::TaskOp;
use phalanx::ir::{
    Activation, Binary, Cuts, DType, LayerTasks, Op, OpError, Operands, Operator, Reduce, Shape, Tensor,
    TensorType, Unary, attributes,
};
use phalanx::ops::{
    Attention, BinaryOp, Concat, CrossEntropy, Embedding, Gather, GatherElements, GroupedLinear, LayerNorm,
    Linear, Matmul, Normalize, ReduceOp, Reverse, RmsNorm, Rotary, ScatterAdd, Softmax, SquaredDeviations,
    TopK, Transpose, UnaryOp, Where,
};
use phalanx::testing::{CheckError, check_operator};

fn f32s(shapes: &[&[usize]]) -> Vec<TensorType> {
    shapes.iter().map(|&shape| TensorType::f32(Shape::new(shape))).collect()
}

fn bools(shape: &[usize]) -> TensorType {
    TensorType::new(DType::Bool, Shape::new(shape))
}

fn ids(shape: &[usize]) -> TensorType {
    TensorType::new(DType::I64, Shape::new(shape))
}

#[test]
fn our_operators_pass() {
    let x: &[usize] = &[8, 4, 6];
    let linear = Linear { transposed: false, activation: Activation::GeluTanh };
    let cases: Vec<(Op, Vec<TensorType>)> = vec![
        (UnaryOp(Unary::Act(Activation::Silu)).into(), f32s(&[x])),
        (linear.into(), f32s(&[&[8, 16], &[32, 16], &[32]])),
        (Matmul { transpose_a: false, transpose_b: true }.into(), f32s(&[&[2, 8, 16], &[2, 4, 16]])),
        (Softmax { axis: 2 }.into(), f32s(&[x])),
        (LayerNorm { axes: 1, eps: 1e-5 }.into(), f32s(&[x, &[6], &[6]])),
        (RmsNorm { eps: 1e-5 }.into(), f32s(&[x, &[6]])),
        // The check draws numbers above -1: variances are positive with this eps.
        (Normalize { eps: 2.0 }.into(), f32s(&[x, &[6], &[6]])),
        (Normalize { eps: 2.0 }.into(), f32s(&[&[8, 3, 5, 4], &[4], &[4], &[4], &[4]])),
        (Normalize { eps: 2.0 }.into(), f32s(&[&[7, 1], &[1], &[1], &[1], &[1]])),
        (SquaredDeviations.into(), f32s(&[&[8, 4], &[4]])),
        (SquaredDeviations.into(), f32s(&[&[8, 3, 5, 6], &[6]])),
        (SquaredDeviations.into(), f32s(&[&[7, 3, 1], &[1]])),
        // Rows of batch, time and heads, each of which may be cut.
        (RmsNorm { eps: 1e-5 }.into(), f32s(&[&[4, 2, 8, 3], &[3]])),
        (LayerNorm { axes: 1, eps: 1e-5 }.into(), f32s(&[&[2, 3, 4, 5], &[5], &[5]])),
        (BinaryOp(Binary::Add).into(), f32s(&[&[4, 4, 4, 3], &[3]])),
        (Rotary::new(100.0).into(), f32s(&[&[2, 4, 2, 6]])),
        (Rotary::new(100.0).into(), vec![TensorType::f32([2, 4, 2, 6]), ids(&[2, 4])]),
        (Transpose { perm: vec![2, 0, 1] }.into(), f32s(&[x])),
        (Concat { axis: 1, blocks: 1 }.into(), f32s(&[x, x])),
        (ReduceOp { kind: Reduce::Sum, axes: vec![1], keep: false }.into(), f32s(&[x])),
        (Reverse { axes: vec![0, 2] }.into(), f32s(&[x])),
        (TopK { k: 3 }.into(), f32s(&[x])),
        (Embedding { bag: false, padding: None }.into(), vec![ids(&[8, 2]), TensorType::f32([16, 4])]),
        // Without bag the padding id is looked up, but its row gets no gradient: golden cases have that.
        (Embedding { bag: true, padding: Some(1) }.into(), vec![ids(&[8, 5]), TensorType::f32([4, 6])]),
        (GatherElements { axis: 1 }.into(), vec![TensorType::f32([8, 4, 6]), ids(&[8, 9, 6])]),
        (CrossEntropy::new(-1).into(), vec![TensorType::f32([8, 16]), ids(&[8])]),
    ];
    pass(cases);
}

/// Each of them is one answer on every device, and that of its meaning.
fn pass(cases: Vec<(Op, Vec<TensorType>)>) {
    for (op, operands) in cases {
        let what = format!("{op:?}");
        check_operator(op, &operands).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

/// x², with something wrong about it.
struct Wrong {
    what: usize,
}

impl Operator for Wrong {
    attributes!("wrong": what);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        Ok(vec![TensorType::f32(operands.float(0)?.clone())])
    }

    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        Cuts::pointwise(operands[0], &[])
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        let kind = if self.what == 0 { Unary::Abs } else { Unary::Square };
        tasks.plain(TaskOp::Unary { kind });
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let kind = if self.what == 1 { Unary::Abs } else { Unary::Square };
        let reads = [tasks.read_again(0)].into_iter().chain(dy[0].clone()).collect();
        tasks.single(0, TaskOp::UnaryGrad { kind, accumulate: false, rounded: false }, reads);
    }

    fn evaluate(&self, operands: &[&Tensor], _results: &[Shape]) -> Vec<Tensor> {
        vec![operands[0].map(|x| x * x)]
    }
}

#[test]
fn wrong_results_and_gradients_are_found() {
    let check = |what| check_operator(Wrong { what }, &f32s(&[&[4, 6]]));
    let tensor = |error| match error {
        Err(CheckError::Value { tensor, .. }) => tensor,
        other => panic!("{other:?} is not about a value"),
    };
    assert_eq!(tensor(check(0)), "loss0");
    assert_eq!(tensor(check(1)), "x0.grad");
    assert!(check(2).is_ok(), "a square is a square");
}

#[test]
fn an_operator_without_floats_cannot_be_checked() {
    let labels = phalanx::ops::CountLabels { ignore: 0 };
    let found = check_operator(labels, &[ids(&[4])]);
    assert!(matches!(found, Err(CheckError::Nothing { .. })), "{found:?}");
}

#[test]
fn functions_with_kinks_pass() {
    let kinds = [
        Unary::Clamp(-0.35, 0.55),
        Unary::LeakyRelu(0.05),
        Unary::Softplus(3.0, 20.0),
        Unary::HardSwish,
        Unary::HardSigmoid,
        Unary::Erf,
        Unary::Elu(0.7),
    ];
    pass(kinds.map(|kind| (UnaryOp(kind).into(), f32s(&[&[4, 3, 5]]))).into());
}

#[test]
fn choices_pass() {
    pass(vec![
        (Where.into(), vec![bools(&[8, 6]), TensorType::f32([8, 6]), TensorType::f32([8, 6])]),
        (Where.into(), vec![bools(&[8, 1]), TensorType::f32([6]), TensorType::f32([8, 6])]),
        (Where.into(), vec![bools(&[4, 1, 5]), TensorType::f32([4, 2, 1]), TensorType::f32([])]),
        (Where.into(), vec![bools(&[]), TensorType::f32([4, 3]), TensorType::f32([1, 3])]),
    ]);
}

#[test]
fn norms_and_tables_with_less_pass() {
    pass(vec![
        (LayerNorm { axes: 1, eps: 1e-5 }.into(), f32s(&[&[8, 4, 6], &[6]])),
        (LayerNorm { axes: 2, eps: 1e-5 }.into(), f32s(&[&[8, 3, 5], &[3, 5]])),
        // Without bag the padding id is looked up, but its row gets no gradient: golden cases have that.
        (Embedding { bag: true, padding: Some(1) }.into(), vec![ids(&[8, 5]), TensorType::f32([4, 6])]),
        (CrossEntropy { ignore: 3, smoothing: 0.2 }.into(), vec![TensorType::f32([8, 16]), ids(&[8])]),
        (CrossEntropy { ignore: -1, smoothing: 0.1 }.into(), vec![TensorType::f32([4, 2, 24]), ids(&[4, 2])]),
    ]);
}

#[test]
fn attention_with_more_passes() {
    let plain = || Attention::new(false, 0.7);
    let (q, k, v): (&[usize], &[usize], &[usize]) = (&[4, 5, 4, 3], &[4, 7, 2, 3], &[4, 7, 2, 5]);
    let with = |attention: Attention, bias: &[TensorType]| {
        let operands = [&f32s(&[q, k, v])[..], bias].concat();
        (Op::from(attention), operands)
    };
    let bias = |shape: [usize; 4]| [TensorType::f32(shape)];
    pass(vec![
        with(plain(), &[]),
        with(Attention { causal: true, ..plain() }, &[]),
        with(Attention { window: 2, ..plain() }, &[]),
        with(Attention { causal: true, window: 3, softcap: 0.8, ..plain() }, &[]),
        with(Attention { mask: true, ..plain() }, &[bools(&[4, 1, 5, 7])]),
        with(Attention { mask: true, causal: true, ..plain() }, &[bools(&[1, 4, 1, 7])]),
        with(plain(), &bias([4, 4, 5, 7])),
        with(plain(), &bias([1, 4, 5, 7])),
        with(Attention { softcap: 1.5, ..plain() }, &bias([4, 1, 5, 7])),
        with(plain(), &bias([1, 1, 1, 7])),
    ]);
}

#[test]
fn rows_by_index_pass() {
    let gather = |axis| Op::from(Gather { axis });
    let scatter = |axis, size| Op::from(ScatterAdd { axis, size });
    pass(vec![
        (gather(0), vec![TensorType::f32([6, 4]), ids(&[8])]),
        (gather(0), vec![TensorType::f32([4, 3, 2]), ids(&[8, 3])]),
        (gather(1), vec![TensorType::f32([4, 8, 5]), ids(&[3])]),
        (gather(1), vec![TensorType::f32([4, 4, 2]), ids(&[2, 4])]),
        (gather(2), vec![TensorType::f32([2, 3, 8]), ids(&[])]),
        (scatter(0, 5), vec![TensorType::f32([8, 4]), ids(&[8])]),
        (scatter(0, 3), vec![TensorType::f32([8, 3, 2]), ids(&[8, 3])]),
        (scatter(1, 4), vec![TensorType::f32([4, 8, 5]), ids(&[8])]),
        (scatter(2, 3), vec![TensorType::f32([2, 4]), ids(&[])]),
    ]);
}

#[test]
fn products_with_chosen_matrices_pass() {
    pass(vec![
        (GroupedLinear.into(), vec![TensorType::f32([8, 2, 6]), ids(&[8, 2]), TensorType::f32([4, 10, 6])]),
        (GroupedLinear.into(), vec![TensorType::f32([8, 8]), ids(&[8]), TensorType::f32([2, 4, 8])]),
        (
            GroupedLinear.into(),
            vec![TensorType::f32([4, 3, 2, 5]), ids(&[4, 3, 2]), TensorType::f32([3, 7, 5])],
        ),
    ]);
}
