//! Whether operations of a run can overtake those of the run before.
//!
//! The same pairs as in `races`, one operation of each run. The second run is visited like the first, with what lanes know
//! of the first one, and with the cells as the first one left them. A read must come after the last writers; a write also
//! after the last reader of the home lane and every guest's read that is still open. Any other read is before an
//! earlier write of the same lane.
//!
//! Why two runs suffice for any number: let x and y be such a pair and x(i), y(j) be of runs i < j. The lane of x runs
//! x(i) before x(j - 1), and x(j - 1) is before y(j), since lane orders, waits and carried waits are the same for every
//! two neighbouring runs. Carried waits cannot make a circle, for they point to earlier runs.

use super::clocks::Clocks;
use super::races::{Arenas, Races, shared, uses};
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
    /// At the end of the first run.
    arenas: Arenas,
    /// Waiting for the first operations of all these, the second ones overtake nothing.
    pub found: Vec<Overtake>,
}

impl<'a> Overtakes<'a> {
    /// After the first run, in which `races` has visited every operation.
    pub fn after(races: Races<'a>) -> Self {
        let Races { program, mut clocks, arenas, .. } = races;
        clocks.next_run();
        Overtakes { program, clocks, arenas, found: Vec::new() }
    }

    /// The operation `at` is next in the second run; all it waits for has been visited.
    pub fn visit(&mut self, at: Wait) {
        let program = self.program;
        let operation = &program.operations[program.index_of(at)];
        for &wait in program.waits(operation) {
            self.clocks.wait(at.lane, wait);
        }
        self.clocks.carry(at.lane, program.carried(operation), |_| ());
        for (slice, writes) in uses(program, operation) {
            let Overtakes { clocks, found, .. } = self;
            self.arenas.conflicts(at, slice, writes, |first| {
                if !clocks.knew(at.lane, first) {
                    found.push(Overtake { first, second: at });
                    clocks.learn(at.lane, first);
                }
            });
        }
        self.clocks.complete(at);
    }
}

impl Overtake {
    /// Bytes of both.
    pub fn bytes(self, program: &Program) -> Slice {
        shared(program, self.first, self.second).expect("one reads where the other writes")
    }
}
