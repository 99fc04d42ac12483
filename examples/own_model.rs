//! A model of one's own: a residual network that tells two spirals apart, trained on one device and on two.

use phalanx::ir::graph::{BuildError, Builder, Graph, ValueId};
use phalanx::ir::{Activation, Binary, DType, Init, TensorType, Unary};
use phalanx::{Feed, Goal, Optimizer, PlanChoice, Settings, Trainer, ops::Layers};

const BATCH: usize = 64;
const WIDTH: usize = 32;

/// A linear layer with the parameters `name.weight` and `name.bias`.
fn linear(model: &mut Builder, name: &str, x: ValueId, outputs: usize) -> Result<ValueId, BuildError> {
    let inputs = model.shape(x).last();
    let init = Init::Uniform(1.0 / (inputs as f32).sqrt());
    let weight = model.param(&format!("{name}.weight"), [outputs, inputs], init)?;
    let bias = model.param(&format!("{name}.bias"), [outputs], Init::Zeros)?;
    model.linear(name, x, weight, Some(bias))
}

/// The training step: inputs `points` and `labels`, output `loss`.
fn spirals() -> Result<Graph, BuildError> {
    let mut model = Builder::new("spirals");
    let points = model.input("points", TensorType::f32([BATCH, 2]))?;
    let labels = model.input("labels", TensorType::new(DType::I64, [BATCH]))?;
    let mut x = linear(&mut model, "stem", points, WIDTH)?;
    for block in 0..3 {
        let name = format!("blocks.{block}");
        let inner = model.unary(&format!("{name}.act"), Unary::Act(Activation::Tanh), x)?;
        let branch = linear(&mut model, &format!("{name}.linear"), inner, WIDTH)?;
        x = model.binary(&name, Binary::Add, x, branch)?;
    }
    let logits = linear(&mut model, "head", x, 2)?;
    let loss = model.cross_entropy("loss", logits, labels, -100)?;
    Ok(model.finish([loss]))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = spirals()?;
    let labels: Vec<i64> = (0..BATCH as i64).map(|i| i % 2).collect();
    let point = |i: usize| {
        let angle = 0.2 * (i / 2) as f32 + std::f32::consts::PI * (i % 2) as f32;
        let radius = 0.1 + 0.03 * (i / 2) as f32;
        [radius * angle.cos(), radius * angle.sin()]
    };
    let points: Vec<f32> = (0..BATCH).flat_map(point).collect();
    for (plan, devices) in [("one", 1), ("dp", 2), ("fsdp", 2)] {
        let choice = PlanChoice::default().plan(Some(plan.into())).devices(Some(devices));
        let settings = Settings::new(Goal::Train(Optimizer::adamw(0.01)));
        let settings = settings.plan(choice.resolve(&model)?).cores(1);
        let mut trainer = Trainer::with_settings(&model, &settings)?;
        let mut loss = f32::NAN;
        for _ in 0..200 {
            let feeds = [("points", Feed::F32(&points)), ("labels", Feed::I64(&labels))];
            loss = trainer.step(&feeds, 0.01)?.loss;
        }
        println!("{plan} on {devices}: loss {loss:.4}, weights {:032x}", trainer.session().weights_hash()?);
    }
    Ok(())
}
