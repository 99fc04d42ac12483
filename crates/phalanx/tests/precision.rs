//! Products in another precision: one answer each, whatever the plan, the cores and what is fused.

use phalanx::ir::graph::Graph;
use phalanx::ir::{Activation, Precision};
use phalanx::models::{Gpt2Config, LlamaConfig, MlpConfig, MlpLoss, ModelConfig};
use phalanx::pipeline::{Fusion, Settings};
use phalanx::{Goal, Leaves, PortKind, Session, Trainer};
use phalanx_testkit::zoo;

use crate::training::{self, Answer, ONE, PlanCase, feed};

const BATCH: usize = 8;
const CLASSES: usize = 16;
const STEPS: usize = 2;

/// Plans of every kind; sums over time and features are cut, too.
const PLANS: &[PlanCase] = &[
    ("one", 1, Some(4)),
    ("dp", 4, Some(2)),
    ("fsdp", 4, None),
    ("tp", 2, None),
    ("tp", 4, None),
    ("sp", 4, None),
    ("pp", 2, Some(2)),
    ("fsdp2-tp2", 4, None),
    ("tp2-pp2", 4, None),
];

/// With biases, and an activation inside a linear layer.
fn gpt2() -> Graph {
    let config = Gpt2Config {
        layers: 2,
        heads: 4,
        width: 32,
        hidden: 64,
        vocab: CLASSES,
        context: 8,
        dropout: 0.1,
        ..zoo::GPT2
    };
    zoo::gpt2(BATCH, config)
}

/// With an activation of its own, which a chain takes in.
fn llama() -> Graph {
    let config = LlamaConfig {
        layers: 2,
        heads: 4,
        kv_heads: 4,
        head_dim: 8,
        width: 32,
        hidden: 64,
        vocab: CLASSES,
        context: 8,
        mlp_bias: true,
        ..zoo::LLAMA
    };
    zoo::llama(BATCH, config)
}

fn mlp() -> Graph {
    let (hidden, activation, loss) = (vec![32; 2], Activation::Silu, MlpLoss::CrossEntropy);
    let config = MlpConfig { inputs: 32, hidden, outputs: CLASSES, activation, loss };
    ModelConfig::Mlp(config).training_graph(2 * BATCH, 1).expect("the sizes are legal")
}

/// What every bf16 here is: rounded operands, in the order of tiles and in that of pairs.
const ROUNDED: [Precision; 2] = [Precision::Bf16, Precision::Bf16Pair];

/// Few enough blocks of features that the orders of additions differ inside each.
fn settings(model: &Graph, plan: PlanCase, precision: Precision) -> Settings {
    let leaves = Leaves { batch: 8, feature: 4, sequence: 4 };
    training::settings(model, plan).leaves(leaves).precision(precision)
}

fn answer(model: &Graph, settings: &Settings) -> Answer {
    let trainer = Trainer::with_settings(model, settings).expect("the model compiles");
    training::train(trainer, model, CLASSES, STEPS)
}

/// Compares every plan, number of cores and fusion with one device.
fn check(name: &str, model: &Graph, plans: &[PlanCase]) {
    for precision in ROUNDED {
        let settings = |plan| settings(model, plan, precision);
        let want = answer(model, &settings(ONE));
        for cores in 2..=4 {
            assert_eq!(answer(model, &settings(ONE).cores(cores)), want, "{name} {precision}, {cores} cores");
        }
        assert_eq!(answer(model, &settings(ONE).fusion(Fusion::Off)), want, "{name} {precision}, not fused");
        for &plan in plans {
            assert_eq!(answer(model, &settings(plan)), want, "{name} {precision} {plan:?}");
        }
        // What a plan takes apart is fused otherwise.
        for &plan in plans.iter().filter(|(plan, ..)| ["tp", "sp"].contains(plan)) {
            let found = answer(model, &settings(plan).fusion(Fusion::Off));
            assert_eq!(found, want, "{name} {precision} {plan:?}, not fused");
        }
    }
}

#[test]
fn gpt2_has_one_answer_in_each_precision() {
    check("gpt2", &gpt2(), PLANS);
}

#[test]
fn llama_has_one_answer_in_each_precision() {
    check("llama", &llama(), PLANS);
}

#[test]
fn an_mlp_has_one_answer_in_each_precision() {
    check("mlp", &mlp(), &[("one", 1, Some(2)), ("dp", 2, None), ("dp", 4, None), ("fsdp", 4, None)]);
}

#[test]
fn the_three_precisions_differ_by_roundings() {
    for model in [gpt2(), llama(), mlp()] {
        // Of two short sums that lose no bits the order plays no part.
        let whole = Leaves { batch: 1, feature: 1, sequence: 1 };
        let of = |precision| answer(&model, &settings(&model, ONE, precision).leaves(whole));
        let [single, tiles, pairs] = [Precision::F32, Precision::Bf16, Precision::Bf16Pair].map(of);
        assert!(single != tiles && single != pairs && tiles != pairs, "{single:?} {tiles:?} {pairs:?}");
        for (a, b) in single.0.iter().zip(&tiles.0).chain(tiles.0.iter().zip(&pairs.0)) {
            let [a, b] = [a, b].map(|&bits| f32::from_bits(bits));
            // Operands are rounded by at most 2^-9 of themselves; the loss is about 3.
            assert!((a - b).abs() < 3.0 / 256.0, "{a} and {b}");
        }
    }
}

/// The gradients of all parameters in one list.
fn gradients(model: &Graph, precision: Precision, fusion: Fusion) -> Vec<f32> {
    let settings = Settings::new(Goal::Gradients).cores(1).precision(precision).fusion(fusion);
    let mut session = Session::new(model, &settings).expect("the model compiles");
    feed(&mut session, model, CLASSES, 0);
    session.run().expect("it runs");
    let names: Vec<String> = session.names(PortKind::Output).map(str::to_string).collect();
    let gradients = names.iter().filter(|name| name.ends_with(".grad"));
    gradients.flat_map(|name| session.read(name).expect("it is an output").into_owned()).collect()
}

#[test]
fn rounded_gradients_point_the_same_way() {
    for model in [gpt2(), llama(), mlp()] {
        let single = gradients(&model, Precision::F32, Fusion::Auto);
        assert!(single.len() > 500);
        for precision in ROUNDED {
            let rounded = gradients(&model, precision, Fusion::Auto);
            assert_eq!(rounded, gradients(&model, precision, Fusion::Off), "{precision}");
            let dot = |a: &[f32], b: &[f32]| -> f64 {
                a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
            };
            let cosine = dot(&single, &rounded) / (dot(&single, &single) * dot(&rounded, &rounded)).sqrt();
            assert!(cosine >= 0.9999, "{precision}: {cosine}");
        }
    }
}
