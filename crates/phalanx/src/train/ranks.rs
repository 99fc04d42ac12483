//! What a training run has to do with the other ranks of its job.

use std::sync::Arc;
use std::time::Duration;

use phalanx_net::Network;
use phalanx_program::Certificate;

use super::TrainConfig;
use crate::job::{Agreed, Job, StepVote, Topology, Watchdog, Watched};
use crate::{Error, Session};

/// One rank's part in a run.
pub struct Ranks {
    pub topology: Topology,
    pub certificate: Option<Certificate>,
    pub network: Arc<dyn Network>,
    watchdog: Watchdog,
    stop: bool,
}

impl Ranks {
    /// Starts to watch the runs of `session`, and those of `evaluation` between steps.
    pub fn new(
        config: &TrainConfig,
        job: &Job,
        topology: Topology,
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
        Ranks { topology, certificate, network, watchdog, stop: false }
    }

    /// All ranks stop after the step at whose end they next meet.
    pub fn ask_to_stop(&mut self) {
        self.stop = true;
    }

    /// From now on standing still is wrong; `past` steps were done before this process started.
    pub fn step_begins(&self, past: u64) {
        self.watchdog.set_past(past);
        self.watchdog.set_active(true);
    }

    /// Does what all ranks do together between steps, where standing still is wrong, too.
    pub fn between_steps<T>(&self, work: impl FnOnce() -> T) -> T {
        self.watchdog.set_active(true);
        let done = work();
        self.watchdog.set_active(false);
        done
    }

    /// Meets the others at the end of a step.
    pub fn step_ends(&mut self, verdict: StepVote) -> Result<Agreed, Error> {
        let agreed = StepVote { stop: self.stop, ..verdict }.exchange(&*self.network)?;
        self.watchdog.set_active(false);
        Ok(agreed)
    }
}
