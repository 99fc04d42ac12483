//! A model of one's own on several processes: `cargo build --release --example ranks`, then
//! `mpirun -n 2 target/release/examples/ranks --plan dp`. Alone it does the same, with the same bits.

use phalanx::nn::{Args, F32, Net, Tensor, Training};

fn model(net: &Net) -> Tensor {
    let (x, y) = (net.input("x", F32, [net.batch(), 4]), net.input("y", F32, [net.batch(), 1]));
    let hidden = net.at("hidden").linear(&x, 32).gelu();
    net.at("out").linear(&hidden, 1).mse(&y)
}

/// The whole batch of a step, on every rank; each takes its part of it.
fn batch(step: u64, size: usize) -> (Vec<f32>, Vec<f32>) {
    let x: Vec<f32> = (0..4 * size).map(|i| ((i as f32 + 7.0 * step as f32) * 0.37).sin()).collect();
    let y = x.chunks(4).map(|x| x[0] * x[1] + x[2].max(x[3])).collect();
    (x, y)
}

fn main() -> phalanx::Result<()> {
    let mut run = Training::new(&Args::parse(), model).batch(32).adam(1e-2).with(|c| c.steps(100)).start()?;
    // Also if `--resume` goes on from a checkpoint, and until all ranks agree to stop.
    while !run.is_done() {
        let (x, y) = batch(run.steps(), run.batch());
        let step = run.step((("x", &x), ("y", &y)))?;
        if run.rank() == 0 && step.number % 25 == 0 {
            println!("{step}");
        }
    }
    // All ranks take part in the hash.
    let hash = run.session().weights_hash()?;
    if run.rank() == 0 {
        println!("weights {hash:032x}");
    }
    Ok(())
}
