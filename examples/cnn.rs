//! A convolutional network with a loss of one's own, data of one's own and an evaluation after every epoch; any plan does.

use phalanx::nn::{Args, ConvLayer, F32, I64, Net, Tensor, Training};

fn cnn(net: &Net) -> Tensor {
    let x = net.input("image", F32, [net.batch(), 16, 16, 1]);
    let mut x = net.at("stem").conv2d(&x, ConvLayer::out(8).kernel(3).padding(1));
    for (i, width) in [8, 16].into_iter().enumerate() {
        let (net, stride) = (net.at("stage").at(i), 1 + i);
        let h = net.at("conv1").conv2d(&x, ConvLayer::out(width).kernel(3).padding(1).stride(stride));
        let h = net.at("bn1").batch_norm(&h).relu();
        let h =
            net.at("bn2").batch_norm(&net.at("conv2").conv2d(&h, ConvLayer::out(width).kernel(3).padding(1)));
        x = (h + net.at("skip").project_like(&x, width, stride)).relu();
    }
    net.at("head").linear(&x.mean([1, 2]), 3)
}

/// A focal loss: samples that are known well count little.
fn loss(net: &Net) -> Tensor {
    let (logits, y) = (cnn(net), net.input("label", I64, [net.batch()]));
    let p = logits.softmax().pick(&y);
    net.metric("accuracy", &logits.is_top(&y).mean_all());
    -((1.0 - &p).square() * p.log()).mean_all()
}

/// Stripes: the class is their direction.
fn stripes(number: usize, size: usize) -> (Vec<f32>, Vec<i64>) {
    let labels: Vec<i64> = (0..size as i64).map(|i| (i * i + number as i64) % 3).collect();
    let pixel = |label: i64, at: usize| {
        let (row, column) = (at / 16 + number, at % 16);
        ([row, column, row + column][label as usize] / 2 % 2) as f32 - 0.5
    };
    (labels.iter().flat_map(|&label| (0..256).map(move |at| pixel(label, at))).collect(), labels)
}

fn main() -> phalanx::Result<()> {
    let mut run = Training::new(&Args::parse(), loss).batch(16).sgd(0.05, 0.9).start()?;
    for epoch in 1..=3 {
        for number in 0..10 {
            let (image, label) = stripes(number, run.batch());
            run.step((("image", &image), ("label", &label)))?;
        }
        let held = (1000..1004).map(|number| stripes(number, 16));
        let test = run.evaluate(held.map(|(image, label)| (("image", image), ("label", label))))?;
        println!("epoch {epoch}: {:.0} % right", 100.0 * test["accuracy"]);
    }
    Ok(())
}
