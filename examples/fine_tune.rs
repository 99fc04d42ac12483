//! Fine-tuning: a model learns one task, then its body is loaded into a model with another head and stays frozen at first.

use phalanx::nn::{Args, F32, Net, Tensor, Training};

fn model(net: &Net, outputs: usize) -> Tensor {
    let (x, y) = (net.input("x", F32, [net.batch(), 1]), net.input("y", F32, [net.batch(), outputs]));
    let body = net.at("body");
    let hidden = body.at(1).linear(&body.at(0).linear(&x, 32).tanh(), 32).tanh();
    net.at("head").linear(&hidden, outputs).mse(&y)
}

fn main() -> phalanx::Result<()> {
    let args = Args::parse();
    let file = std::env::temp_dir().join(format!("phalanx-fine-tune-{}.safetensors", std::process::id()));
    let x: Vec<f32> = (0..64).map(|i| i as f32 / 10.0 - 3.2).collect();

    // A sine.
    let y: Vec<f32> = x.iter().map(|x| x.sin()).collect();
    let mut run = Training::new(&args, |net| model(net, 1)).batch(64).adam(0.01).start()?;
    for _ in 0..300 {
        run.step([("x", &x), ("y", &y)])?;
    }
    run.export(&file)?;
    drop(run);

    // Its square and its cosine: the head first, then everything, the body at a tenth of the rate.
    let y: Vec<f32> = x.iter().flat_map(|x| [x.sin().powi(2), x.cos()]).collect();
    let mut run = Training::new(&args, |net| model(net, 2)).batch(64).adam(0.01).freeze("body.*").start()?;
    let left = run.load_matching(&file)?;
    for _ in 0..100 {
        run.step([("x", &x), ("y", &y)])?;
    }
    println!("{} are new; the head alone: loss {:.5}", left.join(" and "), run.read("loss")?[0]);
    run.export(&file)?;
    let mut run =
        Training::new(&args, |net| model(net, 2)).batch(64).adam(0.01).group("body.*", 0.1, None).start()?;
    run.load(&file)?;
    for _ in 0..200 {
        run.step([("x", &x), ("y", &y)])?;
    }
    println!("everything: loss {:.5}", run.read("loss")?[0]);
    std::fs::remove_file(file).ok();
    Ok(())
}
