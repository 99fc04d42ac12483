//! Runs blocks of two halves that talk through pipes: on two members of a team at once, or in turn on one.
//!
//! A half is an async closure, and a pipe the only thing it may await: there is no executor and no waker, only polling.
//! The same code runs both ways and gives the same bits, since a ring delivers the same tiles in the same order.
//!
//! Both halves of a block always run together or not at all. In [`Mode::Apart`] the members of a team pair up; the even
//! one leads and takes blocks, the odd one runs their vector halves. A leader whose partner does not show up (the team
//! is busy and runs its members one after the other) runs both halves in turn, so that no block ever waits for a thread.
//!
//! Halves that both wait on each other's pipes are an error at once, told by cursors that no longer change.

mod desk;
mod error;
pub(super) mod step;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Mutex, PoisonError};

use arrayvec::ArrayVec;

use super::layout::{BlockLayout, MAX_PARTS};
use super::pipe::{Ends, Half, Ledger, Opened, PipeError, open};
use super::{Parts, Team};
use desk::{Desk, Shift, Work};
pub use error::BlockError;
use step::{Outcome, alone, in_turn};

/// The most pairs of members that run blocks apart; members beyond run blocks in turn.
const MAX_PAIRS: usize = 16;

/// How the two halves of a block run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// On two members at once.
    Apart,
    /// In turn on one member; every member runs blocks of its own.
    Together,
}

/// What one half of one block is given.
pub struct Side<'a> {
    /// Which block, from 0.
    pub index: u64,
    /// How many blocks the launch has.
    pub count: u64,
    /// The scratch areas of this half.
    pub scratch: ArrayVec<&'a mut [u8], MAX_PARTS>,
    /// Its ends of the block's pipes.
    pub ends: Ends<'a>,
}

/// A kernel's blocks of two halves, ready to run.
#[derive(Clone, Copy)]
pub struct Halves<'l> {
    /// Where the parts of a block lie.
    pub layout: &'l BlockLayout,
    /// How many of the layout's scratch areas are the matrix half's; the vector half has the others.
    pub matrix_scratch: usize,
    /// How the halves of a block run.
    pub mode: Mode,
}

