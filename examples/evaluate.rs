//! Evaluation on data that is never trained on, with a metric: the same function builds both graphs, dropout is in one.

use phalanx::nn::{Args, F32, I64, Net, Tensor, Training};

fn model(net: &Net) -> Tensor {
    let (x, y) = (net.input("x", F32, [net.batch(), 2]), net.input("y", I64, [net.batch()]));
    let hidden = net.at("hidden").linear(&x, 64).relu();
    let logits = net.at("head").linear(&net.at("drop").dropout(0.2, hidden), 2);
    net.metric("accuracy", &logits.is_top(&y).mean_all());
    logits.cross_entropy(&y)
}

/// Points inside and outside of a circle; batches of other numbers have other points.
fn batch(number: usize, size: usize) -> (Vec<f32>, Vec<i64>) {
    let place = |i: usize, salt: usize| ((i * 7919 + number * 104_729 + salt) % 1009) as f32 / 504.0 - 1.0;
    let points: Vec<f32> = (0..size).flat_map(|i| [place(i, 0), place(i * i, 331)]).collect();
    let labels = points.chunks(2).map(|point| i64::from(point[0].hypot(point[1]) < 0.75)).collect();
    (points, labels)
}

fn main() -> phalanx::Result<()> {
    let mut run = Training::new(&Args::parse(), model).batch(64).adamw(1e-2, 0.0).start()?;
    for epoch in 1..=4 {
        for number in 0..50 {
            let (x, y) = batch(number, run.batch());
            run.step((("x", &x), ("y", &y)))?;
        }
        let held = (1000..1008).map(|number| batch(number, 64));
        let test = run.evaluate(held.map(|(x, y)| (("x", x), ("y", y))))?;
        println!("epoch {epoch}: {test}, {:.1} % right", 100.0 * test["accuracy"]);
    }
    Ok(())
}
