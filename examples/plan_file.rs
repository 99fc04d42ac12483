//! Tensor parallelism for any model: a plan cuts the hidden features over two devices, and the weights stay the same.

use phalanx::models::MlpConfig;
use phalanx::{Feed, Goal, Optimizer, Plan, Settings, Trainer};

/// Layer 0 computes half of the hidden features on each device; layer 1 takes them as they are and sums.
const PLAN: &str = r#"
name = "two-halves"

[mesh]
tp = 2

[[rule]]
match = "layers.0.weight"    # f32[out, in]
shard = { 0 = "tp" }

[[rule]]
match = "layers.0.bias"
shard = { 0 = "tp" }

[[rule]]
match = "layers.1.weight"
shard = { 1 = "tp" }
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = MlpConfig::regression([1, 32, 1]).training_graph(64)?;
    let x: Vec<f32> = (0..64).map(|i| i as f32 / 10.0 - 3.2).collect();
    let y: Vec<f32> = x.iter().map(|x| x.sin()).collect();
    let mut hashes = Vec::new();
    for plan in [Plan::default(), Plan::parse(PLAN)?] {
        let mut settings = Settings::new(Goal::Train(Optimizer::adam()));
        settings.cores = 1;
        settings.plan = plan;
        let mut trainer = Trainer::with_settings(&model, &settings)?;
        for _ in 0..100 {
            trainer.step(&[("x", Feed::F32(&x)), ("y", Feed::F32(&y))], 0.01)?;
        }
        let hash = trainer.session().weights_hash()?;
        println!("{:12}{} bytes, weights {hash:032x}", settings.plan.name, trainer.session().arena_bytes());
        hashes.push(hash);
    }
    assert_eq!(hashes[0], hashes[1]);
    Ok(())
}
