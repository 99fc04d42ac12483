//! `parse(print(x)) == x` at every level, and for every operator.

use phalanx_ir::graph::{Builder, Graph};
use phalanx_ir::parallel::{DeviceId, ParallelGraph};
use phalanx_ir::sharded::ShardedGraph;
use phalanx_ir::tasks::{TaskGraph, TaskOp};
use phalanx_ir::text::Cursor;
use phalanx_ir::{Activation, Binary, DType, Id, Init, Op, Reduce, Shape, TensorType, Unary};
use phalanx_ops::{
    Attention, BinaryOp, Broadcast, Cast, Concat, CountLabels, CrossEntropy, Dropout, Embedding, LayerNorm,
    Linear, Matmul, ReduceOp, Reshape, RmsNorm, Rotary, Softmax, Split, Transpose, UnaryOp,
};
use phalanx_testkit::generate::random_graph;

#[test]
fn generated_graphs() {
    for seed in 0..500 {
        let graph = random_graph(seed);
        assert_eq!(Graph::parse(graph.to_string(), phalanx_ops::operators()), Ok(graph), "seed {seed}");
    }
}

#[test]
fn generated_graphs_on_one_device() {
    for seed in 0..500 {
        let parallel = ParallelGraph::on_one_device(&random_graph(seed), DeviceId::from_index(3), |layer| {
            (layer.index() as u32 % 3, None)
        });
        assert_eq!(parallel.verify(), Ok(()), "seed {seed}");
        assert_eq!(
            ParallelGraph::parse(parallel.to_string(), phalanx_ops::operators()),
            Ok(parallel),
            "seed {seed}"
        );
    }
}

#[test]
fn a_graph_with_every_operator() {
    for op in every_op() {
        let (name, attrs) = op.to_text();
        assert_eq!(Op::from_text(name, attrs, phalanx_ops::operators()), Ok(op), "{name}");
    }
}

fn every_op() -> Vec<Op> {
    let flags = [(false, false), (false, true), (true, false), (true, true)];
    let mut ops =
        vec![Op::Input, Op::Constant(-0.1), Op::Constant(f32::MIN_POSITIVE), Op::from(Rotary::new(1e4))];
    ops.extend([Init::Zeros, Init::Ones, Init::Normal(1e-20), Init::Uniform(0.1)].map(Op::Param));
    ops.extend([false, true].map(|bag| Op::from(Embedding { bag, padding: None })));
    for transposed in [false, true] {
        ops.extend(Activation::ALL.iter().map(|&activation| Op::from(Linear { transposed, activation })));
    }
    ops.extend(flags.map(|(transpose_a, transpose_b)| Op::from(Matmul { transpose_a, transpose_b })));
    ops.extend(every_unary().into_iter().map(|unary| Op::from(UnaryOp(unary))));
    ops.extend(Binary::ALL.iter().map(|&binary| Op::from(BinaryOp(binary))));
    ops.extend([
        Op::from(Softmax { axis: 2 }),
        Op::from(RmsNorm { eps: 1e-6 }),
        Op::from(Concat { axis: 0, blocks: 1 }),
    ]);
    ops.extend([1, 2].map(|axes| Op::from(LayerNorm { axes, eps: 1e-5 })));
    ops.extend([false, true].map(|causal| Op::from(Attention { causal, scale: 0.125 })));
    ops.extend([
        Op::from(Reshape { shape: Shape::from([2, 3]) }),
        Op::from(Reshape { shape: Shape::default() }),
    ]);
    ops.extend([
        Op::from(Broadcast { shape: Shape::from([7]) }),
        Op::from(Transpose { perm: vec![1, 0] }),
        Op::from(Transpose { perm: vec![] }),
    ]);
    ops.push(Op::from(Split { axis: 1, sizes: vec![1, 2], blocks: 1 }));
    ops.push(Op::from(Split { axis: 1, sizes: vec![2, 2], blocks: 2 }));
    ops.push(Op::from(Concat { axis: 1, blocks: 2 }));
    ops.push(Op::Repartition { dim: 1, degree: 2 });
    ops.extend([false, true].map(|regather| Op::Combine { dim: 1, degree: 2, regather }));
    ops.extend([Op::Replicate { degree: 3 }, Op::Reduction { degree: 3 }]);
    for &kind in Reduce::ALL {
        ops.extend([false, true].map(|keep| Op::from(ReduceOp { kind, axes: vec![0, 2], keep })));
    }
    ops.push(Op::from(Dropout { rate: 0.1 }));
    ops.extend(DType::ALL.map(|to| Op::from(Cast { to })));
    ops.extend([-100, 0].map(|ignore| Op::from(CrossEntropy { ignore })));
    ops.extend([i64::MIN, i64::MAX].map(|ignore| Op::from(CountLabels { ignore })));
    ops
}

