//! The bits of losses, gradients and weights depend on neither cores, runs nor microbatches.

use phalanx::ir::graph::Graph;
use phalanx::models::{Gpt2Config, LanguageModel, LlamaConfig, MlpConfig, MlpLoss, ModelConfig};
use phalanx::pipeline::Settings;
use phalanx::{Goal, Leaves, Optimizer, Plan, PortKind, Session, Trainer, UpdateRule};
use phalanx_ir::Activation;
use phalanx_testkit::zoo;

use crate::training::feed;

const BATCH: usize = 8;
const TIME: usize = 17;
const VOCAB: usize = 31;
const STEPS: usize = 5;
/// Labels of every model here.
const CLASSES: usize = 5;

fn gpt2(dropout: f32) -> Graph {
    let config = Gpt2Config {
        heads: 3,
        width: 36,
        hidden: 100,
        vocab: VOCAB,
        context: TIME + 2,
        dropout,
        ..zoo::GPT2
    };
    config.training_graph(BATCH, TIME).expect("the sizes are legal")
}

fn llama(dropout: f32) -> Graph {
    let config = LlamaConfig {
        heads: 6,
        head_dim: 6,
        width: 40,
        hidden: 90,
        vocab: VOCAB,
        context: TIME,
        dropout,
        attention_bias: true,
        ..zoo::LLAMA
    };
    zoo::llama(BATCH, config)
}

fn mlp(loss: MlpLoss) -> Graph {
    let config =
        MlpConfig { inputs: 19, hidden: vec![33, 21], outputs: 5, activation: Activation::Relu, loss };
    ModelConfig::Mlp(config).training_graph(4 * BATCH, 1).expect("the sizes are legal")
}

/// AdamW with everything that a step can have.
fn adamw() -> Optimizer {
    Optimizer::adamw(0.1).clip(Some(0.5))
}

fn nesterov() -> Optimizer {
    Optimizer::new(UpdateRule::Sgd { momentum: 0.9, nesterov: true }).decay(0.01)
}

/// Settings of one run; eight leaves over the batch.
fn settings(optimizer: Optimizer, cores: usize, microbatches: usize) -> Settings {
    let goal = Goal::Train(optimizer.keep_gradients(true));
    let leaves = Leaves { batch: 8, feature: 1, sequence: 8 };
    Settings::new(goal).cores(cores).leaves(leaves).seed(11).plan(Plan { microbatches, ..Plan::default() })
}

