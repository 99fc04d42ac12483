//! Failing on purpose at a step, alone or as one rank of a job.

use phalanx_program::PortKind;

use super::TrainConfig;
use crate::job::{Drill, DrillKind, Fuse, StepDrill};
use crate::{Error, Session};

/// What this process has to do in a drill.
pub struct Rehearsal {
    drill: Option<StepDrill>,
    fuse: Fuse,
}

impl Rehearsal {
    /// The part of rank `rank`.
    pub fn new(config: &TrainConfig, rank: u32) -> Result<Rehearsal, Error> {
        let drill = match config.drill()? {
            Some(Drill::Step(drill)) if drill.rank == rank => Some(drill),
            _ => None,
        };
        Ok(Rehearsal { drill, fuse: Fuse::default() })
    }

    /// What every operation has to look at, if this process is to fail.
    pub fn fuse(&self) -> Option<Fuse> {
        self.drill.map(|_| self.fuse.clone())
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
        self.fuse.arm(drill.kind, session.watch().launched());
        Ok(())
    }
}