impl Halves<'_> {
    /// Runs `blocks` blocks on `team`, as many at a time as `workspace` has slices.
    ///
    /// With a slice for every block, each has its own; with fewer, a slice serves one block after the other. Returns the
    /// error of the first block, by index, among those that failed; no block starts after one has failed.
    pub fn run<M, V>(
        &self,
        team: &Team,
        blocks: u64,
        workspace: &mut [u8],
        matrix: M,
        vector: V,
    ) -> Result<(), BlockError>
    where
        M: AsyncFn(Side<'_>) -> Result<(), PipeError> + Sync,
        V: AsyncFn(Side<'_>) -> Result<(), PipeError> + Sync,
    {
        if blocks == 0 {
            return Ok(());
        }
        let slices = self.slices(workspace, blocks)?;
        let workspace = Parts::new(workspace);
        let launch = Launch {
            halves: self,
            blocks,
            slices,
            workspace: &workspace,
            matrix: &matrix,
            vector: &vector,
            next: AtomicU64::new(0),
            failed: Mutex::new(None),
        };
        launch.run(team);
        launch.failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// How many blocks the workspace can hold at a time.
    fn slices(&self, workspace: &[u8], blocks: u64) -> Result<u64, BlockError> {
        let (have, stride) = (workspace.len() as u64, self.layout.stride);
        match have.checked_div(stride) {
            Some(0) => Err(BlockError::NoSlice { have, stride }),
            Some(slices) => Ok(slices.min(blocks)),
            None => Ok(blocks),
        }
    }
}

/// One launch while it runs.
struct Launch<'w, M, V> {
    halves: &'w Halves<'w>,
    blocks: u64,
    slices: u64,
    workspace: &'w Parts<'w, u8>,
    matrix: &'w M,
    vector: &'w V,
    /// The next block nobody has taken.
    next: AtomicU64,
    failed: Mutex<Option<BlockError>>,
}

impl<'w, M, V> Launch<'w, M, V>
where
    M: AsyncFn(Side<'_>) -> Result<(), PipeError> + Sync,
    V: AsyncFn(Side<'_>) -> Result<(), PipeError> + Sync,
{
    fn run(&self, team: &Team) {
        match self.halves.mode {
            Mode::Together => team.run(team.cores(), &|member, _| self.lead(member as u64, None)),
            Mode::Apart => {
                let pairs =
                    (team.cores() / 2).min(MAX_PAIRS).min(self.slices.try_into().unwrap_or(MAX_PAIRS));
                let desks: ArrayVec<Desk<'w>, MAX_PAIRS> = (0..pairs).map(|_| Desk::default()).collect();
                team.run(team.cores(), &|member, _| match (desks.get(member / 2), member % 2) {
                    (Some(desk), 0) => self.lead(member as u64 / 2, Some(desk)),
                    (Some(desk), _) => self.follow(desk),
                    (None, _) => self.lead((member - pairs) as u64, None),
                });
            }
        }
    }

    /// Runs blocks until none is left, with the partner at `desk` or alone. `lane` numbers the leaders.
    fn lead(&self, lane: u64, desk: Option<&Desk<'w>>) {
        let shift = desk.map(Shift::new);
        if lane >= self.slices {
            return;
        }
        loop {
            // Relaxed: only hands out numbers.
            let block = self.next.fetch_add(1, Relaxed);
            if block >= self.blocks {
                return;
            }
            if let Err(error) = self.block(block, lane, shift.as_ref()) {
                self.stop(error);
            }
        }
    }

    /// Runs the vector halves that the leader puts on `desk`.
    fn follow(&self, desk: &Desk<'w>) {
        while let Some(Work { side, ledger }) = desk.next_work() {
            let outcome = alone(Half::Vector, async { (self.vector)(side).await }, &ledger, desk.watch());
            desk.answer(outcome);
        }
    }

    fn block(&self, block: u64, lane: u64, shift: Option<&Shift<'_, 'w>>) -> Result<(), BlockError> {
        let slice = if self.slices == self.blocks { block } else { lane };
        // SAFETY: a block is taken by one leader and a lane is one leader's; the previous block of the lane has ended,
        // both halves of it.
        let slice = unsafe { self.workspace.part(self.halves.layout.slice(slice)) };
        let opened = open(self.halves.layout, slice).map_err(|error| BlockError::Open { block, error })?;
        let Opened { matrix, vector, mut scratch, ledger } = opened;
        let rest = scratch.drain(self.halves.matrix_scratch.min(scratch.len())..).collect();
        let side = |ends, scratch| Side { index: block, count: self.blocks, scratch, ends };
        let (matrix, vector) = (side(matrix, scratch), side(vector, rest));
        let outcomes = self.both(matrix, vector, &ledger, shift);
        error::verdict(block, outcomes, &ledger)
    }

    /// Runs both halves of a block to their ends.
    fn both(
        &self,
        matrix: Side<'w>,
        vector: Side<'w>,
        ledger: &Ledger<'w>,
        shift: Option<&Shift<'_, 'w>>,
    ) -> [Outcome; 2] {
        // The call is inside the future, so that whatever it does is part of the half.
        let matrix = async { (self.matrix)(matrix).await };
        match shift.and_then(Shift::partner) {
            Some(desk) => {
                desk.put(Work { side: vector, ledger: ledger.clone() });
                let own = alone(Half::Matrix, matrix, ledger, desk.watch());
                [own, desk.take_answer()]
            }
            None => in_turn(matrix, async { (self.vector)(vector).await }, ledger),
        }
    }

    /// Notes a block's error and takes all blocks that have not started off the list.
    fn stop(&self, error: BlockError) {
        // Relaxed: as in `lead`.
        self.next.fetch_max(self.blocks, Relaxed);
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.as_ref().is_none_or(|first| error.block() < first.block()) {
            *failed = Some(error);
        }
    }
}
