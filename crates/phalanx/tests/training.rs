//! Settings, plans and short runs that several tests share.

use phalanx::internals::lower::HYPER;
use phalanx::ir::graph::Graph;
use phalanx::models::{Gpt2Config, LlamaConfig};
use phalanx::pipeline::Settings;
use phalanx::{Feed, Goal, Leaves, Optimizer, PlanChoice, Session, Trainer};
use phalanx_testkit::zoo::{self, Elements};

/// A plan with its devices and microbatches, if it says how many.
pub type PlanCase = (&'static str, usize, Option<usize>);

/// Plans of every kind on two to eight devices.
pub const PLANS: &[PlanCase] = &[
    ("dp", 2, None),
    ("dp", 4, None),
    ("dp", 8, None),
    ("fsdp", 2, None),
    ("fsdp", 4, None),
    ("fsdp", 8, None),
    ("zero1", 4, None),
    ("tp", 2, None),
    ("tp", 4, None),
    ("tp", 8, None),
    ("sp", 4, None),
    ("pp", 2, None),
    ("pp", 4, None),
    ("dp2-tp2", 4, None),
    ("fsdp2-tp2", 4, None),
    ("dp2-pp2", 4, None),
    ("tp2-pp2", 4, None),
    ("fsdp2-tp2-pp2", 8, None),
    ("dp2-sp2-pp2", 8, None),
];

/// Tokens of [`gpt2`] and [`llama`].
pub const VOCAB: usize = 64;

/// A model that every one of [`PLANS`] can cut: four layers for four stages, eight heads for eight devices.
pub fn gpt2() -> Graph {
    let config =
        Gpt2Config { layers: 4, heads: 8, width: 64, hidden: 256, vocab: VOCAB, context: 32, ..zoo::GPT2 };
    zoo::gpt2(16, config)
}

/// As [`gpt2`].
pub fn llama() -> Graph {
    let config = LlamaConfig {
        layers: 4,
        heads: 8,
        kv_heads: 8,
        width: 64,
        hidden: 128,
        vocab: VOCAB,
        context: 32,
        ..zoo::LLAMA
    };
    zoo::llama(16, config)
}

/// One device.
pub const ONE: PlanCase = ("one", 1, None);

/// A trained model under a plan, on devices of one core; clipped gradients, eight leaves of every sum.
pub fn settings(model: &Graph, (plan, devices, microbatches): PlanCase) -> Settings {
    let choice =
        PlanChoice::default().plan(Some(plan.into())).devices(Some(devices)).microbatches(microbatches);
    Settings::new(Goal::Train(Optimizer::adamw(0.1).clip(Some(0.5))))
        .plan(choice.resolve(model).expect("the plan suits the model"))
        .leaves(Leaves { batch: 8, feature: 8, sequence: 8 })
        .cores(1)
        .seed(5)
}

/// The loss of every step, and the hash of the weights after the last.
pub type Answer = (Vec<u32>, u128);

/// Feeds the random batch of a step to any session of a model; see [`zoo::batch`].
pub fn feed(session: &mut Session, model: &Graph, classes: usize, step: usize) {
    for (name, elements) in zoo::batch(model, classes, step) {
        let fed = match &elements {
            Elements::F32(values) => session.feed(name, Feed::F32(values)),
            Elements::I64(ids) => session.feed(name, Feed::I64(ids)),
        };
        fed.expect("the batch can be fed");
    }
}

/// Trains some steps in a session.
pub fn run(mut session: Session, model: &Graph, classes: usize, steps: usize) -> Answer {
    let mut losses = Vec::new();
    for step in 0..steps {
        feed(&mut session, model, classes, step);
        let hyper = [3e-3, 0.1, 0.05, step as f32, 0.0, 0.0, 0.0, 0.0];
        session.feed(HYPER, &hyper).expect("the scalars can be fed");
        session.run().expect("the step runs");
        losses.push(session.read("loss").expect("the loss is an output")[0].to_bits());
    }
    (losses, session.weights_hash().expect("the weights can be read"))
}

/// Trains some steps, which see every class of a vocabulary.
pub fn train(mut trainer: Trainer, model: &Graph, classes: usize, steps: usize) -> Answer {
    let mut losses = Vec::new();
    for step in 0..steps {
        feed(trainer.session_mut(), model, classes, step);
        losses.push(trainer.run(3e-3).expect("the step runs").loss.to_bits());
    }
    (losses, trainer.session().weights_hash().expect("the weights can be read"))
}

/// The hash of the weights after four steps, two of them in flight.
pub fn in_flight(model: &Graph, settings: &Settings) -> u128 {
    let mut trainer = Trainer::with_settings(model, settings).expect("the model compiles");
    let mut before = None;
    for step in 0..4 {
        feed(trainer.session_mut(), model, 256, step);
        let run = trainer.launch(3e-3).expect("the step is launched");
        if let Some(before) = before.replace(run) {
            trainer.wait(before).expect("the step runs");
        }
    }
    trainer.session().weights_hash().expect("the weights can be read")
}
