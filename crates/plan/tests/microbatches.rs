//! Cutting the batch keeps what a model computes, or says which layer it would mix.

use std::collections::BTreeMap;

use phalanx_ir::graph::Graph;
use phalanx_ir::parallel::ParallelGraph;
use phalanx_plan::{MicrobatchError, Plan, PlanError, parallelize};
use phalanx_testkit::eval::evaluate;
use phalanx_testkit::generate::{random_graph, random_inputs};
use phalanx_testkit::{Tensor, cases};

/// The evaluator is exact to 1e-12 or so; a mean over the batch multiplies by a reciprocal in single precision.
const TOLERANCE: f64 = 1e-6;

fn parse(text: &str) -> Graph {
    let graph =
        Graph::parse(text, phalanx_ops::operators()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    graph.verify().unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
    graph
}

fn cut(graph: &Graph, microbatches: usize) -> Result<ParallelGraph, MicrobatchError> {
    let parallel = match parallelize(graph, &Plan { microbatches, ..Plan::default() }) {
        Ok(parallel) => parallel,
        Err(PlanError::Microbatch(error)) => return Err(error),
        Err(other) => panic!("{other}"),
    };
    parallel.verify().unwrap_or_else(|errors| panic!("{errors:?}\n{parallel}"));
    Ok(parallel)
}

/// The model without its placements.
fn without_devices(parallel: &ParallelGraph) -> Graph {
    let text = parallel.to_string();
    let lines: Vec<_> = text.lines().map(|line| line.split(" on dev0").next().unwrap_or_default()).collect();
    parse(&lines.join("\n").replacen("parallel", "graph", 1))
}

fn outputs(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> Vec<Tensor> {
    let values = evaluate(graph, inputs);
    graph.outputs().iter().map(|output| values[output].clone()).collect()
}

fn assert_equal(graph: &Graph, parallel: &ParallelGraph, seed: u64) {
    let inputs = random_inputs(graph, seed);
    let (whole, parts) = (outputs(graph, &inputs), outputs(&without_devices(parallel), &inputs));
    assert_eq!(whole.len(), parts.len());
    for (whole, parts) in whole.iter().zip(&parts) {
        assert_eq!(whole.shape, parts.shape, "{parallel}");
        for (a, b) in whole.data.iter().zip(&parts.data) {
            assert!((a - b).abs() <= TOLERANCE * a.abs().max(1.0), "{a} became {b}\n{graph}\n{parallel}");
        }
    }
}

/// Every layer of a microbatch is labelled with it.
fn assert_labelled(parallel: &ParallelGraph) {
    for (id, layer) in parallel.layers().iter() {
        let name = parallel.layer_name(id);
        // A layer with several results appends a number to each name.
        let number = name.rsplit_once(".mb").and_then(|(_, part)| part.split('.').next());
        let part = number.and_then(|part| part.parse::<u32>().ok());
        assert_eq!(layer.label.microbatch.map(|part| part.index), part, "{name}");
        if let Some(part) = part {
            assert_eq!(layer.label.due, part, "{name}");
        }
    }
}

#[test]
fn one_microbatch_is_the_model_itself() {
    for seed in 0..50 {
        let graph = random_graph(seed);
        let parallel = cut(&graph, 1).expect("a whole batch is always legal");
        assert_eq!(without_devices(&parallel), graph);
        assert!(
            parallel
                .layers()
                .iter()
                .all(|(_, layer)| layer.label.due == 0 && layer.label.microbatch.is_none())
        );
    }
}

#[test]
fn random_models_keep_their_outputs() {
    let (mut legal, mut refused) = (0, 0);
    for seed in 0..cases(600) {
        let graph = random_graph(seed);
        for microbatches in [2, 3, 5, 7] {
            match cut(&graph, microbatches) {
                Ok(parallel) => {
                    assert_equal(&graph, &parallel, seed);
                    assert_labelled(&parallel);
                    legal += 1;
                }
                Err(MicrobatchError::Build(error)) => panic!("{error}\n{graph}"),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(legal > cases(100) && refused > cases(100), "{legal} legal, {refused} refused");
}

/// Models whose batch of six can be cut, one for each way of going along it.
const LEGAL: &[&str] = &[
    "%x = input f32[6, 5]\n%w = param init=ones f32[3, 5]\n%b = param init=ones f32[3]\n%y = linear activation=silu %x, %w, %b : f32[6, 3]",
    "%x = input f32[6, 5, 3]\n%t = transpose perm=[0, 2, 1] %x : f32[6, 3, 5]\n%y = matmul %x, %t : f32[6, 5, 5]",
    "%q = input f32[6, 3, 2, 4]\n%r = rotary base=10 %q : f32[6, 3, 2, 4]\n%y = attention causal=true scale=1 %r, %q, %q : f32[6, 3, 2, 4]",
    "%x = input f32[6, 5]\n%s = softmax axis=1 %x : f32[6, 5]\n%n = layer_norm eps=0.1 %s : f32[6, 5]\n%g = param init=ones f32[5]\n%y = rms_norm eps=0.1 %n, %g : f32[6, 5]",
    "%x = input f32[6, 5]\n%y = reduce kind=sum axes=[0] %x : f32[5]",
    "%x = input f32[6, 5]\n%y = reduce kind=mean axes=[0, 1] keep=true %x : f32[1, 1]",
    "%x = input f32[6, 5]\n%y = reduce kind=max axes=[1] %x : f32[6]",
    "%x = input f32[6, 5]\n%y = reshape shape=[30] %x : f32[30]",
    "%x = input f32[6, 10]\n%r = reshape shape=[12, 5, 1] %x : f32[12, 5, 1]\n%m = reduce kind=mean axes=[0] %r : f32[5, 1]\n%y = mul %m, %r : f32[12, 5, 1]",
    "%x = input f32[6, 5]\n%z = input f32[6, 1]\n%p = param init=ones f32[5]\n%a = add %x, %p : f32[6, 5]\n%y = mul %a, %z : f32[6, 5]",
    "%x = input f32[6, 5]\n%p = param init=ones f32[1, 5]\n%y = max %p, %x : f32[6, 5]",
    "%x = input f32[6, 5]\n%s.0, %s.1 = split axis=1 sizes=[2, 3] %x : f32[6, 2], f32[6, 3]\n%y = concat axis=1 %s.1, %s.0, %x : f32[6, 10]",
    "%i = input i64[6, 3]\n%t = param init=ones f32[7, 5]\n%e = embedding bag=true %i, %t : f32[6, 5]\n%y = dropout rate=0 %e : f32[6, 5]",
    "%x = input f32[6, 5]\n%l = input i64[6]\n%s = cross_entropy ignore=-100 %x, %l : f32[]\n%n = count_labels ignore=-100 %l : f32[]\n%y = div %s, %n : f32[]",
    "%x = input f32[6, 2, 5]\n%l = input i64[6, 2]\n%f = reshape shape=[12, 5] %x : f32[12, 5]\n%g = reshape shape=[12] %l : i64[12]\n%s = cross_entropy ignore=1 %f, %g : f32[]\n%n = count_labels ignore=1 %g : f32[]\n%y = div %s, %n : f32[]",
    "%p = param init=ones f32[7, 3]\n%e = exp %p : f32[7, 3]\n%y = reduce kind=max axes=[0] %e : f32[3]",
    "%x = input f32[6, 5]\n%s = reduce kind=sum axes=[0] %x : f32[5]\n%e = softmax axis=0 %s : f32[5]\n%y = mul %x, %e : f32[6, 5]",
    "%x = input f32[6, 5]\n%t = transpose perm=[1, 0] %x : f32[5, 6]\n%e = exp %t : f32[5, 6]\n%y = reduce kind=mean axes=[0, 1] %e : f32[]",
    "%x = input f32[6, 5]\n%b = broadcast shape=[3, 6, 5] %x : f32[3, 6, 5]\n%y = reduce kind=max axes=[0] %b : f32[6, 5]",
    "%x = input f32[6, 5]\n%y = reshape shape=[1, 6, 5] %x : f32[1, 6, 5]",
    "%x = input f32[6, 5]\n%p = param init=ones f32[3, 1, 5]\n%y = mul %p, %x : f32[3, 6, 5]",
    "%x = input f32[6, 5]\n%p = param init=ones f32[3, 5]\n%y = linear %p, %x : f32[3, 6]",
    "%x = input f32[4, 6, 5]\n%s = softmax axis=0 %x : f32[4, 6, 5]\n%w = param init=ones f32[3, 5]\n%l = linear %s, %w : f32[4, 6, 3]\n%y = reduce kind=sum axes=[0, 1] %l : f32[3]",
    "%x = input f32[6, 5]\n%f = cast to=bf16 %x : bf16[6, 5]\n%g = cast to=f32 %f : f32[6, 5]\n%y = square %g : f32[6, 5]",
];

#[test]
fn what_goes_along_the_batch_is_cut() {
    for layers in LEGAL {
        let graph = parse(&format!("graph @legal {{\n{layers}\nreturn %y\n}}"));
        for microbatches in [2, 3, 6] {
            let parallel = cut(&graph, microbatches).unwrap_or_else(|error| panic!("{error}\n{graph}"));
            assert_equal(&graph, &parallel, 1);
            assert_labelled(&parallel);
        }
    }
}

#[test]
fn unrolled_layers_are_named_and_outputs_joined() {
    let graph = parse(
        "graph @two {\n%x = input f32[4, 3]\n%e = exp %x : f32[4, 3]\n%y = reduce kind=sum axes=[0] %e : f32[3]\nreturn %e, %y\n}",
    );
    let parallel = cut(&graph, 2).expect("the batch can be cut");
    assert_eq!(
        parallel.to_string(),
        "parallel @two {
  %x = input f32[4, 3] on dev0
  %x.mb.0, %x.mb.1 = split axis=0 sizes=[2, 2] %x : f32[2, 3], f32[2, 3] on dev0
  %e.mb0 = exp %x.mb.0 : f32[2, 3] on dev0 microbatch 0 of 2 in 1
  %e.mb1 = exp %x.mb.1 : f32[2, 3] on dev0 at 1 microbatch 1 of 2 in 1
  %y.mb0 = reduce kind=sum axes=[0] %e.mb0 : f32[3] on dev0 microbatch 0 of 2 in 1
  %y.mb1 = reduce kind=sum axes=[0] %e.mb1 : f32[3] on dev0 at 1 microbatch 1 of 2 in 1
  %y = add %y.mb0, %y.mb1 : f32[3] on dev0 at 1
  %e = concat axis=0 %e.mb0, %e.mb1 : f32[4, 3] on dev0 at 1
  return %e, %y
}"
    );
}

/// Outputs keep their names however many sums and factors a total is made of.
#[test]
fn outputs_keep_their_names() {
    for (layers, name) in [
        ("%x = input f32[8, 3]\n%y = reduce kind=mean axes=[0, 1] %x : f32[]", "y"),
        ("%x = input f32[8, 3]\n%y = reduce kind=sum axes=[0, 1] %x : f32[]", "y"),
        ("%x = input f32[8, 3]\n%y = exp %x : f32[8, 3]", "y"),
    ] {
        let graph = parse(&format!("graph @named {{\n{layers}\nreturn %y\n}}"));
        for microbatches in [2, 4, 8] {
            let parallel = cut(&graph, microbatches).expect("the batch can be cut");
            let found = &parallel.values()[parallel.outputs()[0]].name;
            assert_eq!(found, name, "{microbatches} microbatches\n{parallel}");
        }
    }
}

#[test]
fn a_batch_is_cut_into_equal_parts() {
    let graph = parse(
        "graph @odd {\n%x = input f32[6, 3]\n%l = input i64[4]\n%y = exp %x : f32[6, 3]\nreturn %y, %l\n}",
    );
    let error = cut(&graph, 4).expect_err("four does not divide six");
    let expected = MicrobatchError::Indivisible {
        input: "x".into(),
        ty: "f32[6, 3]".into(),
        batch: 6,
        microbatches: 4,
        blocks: 1,
    };
    assert_eq!(error, expected);
    let text =
        "input `x` is f32[6, 3]; its batch cannot be cut into 4: use 2, or another divisor with --bits free";
    assert_eq!(error.to_string(), text);
    let error = cut(&graph, 3).expect_err("three does not divide four");
    assert!(matches!(error, MicrobatchError::Indivisible { input, .. } if input == "l"));
    let scalar = parse("graph @scalar {\n%x = input f32[]\nreturn %x\n}");
    assert!(matches!(cut(&scalar, 2), Err(MicrobatchError::Indivisible { .. })), "a scalar has no batch");
    assert!(matches!(cut(&graph, 0), Err(MicrobatchError::Indivisible { .. })), "no part is no way to cut");
}

/// What is drawn part by part is cut part by part, too.
#[test]
fn a_part_that_a_rule_does_not_divide_is_refused() {
    let graph = parse(
        "graph @drawn {\n%x = input f32[6]\n%r = random kind=uniform shape=[6] : f32[6]\n%y = mul %x, %r : f32[6]\nreturn %y\n}",
    );
    let text = "microbatches = 3\n[mesh]\na = 3\n[[rule]]\nmatch = \"r\"\nshard = { 0 = \"a\" }\n";
    let plan = Plan::parse(text).expect("the text is a plan");
    let error = parallelize(&graph, &plan).expect_err("three does not divide two");
    assert!(matches!(error, PlanError::Indivisible { extent: 2, degree: 3, .. }), "{error}");
}

/// Layers that mix rows of the batch, with the name of their operator.
const MIXED: &[(&str, &str)] = &[
    ("softmax", "%y = softmax axis=0 %x : f32[6, 5]"),
    ("reduce", "%y = reduce kind=max axes=[0] %x : f32[5]"),
    ("split", "%y, %z = split axis=0 sizes=[2, 4] %x : f32[2, 5], f32[4, 5]"),
    ("concat", "%y = concat axis=0 %x, %x : f32[12, 5]"),
    ("layer_norm", "%y = layer_norm axes=2 eps=0.1 %x : f32[6, 5]"),
    ("matmul", "%y = matmul transpose_b=true %x, %x : f32[6, 6]"),
    ("add", "%p = param init=ones f32[6, 5]\n%y = add %x, %p : f32[6, 5]"),
    (
        "rotary",
        "%d = concat axis=1 %x, %x : f32[6, 10]\n%r = reshape shape=[1, 6, 1, 10] %d : f32[1, 6, 1, 10]\n\
         %y = rotary base=10 %r : f32[1, 6, 1, 10]",
    ),
    ("concat", "%p = param init=ones f32[6, 1]\n%y = concat axis=1 %x, %p : f32[6, 6]"),
];

#[test]
fn what_mixes_rows_is_named() {
    for (op, layers) in MIXED {
        // The other dimension has a parameter, so it is not taken for the batch.
        let features = "%w = param init=ones f32[5]\n%x = mul %i, %w : f32[6, 5]";
        let graph =
            parse(&format!("graph @mixed {{\n%i = input f32[6, 5]\n{features}\n{layers}\nreturn %y\n}}"));
        let error = cut(&graph, 2).expect_err("rows are mixed");
        assert_eq!(error, MicrobatchError::Mixes { layer: "y".into(), op: op.to_string() });
        let text =
            format!("layer `y` ({op}) mixes rows of the batch, so the batch cannot be cut into microbatches");
        assert_eq!(error.to_string(), text);
    }
}
