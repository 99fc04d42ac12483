//! A training run as one rank of a job.

use std::sync::Arc;
use std::time::Duration;

use phalanx_net::Network;
use phalanx_program::Certificate;

use phalanx_ir::graph::Graph;

use super::resume::json;
use super::{OPTIONS, TrainConfig};
use crate::job::{Agreed, Job, Phases, RankLayout, RankOptions, StepVote, Watchdog, Watched, shared};
use crate::pipeline::Settings;
use crate::{Error, Session};

impl TrainConfig {
    /// What the other ranks of a job must know about this configuration.
    pub fn rank_options(&self) -> Result<RankOptions, Error> {
        let all = json(self)?;
        let shared = OPTIONS.iter().filter(|option| option.is_same_on_all_ranks());
        let shared = shared.map(|option| (option.name.to_string(), all[option.name].clone())).collect();
        Ok(RankOptions { cores: self.cores, cores_per_device: self.cores_per_device, shared })
    }

    /// How all ranks of a job compile `model`, and which part of it each has. Plan, seed and times of kernels are those
    /// of rank 0; `progress` is called there with the kernels that are measured.
    pub fn settings_in_job(
        &self,
        job: &Job,
        model: &Graph,
        progress: &mut dyn FnMut(usize, usize, &str),
    ) -> Result<(Settings, RankLayout), Error> {
        let network = &*job.network;
        let plan = shared::plan(network, || self.resolve_plan(model))?;
        let devices = plan.mesh.devices();
        let topology = RankLayout::new(&job.hellos, network.rank(), devices, self.devices_per_rank)?;
        let config = TrainConfig {
            seed: shared::seed(network, self.seed)?,
            cores_per_device: topology.cores_per_device,
            ..self.clone()
        };
        // Other ranks may not have the file of costs.
        let rest = TrainConfig { costs: None, ..config.clone() };
        let placement = topology.placement.clone();
        let mut settings = Settings { placement, ..rest.settings_for(plan)? };
        settings.cost_table = shared::costs(network, || {
            let mut settings = settings.clone();
            config.measure(model, &mut settings, progress)?;
            Ok(settings.cost_table)
        })?;
        Ok((settings, topology))
    }
}

/// One rank's part in a run.
pub struct Ranks {
    pub topology: RankLayout,
    pub certificate: Option<Certificate>,
    pub network: Arc<dyn Network>,
    phases: Arc<Phases>,
    watchdog: Watchdog,
    stop: bool,
}

impl Ranks {
    /// Starts to watch the runs of `session`, and those of `evaluation` between steps.
    pub fn new(
        config: &TrainConfig,
        job: &Job,
        topology: RankLayout,
        certificate: Option<Certificate>,
        session: &Session,
        evaluation: Option<&Session>,
    ) -> Ranks {
        let (whole, placement) = (session.program().clone(), topology.placement.clone());
        let watched = Watched {
            watch: session.watch(),
            between: evaluation.map(Session::watch),
            // What was sliced once can be sliced again.
            parts: Box::new(move || whole.parts(&placement).unwrap_or_default()),
            limit: Duration::from_secs(config.stall_seconds),
            names: job
                .hellos
                .iter()
                .map(|hello| format!("{}, process {}", hello.host, hello.process))
                .collect(),
            say: Arc::clone(&job.say),
        };
        let (network, watchdog) = (Arc::clone(&job.network), Watchdog::start(&job.alerts, watched));
        Ranks { topology, certificate, network, phases: Arc::clone(&job.phases), watchdog, stop: false }
    }

    /// All ranks stop after the step at whose end they next meet.
    pub fn ask_to_stop(&mut self) {
        self.stop = true;
    }

    /// From now on standing still is wrong; `past` steps were done before this process started.
    pub fn step_begins(&self, past: u64) {
        self.phases.steps();
        self.watchdog.set_past(past);
        self.watchdog.set_active(true);
    }

    /// Does what all ranks do together between steps, where standing still is wrong, too.
    pub fn between_steps<T>(&self, work: impl FnOnce() -> T) -> T {
        self.phases.steps();
        self.watchdog.set_active(true);
        let done = work();
        self.pause();
        done
    }

    /// Meets the others at the end of a step.
    pub fn step_ends(&mut self, verdict: StepVote) -> Result<Agreed, Error> {
        let agreed = StepVote { stop: self.stop, ..verdict }.exchange(&*self.network)?;
        self.pause();
        Ok(agreed)
    }

    /// No operation runs until the next step: checkpoints may take long, but every rank must live.
    fn pause(&self) {
        self.watchdog.set_active(false);
        self.phases.enter("between steps");
    }
}

#[cfg(test)]
mod tests;
