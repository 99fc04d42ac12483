//! Waits for everything that an operation must come after.
//!
//! Given are operations in an order, with waits that point backward in it. Of two that touch the same bytes, one of them
//! writing, the later one gets a wait for the earlier one, unless lanes and other waits imply it: as in the verifier's look
//! for races, but what is not ordered is put in order. Waits that others imply are dropped, given ones too.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::builder::append;
use crate::verify::{Arenas, uses};
use crate::{Program, Wait};

/// Gives every operation the waits it needs, and no others, if operations run as `order` says.
pub(crate) fn settle(program: &mut Program, order: &[Wait]) {
    let mut waits: Vec<Vec<Wait>> = vec![Vec::new(); program.operations.len()];
    let (mut arenas, mut past) = (Arenas::new(program), Past::new(program));
    for &at in order {
        let mut latest: BTreeMap<u32, u32> = BTreeMap::new();
        let mut after = |Wait { lane, position }: Wait| {
            let latest = latest.entry(lane).or_default();
            *latest = (*latest).max(position);
        };
        let operation = &program.operations[program.index_of(at)];
        program.waits(operation).iter().for_each(|&wait| after(wait));
        for (slice, writes) in uses(program, operation) {
            if let Some(arenas) = &mut arenas {
                let row = arenas.conflicts(at, slice, writes, &mut after);
                arenas.note(at, slice, writes, &row);
            }
        }
        let after = latest.into_iter().map(|(lane, position)| Wait { lane, position }).collect();
        waits[program.index_of(at)] = past.run(at, after);
    }
    program.waits.clear();
    for (operation, waits) in program.operations.iter_mut().zip(&waits) {
        operation.waits = append(&mut program.waits, waits);
    }
}

/// For each lane how many of its operations are complete.
type Known = Rc<[u32]>;

/// What is complete before an operation starts, for all operations so far. Lanes share what they know with their
/// operations until they learn more.
struct Past {
    /// By lane: the position of its first operation in the program.
    first: Vec<usize>,
    lanes: Vec<Known>,
    operations: Vec<Option<Known>>,
}

impl Past {
    fn new(program: &Program) -> Past {
        let lanes = program.lanes.len();
        Past {
            first: program.lanes.iter().map(|lane| lane.operations.start as usize).collect(),
            lanes: vec![Known::from(vec![0; lanes]); lanes],
            operations: vec![None; program.operations.len()],
        }
    }

    /// The operation `at` runs next; of `after`, one for each lane, those that it has to wait for.
    fn run(&mut self, at: Wait, after: Vec<Wait>) -> Vec<Wait> {
        let mine = &self.lanes[at.lane as usize];
        let open: Vec<Wait> = after.into_iter().filter(|&wait| !knows(mine, wait)).collect();
        let implied = |wait: Wait| open.iter().any(|&other| knows(self.before(other), wait));
        let needed: Vec<Wait> = open.iter().copied().filter(|&wait| !implied(wait)).collect();
        for &wait in &needed {
            let theirs = Rc::clone(self.before(wait));
            let mine = Rc::make_mut(&mut self.lanes[at.lane as usize]);
            mine.iter_mut().zip(&theirs[..]).for_each(|(mine, &theirs)| *mine = (*mine).max(theirs));
            mine[wait.lane as usize] = mine[wait.lane as usize].max(wait.position + 1);
        }
        let index = self.index_of(at);
        self.operations[index] = Some(Rc::clone(&self.lanes[at.lane as usize]));
        needed
    }

    /// What was complete when `wait` started.
    fn before(&self, wait: Wait) -> &Known {
        let known = &self.operations[self.index_of(wait)];
        known.as_ref().expect("waits point backward in the order")
    }

    fn index_of(&self, at: Wait) -> usize {
        self.first[at.lane as usize] + at.position as usize
    }
}

fn knows(known: &Known, wait: Wait) -> bool {
    known[wait.lane as usize] > wait.position
}
