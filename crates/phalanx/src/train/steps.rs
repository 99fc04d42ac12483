//! The compiled steps of a run, wherever they come from.

use phalanx_ir::graph::Graph;
use phalanx_program::{Certificate, Program};

use super::eval::evaluation_of;
use super::start::measuring;
use super::{StartPhase, StartProgress, TrainConfig};
use crate::Error;
use crate::job::{Job, RankLayout, deal_devices};
use crate::models::ModelConfig;
use crate::pipeline::Settings;

/// What a run replays.
pub(crate) struct RunSteps {
    /// How the steps were compiled.
    pub settings: Settings,
    /// The step that trains.
    pub train: (Graph, Program),
    /// The step that evaluates, if the run does.
    pub evaluate: Option<(Graph, Program)>,
    /// That ranks cannot deadlock; rank 0 of a job has it.
    pub certificate: Option<Certificate>,
}

impl RunSteps {
    /// Compiles `model` for this process alone.
    pub fn compile(
        config: &TrainConfig,
        model: &ModelConfig,
        progress: &mut StartProgress<'_>,
    ) -> Result<RunSteps, Error> {
        let graph = config.training_graph(model)?;
        let settings = config.measured_settings(&graph, &mut measuring(progress))?;
        // A job of one rank, as far as the configuration is concerned.
        deal_devices(settings.plan.mesh.devices(), 1, config.devices_per_rank)?;
        progress(StartPhase::Compiling { devices: settings.plan.mesh.devices() });
        let cache = config.program_cache();
        let program = cache.compile(&graph, &settings)?;
        let evaluate = match config.eval_every {
            None => None,
            Some(_) => {
                let (graph, settings) = evaluation_of(config, model, &settings)?;
                let program = cache.compile(&graph, &settings)?;
                Some((graph, program))
            }
        };
        Ok(RunSteps { settings, train: (graph, program), evaluate, certificate: None })
    }

    /// The same together with the other ranks of a job; rank 0 compiles for all of them.
    pub fn compile_in_job(
        config: &TrainConfig,
        model: &ModelConfig,
        job: &Job,
        progress: &mut StartProgress<'_>,
    ) -> Result<(RunSteps, RankLayout), Error> {
        let graph = config.training_graph(model)?;
        let (settings, topology) = config.settings_in_job(job, &graph, &mut measuring(progress))?;
        progress(StartPhase::Compiling { devices: settings.plan.mesh.devices() });
        let cache = config.program_cache();
        let (program, certificate) = job.program(&graph, &settings, &cache)?;
        let evaluate = match config.eval_every {
            None => None,
            Some(_) => {
                let (graph, settings) = evaluation_of(config, model, &settings)?;
                let (program, _) = job.program(&graph, &settings, &cache)?;
                Some((graph, program))
            }
        };
        Ok((RunSteps { settings, train: (graph, program), evaluate, certificate }, topology))
    }
}
