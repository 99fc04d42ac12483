//! Computes gradients without training, and compares one of them with a finite difference.

use phalanx::models::MlpConfig;
use phalanx::{Goal, Session, Settings};

fn main() -> Result<(), phalanx::Error> {
    let model = MlpConfig::regression([1, 8, 1]).training_graph(16)?;
    let mut session = Session::new(&model, &Settings::new(Goal::Gradients))?;
    let x: Vec<f32> = (0..16).map(|i| i as f32 / 8.0 - 1.0).collect();
    let y: Vec<f32> = x.iter().map(|x| x * x).collect();
    session.feed("x", &x)?;
    session.feed("y", &y)?;
    session.run()?;
    let gradient = session.read("layers.1.bias.grad")?[0];

    let bias = session.read("layers.1.bias")?[0];
    let step = 1e-2;
    let mut loss = |bias: f32| -> Result<f32, phalanx::Error> {
        session.feed("layers.1.bias", &[bias])?;
        session.run()?;
        Ok(session.read("loss")?[0])
    };
    let difference = (loss(bias + step)? - loss(bias - step)?) / (2.0 * step);
    println!("gradient {gradient:.4}, finite difference {difference:.4}");
    assert!((gradient - difference).abs() < 1e-3, "the loss is quadratic in this bias");
    Ok(())
}
