//! Where the leader of a pair of team members hands vector halves to its partner.
//!
//! A leader hands over only to a partner that waits at the desk, and a partner leaves when its leader's shift is over.
//! So neither ever waits for a thread that is not there.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::pipe::Ledger;
use super::Side;
use super::step::{Outcome, Watch, pause};

/// How often a leader looks for a partner that has not come yet, in a whole launch: the time a thread takes to wake up.
const PATIENCE: u32 = 256;

/// A vector half to run.
pub(super) struct Work<'a> {
    pub side: Side<'a>,
    pub ledger: Ledger<'a>,
}

/// The place where a pair meets.
#[derive(Default)]
pub(super) struct Desk<'a> {
    papers: Mutex<Papers<'a>>,
    watch: Watch,
}

#[derive(Default)]
struct Papers<'a> {
    /// The partner is here and waits; the leader takes it back when it means to hand over.
    waiting: bool,
    /// The leader takes no more blocks.
    over: bool,
    work: Option<Work<'a>>,
    answer: Option<Outcome>,
}

impl<'a> Desk<'a> {
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// For the partner: waits for the next vector half; `None` when the shift is over.
    pub fn next_work(&self) -> Option<Work<'a>> {
        let mut turns = 0;
        loop {
            let mut papers = self.papers();
            if let Some(work) = papers.work.take() {
                return Some(work);
            }
            if papers.over {
                return None;
            }
            papers.waiting = true;
            drop(papers);
            pause(&mut turns);
        }
    }

    /// For the leader: hands a vector half to the partner that waits.
    pub fn put(&self, work: Work<'a>) {
        self.watch.reset();
        self.papers().work = Some(work);
    }

    /// For the partner: how the vector half ended.
    pub fn answer(&self, outcome: Outcome) {
        self.papers().answer = Some(outcome);
    }

    /// For the leader: waits for the answer to the half it handed over.
    pub fn take_answer(&self) -> Outcome {
        let mut turns = 0;
        loop {
            if let Some(outcome) = self.papers().answer.take() {
                return outcome;
            }
            pause(&mut turns);
        }
    }

    fn papers(&self) -> MutexGuard<'_, Papers<'a>> {
        self.papers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The leader's time at a desk; when it is dropped the partner may leave.
pub(super) struct Shift<'d, 'a> {
    desk: &'d Desk<'a>,
    patience: Cell<u32>,
}

impl<'d, 'a> Shift<'d, 'a> {
    pub fn new(desk: &'d Desk<'a>) -> Self {
        Shift { desk, patience: Cell::new(PATIENCE) }
    }

    /// The desk, if the partner waits there; it then waits for work, whatever else happens.
    pub fn partner(&self) -> Option<&'d Desk<'a>> {
        let mut turns = 0;
        while !std::mem::take(&mut self.desk.papers().waiting) {
            self.patience.set(self.patience.get().checked_sub(1)?);
            pause(&mut turns);
        }
        Some(self.desk)
    }
}

impl Drop for Shift<'_, '_> {
    fn drop(&mut self) {
        self.desk.papers().over = true;
    }
}
