//! Published step times of large models beside what `phalanx simulate` says of the same configurations.
//!
//! Tables A and C of Megatron: Narayanan et al. 2021 (arXiv 2104.04473, table 1; seconds from its formula 3) and Korthikanti
//! et al. 2022 (arXiv 2205.05198, table 5, full recomputation without sequence parallelism). Sequences have 2048 tokens, the
//! vocabulary 51 200. One factor, of the rate of products, is fitted to one row; all others are predictions.
//!
//! With many microbatches two smaller numbers of them are simulated, and the step is taken to grow on as between those.

use std::sync::Arc;

use phalanx::models::{Gpt2Config, ModelConfig};
use phalanx::pipeline::Settings;
use phalanx::{Cluster, DeviceModel, Error, Goal, Optimizer, PlanChoice, Recompute, Simulation};
use serde::Serialize;

const CLUSTER: &str = include_str!("../../../clusters/selene.toml");
const DEVICE: &str = include_str!("../../../devices/a100-80.toml");

/// A published configuration and its time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Anchor {
    /// The table, and the parameters of the model.
    pub name: &'static str,
    /// Attention heads.
    pub heads: usize,
    /// Features.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Devices along the three axes: tensor, pipeline, data.
    pub mesh: [usize; 3],
    /// Sequences of a step.
    pub batch: usize,
    /// Sequences of a microbatch.
    pub rows: usize,
    /// Stages that each device had: more than one are not simulated.
    pub chunks: usize,
    /// Seconds of a step.
    pub seconds: f64,
}

/// The row that the rate of products is fitted to.
pub const CALIBRATED: &str = "C 22B";

/// Name, heads, width, layers, tensor, pipeline, data, batch, rows, chunks.
type Row = (&'static str, [usize; 9], f64);

const ROWS: [Row; 14] = [
    (CALIBRATED, [64, 6144, 48, 8, 1, 1, 4, 4, 1], 1.42),
    ("C 175B", [96, 12288, 96, 8, 8, 1, 64, 1, 3], 18.13),
    ("C 530B", [128, 20480, 105, 8, 35, 1, 280, 1, 3], 49.05),
    ("C 1T", [160, 25600, 128, 8, 64, 1, 512, 1, 1], 94.42),
    ("A 1.7B", [24, 2304, 24, 1, 1, 32, 512, 16, 1], 3.53),
    ("A 3.6B", [32, 3072, 30, 2, 1, 32, 512, 16, 1], 3.70),
    ("A 7.5B", [32, 4096, 36, 4, 1, 32, 512, 16, 1], 3.70),
    ("A 18.4B", [48, 6144, 40, 8, 1, 32, 1024, 8, 1], 9.40),
    ("A 39.1B", [64, 8192, 48, 8, 2, 32, 1536, 4, 1], 14.45),
    ("A 76.1B", [80, 10240, 60, 8, 4, 32, 1792, 2, 3], 16.06),
    ("A 145.6B", [96, 12288, 80, 8, 8, 24, 2304, 2, 2], 24.82),
    ("A 310.1B", [128, 16384, 96, 8, 16, 15, 2160, 1, 2], 37.61),
    ("A 529.6B", [128, 20480, 105, 8, 35, 9, 2520, 1, 3], 54.08),
    ("A 1008B", [160, 25600, 128, 8, 64, 6, 3072, 1, 1], 102.63),
];

/// All anchors; the first one is [`CALIBRATED`].
pub fn all() -> impl Iterator<Item = Anchor> {
    ROWS.into_iter().map(|(name, row, seconds)| {
        let [heads, width, layers, tensor, pipeline, data, batch, rows, chunks] = row;
        Anchor { name, heads, width, layers, mesh: [tensor, pipeline, data], batch, rows, chunks, seconds }
    })
}

impl Anchor {
    /// Devices.
    pub fn devices(&self) -> usize {
        self.mesh.iter().product()
    }

    /// The preset.
    pub fn plan(&self) -> String {
        let parts = ["tp", "pp", "dp"].into_iter().zip(self.mesh).filter(|(_, size)| *size > 1);
        parts.map(|(name, size)| format!("{name}{size}")).collect::<Vec<_>>().join("-")
    }

    /// Seconds of a step, simulated on devices whose products are so many times as fast as the model says.
    pub fn predict(&self, product: f64) -> Result<f64, Error> {
        let [_, stages, data] = self.mesh;
        let microbatches = self.batch / (data * self.rows);
        let [few, more] = [stages + 2, 2 * stages + 2];
        if microbatches <= more {
            return self.simulate(product, microbatches);
        }
        let [first, second] = [self.simulate(product, few)?, self.simulate(product, more)?];
        let each = (second - first) / (more - few) as f64;
        Ok(second + each * (microbatches - more) as f64)
    }

    /// Seconds of a step of so many microbatches.
    fn simulate(&self, product: f64, microbatches: usize) -> Result<f64, Error> {
        let config = Gpt2Config {
            layers: self.layers,
            heads: self.heads,
            width: self.width,
            hidden: 4 * self.width,
            vocab: 51_200,
            context: 2048,
            dropout: 0.0,
            tied: true,
            eps: 1e-5,
            activation: phalanx_ir::Activation::GeluTanh,
        };
        let batch = self.mesh[2] * self.rows * microbatches;
        let model = ModelConfig::Gpt2(config).training_graph(batch, 2048)?;
        let choice = PlanChoice::default()
            .plan(Some(self.plan()))
            .devices(Some(self.devices()))
            .microbatches(Some(microbatches));
        let cluster = Cluster::parse(CLUSTER).expect("the cluster of the project can be read");
        let device = DeviceModel::parse(DEVICE).expect("the device of the project can be read");
        let settings = Settings::new(Goal::Train(Optimizer::adamw(0.1).clip(Some(1.0))))
            .plan(choice.resolve(&model)?)
            .cores(1)
            .free_bits(true)
            .topology(Some(cluster.topology))
            .device_model(Some(Arc::new(device.scaled(product, 1.0))))
            .recompute(Recompute::Full);
        Ok(Simulation::new(&model, &settings)?.step_ns as f64 / 1e9)
    }

    /// How many times as fast as the model says products must be for this anchor's time.
    pub fn calibrate(&self) -> Result<f64, Error> {
        // A step is what products take, which shrinks with their rate, and the rest.
        let [whole, half] = [self.predict(1.0)?, self.predict(0.5)?];
        let products = half - whole;
        let rest = whole - products;
        Ok(products / (self.seconds - rest).max(products / 100.0))
    }
}
