//! Compiling a run for later.

use std::path::Path;
use std::sync::Arc;

use phalanx_ir::graph::Graph;
use phalanx_program::{Placement, Program};

use super::manifest::ArtifactSettings;
use super::read::ArtifactFiles;
use super::{Artifact, ArtifactError, ClusterText, CompiledStep, EVALUATE, TRAIN, TrainRecipe};
use crate::cluster::Cluster;
use crate::files;
use crate::job::{certify, deal_devices};
use crate::pipeline::{Settings, compile};
use crate::train::eval::evaluation_of;
use crate::train::{StartPhase, StartProgress, TrainConfig, measuring, prepare, tokenizing};
use crate::{Error, Goal};

impl Artifact {
    /// Compiles the run that `config` describes, for one process and for jobs of up to `ranks` ranks: one for each device
    /// if absent. What only affects how steps are run, such as checkpoints, is said when the artifact is run.
    pub fn compile(
        config: TrainConfig,
        ranks: Option<u32>,
        progress: &mut StartProgress<'_>,
    ) -> Result<Artifact, Error> {
        if config.zoo_model()?.is_some() {
            return Err(ArtifactError::Model { model: config.model }.into());
        }
        let config = config.with_pretrained()?;
        let (_, model, graph) = prepare(&config, &mut tokenizing(progress))?;
        let mut settings = config.settings(&graph)?;
        let devices = settings.plan.mesh.devices();
        settings.placement = placement(devices, ranks.unwrap_or(devices as u32))?;
        config.measure(&graph, &mut settings, &mut measuring(progress))?;
        progress(StartPhase::Compiling { devices });
        let program = compile(&graph, &settings)?;
        let certificate = match settings.placement.is_split() {
            true => Some(certify(&program, &settings)?.to_string()),
            false => None,
        };
        let (evaluation, of_evaluation) = evaluation_of(&config, &model, &settings)?;
        let evaluate = compile(&evaluation, &of_evaluation)?;
        let cluster = config.cluster.as_deref().map(ClusterText::read).transpose()?;
        // Where this machine keeps things is of no use elsewhere.
        let config = TrainConfig { costs: None, data_cache: None, umask: None, no_cache: false, ..config };
        let config = TrainConfig { cores_per_device: settings.cores, ..config }.with_model(&model);
        let steps = vec![
            CompiledStep { name: TRAIN.into(), graph, program },
            CompiledStep { name: EVALUATE.into(), graph: evaluation, program: evaluate },
        ];
        let artifact = Artifact { certificate, cluster, ..Artifact::of_steps(steps, &settings) };
        artifact.with_recipe(TrainRecipe { config, model })
    }

    /// One step without a run.
    pub(crate) fn of_program(model: &Graph, program: &Program, settings: &Settings) -> Artifact {
        let name = if matches!(settings.goal, Goal::Train(_)) { TRAIN } else { EVALUATE };
        let step = CompiledStep { name: name.into(), graph: model.clone(), program: program.clone() };
        Artifact::of_steps(vec![step], settings)
    }

    /// The program of an artifact of one step, if `model` and `settings` are what it was compiled from.
    pub(crate) fn into_program(mut self, model: &Graph, settings: &Settings) -> Option<Program> {
        let is_same = self.settings == ArtifactSettings::of(settings) && self.plan == settings.plan;
        let step = self.steps.pop().filter(|_| is_same && self.steps.is_empty())?;
        (step.graph.to_string() == model.to_string()).then_some(step.program)
    }

    /// Steps without a run.
    fn of_steps(steps: Vec<CompiledStep>, settings: &Settings) -> Artifact {
        Artifact {
            settings: ArtifactSettings::of(settings),
            plan: settings.plan.clone(),
            steps,
            recipe: None,
            costs: settings.cost_table.as_ref().map(Arc::clone),
            cluster: None,
            certificate: None,
            hash: String::new(),
        }
    }

    /// The same with a run, as it will be loaded.
    fn with_recipe(self, recipe: TrainRecipe) -> Result<Artifact, Error> {
        let files: ArtifactFiles = Artifact { recipe: Some(recipe), ..self }.to_files()?;
        Artifact::of_files(&files)
    }
}

/// Devices on so many ranks.
pub(super) fn placement(devices: usize, ranks: u32) -> Result<Placement, Error> {
    if ranks == 0 || ranks as usize > devices {
        return Err(ArtifactError::NoDevices { ranks, devices }.into());
    }
    match ranks {
        1 => Ok(Placement::alone()),
        _ => Ok(Placement { ranks, of_device: deal_devices(devices, ranks as usize, None)? }),
    }
}

impl ClusterText {
    fn read(path: &Path) -> Result<ClusterText, ArtifactError> {
        let text = files::read_text(path);
        let text = text.map_err(|source| ArtifactError::Read { path: path.into(), source })?;
        match Cluster::parse(&text) {
            Ok(cluster) => Ok(ClusterText { text, cluster }),
            Err(error) => Err(ArtifactError::text(&path.display().to_string(), &error)),
        }
    }
}
