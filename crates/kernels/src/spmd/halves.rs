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
pub mod step;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Mutex, PoisonError};

use arrayvec::ArrayVec;

use super::launch::Slices;
use super::layout::{BlockLayout, MAX_PARTS};
use super::pipe::{Ends, Half, Ledger, Opened, PipeError, open};
use super::{Launch, Team};
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
    /// Runs the blocks of a launch in whose slices the layout fits.
    ///
    /// Where every block has a slice, it has its own; else a slice serves one block after the other. Returns the error of
    /// the first block, by index, among those that failed; no block starts after one has failed.
    pub fn run<M, V>(&self, launch: &mut Launch<'_>, matrix: M, vector: V) -> Result<(), BlockError>
    where
        M: AsyncFn(Side<'_>) -> Result<(), PipeError> + Sync,
        V: AsyncFn(Side<'_>) -> Result<(), PipeError> + Sync,
    {
        let running = Running {
            halves: self,
            blocks: launch.blocks() as u64,
            slices: launch.slices(),
            matrix: &matrix,
            vector: &vector,
            next: AtomicU64::new(0),
            failed: Mutex::new(None),
        };
        match launch.steps() {
            None => running.run(launch.team()),
            Some(steps) => {
                steps.run(launch.blocks(), &|block, slice| running.settle(block as u64, slice, None));
            }
        }
        running.failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

/// One launch while it runs.
struct Running<'w, M, V> {
    halves: &'w Halves<'w>,
    blocks: u64,
    slices: &'w Slices<'w>,
    matrix: &'w M,
    vector: &'w V,
    /// The next block that no thread has taken.
    next: AtomicU64,
    failed: Mutex<Option<BlockError>>,
}

impl<'w, M, V> Running<'w, M, V>
where
    M: AsyncFn(Side<'_>) -> Result<(), PipeError> + Sync,
    V: AsyncFn(Side<'_>) -> Result<(), PipeError> + Sync,
{
    fn run(&self, team: &Team) {
        match self.halves.mode {
            Mode::Together => team.run(team.cores(), &|member, _| self.lead(member, None)),
            Mode::Apart => {
                let pairs = (team.cores() / 2).min(MAX_PAIRS).min(self.slices.count());
                let desks: ArrayVec<Desk<'w>, MAX_PAIRS> = (0..pairs).map(|_| Desk::default()).collect();
                team.run(team.cores(), &|member, _| match (desks.get(member / 2), member % 2) {
                    (Some(desk), 0) => self.lead(member / 2, Some(desk)),
                    (Some(desk), _) => self.follow(desk),
                    (None, _) => self.lead(member - pairs, None),
                });
            }
        }
    }

    /// Runs blocks until none is left, with the partner at `desk` or alone. `lane` numbers the leaders.
    fn lead(&self, lane: usize, desk: Option<&Desk<'w>>) {
        let shift = desk.map(Shift::new);
        if lane >= self.slices.count() {
            return;
        }
        loop {
            // Relaxed: only hands out numbers.
            let block = self.next.fetch_add(1, Relaxed);
            if block >= self.blocks {
                return;
            }
            let is_own = self.slices.count() as u64 == self.blocks;
            self.settle(block, if is_own { block as usize } else { lane }, shift.as_ref());
        }
    }

    /// Runs a block in a slice that no other block uses meanwhile, and takes note if it fails.
    fn settle(&self, block: u64, slice: usize, shift: Option<&Shift<'_, 'w>>) {
        if let Err(error) = self.block(block, slice, shift) {
            self.stop(error);
        }
    }

    /// Runs the vector halves that the leader puts on `desk`.
    fn follow(&self, desk: &Desk<'w>) {
        while let Some(Work { side, ledger }) = desk.next_work() {
            let outcome = alone(Half::Vector, async { (self.vector)(side).await }, &ledger, desk.watch());
            desk.answer(outcome);
        }
    }

    fn block(&self, block: u64, slice: usize, shift: Option<&Shift<'_, 'w>>) -> Result<(), BlockError> {
        // SAFETY: a slice is that of a block, which one leader takes, or of a leader's lane, whose previous block has
        // ended, both halves of it; or blocks run one after the other.
        let slice = unsafe { self.slices.get(slice) };
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