/// All that a run leaves behind, as bits.
#[derive(PartialEq)]
struct Trace {
    /// The loss and gradient norm of every step.
    losses: Vec<[u32; 2]>,
    /// Every gradient of every step, then every weight and state, by name.
    tensors: Vec<(String, Vec<u32>)>,
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn read_all(session: &Session, kind: PortKind, tensors: &mut Vec<(String, Vec<u32>)>) {
    for name in session.names(kind) {
        tensors.push((name.to_string(), bits(&session.read(name).expect("a float port can be read"))));
    }
}

fn run(model: &Graph, settings: &Settings) -> Trace {
    let mut trainer = Trainer::with_settings(model, settings).expect("the model compiles");
    let mut trace = Trace { losses: Vec::new(), tensors: Vec::new() };
    for step in 0..STEPS {
        feed(trainer.session_mut(), model, CLASSES, step);
        let report = trainer.run(3e-3).expect("the step runs");
        assert!(report.loss.is_finite());
        trace.losses.push([report.loss.to_bits(), report.gradient_norm.unwrap_or(0.0).to_bits()]);
        read_all(trainer.session(), PortKind::Output, &mut trace.tensors);
    }
    read_all(trainer.session(), PortKind::Param, &mut trace.tensors);
    read_all(trainer.session(), PortKind::State, &mut trace.tensors);
    trace
}

/// Panics with the first difference.
fn assert_same(what: &str, a: &Trace, b: &Trace) {
    assert_eq!(a.losses, b.losses, "{what}: losses and gradient norms");
    assert_eq!(a.tensors.len(), b.tensors.len(), "{what}: as many tensors");
    for ((name, a), (other, b)) in a.tensors.iter().zip(&b.tensors) {
        assert_eq!(name, other, "{what}: names");
        assert!(a == b, "{what}: bits of {name}");
    }
}

fn assert_cores_do_not_matter(model: &Graph, optimizer: &Optimizer) {
    let once = run(model, &settings(optimizer.clone(), 1, 1));
    let first = f32::from_bits(once.losses[0][0]);
    assert!(once.losses.iter().any(|loss| loss[0] != first.to_bits()), "something is trained");
    for cores in 1..=4 {
        assert_same(&format!("{cores} cores"), &once, &run(model, &settings(optimizer.clone(), cores, 1)));
    }
}

fn assert_microbatches_do_not_matter(model: &Graph, optimizer: &Optimizer) {
    let once = run(model, &settings(optimizer.clone(), 2, 1));
    for microbatches in [2, 4, 8] {
        let parts = run(model, &settings(optimizer.clone(), 2, microbatches));
        assert_same(&format!("{microbatches} microbatches"), &once, &parts);
    }
}

#[test]
fn cores_do_not_change_gpt2() {
    assert_cores_do_not_matter(&gpt2(0.1), &adamw());
}

#[test]
fn cores_do_not_change_llama() {
    assert_cores_do_not_matter(&llama(0.1), &adamw());
}

#[test]
fn cores_do_not_change_other_optimizers() {
    assert_cores_do_not_matter(&gpt2(0.0), &nesterov());
    assert_cores_do_not_matter(&llama(0.0), &Optimizer::adam().decay(0.01));
    assert_cores_do_not_matter(&mlp(MlpLoss::CrossEntropy), &Optimizer::sgd(0.0));
}

#[test]
fn microbatches_do_not_change_gpt2() {
    assert_microbatches_do_not_matter(&gpt2(0.1), &adamw());
}

#[test]
fn microbatches_do_not_change_llama() {
    assert_microbatches_do_not_matter(&llama(0.1), &adamw());
}

#[test]
fn microbatches_do_not_change_mlps() {
    for loss in [MlpLoss::CrossEntropy, MlpLoss::Mse] {
        assert_microbatches_do_not_matter(&mlp(loss), &nesterov());
    }
}

/// Sums over other dimensions than the batch, and dropout of what the batch was summed to.
#[test]
fn microbatches_do_not_change_sums_inside_a_row() {
    let text = "graph @inside {
        %x = input f32[8, 24, 6]
        %t = input f32[8, 5]
        %w = param init=normal(0.5) f32[8, 24, 1]
        %v = param init=normal(0.5) f32[5, 6]
        %u = param init=normal(0.5) f32[24, 1]
        %k = param init=normal(0.5) f32[6]
        %s = mul %x, %u : f32[8, 24, 6]
        %m = reduce kind=mean axes=[1] %s : f32[8, 6]
        %y = linear %m, %v : f32[8, 5]
        %d = sub %y, %t : f32[8, 5]
        %q = square %d : f32[8, 5]
        %r = reduce kind=mean axes=[0, 1] %q : f32[]
        %c = reduce kind=sum axes=[0, 1] %s : f32[6]
        %e = dropout rate=0.5 %c : f32[6]
        %f = mul %e, %k : f32[6]
        %g = reduce kind=sum axes=[0] %f : f32[]
        %a = reduce kind=mean axes=[0, 1, 2] %w : f32[]
        %h = add %r, %g : f32[]
        %loss = add %h, %a : f32[]
        return %loss
    }";
    let model = Graph::parse(text, phalanx_ops::operators()).expect("the text is a model");
    assert_microbatches_do_not_matter(&model, &nesterov());
}

/// Other cuts of the sums round differently, and no more than that.
#[test]
fn leaves_change_roundings_only() {
    let model = llama(0.1);
    let run_with = |leaves| run(&model, &settings(adamw(), 2, 1).leaves(leaves));
    let plain = run_with(Leaves { batch: 1, feature: 1, sequence: 1 });
    for (batch, feature) in [(2, 1), (8, 1), (4, 2), (8, 4)] {
        let cut = run_with(Leaves { batch, feature, sequence: batch });
        for (step, (a, b)) in plain.losses.iter().zip(&cut.losses).enumerate() {
            let [a, b] = [a[0], b[0]].map(|loss| f64::from(f32::from_bits(loss)));
            assert!((a / b - 1.0).abs() < 1e-5, "step {step}, leaves {batch} and {feature}: {a} and {b}");
        }
    }
}

#[test]
fn an_immediate_rerun_gives_the_same() {
    for model in [gpt2(0.1), llama(0.1), mlp(MlpLoss::Mse)] {
        let settings = Settings::new(Goal::Gradients).cores(2).seed(3);
        let mut session = Session::new(&model, &settings).expect("the model compiles");
        feed(&mut session, &model, CLASSES, 0);
        let mut traces = [Vec::new(), Vec::new()];
        for trace in &mut traces {
            session.run().expect("the run completes");
            read_all(&session, PortKind::Output, trace);
        }
        assert!(traces[0] == traces[1], "{}", model.name());
        assert!(traces[0].len() > 4, "{}: the loss and gradients are outputs", model.name());
    }
}

#[test]
fn the_same_settings_give_the_same_program() {
    let settings = settings(adamw(), 2, 2);
    let hash = || phalanx::pipeline::compile(&gpt2(0.1), &settings).expect("the model compiles").hash();
    assert_eq!(hash(), hash());
}
