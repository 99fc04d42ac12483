//! Hashes of the state of a run: every rank sums over what it answers for, and the sums are added. No tensor is gathered.

use std::collections::BTreeMap;

use phalanx_program::PortKind;
use phalanx_program::rect::Tile;

use super::{Session, Share};
use crate::Error;
use crate::hashes::{self, StateHashes};
use crate::job::JobError;

impl Session {
    /// Hashes of all weights and optimizer states after the runs in flight; how they lie on devices does not matter. All
    /// ranks of a job call it together.
    pub fn state_hashes(&mut self) -> Result<StateHashes, Error> {
        // Ranks add their sums by position, so all have all names.
        let names = self.names(PortKind::Param).chain(self.names(PortKind::State));
        let mut sums: BTreeMap<String, u64> = names.map(|name| (name.into(), 0)).collect();
        self.visit_own_state(|port, tile, bytes| {
            let rect = Tile { origin: &tile.origin, extents: tile.ty.shape.dims() };
            let own = hashes::sum_of(port.ty.dtype.bytes(), port.ty.shape.dims(), rect, bytes);
            let sum = sums.entry(port.name.clone()).or_default();
            *sum = sum.wrapping_add(own);
        })?;
        if let Some(job) = &self.job {
            job.add(&mut sums)?;
        }
        Ok(StateHashes::of_sums(&sums))
    }
}

impl Share {
    /// Adds the sums of the other ranks, which have the same names.
    fn add(&self, sums: &mut BTreeMap<String, u64>) -> Result<(), JobError> {
        let own: Vec<u8> = sums.values().flat_map(|sum| sum.to_le_bytes()).collect();
        sums.values_mut().for_each(|sum| *sum = 0);
        for (rank, bytes) in (0..).zip(self.network.all_gather(&own)?) {
            if bytes.len() != own.len() {
                return Err(JobError::Garbled { rank, what: "hash" });
            }
            for (sum, &addend) in sums.values_mut().zip(bytes.as_chunks().0) {
                *sum = sum.wrapping_add(u64::from_le_bytes(addend));
            }
        }
        Ok(())
    }
}
