//! Models built by hand: presets cut them without knowing their names, and every plan gives the bits of one device.

use phalanx::Trainer;
use phalanx::ir::graph::Graph;
use phalanx_testkit::structures::{self, CLASSES};

use crate::training::{Answer, ONE, PlanCase, settings, train};

const STEPS: usize = 2;

const ALL: &[PlanCase] = &[
    ("dp", 2, None),
    ("dp", 4, None),
    ("fsdp", 2, None),
    ("tp", 2, None),
    ("pp", 2, None),
    ("dp2-tp2", 4, None),
    ("one", 1, Some(2)),
    ("dp", 2, Some(2)),
];

/// Where a sequence can be cut.
const SEQUENCES: &[PlanCase] = &[("sp", 2, None), ("dp2-sp2", 4, None)];

fn run(model: &Graph, plan: PlanCase) -> Answer {
    let trainer = Trainer::with_settings(model, &settings(model, plan));
    let trainer = trainer.unwrap_or_else(|error| panic!("{} under {plan:?}: {error}", model.name()));
    train(trainer, model, CLASSES, STEPS)
}

fn assert_one_answer(name: &str, plans: &[&[PlanCase]]) {
    let models = structures::all();
    let (_, model) = models.iter().find(|(own, _)| *own == name).expect("the model is listed");
    let one = run(model, ONE);
    assert!(one.0.iter().any(|&loss| loss != one.0[0]), "{name}: something is trained");
    for &plan in plans.iter().copied().flatten() {
        assert_eq!(run(model, plan), one, "{name}: {plan:?}");
    }
}

#[test]
fn norms_of_heads_have_one_answer() {
    assert_one_answer("heads", &[ALL, SEQUENCES, &[("tp", 4, None)]]);
}

#[test]
fn a_batch_inside_has_one_answer() {
    assert_one_answer("turned", &[ALL, &[("fsdp", 4, Some(2)), ("sp", 2, None)]]);
}

#[test]
fn an_encoder_has_one_answer() {
    assert_one_answer("encoder", &[ALL, SEQUENCES]);
}

#[test]
fn a_vision_transformer_has_one_answer() {
    // A token stretched along the batch is whole on every device, so its microbatches are not parts of a device's rows.
    let (_, others) = ALL.split_last().expect("there are plans");
    assert_one_answer("vision", &[others]);
}

#[test]
fn a_mixer_has_one_answer() {
    assert_one_answer("mixer", &[ALL]);
}

#[test]
fn residual_layers_have_one_answer() {
    assert_one_answer("residual", &[ALL]);
}
