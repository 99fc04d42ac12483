//! What each lane knows of the others: how many of their operations are complete before its next one starts.
//!
//! A lane's knowledge changes only when it waits. Then it takes over what the other lane knew at the operation waited
//! for, so knowledge is closed: who knows an operation knows all that the operation knew. Records are shared between a
//! lane and its operations that others wait for, copied when the lane learns more, and dropped after their last use.

use std::rc::Rc;

use crate::{Program, Wait};

/// For each lane how many of its operations are complete.
type Record = Rc<[u32]>;

pub(super) struct Clocks<'a> {
    program: &'a Program,
    /// What each lane knows.
    lanes: Vec<Record>,
    /// What was known at an operation that others will still wait for, by its position in the program.
    kept: Vec<Option<Record>>,
    /// How often each operation will still be waited for.
    waiters: Vec<u32>,
}

impl<'a> Clocks<'a> {
    /// Nothing is known yet.
    pub fn new(program: &'a Program) -> Self {
        let lanes = vec![Record::from(vec![0; program.lanes.len()]); program.lanes.len()];
        let count = program.operations.len();
        let mut clocks = Clocks { program, lanes, kept: vec![None; count], waiters: vec![0; count] };
        for &wait in program.operations.iter().flat_map(|operation| program.waits(operation)) {
            clocks.waiters[program.index_of(wait)] += 1;
        }
        clocks
    }

    /// The next operation of `lane` waits for `other`, which is complete.
    pub fn wait(&mut self, lane: u32, other: Wait) {
        let index = self.program.index_of(other);
        self.waiters[index] -= 1;
        let theirs = match self.waiters[index] {
            0 => self.kept[index].take(),
            _ => self.kept[index].clone(),
        };
        if self.knows(lane, other) {
            return;
        }
        let theirs = theirs.expect("what an operation knew is kept until its last waiter has it");
        let mine = Rc::make_mut(&mut self.lanes[lane as usize]);
        mine.iter_mut().zip(&*theirs).for_each(|(mine, &theirs)| *mine = (*mine).max(theirs));
        mine[other.lane as usize] = other.position + 1;
    }

    /// The operation `at`, the next one of its lane, is complete.
    pub fn complete(&mut self, at: Wait) {
        let index = self.program.index_of(at);
        if self.waiters[index] > 0 {
            self.kept[index] = Some(Rc::clone(&self.lanes[at.lane as usize]));
        }
    }

    /// Whether `other` is complete before the next operation of `lane`, another one, starts.
    pub fn knows(&self, lane: u32, other: Wait) -> bool {
        self.lanes[lane as usize][other.lane as usize] > other.position
    }
}
