//! One answer across ranks: a job of threads trains the same bits as one process, for every plan and any number of ranks.

use std::sync::Arc;
use std::thread;

use phalanx::Trainer;
use phalanx::internals::net::Network;
use phalanx::internals::net::local::Local;
use phalanx::internals::program::{Certificate, Placement};
use phalanx::ir::graph::Graph;
use phalanx::pipeline::{Overlap, Settings, compile};

use crate::training::{Answer, ONE, PLANS, VOCAB, gpt2, llama, settings, train};

const STEPS: usize = 3;

fn alone(model: &Graph) -> Answer {
    let trainer = Trainer::with_settings(model, &settings(model, ONE)).expect("the model compiles");
    train(trainer, model, VOCAB, STEPS)
}

/// What every rank of a job of threads finds; devices are dealt evenly.
fn train_on_ranks(model: &Graph, settings: &Settings, ranks: u32) -> Vec<Answer> {
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
                train(trainer.expect("the part runs"), model, VOCAB, STEPS)
            })
        };
        let threads: Vec<_> = Local::job(ranks).into_iter().map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank fails")).collect()
    })
}

/// Trains every plan on numbers of ranks, with transfers in lanes of their own or not: to choose those takes long.
fn assert_one_answer(model: &Graph, ranks: &[(u32, Overlap)]) {
    let one = alone(model);
    assert!(one.0.iter().any(|&loss| loss != one.0[0]), "something is trained");
    for &plan in PLANS {
        for &(ranks, overlap) in ranks.iter().filter(|(ranks, _)| *ranks as usize <= plan.1) {
            let settings = settings(model, plan).overlap(overlap);
            for found in train_on_ranks(model, &settings, ranks) {
                assert_eq!(found, one, "{plan:?} on {ranks} ranks");
            }
        }
    }
}

#[test]
fn every_plan_gives_gpt2_the_same_bits_on_two_and_four_ranks() {
    assert_one_answer(&gpt2(), &[(2, Overlap::Auto), (4, Overlap::Off)]);
}

#[test]
fn every_plan_gives_llama_the_same_bits_on_three_ranks() {
    assert_one_answer(&llama(), &[(3, Overlap::Off)]);
}

#[test]
fn neither_lanes_of_their_own_nor_a_link_change_the_bits() {
    let model = gpt2();
    let one = alone(&model);
    for plan in [("fsdp", 4, None), ("dp2-tp2", 4, None)] {
        let off = settings(&model, plan).overlap(Overlap::Off);
        let link = settings(&model, plan).topology("50us,10Gbit".parse().ok());
        for settings in [off, link] {
            assert_eq!(train_on_ranks(&model, &settings, 2), [one.clone(), one.clone()], "{plan:?}");
        }
    }
}
