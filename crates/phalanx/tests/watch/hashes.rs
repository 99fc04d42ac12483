//! Hashes of the state: the same however it lies, another one for every bit that changes, and no step changes for them.

use std::collections::BTreeSet;

use phalanx::Pin;
use phalanx::internals::program::{Port, PortTile};
use phalanx::models::MlpConfig;
use phalanx::pipeline::Overlap;
use phalanx::train::{Run, TrainConfig};
use phalanx::{Feed, Optimizer, Session, StateHashes, Trainer};

use super::{on, on_ranks, small, trained};

fn hashed() -> TrainConfig {
    small().hash_every(Some(2)).dropout(0.1)
}

/// The hashes after every step.
fn hashes(mut run: Run) -> Vec<Option<StateHashes>> {
    let mut all = Vec::new();
    while !run.is_done() {
        let report = run.step().unwrap();
        assert_eq!(report.hash, run.hashes().map(|hashes| hashes.hash.clone()));
        all.push(run.hashes().cloned());
    }
    all
}

#[test]
fn hashes_are_the_same_for_every_plan_and_any_number_of_ranks() {
    let one = hashes(Run::new(hashed()).unwrap());
    let steps: Vec<bool> = one.iter().map(Option::is_some).collect();
    assert_eq!(steps, [false, true, false, true, false, true]);
    let different: BTreeSet<&String> = one.iter().flatten().map(|hashes| &hashes.hash).collect();
    assert_eq!(different.len(), 3, "training goes on");
    for (plan, devices) in [("dp", 2), ("fsdp", 2), ("zero1", 4), ("tp2-pp2", 4)] {
        let config = on(plan, devices, hashed());
        assert_eq!(hashes(Run::new(config.clone()).unwrap()), one, "{plan}");
        // A search for the best schedule on every rank would take most of the time.
        let config = config.pin(Pin::Off).overlap(Overlap::Off);
        for found in on_ranks(2, &config, hashes) {
            assert_eq!(found, one, "{plan} on 2 ranks");
        }
    }
}

#[test]
fn hashes_cover_weights_and_states_and_change_no_loss() {
    let run = trained(hashed().dropout(0.0));
    assert_eq!(run.losses(), trained(small()).losses());
    let names: BTreeSet<&str> = run.hashes().unwrap().hashes.keys().map(String::as_str).collect();
    let weight = "transformer.wte.weight";
    let states = names.iter().filter(|name| name.starts_with(weight)).count();
    assert_eq!(states, 3, "the weight and two moments of Adam: {names:?}");
    assert!(!names.contains("tokens"));
    // After a step that is not to be hashed there is nothing to tell.
    assert!(trained(small().hash_every(Some(4))).hashes().is_none());
}

/// The tensors whose hashes differ.
fn changed<'a>(left: &'a StateHashes, right: &StateHashes) -> Vec<&'a String> {
    left.hashes.iter().filter(|(name, hash)| right.hashes[*name] != **hash).map(|(name, _)| name).collect()
}

/// Changes the lowest bit of the last element of a tensor.
fn flip(session: &mut Session, name: &str) {
    let visit = |port: &Port, _: &PortTile, bytes: &mut [u8]| {
        if port.name == name {
            let last = bytes.len() - size_of::<f32>();
            bytes[last] ^= 1;
        }
    };
    session.visit_state(visit).unwrap();
}

#[test]
fn a_changed_bit_changes_the_hash_of_its_tensor_alone() {
    let model = MlpConfig::regression([2, 5, 1]).training_graph(4).unwrap();
    let mut trainer = Trainer::new(&model, Optimizer::adam()).unwrap();
    let (x, y) = (vec![0.1, 0.7, -0.3, 0.2, 0.9, 0.5, -0.4, 0.8], vec![1.0, -1.0, 0.5, 0.25]);
    trainer.step(&[("x", Feed::F32(&x)), ("y", Feed::F32(&y))], 0.01).unwrap();
    let session = trainer.session_mut();
    let before = session.state_hashes().unwrap();
    assert_eq!(before.hashes.len(), 12, "two layers of a weight and a bias, each with two moments");
    for name in before.hashes.keys() {
        flip(session, name);
        let after = session.state_hashes().unwrap();
        assert_eq!(changed(&before, &after), [name]);
        assert_ne!(after.hash, before.hash, "{name}");
        flip(session, name);
    }
    assert_eq!(session.state_hashes().unwrap(), before);
}
