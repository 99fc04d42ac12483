//! Trains an MLP on a sine: the smallest program that uses Phalanx.

use phalanx::nn::{Args, F32, Net, Tensor, Training};

fn sine(net: &Net) -> Tensor {
    let (x, y) = (net.input("x", F32, [net.batch(), 1]), net.input("y", F32, [net.batch(), 1]));
    net.at("out").linear(&net.at("hidden").linear(&x, 32).tanh(), 1).mse(&y)
}

fn main() -> phalanx::Result<()> {
    let mut run = Training::new(&Args::default(), sine).batch(64).adam(0.01).start()?;
    let x: Vec<f32> = (0..64).map(|i| i as f32 / 10.0 - 3.2).collect();
    let y: Vec<f32> = x.iter().map(|x| x.sin()).collect();
    for _ in 0..=500 {
        let step = run.step([("x", &x), ("y", &y)])?;
        if step.number % 100 == 1 {
            println!("{step}");
        }
    }
    Ok(())
}
