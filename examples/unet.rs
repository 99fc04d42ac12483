//! U-Net finds discs: for each pixel of an image it tells whether it is part of one.

use phalanx::models::zoo::{UnetConfig, ZooConfig};
use phalanx::nn::{Args, Training};

const SIDE: usize = 16;

/// An image with a disc, three channels innermost, and which pixels are inside.
fn disc(number: usize) -> (Vec<f32>, Vec<i64>) {
    let (row, column, radius) = (4 + number * 5 % 9, 4 + number * 7 % 9, 2 + number % 3);
    let inside =
        |at: usize| (at / SIDE).abs_diff(row).pow(2) + (at % SIDE).abs_diff(column).pow(2) <= radius * radius;
    let noise = |at: usize| ((at * 31 + number * 17) % 11) as f32 / 20.0;
    let pixel = |at: usize| [if inside(at) { 0.6 } else { 0.0 } + noise(at), noise(at + 1), noise(at + 2)];
    let all = 0..SIDE * SIDE;
    (all.clone().flat_map(pixel).collect(), all.map(|at| i64::from(inside(at))).collect())
}

fn batch(first: usize, size: usize) -> (Vec<f32>, Vec<i64>) {
    let discs = (first..first + size).map(disc);
    discs.fold((Vec::new(), Vec::new()), |(mut images, mut labels), (image, label)| {
        images.extend(image);
        labels.extend(label);
        (images, labels)
    })
}

fn main() -> phalanx::Result<()> {
    let model = UnetConfig { layers: 2, width: 4, image: SIDE, classes: 2 };
    let mut run = Training::new(&Args::parse(), |net| model.loss(net)).batch(8).adam(1e-2).start()?;
    for step in 0..20 {
        let (images, labels) = batch(step * run.batch(), run.batch());
        run.step((("images", &images), ("labels", &labels)))?;
    }
    let (images, labels) = batch(1000, run.batch());
    let found = run.evaluate([(("images", images), ("labels", labels))])?;
    println!("{:.0} % of the pixels are right", 100.0 * found["accuracy"]);
    Ok(())
}
