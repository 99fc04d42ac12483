//! Element-wise tasks that are joined: the same bits with fewer tasks, whatever the plan.

use std::collections::BTreeMap;

use phalanx::internals::lower::HYPER;
use phalanx::ir::graph::{Builder, Graph, ValueId};
use phalanx::ir::{Activation, Binary, Init, Op, Reduce, TensorType, Unary};
use phalanx::models::{Gpt2Config, LlamaConfig, MlpConfig, MlpLoss, ModelConfig};
use phalanx::pipeline::{Fusion, Settings, lay_out};
use phalanx::{Feed, Flavor, Goal, Recompute, Session};
use phalanx_ir::tasks::{Task, TaskGraph, TaskOp};
use phalanx_ops::{Dropout, Layers, ReduceOp};
use phalanx_testkit::generate::{is_smooth, random_inputs};
use phalanx_testkit::{Rng, Tensor, cases, differences, eval, zoo};

use crate::training::{self, Answer, ONE, PlanCase};

const BATCH: usize = 8;
/// Labels of every model here.
const CLASSES: usize = 4;
const LAYERS: usize = 2;
const STEPS: usize = 3;

const PLANS: &[PlanCase] = &[
    ("one", 1, Some(1)),
    ("one", 1, Some(2)),
    ("dp", 2, Some(1)),
    ("tp", 2, Some(1)),
    ("fsdp", 2, Some(1)),
    ("fsdp", 2, Some(2)),
    ("sp", 2, Some(1)),
    ("pp", 2, Some(2)),
    ("fsdp2-tp2", 4, Some(1)),
];

fn gpt2(dropout: f32) -> Graph {
    zoo::gpt2(BATCH, Gpt2Config { layers: LAYERS, dropout, ..zoo::GPT2 })
}

fn llama(dropout: f32) -> Graph {
    zoo::llama(BATCH, LlamaConfig { layers: LAYERS, dropout, mlp_bias: true, ..zoo::LLAMA })
}

fn mlp(activation: Activation) -> Graph {
    let (hidden, loss) = (vec![48; 3], MlpLoss::CrossEntropy);
    let config = MlpConfig { inputs: 24, hidden, outputs: 8, activation, loss };
    ModelConfig::Mlp(config).training_graph(8 * BATCH, 1).expect("the sizes are legal")
}

/// Activations, dropout and products of their results between linear layers.
fn gated_mlp() -> Graph {
    let text = "graph @gated {
        %x = input f32[16, 8]
        %y = input f32[16, 4]
        %w0 = param init=normal(0.5) f32[12, 8]
        %w1 = param init=normal(0.5) f32[12, 12]
        %w2 = param init=normal(0.5) f32[4, 12]
        %h = linear activation=sigmoid %x, %w0 : f32[16, 12]
        %d = dropout rate=0.25 %h : f32[16, 12]
        %t = linear activation=tanh %d, %w1 : f32[16, 12]
        %g = mul %t, %d : f32[16, 12]
        %s = mul_scalar scalar=0.5 %g : f32[16, 12]
        %a = add %s, %h : f32[16, 12]
        %r = dropout rate=0.5 %a : f32[16, 12]
        %p = linear %r, %w2 : f32[16, 4]
        %e = sub %p, %y : f32[16, 4]
        %q = square %e : f32[16, 4]
        %loss = reduce kind=mean axes=[0,1] %q : f32[]
        return %loss
    }";
    let graph = Graph::parse(text, phalanx_ops::operators()).unwrap_or_else(|error| panic!("{error}"));
    graph.verify().unwrap_or_else(|errors| panic!("{errors:?}"));
    graph
}

fn settings(model: &Graph, plan: PlanCase, fusion: Fusion) -> Settings {
    training::settings(model, plan).fusion(fusion)
}

fn run(model: &Graph, settings: &Settings) -> Answer {
    let session = Session::with_kernels(model, settings, Flavor::Fast).expect("the model compiles");
    training::run(session, model, CLASSES, STEPS)
}

/// Trains joined on every plan, kept and computed again, against apart on one device.
fn assert_same_bits(model: &Graph, plans: &[PlanCase]) {
    let apart = run(model, &settings(model, ONE, Fusion::Off));
    assert_ne!(apart.0[0], apart.0[STEPS - 1], "something is trained");
    for &plan in plans {
        let joined = settings(model, plan, Fusion::Auto);
        assert_eq!(run(model, &joined), apart, "{plan:?}");
        let again = joined.recompute(Recompute::Full);
        assert_eq!(run(model, &again), apart, "{plan:?}, computed again");
    }
}

#[test]
fn gpt2_has_the_same_bits_on_every_plan() {
    assert_same_bits(&gpt2(0.1), PLANS);
}

#[test]
fn llama_has_the_same_bits_on_every_plan() {
    assert_same_bits(&llama(0.1), PLANS);
}

