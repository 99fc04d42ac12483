//! Compiled steps as a directory to keep and to ship: what `phalanx compile` writes, `phalanx run` trains, and the cache of
//! programs holds.
//!
//! ```text
//! DIR/manifest.json    format, settings, kernels, ports, initial values, and the checksums of all other files; sealed
//!     train.graph      the model of a step, and of an evaluation: evaluate.graph
//!     train.program    the step, frozen; evaluate.program
//!     plan.toml        how tensors lie on devices
//!     costs.json       times of kernels by which transfers were scheduled, if they were measured
//!     cluster.toml     the cluster it was compiled for, if one was named
//!     certificate.txt  the part of every rank, and the proof that they cannot deadlock, if there are several
//!     HASH.table       elements of a large table of the model
//! ```
//!
//! Emitting (`write.rs`) and loading (`read.rs`) share one description (`manifest.rs`): an artifact that has been loaded is
//! described again, and the description must be the one that was read. So every field is checked, and what is derived from
//! graph and program cannot disagree with them. The name of an artifact is the checksum of its manifest ([`Artifact::hash`]),
//! which covers every byte of it.

mod build;
mod differences;
mod error;
mod kernels;
mod manifest;
mod read;
mod steps;
mod write;

pub use differences::{ArtifactDifference, differences};
pub use error::ArtifactError;
pub use manifest::{
    ArtifactManifest, ArtifactSettings, FORMAT, InitialValue, KernelUse, PortLayout, RunRecipe, StepSummary,
};
pub use read::ArtifactFiles;

use std::sync::Arc;

use phalanx_ir::graph::Graph;
use phalanx_plan::Plan;
use phalanx_program::{Certificate, Program};

use crate::cluster::Cluster;
use crate::costs::CostTable;
use crate::models::ModelConfig;
use crate::pipeline::{Settings, compile};
use crate::train::TrainConfig;
use crate::{Error, Goal};

/// The step that trains.
pub(crate) const TRAIN: &str = "train";

/// The step that evaluates without training.
pub(crate) const EVALUATE: &str = "evaluate";

/// Compiled steps and all that they were compiled from.
#[derive(Clone, Debug)]
pub struct Artifact {
    settings: ArtifactSettings,
    plan: Plan,
    steps: Vec<CompiledStep>,
    recipe: Option<TrainRecipe>,
    costs: Option<Arc<CostTable>>,
    cluster: Option<ClusterText>,
    /// The text of the proof.
    certificate: Option<String>,
    /// The checksum of the manifest.
    hash: String,
}

/// A model and the program that it became.
#[derive(Clone, Debug)]
pub(crate) struct CompiledStep {
    pub name: String,
    pub graph: Graph,
    pub program: Program,
}

/// What a training run needs beside its steps.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TrainRecipe {
    pub config: TrainConfig,
    pub model: ModelConfig,
}

/// A cluster file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClusterText {
    pub text: String,
    pub cluster: Cluster,
}

impl Artifact {
    /// What identifies it: the checksum of its manifest, which covers every byte of it.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// What the steps were compiled with.
    pub fn settings(&self) -> &ArtifactSettings {
        &self.settings
    }

    /// How tensors lie on devices.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The step called `name`: `train` or `evaluate`.
    pub fn program(&self, name: &str) -> Option<&Program> {
        self.step(name).map(|step| &step.program)
    }

    /// The model of the step called `name`.
    pub fn graph(&self, name: &str) -> Option<&Graph> {
        self.step(name).map(|step| &step.graph)
    }

    /// The configuration of the run that it was compiled for; none if it holds a step alone, as in the cache.
    pub fn config(&self) -> Option<&TrainConfig> {
        self.recipe.as_ref().map(|recipe| &recipe.config)
    }

    /// The proof that its ranks cannot deadlock, checked anew; none if it is for one process.
    pub fn certificate(&self) -> Result<Option<Certificate>, ArtifactError> {
        let Some(text) = &self.certificate else { return Ok(None) };
        let certificate: Certificate =
            text.parse().map_err(|error| ArtifactError::text(read::CERTIFICATE, &error))?;
        let (found, wanted) = (certificate.whole(), self.program(TRAIN).map(Program::hash));
        match wanted == Some(found) {
            true => Ok(Some(certificate)),
            false => Err(ArtifactError::Field {
                field: read::CERTIFICATE.into(),
                found: format!("about the program {found:032x}"),
                wanted: format!("about {:032x}", wanted.unwrap_or_default()),
            }),
        }
    }

    /// The description that its directory begins with.
    pub fn manifest(&self) -> Result<ArtifactManifest, Error> {
        Ok(read::parse_manifest(&self.to_files()?.0[read::MANIFEST])?)
    }

    /// Compiles the models again: they must become the same programs.
    pub fn check_again(&self) -> Result<(), Error> {
        let config = &self.recipe.as_ref().ok_or(ArtifactError::NoRun)?.config;
        let training = self.compiling(config)?;
        for step in &self.steps {
            let goal = if step.name == TRAIN { training.goal.clone() } else { Goal::Infer };
            let again = compile(&step.graph, &Settings { goal, ..training.clone() })?;
            if again != step.program {
                let [found, wanted] =
                    [&step.program, &again].map(|program| format!("{:032x}", program.hash()));
                let field = read::program_file(&step.name);
                return Err(ArtifactError::Field { field, found, wanted }.into());
            }
        }
        Ok(())
    }

    pub(crate) fn step(&self, name: &str) -> Option<&CompiledStep> {
        self.steps.iter().find(|step| step.name == name)
    }
}

#[cfg(test)]
mod tests;
