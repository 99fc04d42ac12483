//! A model's last layer as one task with its loss: the same bits without the logits, whatever the plan.

use phalanx::ir::graph::Graph;
use phalanx::models::{Gpt2Config, LlamaConfig};
use phalanx::pipeline::{Fusion, Settings, lay_out};
use phalanx::{Flavor, Leaves, Session};
use phalanx_ir::tasks::TaskOp;
use phalanx_testkit::zoo;

use crate::training::{self, Answer, ONE, PlanCase};

const BATCH: usize = 8;
const STEPS: usize = 3;

/// Tokens and labels.
const VOCAB: usize = 72;

fn gpt2(vocab: usize, time: usize) -> Graph {
    let config = Gpt2Config { hidden: 64, vocab, context: time, dropout: 0.0, ..zoo::GPT2 };
    zoo::gpt2(BATCH, config)
}

/// The settings of other tests, on devices of two cores, with two leaves of sums over features.
fn settings(model: &Graph, plan: PlanCase, fusion: Fusion) -> Settings {
    let leaves = Leaves { batch: 8, feature: 2, sequence: 8 };
    training::settings(model, plan).leaves(leaves).cores(2).fusion(fusion)
}

fn train(model: &Graph, settings: &Settings) -> Answer {
    let session = Session::with_kernels(model, settings, Flavor::Fast).expect("the model compiles");
    training::run(session, model, VOCAB, STEPS)
}

/// How many tasks are a last layer with its loss.
fn heads(model: &Graph, settings: &Settings) -> usize {
    let laid_out = lay_out(model, settings, |_, _| ()).expect("the model compiles");
    let is_head = |op: &TaskOp| matches!(op, TaskOp::LinearCrossEntropy { .. });
    laid_out.tasks.tasks.iter().filter(|(_, task)| is_head(&task.op)).count()
}

/// Every plan gives the bits of one device without joined tasks, and joins as many last layers as it says.
fn assert_same_bits(model: &Graph) {
    let apart = train(model, &settings(model, ONE, Fusion::Off));
    assert_ne!(apart.0[0], apart.0[STEPS - 1], "something is trained");
    // Classes that devices share are joined by messages in the middle of the loss.
    let plans = [
        (ONE, 1),
        (("dp", 2, Some(1)), 2),
        (("fsdp", 2, Some(1)), 2),
        (("tp", 2, Some(1)), 0),
        (("one", 1, Some(2)), 2),
        (("pp", 2, Some(2)), 2),
    ];
    for (plan, expected) in plans {
        let joined = settings(model, plan, Fusion::Auto);
        assert_eq!(train(model, &joined), apart, "{plan:?}");
        assert_eq!(heads(model, &joined), expected, "{plan:?}");
        assert_eq!(heads(model, &settings(model, plan, Fusion::Off)), 0, "{plan:?}");
    }
}

#[test]
fn gpt2_has_the_same_bits_on_every_plan() {
    assert_same_bits(&gpt2(VOCAB, 16));
}

#[test]
fn llama_has_the_same_bits_on_every_plan() {
    let config = LlamaConfig { vocab: VOCAB, dropout: 0.0, ..zoo::LLAMA };
    assert_same_bits(&zoo::llama(BATCH, config));
}

#[test]
fn the_logits_take_no_memory() {
    let (vocab, time) = (8192, 512);
    let model = gpt2(vocab, time);
    let peak = |fusion| {
        let laid_out =
            lay_out(&model, &settings(&model, ONE, fusion), |_, _| ()).expect("the model compiles");
        laid_out.schedule.lanes[0].peak
    };
    let (apart, joined) = (peak(Fusion::Off), peak(Fusion::Auto));
    let logits = (BATCH * time * vocab * size_of::<f32>()) as u64;
    assert!(
        joined < apart - logits / 10 * 9,
        "{joined} bytes with one task, {apart} with three, {logits} of logits"
    );
}
