//! DLRM, a recommender: numbers through a stack of layers, categories through tables, and how they go together tells
//! whether there will be a click. Its tables can be cut over devices: `--plan fsdp2`, or `--plan tp2`.

use phalanx::models::zoo::{DlrmConfig, Samples, ZooConfig};
use phalanx::nn::{Args, OwnedFeed, Training};

fn main() -> phalanx::Result<()> {
    let nano = DlrmConfig::preset("nano").expect("a size");
    let model = DlrmConfig { entries: 64, ..nano };
    let mut run = Training::new(&Args::parse(), |net| model.loss(net)).batch(64).adam(5e-3).start()?;
    for step in 0..60 {
        // Clicks that depend on the categories; real ones would come from a file.
        let samples = model.samples(&mut Samples::new(1, step, run.batch())).into_iter();
        let feeds: Vec<(String, OwnedFeed)> = samples.map(|(name, data)| (name, data.into())).collect();
        let step = run.step(feeds)?;
        if step.number % 20 == 0 {
            println!("{step}");
        }
    }
    Ok(())
}
