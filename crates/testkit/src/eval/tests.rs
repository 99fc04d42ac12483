use phalanx_ir::TensorType;

use phalanx_ir::DType;

use super::*;

/// Evaluates one layer written as text; operands are given in order, all of 32-bit floats or, if named so, `i64`.
fn one(op: &str, operands: &[(DType, Tensor)]) -> Vec<Tensor> {
    let mut line = phalanx_ir::text::Cursor::new(op, 1);
    let name = line.word().expect("an operator has a name");
    let attrs = line.attrs().expect("attributes are well written");
    let op = Op::from_text(name, attrs, phalanx_ops::operators()).expect("the operator exists");
    let types: Vec<_> =
        operands.iter().map(|(dtype, tensor)| TensorType::new(*dtype, tensor.shape.clone())).collect();
    let shapes: Vec<_> = op.infer(&types).expect("operands fit").into_iter().map(|ty| ty.shape).collect();
    let tensors: Vec<_> = operands.iter().map(|(_, tensor)| tensor).collect();
    apply(&op, &tensors, &shapes)
}

fn f<const R: usize, const N: usize>(shape: [usize; R], data: [f64; N]) -> (DType, Tensor) {
    (DType::F32, Tensor::new(shape, data))
}

fn i<const R: usize, const N: usize>(shape: [usize; R], data: [f64; N]) -> (DType, Tensor) {
    (DType::I64, Tensor::new(shape, data))
}

fn assert_close(found: &Tensor, expected: (DType, Tensor)) {
    assert_eq!(found.shape, expected.1.shape);
    for (found, expected) in found.data.iter().zip(&expected.1.data) {
        assert!((found - expected).abs() < 1e-9, "{found} is {expected}");
    }
}

#[test]
fn linear_multiplies_by_the_transposed_weight() {
    let x = f([1, 2], [1.0, 2.0]);
    let weight = f([3, 2], [1.0, 0.0, 0.0, 1.0, -1.0, -1.0]);
    let bias = f([3], [0.5, 0.5, 0.5]);
    assert_close(&one("linear", &[x.clone(), weight])[0], f([1, 3], [1.0, 2.0, -3.0]));
    let stored = f([2, 3], [1.0, 0.0, -1.0, 0.0, 1.0, -1.0]);
    let y = one("linear transposed=true activation=relu", &[x, stored, bias]);
    assert_close(&y[0], f([1, 3], [1.5, 2.5, 0.0]));
}

#[test]
fn matmul_reads_stored_transposes() {
    let a = f([1, 2, 2], [1.0, 2.0, 3.0, 4.0]);
    let b = f([1, 2, 1], [5.0, 6.0]);
    assert_close(&one("matmul", &[a.clone(), b.clone()])[0], f([1, 2, 1], [17.0, 39.0]));
    assert_close(&one("matmul transpose_a=true", &[a.clone(), b])[0], f([1, 2, 1], [23.0, 34.0]));
    let row = f([1, 1, 2], [5.0, 6.0]);
    assert_close(&one("matmul transpose_b=true", &[a, row])[0], f([1, 2, 1], [17.0, 39.0]));
}

#[test]
fn binary_stretches_both_sides() {
    let column = f([2, 1], [1.0, 2.0]);
    let row = f([3], [10.0, 20.0, 30.0]);
    assert_close(&one("sub", &[column, row])[0], f([2, 3], [-9.0, -19.0, -29.0, -8.0, -18.0, -28.0]));
}

#[test]
fn rows_are_normalized() {
    let ln3 = 3f64.ln();
    assert_close(&one("softmax axis=0", &[f([2, 1], [0.0, ln3])])[0], f([2, 1], [0.25, 0.75]));
    let x = f([1, 2], [1.0, 3.0]);
    assert_close(&one("layer_norm eps=0", std::slice::from_ref(&x))[0], f([1, 2], [-1.0, 1.0]));
    let affine = [x, f([2], [2.0, 3.0]), f([2], [10.0, 20.0])];
    assert_close(&one("layer_norm eps=0", &affine)[0], f([1, 2], [8.0, 23.0]));
    let y = one("rms_norm eps=0", &[f([1, 2], [1.0, 7.0]), f([2], [5.0, 10.0])]);
    assert_close(&y[0], f([1, 2], [1.0, 14.0]));
}

