//! Trains a model and then asks it: the weights go from the trained step to a step that only computes outputs.

use phalanx::models::MlpConfig;
use phalanx::{Feed, Goal, Optimizer, Session, Settings, Trainer};

fn main() -> Result<(), phalanx::Error> {
    let config = MlpConfig::regression([1, 32, 1]);
    let mut trainer = Trainer::new(&config.training_graph(64)?, Optimizer::adam())?;
    let x: Vec<f32> = (0..64).map(|i| i as f32 / 10.0 - 3.2).collect();
    let y: Vec<f32> = x.iter().map(|x| x.sin()).collect();
    for _ in 0..500 {
        trainer.step(&[("x", Feed::F32(&x)), ("y", Feed::F32(&y))], 0.01)?;
    }
    let mut model = Session::new(&config.logits_graph(4)?, &Settings::new(Goal::Infer))?;
    model.copy_weights(trainer.session_mut())?;
    let points = [-1.5, -0.5, 0.5, 1.5];
    model.feed("x", &points)?;
    model.run()?;
    for (x, y) in points.iter().zip(model.read("logits")?.iter()) {
        println!("sin({x}) = {:.3}, the model says {y:.3}", x.sin());
    }
    Ok(())
}
