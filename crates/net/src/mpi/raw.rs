//! What a program would call directly: the yardstick for what the engine costs. Nothing but benchmarks uses it.

use std::ffi::c_int;
use std::sync::MutexGuard;

use super::Mpi;
use super::engine::Engine;
use super::state::State;
use crate::NetError;

/// Tells these messages from carried bytes.
const TAG: c_int = 1;

/// The library without the engine, which stands still meanwhile. All calls wait.
pub struct Raw<'a> {
    engine: &'a Engine,
    /// Keeps all other threads out of the library.
    _state: MutexGuard<'a, State>,
}

impl Mpi {
    /// Stops the engine for as long as the result lives.
    pub fn raw(&self) -> Raw<'_> {
        Raw { engine: &self.engine, _state: self.engine.enter() }
    }
}

impl Raw<'_> {
    /// `MPI_Send`.
    pub fn send(&self, to: u32, bytes: &[u8]) -> Result<(), NetError> {
        let (comm, byte) = (self.engine.comms.agreements, self.engine.library.abi.byte);
        let (start, count) = (bytes.as_ptr().cast(), self.count(bytes.len())?);
        // SAFETY: this thread has the lock and the bytes are borrowed.
        unsafe { self.engine.library.send(start, count, byte, to as c_int, TAG, comm) }
    }

    /// `MPI_Recv` of exactly as many bytes.
    pub fn receive(&self, from: u32, bytes: &mut [u8]) -> Result<(), NetError> {
        let (comm, abi) = (self.engine.comms.agreements, &self.engine.library.abi);
        let (start, count) = (bytes.as_mut_ptr().cast(), self.count(bytes.len())?);
        let status = abi.status_ignore as *mut _;
        // SAFETY: this thread has the lock and the bytes are borrowed.
        unsafe { self.engine.library.recv(start, count, abi.byte, from as c_int, TAG, comm, status) }
    }

    /// `MPI_Allreduce` of sums, in place.
    pub fn all_reduce(&self, numbers: &mut [f32]) -> Result<(), NetError> {
        let (comm, abi) = (self.engine.comms.agreements, &self.engine.library.abi);
        let (start, count) = (numbers.as_mut_ptr().cast(), self.count(numbers.len())?);
        let in_place = abi.in_place as *const _;
        // SAFETY: this thread has the lock and the numbers are borrowed.
        unsafe { self.engine.library.allreduce(in_place, start, count, abi.float, abi.sum, comm) }
    }

    /// `MPI_Alltoall`: the ranks' shares of `mine`, one after the other, go to them, and theirs for this rank come to
    /// `all`.
    pub fn all_to_all(&self, mine: &[u8], all: &mut [u8]) -> Result<(), NetError> {
        let size = self.engine.size as usize;
        if mine.len() != all.len() || !mine.len().is_multiple_of(size) {
            let problem =
                format!("{} bytes cannot be exchanged for {} by {size} ranks", mine.len(), all.len());
            return Err(NetError::Mismatch { rank: self.engine.rank, problem });
        }
        let (comm, byte) = (self.engine.comms.agreements, self.engine.library.abi.byte);
        let (from, into, each) =
            (mine.as_ptr().cast(), all.as_mut_ptr().cast(), self.count(mine.len() / size)?);
        // SAFETY: this thread has the lock and both buffers, as large as each other, are borrowed.
        unsafe { self.engine.library.alltoall(from, each, byte, into, each, byte, comm) }
    }

    fn count(&self, n: usize) -> Result<c_int, NetError> {
        c_int::try_from(n).map_err(|_| {
            let problem = format!("{n} elements are more than one call takes, {}", c_int::MAX);
            NetError::Mismatch { rank: self.engine.rank, problem }
        })
    }
}