#[test]
fn rotary_turns_halves_by_the_time() {
    let x = f([1, 2, 1, 2], [1.0, 0.0, 1.0, 0.0]);
    let (sin, cos) = 1f64.sin_cos();
    assert_close(&one("rotary base=10000", &[x])[0], f([1, 2, 1, 2], [1.0, 0.0, cos, sin]));
}

#[test]
fn causal_attention_sees_the_past() {
    let query = f([1, 2, 2, 1], [0.0, 0.0, 0.0, 1.0]);
    let key = f([1, 2, 1, 1], [0.0, 3f64.ln()]);
    let value = f([1, 2, 1, 1], [4.0, 8.0]);
    let y = one("attention causal=true scale=1", &[query.clone(), key.clone(), value.clone()]);
    assert_close(&y[0], f([1, 2, 2, 1], [4.0, 4.0, 6.0, 7.0]));
    let y = one("attention causal=false scale=1", &[query, key, value]);
    assert_close(&y[0], f([1, 2, 2, 1], [6.0, 6.0, 6.0, 7.0]));
}

#[test]
fn embedding_looks_up_and_sums() {
    let table = f([3, 2], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let ids = i([1, 2], [2.0, 0.0]);
    assert_close(&one("embedding", &[ids.clone(), table.clone()])[0], f([1, 2, 2], [5.0, 6.0, 1.0, 2.0]));
    assert_close(&one("embedding bag=true", &[ids, table])[0], f([1, 2], [6.0, 8.0]));
}

#[test]
fn elements_are_moved_and_joined() {
    let x = f([2, 3], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let only = std::slice::from_ref(&x);
    assert_close(&one("transpose perm=[1, 0]", only)[0], f([3, 2], [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]));
    let pieces = one("split axis=1 sizes=[1, 2]", only);
    assert_close(&pieces[0], f([2, 1], [1.0, 4.0]));
    assert_close(&pieces[1], f([2, 2], [2.0, 3.0, 5.0, 6.0]));
    let joined = one("concat axis=1", &[x.clone(), f([2, 1], [7.0, 8.0])]);
    assert_close(&joined[0], f([2, 4], [1.0, 2.0, 3.0, 7.0, 4.0, 5.0, 6.0, 8.0]));
    assert_close(&one("reduce kind=mean axes=[0]", only)[0], f([3], [2.5, 3.5, 4.5]));
    assert_close(&one("reduce kind=max axes=[1] keep=true", only)[0], f([2, 1], [3.0, 6.0]));
    assert_close(&one("broadcast shape=[2, 1, 1]", &[f([1], [3.0])])[0], f([2, 1, 1], [3.0, 3.0]));
}

#[test]
fn losses_leave_ignored_labels_out() {
    let logits = f([2, 2], [0.0, 3f64.ln(), 9.0, 9.0]);
    let labels = i([2], [1.0, -100.0]);
    let sum = one("cross_entropy ignore=-100", &[logits, labels.clone()]);
    assert_close(&sum[0], f([], [(4.0f64 / 3.0).ln()]));
    assert_close(&one("count_labels ignore=-100", &[labels])[0], f([], [1.0]));
}

#[test]
fn casts_truncate_and_test() {
    let x = f([3], [-1.7, 0.0, 2.5]);
    let only = std::slice::from_ref(&x);
    assert_close(&one("cast to=i64", only)[0], f([3], [-1.0, 0.0, 2.0]));
    assert_close(&one("cast to=bool", only)[0], f([3], [1.0, 0.0, 1.0]));
    assert_close(&one("cast to=bf16", only)[0], x.clone());
}

#[test]
fn a_model_is_evaluated_in_order() {
    let text = "graph @line {
        %x = input f32[2]
        %w = param init=ones f32[1, 2]
        %two = constant value=2 f32[]
        %y = linear %x, %w : f32[1]
        %z = mul %y, %two : f32[1]
        return %z
    }";
    let graph = Graph::parse(text, phalanx_ops::operators()).expect("the text is a graph");
    let inputs = [("x", Tensor::new([2], [1.0, 2.0])), ("w", Tensor::new([1, 2], [3.0, 4.0]))];
    let values = evaluate(&graph, &inputs.map(|(name, tensor)| (name.to_string(), tensor)).into());
    assert_eq!(values[&graph.outputs()[0]], Tensor::new([1], [22.0]));
    assert_eq!(values.len(), 5);
}
