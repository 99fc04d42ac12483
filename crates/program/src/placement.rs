//! Which process of a job has which device.

use crate::{Program, ProgramError};

/// Devices on ranks. Says nothing about how ranks lie on hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// How many ranks there are.
    pub ranks: u32,
    /// By device number: its rank.
    pub of_device: Vec<u32>,
}

impl Placement {
    /// All devices in one process.
    pub fn alone() -> Placement {
        Placement { ranks: 1, of_device: Vec::new() }
    }

    /// Whether there are several processes.
    pub fn is_split(&self) -> bool {
        self.ranks > 1
    }

    /// The rank of a device, if it has one.
    pub fn rank_of(&self, device: u32) -> Option<u32> {
        self.of_device.get(device as usize).copied().filter(|&rank| rank < self.ranks)
    }

    /// By lane of a program: its rank.
    pub(crate) fn ranks_of(&self, program: &Program) -> Result<Vec<u32>, ProgramError> {
        let rank = |device: u32| {
            let unplaced = ProgramError::Unplaced { device, ranks: self.ranks };
            self.rank_of(device).ok_or(unplaced)
        };
        program.lanes().iter().map(|lane| rank(lane.device)).collect()
    }
}