/// Every function but the one written as no function at all.
fn every_unary() -> Vec<Unary> {
    let mut all: Vec<_> =
        Activation::ALL.iter().filter(|&&a| a != Activation::None).map(|&a| Unary::Act(a)).collect();
    all.extend([Unary::Identity, Unary::Exp, Unary::Log, Unary::Sqrt, Unary::Rsqrt, Unary::Sin, Unary::Cos]);
    all.extend([Unary::Elu, Unary::Neg, Unary::Square, Unary::Abs]);
    for s in [0.1, -2.0, f32::MAX, f32::INFINITY] {
        all.extend([Unary::AddScalar(s), Unary::SubScalar(s), Unary::MulScalar(s)]);
        all.extend([Unary::DivScalar(s), Unary::PowScalar(s)]);
    }
    all
}

#[test]
fn functions_as_words() {
    for unary in every_unary() {
        assert_eq!(unary.to_string().parse(), Ok(unary), "{unary}");
    }
    for word in ["none", "relu(1)x", "add_scalar", "add_scalar(x)", ""] {
        assert_eq!(word.parse::<Unary>(), Err(()), "{word}");
    }
}

/// One line of attributes an operator, all flags set: what is printed is what is written.
const TASK_OPS: &str = "\
linear transposed=true activation=silu bias=true residual=true save_pre=true leaves=8
linear activation=none leaves=1
linear_grad_input transposed=true leaves=2 slope=gelu_erf accumulate=true
linear_grad_weight transposed=true leaves=2 accumulate=true
matmul transpose_a=true transpose_b=true leaves=4 accumulate=true
column_sum leaves=1 inner=2 keep=true accumulate=true
unary kind=pow_scalar(0.5)
unary_grad kind=gelu_tanh accumulate=true
binary kind=min
binary_grad kind=sub side=1
chain s0=add_scalar(-0.5)/x0 s1=silu.grad/x1/s0 s2=max/s1/x0 s3=div.grad1/x0/s2/x1 results=[3, 1]
chain s0=dropout(0.1+18446744073709551615+3+1+4+2)/x0 results=[0]
reduce kind=mean axes=[0, 2] leaves=2
reduce_grad kind=max axes=[] accumulate=true
broadcast
transpose perm=[1, 0]
concat axis=0
split axis=1
softmax axis=2
softmax_grad axis=2 accumulate=true
layer_norm axes=2 eps=0.00001 affine=true
layer_norm_grad axes=1 affine=true leaves=1 inner=2 keep=true accumulate=true
rms_norm eps=0.000001
rms_norm_grad leaves=1 inner=2 keep=true accumulate=true
rotary base=10000 inverse=true accumulate=true
attention causal=true scale=0.125
attention_grad causal=true scale=0.125
embedding bag=true
embedding_grad bag=true leaves=1 accumulate=true
dropout rate=0.1 seed=18446744073709551615 salt=3 part=1 parts=4 blocks=2 accumulate=true
cast
fill value=-0.5
cross_entropy ignore=-100 leaves=2
cross_entropy_grad ignore=-100 accumulate=true
count_labels ignore=-100
sum_squares row_leaves=8 col_leaves=4
clip_scale max_norm=1
class_max
class_sum leaves=2
class_pick
class_join ignore=-100
move kind=all_reduce
send movement=3
receive movement=3
adamw beta1=0.9 beta2=0.95 eps=0.00000001 decay=0.1 decoupled=true clip=true
sgd momentum=0.9 decay=0.1 nesterov=true clip=true";

