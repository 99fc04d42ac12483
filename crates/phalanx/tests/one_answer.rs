//! Operators of real models have the same bits on every plan: batch, heads, classes, hidden features and experts cut, and
//! the batch in microbatches.

use phalanx::ir::graph::{BuildError, Builder, Graph};
use phalanx::ir::{Activation, DType, Init, Op, Reduce, TensorType, Unary};
use phalanx::ops::{Layers, MoeLayer, ReduceOp};
use phalanx::pipeline::Settings;
use phalanx::{Feed, Goal, Plan, Session};

/// Loss and gradients of `params` with this plan, as bits.
fn bits(graph: &Graph, params: &[&str], plan: &str) -> Vec<Vec<u32>> {
    let plan = Plan::parse(plan).unwrap_or_else(|error| panic!("{plan}: {error}"));
    let settings = Settings::new(Goal::Gradients).seed(5).plan(plan);
    let mut session = Session::new(graph, &settings).expect("the model compiles");
    for leaf in graph.leaves(|op| matches!(op, Op::Input | Op::Param(_))) {
        let (name, ty) = (&graph.values()[leaf].name, graph.ty(leaf));
        let n = ty.shape.elements();
        let integers = || (0..n).map(|i| (i * 7 + i / 3) as i64 % 4);
        match ty.dtype {
            DType::I64 => session.feed(name, Feed::I64(&integers().collect::<Vec<_>>())),
            DType::Bool => session.feed(name, Feed::Bool(&integers().map(|i| i != 1).collect::<Vec<_>>())),
            _ => {
                let number = |i: usize| ((i * 7919 + 13 * name.len()) % 1009) as f32 / 504.5 - 1.0;
                session.feed(name, Feed::F32(&(0..n).map(number).collect::<Vec<_>>()))
            }
        }
        .expect("leaves are fed");
    }
    session.run().expect("the run completes");
    let names = std::iter::once("loss".to_string()).chain(params.iter().map(|name| format!("{name}.grad")));
    let read = |name: String| {
        let values = session.read(&name).expect("it is there");
        assert!(values.iter().all(|value| value.is_finite()), "{name}: {values:?}");
        values.iter().map(|value| value.to_bits()).collect()
    };
    names.map(read).collect()
}

/// Asserts that all plans give the bits of one device.
fn check(text: &str, params: &[&str], plans: &[&str]) {
    check_graph(&crate::movements::model(text), params, plans);
}

fn check_graph(graph: &Graph, params: &[&str], plans: &[&str]) {
    let want = bits(graph, params, "");
    for plan in plans {
        assert_eq!(bits(graph, params, plan), want, "{plan}");
    }
}

fn rule(name: &str, dim: usize, axis: &str) -> String {
    format!("[[rule]]\nmatch = \"{name}\"\nshard = {{ {dim} = \"{axis}\" }}\n")
}

/// The gradient of a choice is summed before it is added to another one, on one device as where parts come from several.
#[test]
fn elements_chosen_more_than_once() {
    let text = "graph @chosen {\n%w = param init=zeros f32[4]\n%i = input i64[8]\n%j = input i64[8]\n\
        %a = gather axis=0 %w, %i : f32[8]\n%b = gather axis=0 %w, %j : f32[8]\n%c = mul %a, %b : f32[8]\n\
        %d = exp %c : f32[8]\n%loss = reduce kind=sum axes=[0] %d : f32[]\nreturn %loss\n}";
    let stored = "[mesh]\na = 4\n[[rule]]\nmatch = \"w\"\nstore = { 0 = \"a\" }\n";
    let cut = format!("[mesh]\na = 2\n{}", rule("d", 0, "a"));
    check(text, &["w"], &[stored, &cut]);
}

/// Devices that share three experts and the features of each.
#[test]
fn experts_and_features_cut_together() {
    let text = "graph @chosen {\n%x = input f32[4, 8]\n%i = input i64[4]\n%w = param init=zeros f32[6, 5, 8]\n\
        %y = grouped_linear %x, %i, %w : f32[4, 5]\n%s = square %y : f32[4, 5]\n\
        %loss = reduce kind=sum axes=[0, 1] %s : f32[]\nreturn %loss\n}";
    let plan = "[mesh]\na = 3\nb = 4\n[[rule]]\nmatch = \"w\"\nshard = { 0 = \"a\", 2 = \"b\" }\n";
    check(text, &["w"], &[plan]);
}

#[test]
fn losses_with_weights_and_smoothing() {
    let text = "graph @losses {\n%x = input f32[8, 6]\n%labels = input i64[8]\n%w = param init=zeros f32[16, 6]\n\
        %classes = input f32[16]\n%logits = linear %x, %w : f32[8, 16]\n\
        %sum = cross_entropy ignore=2 smoothing=0.2 %logits, %labels, %classes : f32[]\n\
        %count = count_labels ignore=2 %labels, %classes : f32[]\n%loss = div %sum, %count : f32[]\nreturn %loss\n}";
    let rows = format!("[mesh]\ndp = 4\n{}{}", rule("x", 0, "dp"), rule("labels", 0, "dp"));
    let classes = format!("[mesh]\ntp = 4\n{}", rule("w", 0, "tp"));
    check(text, &["w"], &[&rows, &classes]);
}

