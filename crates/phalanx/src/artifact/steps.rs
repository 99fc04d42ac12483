//! The steps of an artifact, ready to be run: in one process, or in as many as it was compiled for at most.

use phalanx_ir::graph::Graph;
use phalanx_net::Network;
use phalanx_program::Program;

use super::build::placement;
use super::read::ArtifactFiles;
use super::{Artifact, ArtifactError, CompiledStep, EVALUATE, TRAIN, TrainRecipe};
use crate::Error;
use crate::job::{Job, JobError, RankLayout, certify, deal_devices, shared};
use crate::models::ModelConfig;
use crate::pipeline::Settings;
use crate::train::{OPTIONS, OptionGroup, RunSteps, TrainConfig, json};

impl Artifact {
    /// The steps of a run in this process.
    pub(crate) fn steps(&self, config: &TrainConfig, model: &ModelConfig) -> Result<RunSteps, Error> {
        self.check_config(config, model)?;
        deal_devices(self.settings.devices, 1, config.devices_per_rank)?;
        self.run_steps(config, self.settings_of(config)?)
    }

    /// The steps of a run as one rank of a job.
    pub(crate) fn steps_in_job(
        &self,
        config: &TrainConfig,
        model: &ModelConfig,
        job: &Job,
    ) -> Result<(RunSteps, RankLayout), Error> {
        self.check_config(config, model)?;
        let (rank, ranks) = (job.network.rank(), job.network.size());
        if ranks > self.settings.ranks {
            return Err(ArtifactError::Ranks { found: self.settings.ranks, ranks }.into());
        }
        let layout = RankLayout::new(&job.hellos, rank, self.settings.devices, config.devices_per_rank)?;
        let settings = Settings { placement: layout.placement.clone(), ..self.settings_of(config)? };
        let mut steps = self.run_steps(config, settings)?;
        if rank == 0 {
            steps.certificate = Some(certify(&steps.train.1, &steps.settings)?);
        }
        Ok((steps, layout))
    }

    fn run_steps(&self, config: &TrainConfig, settings: Settings) -> Result<RunSteps, Error> {
        let step = |name: &'static str| {
            let found = || self.steps.iter().map(|step| step.name.clone()).collect();
            let step = self.step(name).ok_or_else(|| ArtifactError::NoStep { step: name, found: found() });
            step.map(CompiledStep::parts)
        };
        let evaluate = config.eval_every.map(|_| step(EVALUATE)).transpose()?;
        Ok(RunSteps { settings, train: step(TRAIN)?, evaluate, certificate: None })
    }

    /// How the steps were compiled, and how `config` wants them to run.
    fn settings_of(&self, config: &TrainConfig) -> Result<Settings, Error> {
        let settings = config.settings_on(self.plan.clone(), self.cluster())?;
        Ok(Settings { cores: self.settings.cores, cost_table: self.costs.clone(), ..settings })
    }

    /// How the steps are compiled.
    pub(super) fn compiling(&self, config: &TrainConfig) -> Result<Settings, Error> {
        Ok(Settings {
            placement: placement(self.settings.devices, self.settings.ranks)?,
            ..self.settings_of(config)?
        })
    }

    /// Checks that `config` wants nothing that was decided when the steps were compiled.
    fn check_config(&self, config: &TrainConfig, model: &ModelConfig) -> Result<(), Error> {
        let TrainRecipe { config: own, model: own_model } =
            self.recipe.as_ref().ok_or(ArtifactError::NoRun)?;
        let (found, wanted) = (json(own)?, json(config)?);
        let fixed = [OptionGroup::Model, OptionGroup::Step, OptionGroup::Devices];
        for option in OPTIONS.iter().filter(|option| fixed.contains(&option.group)) {
            let [found, wanted] = [&found, &wanted].map(|config| config[option.name].to_string());
            if found != wanted {
                return Err(ArtifactError::Compiled { option: option.name, found, wanted }.into());
            }
        }
        match own_model == model {
            true => Ok(()),
            false => {
                let (found, wanted) = (json(own_model)?.to_string(), json(model)?.to_string());
                Err(ArtifactError::Compiled { option: "model", found, wanted }.into())
            }
        }
    }
}

impl CompiledStep {
    fn parts(&self) -> (Graph, Program) {
        (self.graph.clone(), self.program.clone())
    }
}

impl ArtifactFiles {
    /// The files that `read` gives on rank 0, where alone it is called, on all ranks: other hosts need no copy.
    pub fn share(
        network: &dyn Network,
        read: impl FnOnce() -> Result<ArtifactFiles, ArtifactError>,
    ) -> Result<ArtifactFiles, Error> {
        let what = "artifact";
        let bytes = shared::bytes_of_first(network, what, || Ok(read()?.pack()))?;
        Ok(ArtifactFiles::unpack(&bytes).ok_or(JobError::Garbled { rank: 0, what })?)
    }

    /// All files in one block: of each the lengths of its name and its contents, then both.
    fn pack(&self) -> Vec<u8> {
        let mut packed = Vec::new();
        for (name, bytes) in &self.0 {
            [name.len(), bytes.len()].iter().for_each(|len| packed.extend((*len as u64).to_le_bytes()));
            packed.extend(name.as_bytes());
            packed.extend(bytes);
        }
        packed
    }

    fn unpack(mut packed: &[u8]) -> Option<ArtifactFiles> {
        let mut files = ArtifactFiles::default();
        while !packed.is_empty() {
            let [name, bytes] = [(); 2].map(|()| {
                let (length, rest) = packed.split_first_chunk().unwrap_or((&[0xff; 8], &[]));
                packed = rest;
                u64::from_le_bytes(*length)
            });
            let (name, rest) = packed.split_at_checked(usize::try_from(name).ok()?)?;
            let (bytes, rest) = rest.split_at_checked(usize::try_from(bytes).ok()?)?;
            files.0.insert(String::from_utf8(name.to_vec()).ok()?, bytes.to_vec());
            packed = rest;
        }
        Some(files)
    }
}
