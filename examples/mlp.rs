//! Trains an MLP on a sine: the smallest program that uses Phalanx.

use phalanx::{Feed, Optimizer, Trainer, models::MlpConfig};

fn main() -> Result<(), phalanx::Error> {
    let model = MlpConfig::regression([1, 32, 1]).training_graph(64)?;
    let mut trainer = Trainer::new(&model, Optimizer::adam())?;
    let x: Vec<f32> = (0..64).map(|i| i as f32 / 10.0 - 3.2).collect();
    let y: Vec<f32> = x.iter().map(|x| x.sin()).collect();
    for step in 0..=500 {
        let report = trainer.step(&[("x", Feed::F32(&x)), ("y", Feed::F32(&y))], 0.01)?;
        if step % 100 == 0 {
            println!("step {step}: loss {:.5}", report.loss);
        }
    }
    Ok(())
}
