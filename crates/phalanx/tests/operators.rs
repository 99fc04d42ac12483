//! What an operator's author is handed, on ours and on wrong ones.

use phalanx::ir::sharded::Operand;
use phalanx::ir::tasks::TaskOp;
use phalanx::ir::{
    Activation, Cuts, DType, LayerTasks, Op, OpError, Operands, Operator, Reduce, Shape, Tensor, TensorType,
    Unary, attributes,
};
use phalanx::ops::{
    Concat, CrossEntropy, Embedding, Gather, LayerNorm, Linear, Matmul, ReduceOp, Reverse, RmsNorm, Rotary,
    Softmax, TopK, Transpose, UnaryOp,
};
use phalanx::testing::{CheckError, check_operator};

fn f32s(shapes: &[&[usize]]) -> Vec<TensorType> {
    shapes.iter().map(|&shape| TensorType::f32(Shape::new(shape))).collect()
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
        (Gather { axis: 1 }.into(), vec![TensorType::f32([8, 4, 6]), ids(&[8, 9, 6])]),
        (CrossEntropy { ignore: -1 }.into(), vec![TensorType::f32([8, 16]), ids(&[8])]),
    ];
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
