//! Whether foreign reads and the writes of the lane they read from are ordered.
//!
//! Only [`RECEIVE`](crate::RECEIVE) touches another lane's arena, and only to read. So the one kind of race is between
//! such a read and an operation of the lane read from that writes, or works in, the same bytes. Operations are visited
//! in an order that lanes and waits allow. Whichever of the two is visited second must know that the first is complete:
//!
//! * at a read, the last writer of the bytes, which knows all writers before it, as they are of its lane;
//! * at a write, every foreign read of the bytes. Reads found complete need not be asked for again: what a lane knows
//!   it knows at all its later operations.
//!
//! Every pair is looked at this way, or implied by one that is. Time: the logarithm of the number of foreign reads for
//! every slice, and the number of lanes for every wait.

use super::cells::Cells;
use super::clocks::Clocks;
use crate::{Operation, Program, Slice, Wait};

/// A foreign read and a write of the same bytes that nothing orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Race {
    pub reader: Wait,
    pub writer: Wait,
}

pub(super) struct Races<'a> {
    pub program: &'a Program,
    pub clocks: Clocks<'a>,
    /// For each lane.
    pub cells: Vec<Cells>,
    /// At most one for each operation visited.
    pub found: Vec<Race>,
}

impl<'a> Races<'a> {
    /// Before the first operation; none if nobody reads another lane's bytes.
    pub fn new(program: &'a Program) -> Option<Self> {
        let mut cells: Vec<Cells> = program.lanes.iter().map(|_| Cells::default()).collect();
        let mut any = false;
        for (lane, operations) in (0..).zip(program.lanes.iter().map(|lane| program.operations_of(lane))) {
            for slice in operations.iter().flat_map(|operation| foreign(program, lane, operation)) {
                cells[slice.lane as usize].announce(slice);
                any = true;
            }
        }
        cells.iter_mut().for_each(Cells::freeze);
        any.then(|| Races { program, clocks: Clocks::new(program), cells, found: Vec::new() })
    }

    /// The operation `at` is next; all it waits for has been visited.
    pub fn visit(&mut self, at: Wait) {
        let program = self.program;
        let operation = &program.operations[program.index_of(at)];
        let limit = self.found.len() + 1;
        for &wait in program.waits(operation) {
            self.clocks.wait(at.lane, wait);
        }
        for slice in foreign(program, at.lane, operation) {
            self.read(at, slice);
        }
        for &slice in program.slices(&operation.writes).iter().chain([&operation.scratch]) {
            self.write(at, slice);
        }
        self.found.truncate(limit);
        self.clocks.complete(at);
    }

    fn read(&mut self, reader: Wait, slice: Slice) {
        let cells = &mut self.cells[slice.lane as usize];
        let row = cells.touched(slice);
        let writer = cells.writer(&row).map(|position| Wait { lane: slice.lane, position });
        if let Some(writer) = writer.filter(|&writer| !self.clocks.knows(reader.lane, writer)) {
            self.found.push(Race { reader, writer });
        }
        cells.read(&row, reader);
    }

    fn write(&mut self, writer: Wait, slice: Slice) {
        let cells = &mut self.cells[writer.lane as usize];
        let row = cells.touched(slice);
        if row.is_empty() {
            return;
        }
        while let Some(reader) = cells.take_read(&row) {
            if !self.clocks.knows(writer.lane, reader) {
                self.found.push(Race { reader, writer });
            }
        }
        cells.write(&row, writer.position);
    }
}

impl Race {
    /// Bytes of both.
    pub fn bytes(self, program: &Program) -> Slice {
        shared(program, self.reader, self.writer).expect("operations that race share bytes")
    }
}

/// The bytes of other lanes that an operation of `lane` reads.
pub(super) fn foreign<'a>(
    program: &'a Program,
    lane: u32,
    operation: &Operation,
) -> impl Iterator<Item = Slice> + use<'a> {
    let reads = program.slices(&operation.reads).iter().copied();
    reads.filter(move |slice| slice.lane != lane && slice.bytes > 0)
}

/// Bytes of another lane that `reader` reads and `writer` writes or works in.
pub(super) fn shared(program: &Program, reader: Wait, writer: Wait) -> Option<Slice> {
    let lane = reader.lane;
    let [reader, writer] = [reader, writer].map(|at| &program.operations[program.index_of(at)]);
    let written = program.slices(&writer.writes).iter().chain([&writer.scratch]);
    let mut pairs =
        written.flat_map(|&write| foreign(program, lane, reader).map(move |read| common(read, write)));
    pairs.find_map(|pair| pair)
}

/// What two slices share.
fn common(a: Slice, b: Slice) -> Option<Slice> {
    let (offset, end) = (a.offset.max(b.offset), a.end().min(b.end()));
    (a.lane == b.lane && offset < end).then(|| Slice { lane: a.lane, offset, bytes: end - offset })
}
