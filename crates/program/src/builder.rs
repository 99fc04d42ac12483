//! Collecting operations before they are frozen.

use std::collections::HashMap;
use std::ops::Range;

use phalanx_ir::IdVec;

use crate::carry::carry;
use crate::slice::settle;
use crate::{
    ARRIVE, Blocks, FEED, FETCH, Lane, MessageEnd, Operation, PartOf, Payload, Piece, Port, Program,
    ProgramError, RECEIVE, SEND, Slice, Wait,
};

/// Collects a program, lane after lane.
pub struct Builder {
    program: Program,
    kernels: HashMap<String, u32>,
    labels: HashMap<String, u32>,
}

/// An operation about to be added.
#[derive(Clone, Debug, Default)]
pub struct Draft<'a> {
    /// The kernel's name.
    pub kernel: &'a str,
    /// Where it comes from, for people.
    pub label: &'a str,
    /// How many blocks it runs on.
    pub blocks: Blocks,
    /// The kernel's parameters.
    pub params: &'a [u64],
    /// What it moves, if it receives, feeds or fetches.
    pub pieces: Vec<Piece>,
    /// What it moves, if it sends or takes in what arrives.
    pub messages: Vec<MessageEnd>,
    /// Slices only read.
    pub reads: &'a [Slice],
    /// Slices written.
    pub writes: &'a [Slice],
    /// Working memory; may be empty.
    pub scratch: Slice,
    /// What must be complete before.
    pub waits: &'a [Wait],
}

impl Builder {
    /// Starts a program.
    pub fn new(name: &str) -> Self {
        let program = Program {
            name: name.to_string(),
            part: None,
            kernels: Vec::new(),
            labels: Vec::new(),
            lanes: Vec::new(),
            operations: Vec::new(),
            slices: Vec::new(),
            params: Vec::new(),
            movements: IdVec::new(),
            ends: IdVec::new(),
            waits: Vec::new(),
            carried: Vec::new(),
            ports: Vec::new(),
        };
        Builder { program, kernels: HashMap::new(), labels: HashMap::new() }
    }

    /// Makes it a part of a program.
    pub(crate) fn part(&mut self, part: PartOf) {
        self.program.part = Some(part);
    }

    /// Lets operations wait for all that they must come after, given an order of all of them: see `slice::waits`.
    pub(crate) fn settle(&mut self, order: &[Wait]) {
        settle(&mut self.program, order);
    }

    /// Adds a tensor that the host can reach.
    pub fn port(&mut self, port: Port) {
        self.program.ports.push(port);
    }

    /// Starts the lane of a device whose arena has `arena` bytes; its number. The operations that follow are its.
    pub fn lane(&mut self, device: u32, arena: u64) -> u32 {
        let start = position_of(self.program.operations.len());
        let home = position_of(self.program.lanes.len());
        self.program.lanes.push(Lane { device, home, arena, operations: start..start });
        home
    }

    /// Starts another lane of the device of lane `home`, for transfers into and out of its arena; its number. The
    /// operations that follow are its.
    pub fn transfer_lane(&mut self, device: u32, home: u32) -> u32 {
        let start = position_of(self.program.operations.len());
        self.program.lanes.push(Lane { device, home, arena: 0, operations: start..start });
        position_of(self.program.lanes.len() - 1)
    }

    /// Adds an operation to the lane started last, after the ones before.
    pub fn operation(&mut self, draft: Draft<'_>) {
        let program = &mut self.program;
        let payload = payload(program, draft.kernel, draft.params, draft.pieces, draft.messages);
        let operation = Operation {
            kernel: intern(&mut self.kernels, &mut program.kernels, draft.kernel),
            label: intern(&mut self.labels, &mut program.labels, draft.label),
            blocks: draft.blocks,
            payload,
            reads: append(&mut program.slices, draft.reads),
            writes: append(&mut program.slices, draft.writes),
            scratch: draft.scratch,
            waits: append(&mut program.waits, draft.waits),
            carried: append(&mut program.carried, &[]),
        };
        program.operations.push(operation);
        assert!(program.operations.len() < 1 << 31, "the operations of two runs are counted in 32 bits");
        let lane = program.lanes.last_mut().expect("a lane is started before its operations");
        lane.operations.end = position_of(program.operations.len());
    }

    /// Adds carried waits to the operation added last.
    pub(crate) fn carry(&mut self, waits: &[Wait]) {
        let program = &mut self.program;
        let operation =
            program.operations.last_mut().expect("an operation is added before its carried waits");
        operation.carried.end = append(&mut program.carried, waits).end;
    }

    /// Checks the program, adds the fewest carried waits that let runs overlap, and freezes it.
    pub fn finish(mut self) -> Result<Program, Vec<ProgramError>> {
        carry(&mut self.program)?;
        Ok(self.program)
    }

    /// Checks and freezes the program with the carried waits it was given.
    pub(crate) fn finish_as_is(self) -> Result<Program, Vec<ProgramError>> {
        self.program.verify()?;
        Ok(self.program)
    }
}

/// Stores what an operation of `kernel` does.
fn payload(
    program: &mut Program,
    kernel: &str,
    params: &[u64],
    pieces: Vec<Piece>,
    messages: Vec<MessageEnd>,
) -> Payload {
    let given = [!params.is_empty(), !pieces.is_empty(), !messages.is_empty()];
    let (payload, others) = match kernel {
        RECEIVE | FEED | FETCH => (Payload::Movement(program.movements.push(pieces)), [given[0], given[2]]),
        SEND | ARRIVE => (Payload::Messages(program.ends.push(messages)), [given[0], given[1]]),
        _ => (Payload::Params(append(&mut program.params, params)), [given[1], given[2]]),
    };
    assert!(
        !others.contains(&true),
        "`{kernel}` has parameters, pieces or message ends that are not its kind"
    );
    payload
}

fn intern(known: &mut HashMap<String, u32>, names: &mut Vec<String>, name: &str) -> u32 {
    if let Some(&position) = known.get(name) {
        return position;
    }
    let position = position_of(names.len());
    names.push(name.to_string());
    known.insert(name.to_string(), position);
    position
}

pub(crate) fn append<T: Copy>(all: &mut Vec<T>, more: &[T]) -> Range<u32> {
    let start = position_of(all.len());
    all.extend_from_slice(more);
    start..position_of(all.len())
}

fn position_of(len: usize) -> u32 {
    u32::try_from(len).expect("a program has fewer than 2^32 entries of a kind")
}
