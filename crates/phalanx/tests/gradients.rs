//! Every operator, compiled: results against the double-precision evaluator, gradients against its finite differences.

use std::collections::BTreeMap;

use half::bf16;
use phalanx::ir::graph::Graph;
use phalanx::ir::{Activation, Binary, DType, Op, Unary};
use phalanx::ops::UnaryOp;
use phalanx::pipeline::Settings;
use phalanx::{Flavor, Goal, Leaves, Plan, Session};
use phalanx_testkit::generate::{provide_tables, random_graph, random_inputs};
use phalanx_testkit::{Tensor, cases, differences, eval};

use crate::random_plans::case::{depends_on_param, feed_tensor};
use crate::random_plans::{count, on_two_threads};

/// Distance of finite differences. Their error is about its square (1e-10) and 2⁻⁵³ / 1e-5 (1e-11) of the loss.
const STEP: f64 = 1e-5;

/// Half the distance of neighbouring single-precision numbers around one.
const ROUNDING: f64 = f32::EPSILON as f64 / 2.0;

/// Errors in units of `ROUNDING` of the largest element: some ten layers in a row, sums of up to 150 terms, and
/// operators that magnify relative errors (quotients and roots down to 0.05, differences of like numbers).
const MAGNIFIED: f64 = 2048.0;

const TOLERANCE: f64 = MAGNIFIED * ROUNDING;

const FLAVORS: [Flavor; 2] = [Flavor::Reference, Flavor::Fast];

/// A model with tensors to run it on and what must come out.
struct Case {
    name: String,
    graph: Graph,
    inputs: BTreeMap<String, Tensor>,
    outputs: BTreeMap<String, Tensor>,
    gradients: BTreeMap<String, Tensor>,
}

impl Case {
    fn new(name: impl Into<String>, graph: Graph, seed: u64) -> Case {
        let inputs = random_inputs(&graph, seed);
        let values = eval::evaluate(&graph, &inputs);
        let named = |value: &phalanx::ir::graph::ValueId| {
            (graph.values()[*value].name.clone(), values[value].clone())
        };
        let outputs = graph.outputs().iter().map(named).collect();
        let gradients = differences::gradients(&graph, &inputs, STEP);
        Case { name: name.into(), graph, inputs, outputs, gradients }
    }

    /// Compiles and runs the model; the worst error in units of `TOLERANCE`.
    fn check(&self, settings: &Settings, flavor: Flavor) -> f64 {
        let what = format!("{} ({flavor:?}, {} cores)\n{}", self.name, settings.cores, self.graph);
        let session = Session::with_kernels(&self.graph, settings, flavor);
        let mut session = session.unwrap_or_else(|error| panic!("{error}: {what}"));
        feed_all(&mut session, &self.graph, &self.inputs);
        session.run().expect("the run completes");
        let mut worst: f64 = 0.0;
        let mut compare = |name: &str, found: &[f32], expected: &Tensor| {
            let error = error_of(found, expected);
            assert!(
                error <= 1.0,
                "{name} is off by {error:.1} tolerances: {found:?}, not {:?}: {what}",
                expected.data
            );
            worst = worst.max(error);
        };
        for (name, expected) in &self.outputs {
            compare(name, &session.read(name).expect("an output can be read"), expected);
        }
        for (param, expected) in &self.gradients {
            let name = format!("{param}.grad");
            match session.read(&name) {
                Ok(found) => compare(&name, &found, expected),
                Err(_) => assert!(expected.data.iter().all(|&x| x == 0.0), "{name} is missing: {what}"),
            }
        }
        worst
    }
}

fn feed_all(session: &mut Session, graph: &Graph, inputs: &BTreeMap<String, Tensor>) {
    for (name, tensor) in inputs {
        // What no layer uses has no port.
        if session.program().ports().iter().any(|port| port.name == *name) {
            feed_tensor(session, name, tensor).unwrap_or_else(|error| panic!("{name}: {error}\n{graph}"));
        }
    }
}

/// The worst error, relative to the largest element or to one, in units of `TOLERANCE`.
fn error_of(found: &[f32], expected: &Tensor) -> f64 {
    assert_eq!(found.len(), expected.data.len(), "as many elements as expected");
    let scale = expected.data.iter().fold(1.0, |scale: f64, x| scale.max(x.abs()));
    let error = |(&found, &expected): (&f32, &f64)| (f64::from(found) - expected).abs() / (scale * TOLERANCE);
    let errors = found.iter().zip(&expected.data).map(error);
    errors.fold(0.0, |worst, error| if error.is_nan() { f64::INFINITY } else { worst.max(error) })
}

