//! The description of an artifact: `manifest.json`.

use std::collections::BTreeMap;

use phalanx_ir::Precision;
use phalanx_program::{Port, PortKind};
use phalanx_schedule::recompute::Recompute;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::kernels::kernels;
use super::{Artifact, CompiledStep, TrainRecipe};
use crate::Error;
use crate::ckpt::FileEntry;
use crate::pipeline::{Fusion, Overlap, Settings};
use crate::session::initial_values;
use crate::train::{Bits, json};

/// The version of the format that is written and read.
pub const FORMAT: u32 = 1;

/// The version of Phalanx, which compiles and runs.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// An artifact's description of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArtifactManifest {
    /// The version of the format: [`FORMAT`].
    pub format: u32,
    /// The version of Phalanx that compiled it.
    pub phalanx: String,
    /// The model's name.
    pub name: String,
    /// What the steps were compiled with.
    pub settings: ArtifactSettings,
    /// The run to train, if there is one.
    pub run: Option<RunRecipe>,
    /// The steps.
    pub steps: Vec<StepSummary>,
    /// Every other file.
    pub files: Vec<FileEntry>,
}

/// All that steps depend on beside model, plan and costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArtifactSettings {
    /// Devices in all.
    pub devices: usize,
    /// The most processes that can share them.
    pub ranks: u32,
    /// Cores of each device.
    pub cores: usize,
    /// What the step is for, with its optimizer.
    pub goal: String,
    /// What matrix products are computed in.
    pub precision: Precision,
    /// Seed of initial values, dropout and data.
    pub seed: u64,
    /// Reduction blocks of sums over the batch, features and time.
    pub blocks: [usize; 3],
    /// Whether the plan may change the bits.
    pub bits: Bits,
    /// Whether transfers run beside computing.
    pub overlap: Overlap,
    /// How devices are connected, if that was said.
    pub topology: Option<String>,
    /// The most bytes that a device may need.
    pub memory: Option<u64>,
    /// Which activations are computed again.
    pub recompute: Recompute,
    /// Whether tasks were joined.
    pub fusion: Fusion,
}

/// What a training run needs beside its steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRecipe {
    /// The configuration, with all options.
    pub config: Value,
    /// The model's sizes.
    pub model: Value,
}

/// A compiled step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepSummary {
    /// `train` or `evaluate`: its graph and program are in files of this name.
    pub name: String,
    /// Operations of all devices.
    pub operations: usize,
    /// Bytes of the arena of each device.
    pub arenas: Vec<u64>,
    /// The kernels that it runs.
    pub kernels: Vec<KernelUse>,
    /// The tensors that the host can reach.
    pub ports: Vec<PortLayout>,
    /// What weights are before the first step.
    pub initial: Vec<InitialValue>,
}

/// A kernel and what it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelUse {
    /// Its name.
    pub name: String,
    /// Operations that run it.
    pub operations: usize,
    /// Parameter words of an operation: the fewest and the most.
    pub words: [usize; 2],
    /// What it computes in.
    pub precision: Precision,
    /// Instruction sets that it exists for; any of them gives the same bits.
    pub instruction_sets: Vec<String>,
}

/// A tensor that the host can reach, and how it lies on devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortLayout {
    /// Its name.
    pub name: String,
    /// `input`, `param`, `table`, `state` or `output`.
    pub kind: String,
    /// Its type.
    #[serde(rename = "type")]
    pub ty: String,
    /// The types of its tiles, and the devices that hold one.
    pub tiles: BTreeMap<String, Vec<u32>>,
}

/// How a weight begins: its elements are functions of the seed, the stream and their place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitialValue {
    /// Its name.
    pub name: String,
    /// The distribution, as graphs have it.
    pub init: String,
    /// The stream of random numbers.
    pub stream: u64,
}

impl Artifact {
    /// The description of this artifact, whose other files are `files`.
    pub(super) fn describe(&self, files: Vec<FileEntry>) -> Result<ArtifactManifest, Error> {
        let name = self.steps.first().map_or(String::new(), |step| step.graph.name().to_string());
        let run = self.recipe.as_ref().map(TrainRecipe::describe).transpose()?;
        let precision = self.settings.precision;
        let steps = self.steps.iter().map(|step| step.describe(precision)).collect();
        let (settings, phalanx) = (self.settings.clone(), VERSION.into());
        Ok(ArtifactManifest { format: FORMAT, phalanx, name, settings, run, steps, files })
    }
}

impl ArtifactSettings {
    /// What matters of `settings`.
    pub(crate) fn of(settings: &Settings) -> ArtifactSettings {
        let blocks = [settings.leaves.batch, settings.leaves.feature, settings.leaves.sequence];
        ArtifactSettings {
            devices: settings.plan.mesh.devices(),
            ranks: settings.placement.ranks,
            cores: settings.cores,
            goal: format!("{:?}", settings.goal),
            precision: settings.precision,
            seed: settings.seed,
            blocks,
            bits: if settings.free_bits { Bits::Free } else { Bits::Strict },
            overlap: settings.overlap,
            topology: settings.topology.as_ref().map(ToString::to_string),
            memory: settings.memory,
            recompute: settings.recompute,
            fusion: settings.fusion,
        }
    }
}

impl TrainRecipe {
    fn describe(&self) -> Result<RunRecipe, Error> {
        Ok(RunRecipe { config: json(&self.config)?, model: json(&self.model)? })
    }
}

impl CompiledStep {
    fn describe(&self, precision: Precision) -> StepSummary {
        let initial = |initial: crate::session::Initial<'_>| InitialValue {
            name: initial.name.to_string(),
            init: initial.init.to_string(),
            stream: initial.stream,
        };
        StepSummary {
            name: self.name.clone(),
            operations: self.program.operations().len(),
            arenas: self.program.homes().map(|lane| lane.arena).collect(),
            kernels: kernels(&self.program, precision),
            ports: self.program.ports().iter().map(|port| self.layout_of(port)).collect(),
            initial: initial_values(&self.graph).map(initial).collect(),
        }
    }

    fn layout_of(&self, port: &Port) -> PortLayout {
        let kind = match port.kind {
            PortKind::Input => "input",
            PortKind::Param => "param",
            PortKind::Table => "table",
            PortKind::State => "state",
            PortKind::Output => "output",
        };
        let mut tiles: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for tile in &port.tiles {
            let device = self.program.lanes()[tile.slice.lane as usize].device;
            tiles.entry(tile.ty.to_string()).or_default().push(device);
        }
        PortLayout { name: port.name.clone(), kind: kind.into(), ty: port.ty.to_string(), tiles }
    }
}
