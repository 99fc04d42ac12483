//! One answer across ranks: a job of threads trains the same bits as one process, for every plan and any number of ranks.

use std::sync::Arc;
use std::thread;

use phalanx::internals::net::Network;
use phalanx::internals::net::local::Local;
use phalanx::internals::program::{Certificate, Placement};
use phalanx::ir::graph::Graph;
use phalanx::models::{Gpt2Config, LlamaConfig, ModelConfig};
use phalanx::pipeline::{Overlap, Settings, compile};
use phalanx::{Feed, Goal, Leaves, Optimizer, PlanChoice, Trainer};
use phalanx_ir::Activation;
use phalanx_testkit::Rng;

const BATCH: usize = 16;
const TIME: usize = 32;
const VOCAB: usize = 64;
const STEPS: usize = 3;

const PLANS: &[(&str, usize)] = &[
    ("dp", 2),
    ("dp", 4),
    ("dp", 8),
    ("fsdp", 2),
    ("fsdp", 4),
    ("fsdp", 8),
    ("zero1", 4),
    ("tp", 2),
    ("tp", 4),
    ("tp", 8),
    ("sp", 4),
    ("pp", 2),
    ("pp", 4),
    ("dp2-tp2", 4),
    ("fsdp2-tp2", 4),
    ("dp2-pp2", 4),
    ("tp2-pp2", 4),
    ("fsdp2-tp2-pp2", 8),
    ("dp2-sp2-pp2", 8),
];

fn gpt2() -> Graph {
    let config = Gpt2Config {
        layers: 4,
        heads: 8,
        width: 64,
        hidden: 256,
        vocab: VOCAB,
        context: TIME,
        dropout: 0.1,
        tied: true,
        eps: 1e-5,
        activation: Activation::GeluTanh,
    };
    ModelConfig::Gpt2(config).training_graph(BATCH, TIME).expect("the sizes are legal")
}

fn llama() -> Graph {
    let config = LlamaConfig {
        layers: 4,
        heads: 8,
        kv_heads: 8,
        head_dim: 8,
        width: 64,
        hidden: 128,
        vocab: VOCAB,
        context: TIME,
        dropout: 0.1,
        tied: false,
        eps: 1e-5,
        rope_base: 10_000.0,
        activation: Activation::Silu,
        attention_bias: false,
        mlp_bias: false,
    };
    ModelConfig::Llama(config).training_graph(BATCH, TIME).expect("the sizes are legal")
}

fn settings(model: &Graph, plan: &str, devices: usize) -> Settings {
    let choice = PlanChoice::default().plan(Some(plan.into())).devices(Some(devices));
    let plan = choice.resolve(model).expect("the plan suits the model");
    let leaves = Leaves { batch: 8, feature: 8, sequence: 8 };
    let optimizer = Optimizer::adamw(0.1).clip(Some(0.5));
    Settings::new(Goal::Train(optimizer)).plan(plan).leaves(leaves).cores(1).seed(5)
}

/// The loss of every step and the hash of the weights after the last.
fn train(mut trainer: Trainer) -> (Vec<u32>, u128) {
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let mut rng = Rng::new(step as u64);
        let mut draw = || (0..BATCH * TIME).map(|_| rng.below(VOCAB) as i64).collect::<Vec<_>>();
        let (tokens, targets) = (draw(), draw());
        let feeds = [("tokens", Feed::I64(&tokens)), ("targets", Feed::I64(&targets))];
        losses.push(trainer.step(&feeds, 3e-3).expect("the step runs").loss.to_bits());
    }
    (losses, trainer.session().weights_hash().expect("the weights can be read"))
}

/// What every rank of a job of threads finds; devices are dealt evenly.
fn train_on_ranks(model: &Graph, settings: &Settings, ranks: u32) -> Vec<(Vec<u32>, u128)> {
    let devices = settings.plan.mesh.devices();
    let of_device = (0..devices).map(|device| (device * ranks as usize / devices) as u32).collect();
    let settings = settings.clone().placement(Placement { ranks, of_device });
    let program = compile(model, &settings).expect("the model compiles");
    let parts = program.parts(&settings.placement).expect("the program can be sliced");
    let certificate = Certificate::new(&parts).expect("the ranks cannot deadlock");
    assert!(certificate.posted().iter().all(|&bytes| bytes > 0), "every rank has messages");
    thread::scope(|scope| {
        let rank = |local: Local| {
            let (network, program, settings): (Arc<dyn Network>, _, _) =
                (Arc::new(local), program.clone(), &settings);
            scope.spawn(move || {
                let trainer = Trainer::on_network(model, program, settings, network);
                train(trainer.expect("the part runs"))
            })
        };
        let threads: Vec<_> = Local::job(ranks).into_iter().map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank fails")).collect()
    })
}

fn assert_one_answer(model: &Graph, ranks: &[u32]) {
    let alone = Trainer::with_settings(model, &settings(model, "one", 1)).expect("the model compiles");
    let one = train(alone);
    assert!(one.0.iter().any(|&loss| loss != one.0[0]), "something is trained");
    for &(plan, devices) in PLANS {
        for &ranks in ranks.iter().filter(|&&ranks| ranks as usize <= devices) {
            for found in train_on_ranks(model, &settings(model, plan, devices), ranks) {
                assert_eq!(found, one, "{plan} on {devices} devices of {ranks} ranks");
            }
        }
    }
}

#[test]
fn every_plan_gives_gpt2_the_same_bits_on_two_and_four_ranks() {
    assert_one_answer(&gpt2(), &[2, 4]);
}

#[test]
fn every_plan_gives_llama_the_same_bits_on_three_ranks() {
    assert_one_answer(&llama(), &[3]);
}

#[test]
fn neither_lanes_of_their_own_nor_a_link_change_the_bits() {
    let model = gpt2();
    let one = train(Trainer::with_settings(&model, &settings(&model, "one", 1)).expect("the model compiles"));
    for (plan, devices) in [("fsdp", 4), ("dp2-tp2", 4)] {
        let off = settings(&model, plan, devices).overlap(Overlap::Off);
        let link = settings(&model, plan, devices).link("50us,10Gbit".parse().ok());
        for settings in [off, link] {
            assert_eq!(train_on_ranks(&model, &settings, 2), [one.clone(), one.clone()], "{plan}");
        }
    }
}
