//! A model of one's own: a residual network that tells two spirals apart, trained on one device and on two.

use phalanx::nn::{Args, F32, I64, Net, Tensor, Training};

const BATCH: usize = 64;
const WIDTH: usize = 32;

/// The model: inputs `points` and `labels`, the loss as its result.
fn spirals(net: &Net) -> Tensor {
    let points = net.input("points", F32, [net.batch(), 2]);
    let labels = net.input("labels", I64, [net.batch()]);
    let mut x = net.at("stem").linear(&points, WIDTH);
    for block in 0..3 {
        x = &x + net.at("blocks").at(block).linear(&x.tanh(), WIDTH);
    }
    net.at("head").linear(&x, 2).cross_entropy(&labels)
}

fn main() -> phalanx::Result<()> {
    let labels: Vec<i64> = (0..BATCH as i64).map(|i| i % 2).collect();
    let point = |i: usize| {
        let angle = 0.2 * (i / 2) as f32 + std::f32::consts::PI * (i % 2) as f32;
        let radius = 0.1 + 0.03 * (i / 2) as f32;
        [radius * angle.cos(), radius * angle.sin()]
    };
    let points: Vec<f32> = (0..BATCH).flat_map(point).collect();
    for plan in ["one", "dp2", "fsdp2"] {
        let args = Args::of(["--plan", plan])?;
        let mut run = Training::new(&args, spirals).batch(BATCH).adamw(0.01, 0.01).start()?;
        let mut loss = f32::NAN;
        for _ in 0..200 {
            loss = run.step((("points", &points), ("labels", &labels)))?.loss;
        }
        println!("{plan}: loss {loss:.4}, weights {:032x}", run.session().weights_hash()?);
    }
    Ok(())
}
