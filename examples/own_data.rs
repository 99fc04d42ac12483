//! Data of one's own: anything that can be iterated over. A thread reads batches ahead of the steps and hands them over;
//! images are floats, labels integers.

use std::sync::mpsc::sync_channel;
use std::thread;

use phalanx::nn::{Args, F32, I64, Net, OwnedFeed, Tensor, Training};

const SIDE: usize = 8;

fn model(net: &Net) -> Tensor {
    let (image, label) =
        (net.input("image", F32, [net.batch(), SIDE, SIDE]), net.input("label", I64, [net.batch()]));
    let hidden = net.at("hidden").linear(&image.flatten(), 32).relu();
    net.at("head").linear(&hidden, 2).cross_entropy(&label)
}

/// Images of lines across or down, which a real loader would read from files.
fn batch(step: usize, size: usize) -> [(&'static str, OwnedFeed); 2] {
    let (mut image, mut label): (Vec<f32>, Vec<i64>) = (Vec::new(), Vec::new());
    for sample in 0..size {
        let (at, across) = ((sample * 3 + step) % SIDE, (sample + step / 3) % 2);
        let pixel = |place: usize| if [place / SIDE, place % SIDE][across] == at { 1.0 } else { 0.0 };
        image.extend((0..SIDE * SIDE).map(pixel));
        label.push(across as i64);
    }
    [("image", image.into()), ("label", label.into())]
}

fn main() -> phalanx::Result<()> {
    let mut run = Training::new(&Args::parse(), model).batch(32).adamw(1e-2, 0.0).start()?;
    let (size, first) = (run.batch(), run.steps() as usize);
    let (sender, batches) = sync_channel(4);
    thread::spawn(move || (first..).map(|step| batch(step, size)).all(|batch| sender.send(batch).is_ok()));
    for batch in batches.into_iter().take(100) {
        let step = run.step(batch)?;
        if step.number % 25 == 0 {
            println!("{step}");
        }
    }
    Ok(())
}
