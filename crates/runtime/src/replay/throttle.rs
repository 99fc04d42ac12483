//! What the movements of a program send over links that throttle them.
//!
//! A receive is delayed by what it reads from other devices of this process, an arrival by what it gets from those of
//! others. A rank knows of no transfers but those to its own devices: what a device elsewhere sends to third ones does
//! not delay it.

use std::collections::BTreeMap;

use phalanx_link::{Part, Topology};
use phalanx_net::Throttle;
use phalanx_program::{ARRIVE, Operation, Program, RECEIVE};

/// Links, and what every movement sends over them.
pub(super) struct MovementThrottle {
    throttle: Throttle,
    /// By operation: its device, and the bytes that come there from each device.
    movements: Vec<(u32, Vec<Part>)>,
}

impl MovementThrottle {
    pub(super) fn new(program: &Program, topology: Topology) -> MovementThrottle {
        let of_lane =
            |lane| program.operations_of(lane).iter().map(move |op| (lane.device, parts(program, op)));
        let movements: Vec<_> = program.lanes().iter().flat_map(of_lane).collect();
        let from = |(to, parts): &(u32, Vec<Part>)| parts.iter().map(|part| part.from).max().max(Some(*to));
        let devices = movements.iter().filter_map(from).max().map_or(0, |last| last as usize + 1);
        MovementThrottle { throttle: Throttle::new(topology, devices), movements }
    }

    /// Sleeps as long as the movement of an operation takes.
    pub(super) fn delay(&self, operation: usize) {
        let (to, parts) = &self.movements[operation];
        if !parts.is_empty() {
            self.throttle.delay(*to, parts);
        }
    }

    /// Calls `then` when as much time has passed as the movement of an operation takes; at once if it is none.
    pub(super) fn delay_then(&self, operation: usize, then: impl FnOnce() + Send + 'static) {
        match &self.movements[operation] {
            (_, parts) if parts.is_empty() => then(),
            (to, parts) => self.throttle.delay_then(*to, parts, then),
        }
    }
}

/// How many bytes an operation brings from each device, ascending.
fn parts(program: &Program, operation: &Operation) -> Vec<Part> {
    let mut bytes = BTreeMap::new();
    match program.kernel(operation) {
        RECEIVE => {
            let reads = program.slices(&operation.reads);
            for piece in program.pieces(operation) {
                for &read in &piece.reads {
                    let lane = &program.lanes()[reads[read as usize].lane as usize];
                    *bytes.entry(lane.device).or_default() += piece.bytes();
                }
            }
        }
        ARRIVE => {
            for end in program.messages(operation) {
                *bytes.entry(end.device).or_default() += end.bytes();
            }
        }
        _ => {}
    }
    bytes.into_iter().map(|(from, bytes)| Part::new(from, bytes)).collect()
}
