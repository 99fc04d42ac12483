//! What the builder says when a layer does not fit: layer, operator, slot, both shapes, and the fix.

use phalanx_ir::graph::{BuildError, Builder, ValueId};
use phalanx_ir::{Binary, DType, Init, Op, Reduce, TensorType, Unary};
use phalanx_ops::{Attention, Layers, Matmul, ReduceOp};

/// The message of the error that `layer` makes in a model with some leaves.
fn message<T>(layer: impl FnOnce(&mut Builder, Leaves) -> Result<T, BuildError>) -> String {
    let mut model = Builder::new("wrong");
    let mut input = |name: &str, ty| model.input(name, ty).expect("the leaf is legal");
    let leaves = Leaves {
        x: input("x", TensorType::f32([64, 784])),
        labels: input("labels", TensorType::new(DType::I64, [64])),
        rows: input("rows", TensorType::f32([10, 784])),
        heads: input("heads", TensorType::f32([2, 5, 6, 4])),
    };
    layer(&mut model, leaves).err().expect("the layer does not fit").to_string()
}

/// Values every case starts from.
struct Leaves {
    x: ValueId,
    labels: ValueId,
    rows: ValueId,
    heads: ValueId,
}

#[test]
fn linear_layers_that_do_not_fit() {
    let found = message(|model, leaves| {
        let weight = model.param("w", [784, 10], Init::Zeros)?;
        model.linear("encoder.0.fc", leaves.x, weight, None)
    });
    assert_eq!(
        found,
        "layer `encoder.0.fc` (linear): slot `input` is f32[64, 784] but its innermost extent must equal the 10 \
         input features of weight [784, 10]; flip `transposed` (now false)"
    );
    let found = message(|model, leaves| {
        let weight = model.param("w", [10, 700], Init::Zeros)?;
        model.linear("fc", leaves.x, weight, None)
    });
    assert_eq!(
        found,
        "layer `fc` (linear): slot `input` is f32[64, 784] but its innermost extent must equal the 700 input \
         features of weight [10, 700]; make the weight take 784 features or the input have 700"
    );
    let found = message(|model, leaves| {
        let bias = model.param("b", [11], Init::Zeros)?;
        model.linear("fc", leaves.x, leaves.rows, Some(bias))
    });
    assert_eq!(
        found,
        "layer `fc` (linear): slot `bias` is f32[11] but weight [10, 784] gives 10 features; make it [10]"
    );
}

#[test]
fn products_that_do_not_fit() {
    let found = message(|model, leaves| {
        model.add_one(
            "qk",
            Op::from(Matmul { transpose_a: false, transpose_b: false }),
            &[leaves.x, leaves.rows],
        )
    });
    assert_eq!(
        found,
        "layer `qk` (matmul): slot `b` is f32[10, 784] but it is summed over 10 while a [64, 784] is summed over \
         784; flip transpose_a or transpose_b, or change the operand"
    );
    let found = message(|model, leaves| {
        let key = model.input("key", TensorType::f32([2, 5, 4, 4]))?;
        model.add_one("attend", Op::from(Attention::new(true, 1.0)), &[leaves.heads, key, key])
    });
    assert_eq!(
        found,
        "layer `attend` (attention): slot `key` is f32[2, 5, 4, 4] but its 4 heads must divide the 6 heads of \
         query [2, 5, 6, 4]; use a divisor of 6 key heads"
    );
}

#[test]
fn elements_that_do_not_fit() {
    let found = message(|model, leaves| model.binary("sum", Binary::Add, leaves.x, leaves.rows));
    assert_eq!(
        found,
        "layer `sum` (add): slot `rhs` is f32[10, 784] but it must stretch with lhs [64, 784]: extents equal or 1 \
         from the innermost on; reshape or transpose one of them"
    );
    let found = message(|model, leaves| model.unary("act", Unary::Sqrt, leaves.labels));
    assert_eq!(
        found,
        "layer `act` (sqrt): slot `input` is i64[64] but arithmetic needs f32; insert `cast to=f32` before it"
    );
    let found = message(|model, leaves| model.reshape("flat", leaves.x, [64, 7]));
    assert_eq!(
        found,
        "layer `flat` (reshape): slot `input` is f32[64, 784] but shape=[64, 7] has 448 elements, not 50176; \
         choose extents whose product is 50176"
    );
}

#[test]
fn losses_that_do_not_fit() {
    let found = message(|model, leaves| model.cross_entropy("loss", leaves.rows, leaves.labels, -100));
    assert_eq!(
        found,
        "layer `loss.sum` (cross_entropy): slot `labels` is i64[64] but logits [10, 784] need one label a row; \
         make it [10]"
    );
    let found = message(|model, leaves| model.mse("loss", leaves.rows, leaves.x));
    assert_eq!(
        found,
        "layer `loss` (mse): slot `target` is f32[64, 784] but it must have the shape of the prediction f32[10, 784]; \
         reshape one of them"
    );
}

#[test]
fn operands_that_are_too_many() {
    let found = message(|model, leaves| {
        let op = Op::from(ReduceOp { kind: Reduce::Sum, axes: vec![0], keep: false });
        model.add_one("total", op, &[leaves.x, leaves.rows])
    });
    assert_eq!(
        found,
        "layer `total` (reduce): slot `1` is one of 2 operands but reduce takes input; give exactly these"
    );
}

#[test]
fn leaves_that_cannot_be() {
    let found = message(|model, _| model.input("x", TensorType::f32([1, 2, 3, 4, 5, 6, 7])));
    assert_eq!(found, "layer `x`: f32[1, 2, 3, 4, 5, 6, 7] has more than 6 dimensions; reshape it");
    let found = message(|model, _| model.param("w", [3, 0], Init::Ones));
    assert_eq!(found, "layer `w`: f32[3, 0] has no elements; every extent must be positive");
    let half = TensorType::new(DType::Bf16, [3]);
    let found = message(|model, _| model.leaf("w", Op::Param(Init::Ones), half.clone()));
    assert_eq!(found, "layer `w`: bf16[3] must be f32; cast its uses instead");
    let found = message(|model, _| model.leaf("c", Op::Constant(1.0), half));
    assert_eq!(found, "layer `c`: bf16[3] must be f32; cast its uses instead");
}
