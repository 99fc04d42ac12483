//! Every model of the zoo learns its samples, with the same bits under every plan.

use std::rc::Rc;

use phalanx::models::zoo::{ZOO, ZooModel};
use phalanx::nn::{OwnedFeed, Training, TrainingRun};
use phalanx::train::TrainConfig;

fn start(config: TrainConfig) -> (TrainingRun<'static>, Rc<dyn ZooModel>) {
    let model: Rc<dyn ZooModel> = config.zoo_model().unwrap().unwrap().into();
    let training = Training::of_zoo(config.cores_per_device(1).no_cache(true), &[], Rc::clone(&model));
    (training.unwrap().start().unwrap(), model)
}

/// The losses of steps, and the hash of the weights behind them.
fn trained(config: TrainConfig, steps: u64) -> (Vec<f32>, u128) {
    let (mut run, model) = start(config);
    let mut losses = Vec::new();
    for step in 0..steps {
        let samples = model.samples(7, step, run.batch()).into_iter();
        let feeds: Vec<(String, OwnedFeed)> = samples.map(|(name, data)| (name, data.into())).collect();
        losses.push(run.step(feeds).unwrap().loss);
    }
    (losses, run.session().weights_hash().unwrap())
}

#[test]
fn every_model_learns_its_samples() {
    let mut lazy = Vec::new();
    for entry in ZOO {
        let config = TrainConfig::default().model(entry.name.into()).batch(32).lr(5e-3).steps(150);
        let (losses, _) = trained(config, 150);
        let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
        let (first, last) = (mean(&losses[..5]), mean(&losses[140..]));
        if last >= 0.7 * first {
            lazy.push(format!("{}: {first} at first, {last} at last", entry.name));
        }
    }
    assert_eq!(lazy, [""; 0]);
}

#[test]
fn every_model_has_the_same_bits_under_every_plan() {
    for entry in ZOO {
        let config = TrainConfig::default().model(entry.name.into()).batch(8).steps(10);
        let one = trained(config.clone(), 3);
        for plan in ["dp2", "fsdp2", "zero12"] {
            assert_eq!(trained(config.clone().plan(Some(plan.into())), 3), one, "{} {plan}", entry.name);
        }
        let cut = config.plan(Some("dp2".into())).accumulate(2);
        assert_eq!(trained(cut, 3), one, "{} in two parts", entry.name);
    }
}

#[test]
fn options_without_effect_are_refused() {
    let error = |config: TrainConfig, given: &[&str]| -> String {
        match config.zoo_model() {
            Err(error) => error.to_string(),
            Ok(model) => Training::of_zoo(config, given, model.unwrap().into()).err().unwrap().to_string(),
        }
    };
    let bert = || TrainConfig::default().model("bert".into());
    assert_eq!(
        error(bert().kv_heads(Some(2)), &[]),
        "`kv_heads` is 2; bert has none: its sizes are context, dropout, heads, hidden, layers, vocab, width"
    );
    let data = error(bert().data(Some("book.txt".into())), &[]);
    assert_eq!(data, "`data` is book.txt; bert has no use for it: leave it out, or use gpt2 or llama");
    assert!(error(bert(), &["lora_save"]).contains("`lora_save`"));
    assert_eq!(
        error(bert().heads(Some(5)), &[]),
        "bert: `width` 64 is not a multiple of `heads` 5; set `width` to 60 or 65"
    );
    assert!(error(bert().size("huge".into()), &[]).contains("`huge`"));
    assert!(TrainConfig::default().zoo_model().unwrap().is_none());
}
