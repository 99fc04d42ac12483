//! What ranks exchange after every step: whether to go on, and how their checkpoint fares.
//!
//! All of them come to the same conclusion from the same verdicts, so that they stop and save after the same step.

use phalanx_net::Network;

use super::JobError;

/// What one rank reports about a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepVote {
    /// This rank was asked to stop.
    pub stop: bool,
    /// It is time for a checkpoint.
    pub save: bool,
    /// The last checkpoint's part of this rank is written, or cannot be.
    pub written: bool,
}

/// What all ranks know about a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Some rank was asked to stop.
    pub stop: bool,
    /// Some rank says that it is time for a checkpoint.
    pub save: bool,
    /// All ranks have written their parts of the last checkpoint.
    pub written: bool,
}

impl StepVote {
    /// Exchanges the verdicts of all ranks.
    pub fn exchange(self, network: &dyn Network) -> Result<Agreed, JobError> {
        let verdicts = (0..)
            .zip(network.all_gather(&[self.encode()])?)
            .map(|(rank, bytes)| StepVote::decode(&bytes).ok_or(JobError::Garbled { rank, what: "verdict" }));
        Ok(Agreed::of(&verdicts.collect::<Result<Vec<_>, _>>()?))
    }

    fn encode(self) -> u8 {
        let flags = [self.stop, self.save, self.written];
        (0..).zip(flags).map(|(bit, flag)| u8::from(flag) << bit).sum()
    }

    fn decode(bytes: &[u8]) -> Option<StepVote> {
        let &[flags] = bytes else { return None };
        let [stop, save, written] = [0, 1, 2].map(|bit| flags >> bit & 1 == 1);
        Some(StepVote { stop, save, written })
    }
}

impl Agreed {
    /// What follows from the verdicts of all ranks.
    pub fn of(verdicts: &[StepVote]) -> Agreed {
        Agreed {
            stop: verdicts.iter().any(|verdict| verdict.stop),
            save: verdicts.iter().any(|verdict| verdict.save),
            written: verdicts.iter().all(|verdict| verdict.written),
        }
    }
}
