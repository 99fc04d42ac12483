//! A model's last layer as one task with its loss: the same bits without the logits, whatever the plan.

use phalanx::internals::lower::HYPER;
use phalanx::ir::graph::Graph;
use phalanx::models::{Gpt2Config, LlamaConfig, ModelConfig};
use phalanx::pipeline::{Fusion, Settings, lay_out};
use phalanx::{Flavor, Goal, Leaves, Optimizer, PlanChoice, Session};
use phalanx_ir::Activation;
use phalanx_ir::tasks::TaskOp;
use phalanx_testkit::Rng;

const STEPS: usize = 3;

fn gpt2(vocab: usize, batch: usize, time: usize) -> Graph {
    let config = Gpt2Config {
        layers: 2,
        heads: 4,
        width: 32,
        hidden: 64,
        vocab,
        context: time,
        dropout: 0.0,
        tied: true,
        eps: 1e-5,
        activation: Activation::GeluTanh,
    };
    ModelConfig::Gpt2(config).training_graph(batch, time).expect("the sizes are legal")
}

fn llama(vocab: usize, batch: usize, time: usize) -> Graph {
    let config = LlamaConfig {
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        width: 32,
        hidden: 96,
        vocab,
        context: time,
        dropout: 0.0,
        tied: false,
        eps: 1e-5,
        rope_base: 10_000.0,
        activation: Activation::Silu,
        attention_bias: false,
        mlp_bias: false,
    };
    ModelConfig::Llama(config).training_graph(batch, time).expect("the sizes are legal")
}

/// A plan with its devices and microbatches.
type Plan = (&'static str, usize, usize);

const ONE: Plan = ("one", 1, 1);

fn settings(model: &Graph, (plan, devices, microbatches): Plan, fusion: Fusion) -> Settings {
    let (plan, devices) = (Some(plan.to_string()), Some(devices));
    let plan =
        PlanChoice::default().plan(plan).devices(devices).microbatches(Some(microbatches)).resolve(model);
    Settings::new(Goal::Train(Optimizer::adamw(0.1)))
        .plan(plan.expect("the plan suits the model"))
        .leaves(Leaves { batch: 8, feature: 2, sequence: 8 })
        .cores(2)
        .seed(5)
        .fusion(fusion)
}

/// The loss of every step and the hash of the weights after the last; some labels do not count.
fn train(model: &Graph, vocab: usize, settings: &Settings) -> (Vec<u32>, u128) {
    let mut session = Session::with_kernels(model, settings, Flavor::Fast).expect("the model compiles");
    let (mut losses, mut ignored) = (Vec::new(), 0);
    for step in 0..STEPS {
        let mut rng = Rng::new(step as u64);
        for input in model.leaves(|op| matches!(op, phalanx_ir::Op::Input)) {
            let (name, ty) = (&model.values()[input].name, model.ty(input));
            let mut ids: Vec<i64> = (0..ty.shape.elements()).map(|_| rng.below(vocab) as i64).collect();
            if name == "targets" {
                ids.iter_mut().skip(step).step_by(5).for_each(|label| *label = -100);
                ignored += ids.iter().filter(|&&label| label == -100).count();
            }
            session.feed(name, &ids).expect("the batch can be fed");
        }
        let hyper = [3e-3, 0.1, 0.05, step as f32, 0.0, 0.0, 0.0, 0.0];
        session.feed(HYPER, &hyper).expect("the scalars can be fed");
        session.run().expect("the step runs");
        losses.push(session.read("loss").expect("the loss is an output")[0].to_bits());
    }
    assert!(ignored > 0, "the model has an input `targets`");
    (losses, session.weights_hash().expect("the weights can be read"))
}

/// How many tasks are a last layer with its loss.
fn heads(model: &Graph, settings: &Settings) -> usize {
    let laid_out = lay_out(model, settings, |_, _| ()).expect("the model compiles");
    let is_head = |op: &TaskOp| matches!(op, TaskOp::LinearCrossEntropy { .. });
    laid_out.tasks.tasks.iter().filter(|(_, task)| is_head(&task.op)).count()
}

/// Every plan gives the bits of one device without joined tasks, and joins as many last layers as it says.
fn assert_same_bits(model: &Graph, vocab: usize) {
    let apart = train(model, vocab, &settings(model, ONE, Fusion::Off));
    assert_ne!(apart.0[0], apart.0[STEPS - 1], "something is trained");
    // Classes that devices share are joined by messages in the middle of the loss.
    let plans = [
        (ONE, 1),
        (("dp", 2, 1), 2),
        (("fsdp", 2, 1), 2),
        (("tp", 2, 1), 0),
        (("one", 1, 2), 2),
        (("pp", 2, 2), 2),
    ];
    for (plan, expected) in plans {
        let joined = settings(model, plan, Fusion::Auto);
        assert_eq!(train(model, vocab, &joined), apart, "{plan:?}");
        assert_eq!(heads(model, &joined), expected, "{plan:?}");
        assert_eq!(heads(model, &settings(model, plan, Fusion::Off)), 0, "{plan:?}");
    }
}

#[test]
fn gpt2_has_the_same_bits_on_every_plan() {
    assert_same_bits(&gpt2(72, 8, 16), 72);
}

#[test]
fn llama_has_the_same_bits_on_every_plan() {
    assert_same_bits(&llama(72, 8, 16), 72);
}

#[test]
fn the_logits_take_no_memory() {
    let (vocab, batch, time) = (8192, 8, 512);
    let model = gpt2(vocab, batch, time);
    let peak = |fusion| {
        let laid_out =
            lay_out(&model, &settings(&model, ONE, fusion), |_, _| ()).expect("the model compiles");
        laid_out.schedule.lanes[0].peak
    };
    let (apart, joined) = (peak(Fusion::Off), peak(Fusion::Auto));
    let logits = (batch * time * vocab * size_of::<f32>()) as u64;
    assert!(
        joined < apart - logits / 10 * 9,
        "{joined} bytes with one task, {apart} with three, {logits} of logits"
    );
}
