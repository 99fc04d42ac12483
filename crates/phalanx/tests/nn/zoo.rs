//! Every model of the zoo learns its samples, with the same bits under every plan.

use std::rc::Rc;

use phalanx::Error;
use phalanx::models::zoo::{ZOO, ZooModel};
use phalanx::nn::{OwnedFeed, Training, TrainingRun};
use phalanx::train::TrainConfig;

fn start(config: TrainConfig) -> Result<(TrainingRun<'static>, Rc<dyn ZooModel>), Error> {
    let model: Rc<dyn ZooModel> = config.zoo_model()?.unwrap().into();
    let training = Training::of_zoo(config.cores_per_device(1).no_cache(true), &[], Rc::clone(&model));
    Ok((training?.start()?, model))
}

/// The losses of steps, and the hash of the weights behind them.
fn trained(config: TrainConfig, steps: u64) -> Result<(Vec<f32>, u128), Error> {
    let (mut run, model) = start(config)?;
    let mut losses = Vec::new();
    for step in 0..steps {
        let samples = model.samples(7, step, run.batch()).into_iter();
        let feeds: Vec<(String, OwnedFeed)> = samples.map(|(name, data)| (name, data.into())).collect();
        losses.push(run.step(feeds)?.loss);
    }
    Ok((losses, run.session().weights_hash()?))
}

/// Models whose steps take longest, which learn in fewer of them.
const SLOW: [&str; 2] = ["inception", "unet"];

#[test]
fn every_model_learns_its_samples() {
    let mut lazy = Vec::new();
    for entry in ZOO {
        let (batch, steps) = if SLOW.contains(&entry.name) { (16, 60) } else { (32, 150) };
        let config = TrainConfig::default().model(entry.name.into()).batch(batch).lr(5e-3).steps(steps);
        let (losses, _) = trained(config, steps).unwrap();
        let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
        let (first, last) = (mean(&losses[..5]), mean(&losses[losses.len() - 10..]));
        if last >= 0.7 * first {
            lazy.push(format!("{}: {first} at first, {last} at last", entry.name));
        }
    }
    assert_eq!(lazy, [""; 0]);
}

#[test]
fn every_model_has_the_same_bits_under_every_plan() {
    let mut wrong = Vec::new();
    for entry in ZOO {
        let config = TrainConfig::default().model(entry.name.into()).batch(8).steps(10);
        let one = trained(config.clone(), 2).unwrap();
        let plans = ["dp2", "dp4", "fsdp2", "zero12", "tp2", "pp2", "dp2-tp2"].map(|plan| (plan, 1));
        for (plan, parts) in plans.into_iter().chain([("one", 2), ("dp2", 2)]) {
            let config = config.clone().plan(Some(plan.into())).accumulate(parts);
            match trained(config, 2) {
                Ok(found) if found == one => {}
                Ok(_) => wrong.push(format!("{} {plan} in {parts} parts: other bits", entry.name)),
                Err(error) => wrong.push(format!("{} {plan} in {parts} parts: {error}", entry.name)),
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
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
