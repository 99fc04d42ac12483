//! Small things all ranks do together, in pieces that fit the library's counts. Each waits by driving.

use std::ffi::c_int;

use super::engine::Engine;
use super::layout::BLOCK;
use crate::NetError;

/// Bytes that each rank brings to one gather; longer texts take several, which bounds the room for padding.
const GATHERED: usize = 16 << 20;

/// The tag of carried bytes, which come in order.
const TAG: c_int = 0;

impl Engine {
    /// Waits until all ranks are here.
    pub(crate) fn barrier(&self) -> Result<(), NetError> {
        let comm = self.comms.agreements;
        // SAFETY: called under the lock.
        self.complete(|library, request| unsafe { library.ibarrier(comm, request) })
    }

    /// Makes `bytes` those of rank `root`.
    pub(crate) fn broadcast(&self, root: u32, bytes: &mut Vec<u8>) -> Result<(), NetError> {
        self.expect_rank(root)?;
        let mut length = (bytes.len() as u64).to_le_bytes();
        self.broadcast_piece(root, &mut length)?;
        bytes.resize(u64::from_le_bytes(length) as usize, 0);
        bytes.chunks_mut(BLOCK).try_for_each(|piece| self.broadcast_piece(root, piece))
    }

    fn broadcast_piece(&self, root: u32, piece: &mut [u8]) -> Result<(), NetError> {
        let (comm, byte) = (self.comms.agreements, self.library.abi.byte);
        let (start, count) = (piece.as_mut_ptr().cast(), piece.len() as c_int);
        // SAFETY: called under the lock; the piece is borrowed until the call is complete or the library given up.
        self.complete(|library, request| unsafe {
            library.ibcast(start, count, byte, root as c_int, comm, request)
        })
    }

    /// What every rank brings.
    pub(crate) fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, NetError> {
        let lengths = self.gather_piece(&(mine.len() as u64).to_le_bytes())?;
        let (lengths, _) = lengths.as_chunks::<8>();
        let lengths: Vec<_> = lengths.iter().map(|length| u64::from_le_bytes(*length) as usize).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let mut all = vec![Vec::new(); self.size as usize];
        for from in (0..longest).step_by(GATHERED) {
            let size = GATHERED.min(longest - from);
            let piece = mine.get(from..).unwrap_or_default();
            let mut padded = piece[..piece.len().min(size)].to_vec();
            padded.resize(size, 0);
            let pieces = self.gather_piece(&padded)?;
            for (rank, piece) in pieces.chunks_exact(size).enumerate() {
                all[rank].extend_from_slice(&piece[..lengths[rank].saturating_sub(from).min(size)]);
            }
        }
        Ok(all)
    }

    /// As many bytes from every rank, one after the other.
    fn gather_piece(&self, mine: &[u8]) -> Result<Vec<u8>, NetError> {
        let mut all = vec![0; mine.len() * self.size as usize];
        let (comm, byte, count) = (self.comms.agreements, self.library.abi.byte, mine.len() as c_int);
        let (start, into) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
        // SAFETY: called under the lock; both buffers stay until the call is complete or the library given up.
        self.complete(|library, request| unsafe {
            library.iallgather(start, count, byte, into, count, byte, comm, request)
        })?;
        Ok(all)
    }

    /// Brings bytes from one rank to another.
    pub(crate) fn carry(&self, from: u32, to: u32, bytes: &mut [u8]) -> Result<(), NetError> {
        self.expect_rank(from)?;
        self.expect_rank(to)?;
        if from == to || (self.rank != from && self.rank != to) {
            return Ok(());
        }
        let (comm, byte) = (self.comms.agreements, self.library.abi.byte);
        for piece in bytes.chunks_mut(BLOCK) {
            let (start, count) = (piece.as_mut_ptr().cast(), piece.len() as c_int);
            // SAFETY: called under the lock; the piece is borrowed until the call is complete or the library given up.
            self.complete(|library, request| unsafe {
                if self.rank == from {
                    library.isend(start, count, byte, to as c_int, TAG, comm, request)
                } else {
                    library.irecv(start, count, byte, from as c_int, TAG, comm, request)
                }
            })?;
        }
        Ok(())
    }

    fn expect_rank(&self, rank: u32) -> Result<(), NetError> {
        if rank < self.size {
            return Ok(());
        }
        let problem = format!("there is no rank {rank} in a job of {}", self.size);
        Err(NetError::Mismatch { rank: self.rank, problem })
    }
}
