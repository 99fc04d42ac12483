//! Trains a tiny GPT on the embedded grammar and shows how close it comes to the best possible loss.

use phalanx::train::{Run, TrainConfig};

fn main() -> Result<(), phalanx::Error> {
    let config = TrainConfig::default().layers(Some(2)).width(Some(64)).context(Some(32)).steps(60);
    let mut run = Run::new(config)?;
    while !run.is_done() {
        let report = run.step()?;
        if report.step % 20 == 0 {
            println!("step {}: loss {:.3}", report.step, report.loss);
        }
    }
    let summary = run.summary()?;
    println!(
        "{:.3} nats a byte; the grammar allows {:.3}",
        summary.loss,
        summary.entropy.unwrap_or_default()
    );
    Ok(())
}
