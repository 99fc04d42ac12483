//! Whether operations of a run can overtake those of the run before.
//!
//! The same pairs as in `races`, one operation of each run: a foreign read, and a write of the lane read from. The
//! second run is visited like the first, with what lanes know of the first one, and with the cells as the first one left
//! them:
//!
//! * at a read, the last writer in the first run must be complete;
//! * at a write, every foreign read that is still open: any other one is before a later write of the first run, which is
//!   of the same lane.
//!
//! Why two runs suffice for any number: let x and y be such a pair and x(i), y(j) be of runs i < j. The lane of x runs
//! x(i) before x(j - 1), and x(j - 1) is before y(j), since lane orders, waits and carried waits are the same for every
//! two neighbouring runs. Carried waits cannot make a circle, for they point to earlier runs.

use super::cells::Cells;
use super::clocks::Clocks;
use super::races::{Races, foreign, shared};
use crate::{Program, Slice, Wait};

/// An operation that may start before one of the run before is complete, though it must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overtake {
    /// Of the run before.
    pub first: Wait,
    /// Of the run after.
    pub second: Wait,
}

pub(super) struct Overtakes<'a> {
    program: &'a Program,
    clocks: Clocks<'a>,
    /// For each lane, at the end of the first run.
    cells: Vec<Cells>,
    /// Waiting for the first operations of all these, the second ones overtake nothing.
    pub found: Vec<Overtake>,
}

impl<'a> Overtakes<'a> {
    /// After the first run, in which `races` has visited every operation.
    pub fn after(races: Races<'a>) -> Self {
        let Races { program, mut clocks, cells, .. } = races;
        clocks.next_run();
        Overtakes { program, clocks, cells, found: Vec::new() }
    }

    /// The operation `at` is next in the second run; all it waits for has been visited.
    pub fn visit(&mut self, at: Wait) {
        let program = self.program;
        let operation = &program.operations[program.index_of(at)];
        for &wait in program.waits(operation) {
            self.clocks.wait(at.lane, wait);
        }
        self.clocks.carry(at.lane, program.carried(operation), |_| ());
        for slice in foreign(program, at.lane, operation) {
            let cells = &self.cells[slice.lane as usize];
            let writer = cells.writer(&cells.touched(slice));
            let writer = writer.map(|position| Wait { lane: slice.lane, position });
            writer.into_iter().for_each(|writer| self.follow(writer, at));
        }
        for &slice in program.slices(&operation.writes).iter().chain([&operation.scratch]) {
            let row = self.cells[at.lane as usize].touched(slice);
            while let Some(reader) = self.cells[at.lane as usize].take_read(&row) {
                self.follow(reader, at);
            }
        }
        self.clocks.complete(at);
    }

    /// `second` must come after `first` of the first run.
    fn follow(&mut self, first: Wait, second: Wait) {
        if !self.clocks.knew(second.lane, first) {
            self.found.push(Overtake { first, second });
            self.clocks.learn(second.lane, first);
        }
    }
}

impl Overtake {
    /// Bytes of both.
    pub fn bytes(self, program: &Program) -> Slice {
        let bytes =
            shared(program, self.first, self.second).or_else(|| shared(program, self.second, self.first));
        bytes.expect("one reads where the other writes")
    }
}
