//! Trains with checkpoints, stops half way, and goes on in a second run: the weights are those of one run.

use phalanx::train::{Run, TrainConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("phalanx-resume-{}", std::process::id()));
    let config =
        TrainConfig::default().layers(Some(1)).width(Some(32)).heads(Some(2)).context(Some(16)).steps(10);
    let whole = finish(Run::new(config.clone())?)?;

    let saved = config.checkpoint(Some(dir.clone())).every(Some(5));
    let mut half = Run::new(saved.clone())?;
    while half.step()?.step < 5 {}
    half.stop();
    finish(half)?;
    let resumed = finish(Run::new(saved.resume(true))?)?;

    println!("in one run   {whole}\nin two runs  {resumed}");
    assert_eq!(whole, resumed);
    Ok(std::fs::remove_dir_all(dir)?)
}

/// Takes the steps that are left; the hash of the weights.
fn finish(mut run: Run) -> Result<String, phalanx::Error> {
    while !run.is_done() {
        run.step()?;
    }
    Ok(run.summary()?.weights_hash)
}