#[test]
fn attention_with_bias_and_dropout() {
    let text = "graph @attention {\n%q = param init=zeros f32[4, 5, 4, 3]\n%k = param init=zeros f32[4, 7, 2, 3]\n\
        %v = param init=zeros f32[4, 7, 2, 6]\n%bias = param init=zeros f32[1, 4, 5, 7]\n\
        %y = attention causal=false scale=0.5 window=4 softcap=2 rate=0.3 %q, %k, %v, %bias : f32[4, 5, 4, 6]\n\
        %flat = reshape shape=[480] %y : f32[480]\n%square = square %flat : f32[480]\n\
        %loss = reduce kind=sum axes=[0] %square : f32[]\nreturn %loss\n}";
    let batch = ["q", "k", "v"].map(|name| rule(name, 0, "dp")).concat();
    let heads = ["q", "k", "v"].map(|name| rule(name, 2, "tp")).concat();
    let plans = [
        format!("[mesh]\ndp = 2\n{batch}"),
        format!("[mesh]\ndp = 4\n{batch}"),
        format!("[mesh]\ntp = 2\n{heads}"),
    ];
    check(text, &["q", "k", "v", "bias"], &plans.each_ref().map(String::as_str));
}

#[test]
fn dropout_of_attention_is_that_of_the_whole_batch_in_microbatches() {
    let text = "graph @attention {\n%x = input f32[8, 5, 4, 3]\n%s = param init=zeros f32[4, 3]\n%q = mul %x, %s : f32[8, 5, 4, 3]\n\
        %y = attention causal=true scale=0.5 rate=0.4 %q, %x, %x : f32[8, 5, 4, 3]\n%square = square %y : f32[8, 5, 4, 3]\n\
        %sums = reduce kind=sum axes=[1, 2, 3] %square : f32[8]\n%loss = reduce kind=sum axes=[0] %sums : f32[]\nreturn %loss\n}";
    let batch = rule("x", 0, "dp");
    let plans = [
        "microbatches = 2".to_string(),
        "microbatches = 4".to_string(),
        format!("microbatches = 2\n[mesh]\ndp = 2\n{batch}"),
    ];
    check(text, &["s"], &plans.each_ref().map(String::as_str));
}

#[test]
fn mixtures_of_experts() {
    let text = "graph @experts {\n%x = param init=zeros f32[8, 6]\n%ids = input i64[8, 2]\n%weights = param init=zeros f32[8, 2]\n\
        %up = param init=zeros f32[4, 8, 6]\n%gate = param init=zeros f32[4, 8, 6]\n%down = param init=zeros f32[4, 6, 8]\n\
        %row = reshape shape=[8, 1, 6] %x : f32[8, 1, 6]\n%rows = broadcast shape=[8, 2, 6] %row : f32[8, 2, 6]\n\
        %u = grouped_linear %rows, %ids, %up : f32[8, 2, 8]\n%g = grouped_linear %rows, %ids, %gate : f32[8, 2, 8]\n\
        %a = silu %g : f32[8, 2, 8]\n%h = mul %a, %u : f32[8, 2, 8]\n%d = grouped_linear %h, %ids, %down : f32[8, 2, 6]\n\
        %f = reshape shape=[8, 2, 1] %weights : f32[8, 2, 1]\n%z = mul %d, %f : f32[8, 2, 6]\n\
        %y = reduce kind=sum axes=[1] %z : f32[8, 6]\n%square = square %y : f32[8, 6]\n\
        %sums = reduce kind=sum axes=[1] %square : f32[8]\n%loss = reduce kind=sum axes=[0] %sums : f32[]\nreturn %loss\n}";
    let all = |axis: &str, dims: [usize; 3]| {
        ["up", "gate", "down"].iter().zip(dims).map(|(name, dim)| rule(name, dim, axis)).collect::<String>()
    };
    let rows = ["x", "ids", "weights"].map(|name| rule(name, 0, "dp")).concat();
    let plans = [
        format!("[mesh]\ndp = 4\n{rows}"),
        format!("[mesh]\nep = 4\n{}", all("ep", [0, 0, 0])),
        format!("[mesh]\ntp = 2\n{}", all("tp", [1, 1, 2])),
    ];
    check(text, &["x", "weights", "up", "gate", "down"], &plans.each_ref().map(String::as_str));
}

/// Samples of four rows with two routes each, of which an expert takes `capacity`.
fn limited_experts(capacity: Option<usize>) -> Result<Graph, BuildError> {
    let mut net = Builder::new("limited");
    let x = net.input("x", TensorType::f32([8, 4, 6]))?;
    let ids = net.input("ids", TensorType::new(DType::I64, [8, 4, 2]))?;
    let weights = net.input("weights", TensorType::f32([8, 4, 2]))?;
    let up = net.param("up", [4, 8, 6], Init::Zeros)?;
    let down = net.param("down", [4, 6, 8], Init::Zeros)?;
    let layer = MoeLayer { activation: Activation::Silu, up, gate: None, down, capacity };
    let y = net.experts("y", x, [ids, weights], layer)?;
    let square = net.unary("square", Unary::Square, y)?;
    let sum = |axes| ReduceOp { kind: Reduce::Sum, axes, keep: false };
    let sums = net.add_one("sums", sum(vec![1, 2]), &[square])?;
    let loss = net.add_one("loss", sum(vec![0]), &[sums])?;
    Ok(net.finish([loss]))
}

#[test]
fn experts_with_a_capacity() {
    let graph = limited_experts(Some(1)).expect("the layers fit");
    let all = limited_experts(None).expect("the layers fit");
    assert_ne!(bits(&graph, &["up"], ""), bits(&all, &["up"], ""), "some routes are left out");
    let rows = ["x", "ids", "weights"].map(|name| rule(name, 0, "dp")).concat();
    let experts = ["up", "down"].map(|name| rule(name, 0, "ep")).concat();
    let plans = [
        format!("[mesh]\ndp = 4\n{rows}"),
        format!("[mesh]\nep = 4\n{experts}"),
        "microbatches = 2".to_string(),
        format!("microbatches = 2\n[mesh]\ndp = 2\n{rows}"),
    ];
    check_graph(&graph, &["up", "down"], &plans.each_ref().map(String::as_str));
}