#[test]
fn every_task_operator() {
    for line in TASK_OPS.lines() {
        let mut cursor = Cursor::new(line, 1);
        let name = cursor.word().expect("an operator has a name");
        let attrs = cursor.attrs().expect("attributes are well written");
        let op = TaskOp::from_text(name, attrs).expect("the operator exists");
        let (name, attrs) = op.to_text();
        assert_eq!(format!("{name}{attrs}"), line);
        assert_eq!(TaskOp::from_text(name, attrs), Ok(op.clone()));
        assert_eq!(
            op.accumulates(),
            op.clone().accumulating().map(|_| line.contains("accumulate")),
            "{line}"
        );
        let updates = line.contains("accumulate") || ["adamw", "sgd"].contains(&name);
        assert_eq!(op.reads_write(0), updates, "{line}");
        assert_eq!(op.reads_write(1), ["adamw", "sgd"].contains(&name), "{line}");
    }
}

#[test]
fn task_graphs() {
    let text = r#"tasks @line {
  b0 : f32[4, 2] on dev0 input "x"
  b1 : f32[1, 2] on dev0 param "w"
  b2 : f32[1, 2] on dev0 state "w.velocity"
  b3 : f32[4, 1] on dev0 temp "y"
  b4 : f32[4] on dev0 temp view b3 "y.flat"
  b5 : f32[] on dev1 output "the loss"
  t0 = linear activation=none leaves=1 b0, b1 -> b3 on dev0 of "y"
  t1 = fill value=0 -> b4 on dev0 microbatch 3 of "zero"
  output b3 "y"
}"#;
    let tasks: TaskGraph = text.parse().expect("the text is a task graph");
    assert_eq!(tasks.to_string(), text);
    assert_eq!(tasks.tasks.iter().map(|(_, task)| task.microbatch).collect::<Vec<_>>(), [0, 3]);
    let again: TaskGraph = tasks.to_string().parse().expect("printed text parses");
    assert_eq!(again, tasks);
    let empty = TaskGraph { name: "empty".into(), ..TaskGraph::default() };
    assert_eq!(empty.to_string().parse::<TaskGraph>(), Ok(empty));
}

#[test]
fn words_of_version_0_1_are_read() {
    let sharded = "sharded @line {\n  b0 : f32[4] on dev0 input \"x\"\n}";
    let old: ShardedGraph =
        sharded.replace("sharded", "; a comment\n\nwide").parse().expect("the old word is read");
    assert_eq!(old.to_string(), sharded);
    let parallel = "parallel @t {
  %x = input f32[4/2] on dev0, dev1
  %y = combine dim=0 degree=2 regather=true %x : f32[4] on dev[0-1] at 1 microbatch 1 of 2 in 1
  return %y
}";
    let old = parallel.replace("regather", "again").replace("microbatch", "part");
    let old = ParallelGraph::parse(old, phalanx_ops::operators()).expect("the old words are read");
    assert_eq!(old.to_string(), parallel);
}

#[test]
fn no_text_at_all() {
    let error = Graph::parse("", phalanx_ops::operators()).expect_err("no text is no graph");
    assert_eq!(error.to_string(), "line 1: expected `graph @name {`, found nothing");
}

#[test]
fn names_taken_twice_get_a_number() {
    let mut model = Builder::new("names");
    let first = model.input("x", TensorType::f32([4])).expect("the leaf is legal");
    let second = model.input("x", TensorType::f32([4])).expect("the leaf is legal");
    let pieces = model
        .add("x", Op::from(Split { axis: 0, sizes: vec![1, 3], blocks: 1 }), &[first])
        .expect("the layer fits");
    let graph = model.finish([first, second, pieces[0], pieces[1]]);
    let names: Vec<_> = graph.outputs().iter().map(|&value| graph.values()[value].name.as_str()).collect();
    assert_eq!(names, ["x", "x_2", "x.0", "x.1"]);
    assert_eq!(graph.verify(), Ok(()));
    assert_eq!(graph.find("x.1"), Some(pieces[1]));
    assert_eq!(Graph::parse(graph.to_string(), phalanx_ops::operators()), Ok(graph));
}
