//! Keeps two steps in flight: the next one is fed and started before the one before it has ended.

use phalanx::models::MlpConfig;
use phalanx::train::TrainConfig;
use phalanx::{Feed, Optimizer, Trainer};

fn main() -> Result<(), phalanx::Error> {
    let model = MlpConfig::regression([1, 32, 1]).training_graph(64)?;
    let rate = TrainConfig::default().lr(0.02).lr_floor(0.05).warmup(10).steps(300).learning_rate();
    let optimizer = Optimizer::adamw(0.01).clip(Some(1.0));
    let mut trainer = Trainer::new(&model, optimizer)?;
    let mut in_flight = None;
    for step in 0..rate.steps {
        // Another batch in every step: the sine, shifted.
        let x: Vec<f32> = (0..64).map(|i| (i + step % 7) as f32 / 10.0 - 3.5).collect();
        let y: Vec<f32> = x.iter().map(|x| x.sin()).collect();
        trainer.session_mut().feed("x", Feed::F32(&x))?;
        trainer.session_mut().feed("y", Feed::F32(&y))?;
        let launched = trainer.launch(rate.at(step))?;
        if let Some(before) = in_flight.replace(launched) {
            let report = trainer.wait(before)?;
            if step % 100 == 0 {
                println!(
                    "step {step}: loss {:.5}, norm {:.3}",
                    report.loss,
                    report.gradient_norm.unwrap_or(0.0)
                );
            }
        }
    }
    if let Some(last) = in_flight {
        println!("step {}: loss {:.5}", rate.steps, trainer.wait(last)?.loss);
    }
    Ok(())
}
