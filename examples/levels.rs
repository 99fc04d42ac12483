//! Shows the levels of the compiler: how long the text of each one is, and the model itself.

use phalanx::models::MlpConfig;
use phalanx::pipeline::compile_observed;
use phalanx::{Goal, Optimizer, PlanChoice, Settings};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = MlpConfig::regression([1, 32, 1]).training_graph(64)?;
    println!("{model}");
    let choice = PlanChoice::default().plan(Some("dp2".into()));
    let settings = Settings::new(Goal::Train(Optimizer::sgd(0.9))).plan(choice.resolve(&model)?);
    let program = compile_observed(&model, &settings, |stage, level| {
        println!("{stage:20}{:5} lines", level.to_string().lines().count());
    })?;
    println!("{} operations, {} bytes of memory", program.operations().len(), program.arena());
    Ok(())
}
