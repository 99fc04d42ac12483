//! How long a model takes from graph to program, stage by stage.

use std::time::Instant;

use phalanx::models::{Gpt2Config, ModelConfig};
use phalanx::pipeline::{self, Settings};
use phalanx::{Error, Goal, Leaves, Optimizer, PlanChoice};
use serde::Serialize;

/// A model and a plan to compile.
#[derive(Clone, Debug, Serialize)]
pub struct CompileBench {
    /// Transformer blocks.
    pub layers: usize,
    /// A preset.
    pub plan: String,
    /// Devices.
    pub devices: usize,
}

/// What it took.
#[derive(Clone, Debug, Serialize)]
pub struct CompileResult {
    /// What was compiled.
    #[serde(flatten)]
    pub bench: CompileBench,
    /// Tasks of all devices.
    pub tasks: usize,
    /// Operations of the program.
    pub operations: usize,
    /// Seconds from graph to program.
    pub seconds: f64,
    /// Microseconds a task.
    pub us_per_task: f64,
    /// Seconds of every stage, in order.
    pub stages: Vec<(&'static str, f64)>,
}

/// The sizes measured by default: growth in layers, then in devices.
pub const COMPILE_SIZES: &[(usize, &str, usize)] = &[
    (12, "dp2-tp2-pp2", 8),
    (24, "dp2-tp4-pp2", 16),
    (48, "dp4-tp4-pp4", 64),
    (48, "fsdp8-tp8", 64),
    (96, "dp8-tp8-pp8", 512),
];

/// Compiles once. The model is as wide as needed for the plan and no wider: compiling does not depend on widths.
pub fn compile(bench: &CompileBench) -> Result<CompileResult, Error> {
    const WIDTH: usize = 512;
    let config = Gpt2Config {
        layers: bench.layers,
        heads: 8,
        width: WIDTH,
        hidden: 4 * WIDTH,
        vocab: 4096,
        context: 128,
        dropout: 0.0,
        tied: true,
        eps: 1e-5,
        activation: phalanx_ir::Activation::GeluTanh,
    };
    let model = ModelConfig::Gpt2(config).training_graph(bench.devices.max(64), 128)?;
    let choice = PlanChoice::default().plan(Some(bench.plan.clone())).devices(Some(bench.devices));
    let optimizer = Optimizer::adamw(0.1).clip(Some(1.0));
    let settings = Settings::new(Goal::Train(optimizer))
        .leaves(Leaves { batch: 256, feature: 8, sequence: 8 })
        .cores(1)
        .plan(choice.resolve(&model)?);
    let (mut stages, mut last, start) = (Vec::new(), Instant::now(), Instant::now());
    let mut note = |stage| {
        stages.push((stage, last.elapsed().as_secs_f64()));
        last = Instant::now();
    };
    let layout = pipeline::lay_out(&model, &settings, |stage, _| note(stage))?;
    let tasks = layout.tasks.tasks.len();
    let program = pipeline::freeze(&layout, &settings)?;
    note("emit");
    let seconds = start.elapsed().as_secs_f64();
    let (operations, us_per_task) = (program.operations().len(), seconds * 1e6 / tasks as f64);
    Ok(CompileResult { bench: bench.clone(), tasks, operations, seconds, us_per_task, stages })
}
