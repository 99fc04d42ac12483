//! A loss of one's own, from operators: a focal loss, which counts what the model is unsure of. A part that keeps logits
//! small is added with a weight, and both parts can be read after each step.

use phalanx::nn::{Args, F32, I64, Net, Tensor, Training};

const CLASSES: usize = 3;

fn classifier(net: &Net) -> Tensor {
    let (x, y) = (net.input("x", F32, [net.batch(), 2]), net.input("y", I64, [net.batch()]));
    let hidden = net.at("hidden").linear(&x, 32).tanh();
    let logits = net.at("head").linear(&hidden, CLASSES);
    let p = logits.softmax().pick(&y);
    let focal = -((1.0 - &p).square() * p.log()).mean_all();
    let size = logits.square().mean_all();
    net.metric("focal", &focal);
    net.metric("size", &size);
    focal + 1e-3 * size
}

fn main() -> phalanx::Result<()> {
    let mut run = Training::new(&Args::parse(), classifier).batch(48).adamw(1e-2, 0.01).start()?;
    // Three arms of a spiral.
    let y: Vec<i64> = (0..48).map(|i| i % 3).collect();
    let point = |i: i64| {
        let (radius, arm) = (0.2 + (i / 3) as f32 / 16.0, (i % 3) as f32 * std::f32::consts::TAU / 3.0);
        [radius * (arm + radius).cos(), radius * (arm + radius).sin()]
    };
    let x: Vec<f32> = (0..48).flat_map(point).collect();
    for _ in 0..200 {
        let step = run.step((("x", &x), ("y", &y)))?;
        if step.number % 50 == 0 {
            println!("{step}");
        }
    }
    Ok(())
}