fn settings(goal: Goal, cores: usize) -> Settings {
    Settings::new(goal).cores(cores)
}

/// A model from the text of its layers: what the last one computes, `%y`, is weighted and summed to the loss.
fn weighted(layers: &str) -> Graph {
    let last = layers.trim_end().lines().last().expect("there is a layer");
    let ty = last.rsplit_once(" : ").expect("the last layer has its type").1;
    let dims = ty.trim_start_matches("f32[").trim_end_matches(']');
    let rank = dims.split(',').filter(|dim| !dim.trim().is_empty()).count();
    let axes: Vec<_> = (0..rank).map(|axis| axis.to_string()).collect();
    let text = format!(
        "graph @case {{\n{layers}\n%given = input {ty}\n%weighted = mul %y, %given : {ty}\n\
         %loss = reduce kind=sum axes=[{}] %weighted : f32[]\nreturn %loss, %y\n}}",
        axes.join(", ")
    );
    let graph =
        Graph::parse(&text, phalanx_ops::operators()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    graph.verify().unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
    graph
}

fn check_layers(name: &str, layers: &str) {
    let case = Case::new(name, weighted(layers), 7);
    assert!(!case.gradients.is_empty(), "{name} has a parameter");
    for flavor in FLAVORS {
        for cores in [1, 3] {
            case.check(&settings(Goal::Gradients, cores), flavor);
        }
    }
}

fn check_all(cases: &[(&str, &str)]) {
    cases.iter().for_each(|(name, layers)| check_layers(name, layers));
}

#[test]
fn products() {
    check_all(&[
        (
            "linear",
            "%x = param init=ones f32[5, 37]\n%w = param init=ones f32[19, 37]\n%y = linear %x, %w : f32[5, 19]",
        ),
        (
            "linear with bias, [in, out]",
            "%x = param init=ones f32[3, 5, 7]\n%w = param init=ones f32[7, 9]\n%b = param init=ones f32[9]\n\
             %y = linear transposed=true %x, %w, %b : f32[3, 5, 9]",
        ),
        (
            "linear with a residual",
            "%x = param init=ones f32[5, 7]\n%r = param init=ones f32[5, 3]\n%w = param init=ones f32[3, 7]\n\
             %h = linear %x, %w : f32[5, 3]\n%y = add %r, %h : f32[5, 3]",
        ),
        (
            "linear in another shape with a residual",
            "%x = param init=ones f32[5, 7]\n%r = param init=ones f32[5, 2, 3]\n%w = param init=ones f32[6, 7]\n\
             %h = linear %x, %w : f32[5, 6]\n%v = reshape shape=[5, 2, 3] %h : f32[5, 2, 3]\n\
             %y = add %r, %v : f32[5, 2, 3]",
        ),
        (
            "matmul",
            "%a = param init=ones f32[5, 9]\n%b = param init=ones f32[9, 17]\n%y = matmul %a, %b : f32[5, 17]",
        ),
        (
            "matmul aᵀ",
            "%a = param init=ones f32[3, 9, 5]\n%b = param init=ones f32[3, 9, 7]\n\
             %y = matmul transpose_a=true %a, %b : f32[3, 5, 7]",
        ),
        (
            "matmul bᵀ",
            "%a = param init=ones f32[3, 5, 9]\n%b = param init=ones f32[3, 7, 9]\n\
             %y = matmul transpose_b=true %a, %b : f32[3, 5, 7]",
        ),
        (
            "matmul aᵀ bᵀ",
            "%a = param init=ones f32[2, 3, 9, 5]\n%b = param init=ones f32[2, 3, 7, 9]\n\
             %y = matmul transpose_a=true transpose_b=true %a, %b : f32[2, 3, 5, 7]",
        ),
        (
            "embedding",
            "%i = input i64[3, 5]\n%t = param init=ones f32[5, 7]\n%y = embedding %i, %t : f32[3, 5, 7]",
        ),
        (
            "embedding of bags",
            "%i = input i32[3, 5]\n%t = param init=ones f32[5, 7]\n%y = embedding bag=true %i, %t : f32[3, 7]",
        ),
    ]);
    for activation in Activation::ALL {
        check_layers(
            &format!("linear then {activation}"),
            &format!(
                "%x = param init=ones f32[3, 5]\n%w = param init=ones f32[9, 5]\n%b = param init=ones f32[9]\n\
                 %y = linear activation={activation} %x, %w, %b : f32[3, 9]"
            ),
        );
    }
}

#[test]
fn elementwise() {
    let plain = [Unary::Identity, Unary::Exp, Unary::Log, Unary::Sqrt, Unary::Rsqrt, Unary::Sin, Unary::Cos];
    let more = [Unary::Elu(1.0), Unary::Neg, Unary::Square, Unary::Abs];
    let acts = Activation::ALL.iter().filter(|&&act| act != Activation::None).map(|&act| Unary::Act(act));
    for unary in plain.into_iter().chain(more).chain(acts) {
        let name = unary.word();
        check_layers(name, &format!("%x = param init=ones f32[37]\n%y = {name} %x : f32[37]"));
    }
    let scalars =
        [Unary::AddScalar(0.5), Unary::SubScalar(0.5), Unary::MulScalar(-1.5), Unary::DivScalar(1.5)];
    let powers = [0.5, 2.0, 3.0, -1.0].map(Unary::PowScalar);
    let kinked =
        [Unary::Clamp(-0.4, 0.6), Unary::LeakyRelu(0.1), Unary::Elu(0.3), Unary::Softplus(2.0, 20.0)];
    let others = [Unary::HardSwish, Unary::HardSigmoid, Unary::Erf];
    for unary in scalars.into_iter().chain(powers).chain(kinked).chain(others) {
        let (_, attrs) = Op::from(UnaryOp(unary)).to_text();
        check_layers(
            &unary.to_string(),
            &format!("%x = param init=ones f32[19]\n%y = {}{attrs} %x : f32[19]", unary.word()),
        );
    }
    let shapes = [
        ("[3, 5]", "[3, 5]"),
        ("[3, 5]", "[5]"),
        ("[3, 1]", "[7, 1, 5]"),
        ("[]", "[5]"),
        ("[3, 1, 5]", "[1, 7, 1]"),
    ];
    let results = ["[3, 5]", "[3, 5]", "[7, 3, 5]", "[5]", "[3, 7, 5]"];
    for binary in Binary::ALL {
        for ((a, b), y) in shapes.into_iter().zip(results) {
            let layers = format!(
                "%a = param init=ones f32{a}\n%b = param init=ones f32{b}\n%y = {binary} %a, %b : f32{y}"
            );
            check_layers(&format!("{binary} of {a} and {b}"), &layers);
        }
        if *binary != Binary::Max && *binary != Binary::Min {
            let layers = format!("%a = param init=ones f32[5]\n%y = {binary} %a, %a : f32[5]");
            check_layers(&format!("{binary} of a tensor and itself"), &layers);
        }
    }
}

#[test]
fn rows() {
    check_all(&[
        ("softmax, innermost", "%x = param init=ones f32[5, 19]\n%y = softmax axis=1 %x : f32[5, 19]"),
        ("softmax, outermost", "%x = param init=ones f32[5, 3, 7]\n%y = softmax axis=0 %x : f32[5, 3, 7]"),
        ("softmax of one", "%x = param init=ones f32[5, 1]\n%y = softmax axis=1 %x : f32[5, 1]"),
        (
            "layer norm",
            "%x = param init=ones f32[5, 19]\n%g = param init=ones f32[19]\n%b = param init=ones f32[19]\n\
             %y = layer_norm eps=0.00001 %x, %g, %b : f32[5, 19]",
        ),
        (
            "layer norm of two dimensions",
            "%x = param init=ones f32[3, 5, 7]\n%g = param init=ones f32[5, 7]\n%b = param init=ones f32[5, 7]\n\
             %y = layer_norm axes=2 eps=0.00001 %x, %g, %b : f32[3, 5, 7]",
        ),
        ("plain layer norm", "%x = param init=ones f32[3, 7]\n%y = layer_norm eps=0.1 %x : f32[3, 7]"),
        (
            "rms norm",
            "%x = param init=ones f32[3, 5, 19]\n%g = param init=ones f32[19]\n%y = rms_norm eps=0.00001 %x, %g : f32[3, 5, 19]",
        ),
        ("rotary", "%x = param init=ones f32[2, 5, 3, 6]\n%y = rotary base=100 %x : f32[2, 5, 3, 6]"),
        (
            "attention",
            "%q = param init=ones f32[2, 5, 3, 7]\n%k = param init=ones f32[2, 5, 3, 7]\n%v = param init=ones f32[2, 5, 3, 7]\n\
             %y = attention causal=false scale=0.5 %q, %k, %v : f32[2, 5, 3, 7]",
        ),
        (
            "causal attention of groups",
            "%q = param init=ones f32[1, 7, 6, 3]\n%k = param init=ones f32[1, 7, 2, 3]\n%v = param init=ones f32[1, 7, 2, 3]\n\
             %y = attention causal=true scale=0.7 %q, %k, %v : f32[1, 7, 6, 3]",
        ),
        (
            "attention to other times",
            "%q = param init=ones f32[1, 3, 2, 5]\n%k = param init=ones f32[1, 9, 1, 5]\n%v = param init=ones f32[1, 9, 1, 5]\n\
             %y = attention causal=false scale=1 %q, %k, %v : f32[1, 3, 2, 5]",
        ),
        (
            "packed attention",
            "%x = param init=ones f32[2, 5, 18]\n%s.0, %s.1, %s.2 = split axis=2 sizes=[6, 6, 6] %x : f32[2, 5, 6], f32[2, 5, 6], f32[2, 5, 6]\n\
             %q = reshape shape=[2, 5, 2, 3] %s.0 : f32[2, 5, 2, 3]\n%k = reshape shape=[2, 5, 2, 3] %s.1 : f32[2, 5, 2, 3]\n\
             %v = reshape shape=[2, 5, 2, 3] %s.2 : f32[2, 5, 2, 3]\n%y = attention causal=true scale=0.5 %q, %k, %v : f32[2, 5, 2, 3]",
        ),
        (
            "packed attention of groups",
            "%x = param init=ones f32[1, 5, 24]\n%s.0, %s.1, %s.2 = split axis=2 sizes=[12, 6, 6] %x : f32[1, 5, 12], f32[1, 5, 6], f32[1, 5, 6]\n\
             %q = reshape shape=[1, 5, 4, 3] %s.0 : f32[1, 5, 4, 3]\n%k = reshape shape=[1, 5, 2, 3] %s.1 : f32[1, 5, 2, 3]\n\
             %v = reshape shape=[1, 5, 2, 3] %s.2 : f32[1, 5, 2, 3]\n%y = attention causal=true scale=0.5 %q, %k, %v : f32[1, 5, 4, 3]",
        ),
        (
            "columns in another order than packed",
            "%x = param init=ones f32[1, 5, 9]\n%s.0, %s.1, %s.2 = split axis=2 sizes=[3, 3, 3] %x : f32[1, 5, 3], f32[1, 5, 3], f32[1, 5, 3]\n\
             %q = reshape shape=[1, 5, 1, 3] %s.1 : f32[1, 5, 1, 3]\n%k = reshape shape=[1, 5, 1, 3] %s.0 : f32[1, 5, 1, 3]\n\
             %v = reshape shape=[1, 5, 1, 3] %s.2 : f32[1, 5, 1, 3]\n%y = attention causal=true scale=0.5 %q, %k, %v : f32[1, 5, 1, 3]",
        ),
        (
            "cross-entropy",
            "%x = param init=ones f32[7, 5, 9]\n%l = input i64[7, 5]\n%s = cross_entropy ignore=-100 %x, %l : f32[]\n\
             %n = count_labels ignore=-100 %l : f32[]\n%y = div %s, %n : f32[]",
        ),
    ]);
}

#[test]
fn layout_and_reductions() {
    check_all(&[
        ("reshape", "%x = param init=ones f32[3, 5]\n%y = reshape shape=[5, 1, 3] %x : f32[5, 1, 3]"),
        ("broadcast", "%x = param init=ones f32[3, 1]\n%y = broadcast shape=[7, 3, 5] %x : f32[7, 3, 5]"),
        (
            "transpose",
            "%x = param init=ones f32[2, 3, 5, 7]\n%y = transpose perm=[2, 0, 3, 1] %x : f32[5, 2, 7, 3]",
        ),
        (
            "split, one piece unused",
            "%x = param init=ones f32[3, 9]\n%s.0, %s.1, %s.2 = split axis=1 sizes=[2, 4, 3] %x : f32[3, 2], f32[3, 4], f32[3, 3]\n\
             %y = square %s.1 : f32[3, 4]",
        ),
        (
            "concat, one piece twice",
            "%a = param init=ones f32[2, 3]\n%b = param init=ones f32[2, 5]\n%y = concat axis=1 %a, %b, %a : f32[2, 11]",
        ),
        ("sum", "%x = param init=ones f32[3, 5, 7]\n%y = reduce kind=sum axes=[1] %x : f32[3, 7]"),
        (
            "mean",
            "%x = param init=ones f32[3, 5, 7]\n%y = reduce kind=mean axes=[0, 2] keep=true %x : f32[1, 5, 1]",
        ),
        ("max", "%x = param init=ones f32[3, 5, 7]\n%y = reduce kind=max axes=[2] %x : f32[3, 5]"),
        ("max of all", "%x = param init=ones f32[19]\n%y = reduce kind=max axes=[0] %x : f32[]"),
        ("reduction of nothing", "%x = param init=ones f32[5]\n%y = reduce kind=mean axes=[] %x : f32[5]"),
        ("constant", "%x = param init=ones f32[5]\n%c = constant value=1.5 f32[]\n%y = mul %x, %c : f32[5]"),
        ("cast to itself", "%x = param init=ones f32[5]\n%y = cast to=f32 %x : f32[5]"),
        (
            "integers as floats",
            "%x = param init=ones f32[5]\n%i = input i64[5]\n%f = cast to=f32 %i : f32[5]\n%y = mul %x, %f : f32[5]",
        ),
    ]);
}

/// Gradients that meet in sums, in every way in which a task may add in place.
#[test]
fn sums_of_gradients() {
    check_all(&[
        (
            "two parameters share a gradient that one of them adds to",
            "%p = param init=ones f32[5]\n%q = param init=ones f32[5]\n%s = add %p, %q : f32[5]\n%e = exp %s : f32[5]\n\
             %y = mul %e, %p : f32[5]",
        ),
        (
            "two parameters share the gradient of a product",
            "%x = param init=ones f32[3, 5]\n%p = param init=ones f32[3, 7]\n%q = param init=ones f32[3, 7]\n%w = param init=ones f32[5, 7]\n\
             %s = add %p, %q : f32[3, 7]\n%a = linear %s, %w : f32[3, 5]\n%b = linear %p, %w : f32[3, 5]\n%c = add %a, %b : f32[3, 5]\n\
             %y = mul %c, %x : f32[3, 5]",
        ),
        (
            "a value used three times",
            "%x = param init=ones f32[3, 5]\n%w = param init=ones f32[5, 5]\n%h = linear %x, %w : f32[3, 5]\n%a = sin %h : f32[3, 5]\n\
             %b = linear %h, %w : f32[3, 5]\n%c = mul %a, %b : f32[3, 5]\n%y = add %c, %h : f32[3, 5]",
        ),
        (
            "residuals in a row",
            "%x = param init=ones f32[3, 5]\n%w = param init=ones f32[5, 5]\n%a = linear %x, %w : f32[3, 5]\n%b = add %x, %a : f32[3, 5]\n\
             %c = linear %b, %w : f32[3, 5]\n%y = add %b, %c : f32[3, 5]",
        ),
        (
            "a residual made later than the product",
            "%x = param init=ones f32[3, 5]\n%w = param init=ones f32[5, 5]\n%a = linear %x, %w : f32[3, 5]\n%r = sin %x : f32[3, 5]\n\
             %y = add %a, %r : f32[3, 5]",
        ),
    ]);
}

#[test]
fn a_loss_may_be_a_parameter() {
    let text = "graph @least {\n%w = param init=ones f32[1]\n%y = reshape shape=[] %w : f32[]\nreturn %y\n}";
    let case =
        Case::new("least", Graph::parse(text, phalanx_ops::operators()).expect("the text is a model"), 1);
    for flavor in FLAVORS {
        case.check(&settings(Goal::Gradients, 1), flavor);
    }
}

/// Models of a whole soak.
const SEEDS: u64 = 20_000;

#[test]
fn random_models() {
    let counts = on_two_threads(cases(SEEDS), |seed, counts| {
        let mut graph = random_graph(seed);
        if seed % 2 == 1 {
            graph = with_all_outputs(&graph);
        }
        let has_param = depends_on_param(&graph);
        let goal = if has_param { Goal::Gradients } else { Goal::Infer };
        let case = Case::new(format!("seed {seed}"), graph, seed);
        let leaves = Leaves { batch: 1 << (seed % 4), feature: 1 << (seed % 3), sequence: 1 << (seed % 4) };
        for flavor in FLAVORS {
            let settings = settings(goal.clone(), 1 + seed as usize % 3).leaves(leaves);
            let is_exact = case.check(&settings, flavor) == 0.0;
            count(counts, if is_exact { "exact" } else { "rounded" });
        }
        count(counts, if has_param { "trained" } else { "not trained" });
    });
    assert!(
        counts["trained"] as u64 > cases(SEEDS) * 8 / 10,
        "almost all models have a parameter: {counts:?}"
    );
    assert!(counts["rounded"] > counts["exact"], "single precision is not exact: {counts:?}");
}

/// The same gradients come from a batch cut into parts, wherever it can be cut.
#[test]
fn random_models_in_microbatches() {
    let counts = on_two_threads(cases(SEEDS / 2), |seed, counts| {
        let graph = random_graph(seed);
        for microbatches in [2, 3, 5] {
            let plan = Plan { microbatches, ..Plan::default() };
            let settings = settings(Goal::Gradients, 2).plan(plan);
            if phalanx::pipeline::compile(&graph, &settings).is_ok() {
                Case::new(format!("seed {seed}, {microbatches} microbatches"), graph.clone(), seed)
                    .check(&settings, Flavor::Fast);
                count(counts, "legal");
            }
        }
    });
    assert!(counts["legal"] as u64 > cases(SEEDS / 2) / 8, "{counts:?}");
}

/// The model that also returns every float it computes, so that nothing can be fused away.
fn with_all_outputs(graph: &Graph) -> Graph {
    let is_loss = |value| value == graph.outputs()[0];
    let computed = |&(id, value): &(
        phalanx::ir::graph::ValueId,
        &phalanx::ir::graph::Value<phalanx::ir::TensorType>,
    )| { !is_loss(id) && value.ty.dtype == DType::F32 && !graph.op_of(id).is_leaf() };
    let names: Vec<_> =
        graph.values().iter().filter(computed).map(|(_, value)| format!(", %{}", value.name)).collect();
    let text = graph.to_string();
    let end = text.rfind("\n}").expect("a model ends with a brace");
    let text = format!("{}{}{}", &text[..end], names.concat(), &text[end..]);
    let mut all = Graph::parse(text, phalanx_ops::operators()).expect("more outputs are legal");
    provide_tables(&mut all, graph);
    all
}

/// A model of one dropout of `n` elements; its loss weighs them with the input `given`.
fn dropout_session(n: usize, flavor: Flavor, seed: u64) -> Session {
    let graph = weighted(&format!(
        "%x = param init=ones f32[{n}]\n%d = dropout rate=0.3 %x : f32[{n}]\n%y = dropout rate=0 %d : f32[{n}]"
    ));
    let settings = settings(Goal::Gradients, 2).seed(seed);
    let mut session = Session::with_kernels(&graph, &settings, flavor).expect("the model compiles");
    session.feed("given", &vec![1.0; n]).expect("the input is fed");
    session
}

fn at_step(session: &mut Session, step: u64) -> Vec<f32> {
    session.feed("hyper", &[0.0, 0.0, 0.0, step as f32, 0.0, 0.0, 0.0, 0.0]).expect("the step is fed");
    session.run().expect("the run completes");
    let mask = session.read("y").expect("the output can be read").to_vec();
    // The loss is the sum of the dropped ones, so its gradient is the mask itself.
    assert_eq!(
        session.read("x.grad").expect("the gradient can be read"),
        mask,
        "one mask, forward and backward"
    );
    mask
}

#[test]
fn dropout_draws_one_mask_a_step() {
    const N: usize = 40_001;
    let mut masks = Vec::new();
    for flavor in FLAVORS {
        let mut session = dropout_session(N, flavor, 5);
        let [first, second, again] = [0, 1, 0].map(|step| at_step(&mut session, step));
        assert_eq!(first, again, "a step's mask can be drawn again");
        assert_ne!(first, second, "another step draws another mask");
        assert_ne!(first, at_step(&mut dropout_session(N, flavor, 6), 0), "another seed draws another mask");
        for mask in [&first, &second] {
            let kept = mask.iter().filter(|&&y| y != 0.0).count();
            assert!(mask.iter().all(|&y| y == 0.0 || y == 1.0 / (1.0 - 0.3)), "kept elements are scaled up");
            // Five standard deviations of a binomial share.
            let deviation = (0.3 * 0.7 / N as f64).sqrt();
            assert!((kept as f64 / N as f64 - 0.7).abs() < 5.0 * deviation, "{kept} of {N} are kept");
        }
        // Two masks are as different as independent ones: both keep, or both drop, with 0.7² + 0.3².
        let alike = first.iter().zip(&second).filter(|(a, b)| a == b).count() as f64 / N as f64;
        assert!((alike - 0.58).abs() < 5.0 * (0.58 * 0.42 / N as f64).sqrt(), "{alike} are alike");
        masks.push(first);
    }
    assert_eq!(masks[0], masks[1], "reference and fast kernels draw the same mask");
}

#[test]
fn dropouts_of_one_model_draw_different_masks() {
    let layers = "%x = param init=ones f32[501]\n%a = dropout rate=0.5 %x : f32[501]\n%b = dropout rate=0.5 %x : f32[501]\n\
                  %y = sub %a, %b : f32[501]";
    let mut session =
        Session::new(&weighted(layers), &settings(Goal::Gradients, 2)).expect("the model compiles");
    session.run().expect("the run completes");
    assert!(session.read("y").expect("the output can be read").iter().any(|&y| y != 0.0));
}

#[test]
fn bf16_rounds_to_nearest_and_passes_gradients_through() {
    let layers = "%x = param init=zeros f32[7, 5]\n%h = cast to=bf16 %x : bf16[7, 5]\n%f = cast to=f32 %h : f32[7, 5]\n\
                  %y = square %f : f32[7, 5]";
    let graph = weighted(layers);
    let inputs = random_inputs(&graph, 3);
    for flavor in FLAVORS {
        let mut session =
            Session::with_kernels(&graph, &settings(Goal::Gradients, 2), flavor).expect("the model compiles");
        feed_all(&mut session, &graph, &inputs);
        session.run().expect("the run completes");
        let rounded: Vec<_> = inputs["x"].data.iter().map(|&x| bf16::from_f32(x as f32).to_f32()).collect();
        let squares: Vec<_> = rounded.iter().map(|x| x * x).collect();
        assert_eq!(session.read("y").expect("the output can be read"), squares);
        let expected: Vec<_> =
            rounded.iter().zip(&inputs["given"].data).map(|(x, &dy)| 2.0 * f64::from(*x) * dy).collect();
        let error = error_of(
            &session.read("x.grad").expect("the gradient can be read"),
            &Tensor::new([7, 5], expected),
        );
        assert!(error <= 1.0, "off by {error} tolerances");
    }
}

#[test]
fn only_floats_are_read_as_floats() {
    let text = "graph @casts {\n%x = input f32[3]\n%h = cast to=bf16 %x : bf16[3]\n%i = cast to=i32 %x : i32[3]\nreturn %h, %i\n}";
    let graph = Graph::parse(text, phalanx_ops::operators()).expect("the text is a model");
    for flavor in FLAVORS {
        let mut session =
            Session::with_kernels(&graph, &settings(Goal::Infer, 1), flavor).expect("the model compiles");
        session.feed("x", &[1.0, -2.75, 0.1]).expect("the input is fed");
        session.run().expect("the run completes");
        let halves: Vec<u8> =
            [1.0, -2.75, 0.1].iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
        assert_eq!(session.read_bytes("h").expect("the output can be read"), halves);
        let integers: Vec<u8> = [1i32, -2, 0].iter().flat_map(|i| i.to_le_bytes()).collect();
        assert_eq!(session.read_bytes("i").expect("the output can be read"), integers);
        for name in ["h", "i"] {
            assert!(session.read(name).is_err(), "`{name}` holds no 32-bit floats");
        }
    }
}
