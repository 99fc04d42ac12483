//! What a training run has to do with the other ranks of its job.

use std::sync::Arc;
use std::time::Duration;

use phalanx_net::Network;
use phalanx_program::{Certificate, PortKind};

use super::TrainConfig;
use crate::job::{Drill, DrillKind, Fuse, Job, Topology, Verdict, Watchdog, Watched};
use crate::{Error, Session};

/// One rank's part in a run.
pub struct Ranks {
    pub topology: Topology,
    pub certificate: Option<Certificate>,
    network: Arc<dyn Network>,
    watchdog: Watchdog,
    stop: bool,
    drill: Option<Drill>,
    fuse: Fuse,
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
    ) -> Result<Ranks, Error> {
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
        let drill = config.drill()?.filter(|drill| drill.rank == job.network.rank());
        let (network, watchdog) = (Arc::clone(&job.network), Watchdog::start(&job.alerts, watched));
        Ok(Ranks { topology, certificate, network, watchdog, stop: false, drill, fuse: Fuse::default() })
    }

    /// What every operation has to look at, if this rank is to fail on purpose.
    pub fn fuse(&self) -> Option<Fuse> {
        self.drill.map(|_| self.fuse.clone())
    }

    /// All ranks stop after the step at whose end they next meet.
    pub fn ask_to_stop(&mut self) {
        self.stop = true;
    }

    /// From now on standing still is wrong.
    pub fn step_begins(&self) {
        self.watchdog.set_active(true);
    }

    /// Does what all ranks do together between steps, where standing still is wrong, too.
    pub fn between_steps<T>(&self, work: impl FnOnce() -> T) -> T {
        self.watchdog.set_active(true);
        let done = work();
        self.watchdog.set_active(false);
        done
    }

    /// Meets the others at the end of a step; whether to stop.
    pub fn step_ends(&mut self) -> Result<bool, Error> {
        let verdict = Verdict { stop: self.stop, ..Verdict::default() };
        let agreed = verdict.exchange(&*self.network)?;
        self.watchdog.set_active(false);
        Ok(agreed.stop)
    }

    /// Fails on purpose, if this is the step to do so.
    pub fn drill(&self, step: u64, session: &mut Session) -> Result<(), Error> {
        let Some(drill) = self.drill.filter(|drill| drill.step == step) else { return Ok(()) };
        if drill.kind == DrillKind::Nan {
            let name = session.part().ports().iter().find(|port| port.kind == PortKind::Param);
            if let Some((name, elements)) = name.map(|port| (port.name.clone(), port.ty.shape.elements())) {
                session.feed(&name, &vec![f32::NAN; elements])?;
            }
        }
        self.fuse.arm(drill.kind);
        Ok(())
    }
}