#[test]
fn perceptrons_have_the_same_bits() {
    let plans = [ONE, ("one", 1, Some(2)), ("dp", 2, Some(1)), ("fsdp", 2, Some(1))];
    for activation in [Activation::Sigmoid, Activation::Tanh, Activation::Relu, Activation::GeluErf] {
        assert_same_bits(&mlp(activation), &plans);
    }
    let [two, four] = [("dp", 2, Some(1)), ("dp", 4, Some(1))];
    assert_same_bits(&gated_mlp(), &[ONE, ("one", 1, Some(4)), two, ("dp", 2, Some(2)), four]);
}

/// The tasks of a model and its gradients on one device.
fn tasks(model: &Graph, fusion: Fusion) -> TaskGraph {
    let settings = Settings::new(Goal::Gradients).cores(1).fusion(fusion);
    lay_out(model, &settings, |_, _| ()).expect("the model compiles").tasks
}

/// How often each task operator occurs in the feed-forward parts.
fn counts(tasks: &TaskGraph) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    let inside = tasks.tasks.iter().filter(|(_, task)| task.layer.contains(".mlp."));
    inside.for_each(|(_, task)| *counts.entry(task.op.to_text().0).or_default() += 1);
    counts
}

/// The numbers of tasks of these operators in the feed-forward parts, apart and joined.
fn before_and_after<const N: usize>(model: &Graph, operators: [&str; N]) -> [[usize; N]; 2] {
    [Fusion::Off, Fusion::Auto].map(|fusion| {
        let counts = counts(&tasks(model, fusion));
        operators.map(|operator| counts.get(operator).copied().unwrap_or(0))
    })
}

/// silu(gate) · up is one task forward and one backward, instead of a product and three gradients; silu(gate) itself is
/// never written.
#[test]
fn gated_layers_are_one_task_each_way() {
    let model = llama(0.0);
    let operators = ["binary", "binary_grad", "unary_grad", "chain"];
    let [before, after] = before_and_after(&model, operators);
    assert_eq!(before, [LAYERS, 2 * LAYERS, LAYERS, 0]);
    assert_eq!(after, [0, 0, 0, 2 * LAYERS]);
    let [apart, joined] = [Fusion::Off, Fusion::Auto].map(|fusion| tasks(&model, fusion));
    let gates = |tasks: &TaskGraph| {
        let gate = |name: &str| name.ends_with("mlp.gate_proj");
        tasks.buffers.iter().filter(|(_, buffer)| gate(&buffer.name)).count()
    };
    assert_eq!((gates(&apart), gates(&joined)), (LAYERS, 0));
}

/// The gradient of gelu is computed by the product before it.
#[test]
fn slopes_are_part_of_products() {
    let model = gpt2(0.0);
    let [before, after] = before_and_after(&model, ["unary_grad", "linear_grad_input"]);
    assert_eq!((before[0], after[0], before[1]), (LAYERS, 0, after[1]));
    let joined = tasks(&model, Fusion::Auto);
    let slopes = joined.tasks.iter().filter(|(_, task)| {
        matches!(task.op, TaskOp::LinearGradInput { slope: Some(Activation::GeluTanh), .. })
    });
    assert_eq!(slopes.count(), LAYERS);
}

/// A residual is added by the task that drops elements of its branch: two tasks fewer in every block.
#[test]
fn residuals_are_added_where_elements_are_dropped() {
    let model = gpt2(0.1);
    let in_blocks = |fusion| {
        let tasks = tasks(&model, fusion);
        let count = |wanted: fn(&TaskOp) -> bool| {
            let inside = |task: &Task| task.layer.starts_with("transformer.h.") && wanted(&task.op);
            tasks.tasks.iter().filter(|(_, task)| inside(task)).count()
        };
        let chains = count(|op| matches!(op, TaskOp::Chain { steps, .. } if steps.is_random()));
        [count(|_| true), count(|op| matches!(op, TaskOp::Dropout { .. })), chains]
    };
    let ([before, dropouts, _], [after, alone, chains]) = (in_blocks(Fusion::Off), in_blocks(Fusion::Auto));
    assert_eq!((dropouts, alone, chains), (4 * LAYERS, 2 * LAYERS, 2 * LAYERS), "forward and backward");
    // The two adds, and the gradient of gelu.
    assert_eq!(before - after, 3 * LAYERS);
}

/// Half the distance of neighbouring single-precision numbers around one, for some dozen functions in a row that each
/// magnify errors a little, and sums of 15 terms.
const TOLERANCE: f64 = 512.0 * f32::EPSILON as f64 / 2.0;

/// Distance of finite differences, whose error is about its square.
const DISTANCE: f64 = 1e-5;

const UNARY: &[Unary] = &[
    Unary::Act(Activation::Silu),
    Unary::Act(Activation::Sigmoid),
    Unary::Act(Activation::Tanh),
    Unary::Act(Activation::GeluTanh),
    Unary::Sin,
    Unary::Cos,
    Unary::Neg,
    Unary::Abs,
    Unary::AddScalar(0.25),
    Unary::MulScalar(-0.5),
    Unary::DivScalar(1.5),
];
const BINARY: &[Binary] = &[Binary::Add, Binary::Sub, Binary::Mul, Binary::Max, Binary::Min];

