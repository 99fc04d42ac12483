//! Failing on purpose at a step, alone or as one rank of a job.

use phalanx_program::PortKind;

use super::TrainConfig;
use crate::job::{Drill, DrillKind, FaultTrigger, StepDrill, When};
use crate::{Error, Session};

/// The faults that a drill injects into this process.
pub struct FaultInjection {
    drill: Option<StepDrill>,
    trigger: FaultTrigger,
}

impl FaultInjection {
    /// The part of rank `rank`.
    pub fn new(config: &TrainConfig, rank: u32) -> Result<FaultInjection, Error> {
        let drill = match config.parse_drill()? {
            Some(Drill::Step(drill)) if drill.rank == rank => Some(drill),
            _ => None,
        };
        Ok(FaultInjection { drill, trigger: FaultTrigger::default() })
    }

    /// What every operation checks, if this process is to fail.
    pub fn trigger(&self) -> Option<FaultTrigger> {
        self.drill.map(|_| self.trigger.clone())
    }

    /// Fails, if that is to happen before the first step.
    pub fn before_steps(&self) {
        if let Some(drill) = self.drill.filter(|drill| drill.when == When::Once(0)) {
            self.trigger.arm(drill.kind, 0);
        }
    }

    /// Fails, if that is to happen after the last step.
    pub fn after_steps(&self) {
        if let Some(drill) = self.drill.filter(|drill| drill.when == When::End) {
            self.trigger.arm(drill.kind, 0);
        }
    }

    /// Fails, if this is the step to do so; the first `past` steps of the run are not of this process.
    pub fn step(&self, step: u64, past: u64, session: &mut Session) -> Result<(), Error> {
        let Some(drill) = self.drill.filter(|drill| drill.when.is_at(step, past)) else { return Ok(()) };
        if drill.kind == DrillKind::Nan {
            let name = session.part().ports().iter().find(|port| port.kind == PortKind::Param);
            if let Some((name, elements)) = name.map(|port| (port.name.clone(), port.ty.shape.elements())) {
                session.feed(&name, &vec![f32::NAN; elements])?;
            }
        }
        self.trigger.arm(drill.kind, session.watch().launched());
        Ok(())
    }
}