/// A random graph of functions of single elements and dropouts of this rate, from two parameters and an input.
fn random_elementwise(seed: u64, rate: f32) -> Graph {
    let mut rng = Rng::new(seed);
    let mut model = Builder::new("random");
    let shape = [3, 5];
    let build = |model: &mut Builder, rng: &mut Rng| -> Result<ValueId, phalanx::ir::graph::BuildError> {
        let mut values = vec![
            model.param("a", shape, Init::Ones)?,
            model.param("b", shape, Init::Ones)?,
            model.input("c", TensorType::f32(shape))?,
        ];
        for at in 0..6 + rng.below(10) {
            let name = format!("v{at}");
            // Mostly the newest values, so that lines form, which branch now and then.
            let pick = |rng: &mut Rng| values[values.len() - 1 - rng.below(values.len().min(4))];
            let value = match rng.below(5) {
                0 | 1 => {
                    let x = pick(rng);
                    model.unary(&name, UNARY[rng.below(UNARY.len())], x)?
                }
                2 => {
                    let x = pick(rng);
                    model.add_one(&name, Op::from(Dropout { rate }), &[x])?
                }
                _ => {
                    let (a, b) = (pick(rng), pick(rng));
                    model.binary(&name, BINARY[rng.below(BINARY.len())], a, b)?
                }
            };
            values.push(value);
        }
        // The parameters count and the scalars are read, whatever was drawn.
        let parameters = model.binary("ab", Binary::Mul, values[0], values[1])?;
        let dropped = model.add_one("dropped", Op::from(Dropout { rate }), &[values[values.len() - 1]])?;
        let last = model.binary("last", Binary::Add, parameters, dropped)?;
        model.add_one(
            "loss",
            Op::from(ReduceOp { kind: Reduce::Mean, axes: vec![0, 1], keep: false }),
            &[last],
        )
    };
    let loss = build(&mut model, &mut rng).expect("the operands have one shape");
    model.finish([loss])
}

/// Loss and gradients, which are the same bits joined and apart.
fn results(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> BTreeMap<String, Vec<f32>> {
    let [apart, joined] = [Fusion::Off, Fusion::Auto].map(|fusion| results_of(graph, inputs, fusion));
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for (name, found) in &joined {
        assert_eq!(bits(found), bits(&apart[name]), "{name} of {graph}");
    }
    joined
}

fn results_of(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    fusion: Fusion,
) -> BTreeMap<String, Vec<f32>> {
    let settings = Settings::new(Goal::Gradients).cores(1).fusion(fusion);
    let mut session = Session::with_kernels(graph, &settings, Flavor::Fast).expect("the model compiles");
    for (name, tensor) in inputs {
        let data: Vec<f32> = tensor.data.iter().map(|&x| x as f32).collect();
        session.feed(name, Feed::F32(&data)).expect("the leaf can be fed");
    }
    session.feed(HYPER, &[0.0, 0.0, 0.0, 17.0, 0.0, 0.0, 0.0, 0.0]).expect("the scalars can be fed");
    session.run().expect("the run completes");
    let names = ["loss", "a.grad", "b.grad"];
    names.map(|name| (name.to_string(), session.read(name).expect("it is an output").to_vec())).into()
}

#[test]
fn random_graphs_are_the_same_joined_apart_and_exact() {
    let (mut checked, mut dropped, mut before, mut after) = (0, 0, 0, 0);
    for seed in 0..cases(300) {
        let graph = random_elementwise(seed, 0.0);
        let inputs = random_inputs(&graph, seed);
        if !is_smooth(&graph, &inputs) {
            continue;
        }
        let joined = results(&graph, &inputs);
        dropped += u64::from(results(&random_elementwise(seed, 0.25), &inputs) != joined);
        let mut exact = differences::gradients(&graph, &inputs, DISTANCE);
        let loss = eval::evaluate(&graph, &inputs)[&graph.outputs()[0]].clone();
        exact = exact.into_iter().map(|(name, tensor)| (format!("{name}.grad"), tensor)).collect();
        exact.insert("loss".into(), loss);
        for (name, found) in &joined {
            let scale = exact[name].data.iter().fold(1.0, |scale: f64, x| scale.max(x.abs()));
            let is_close =
                |(&found, &want): (&f32, &f64)| (f64::from(found) - want).abs() <= scale * TOLERANCE;
            assert!(found.iter().zip(&exact[name].data).all(is_close), "{name} of {graph}");
        }
        let count = |fusion| tasks(&graph, fusion).tasks.len();
        (checked, before, after) = (checked + 1, before + count(Fusion::Off), after + count(Fusion::Auto));
    }
    assert!(
        checked >= cases(50) && 2 * after < before,
        "{checked} graphs, {before} tasks apart, {after} joined"
    );
    assert!(10 * dropped > 9 * checked, "elements that count are dropped in {dropped} of {checked} graphs");
}
