//! One rank's part while it is put together, operation by operation, in the order of the whole.

use std::collections::HashMap;

use crate::host::{HostTransfer, feeds, fetches};
use crate::{Builder, Draft, FETCH, IN_LANES, Lane, OUT_LANES, PartOf, Port, Program, ProgramError};
use crate::{SEND, Slice, Wait};

/// An operation of a part. Slices and waits name the part's own lanes.
#[derive(Clone, Debug)]
pub(super) struct Step<'a> {
    /// All but what follows.
    pub draft: Draft<'a>,
    pub reads: Vec<Slice>,
    pub writes: Vec<Slice>,
    pub scratch: Slice,
    pub waits: Vec<Wait>,
}

pub(super) struct Part<'a> {
    lanes: Vec<PartLane<'a>>,
    /// What happens on this rank, in the order of the whole.
    order: Vec<Wait>,
    ports: Vec<Port>,
    /// By lane: what it exchanges with the host and has not got yet.
    feeds: Vec<Option<HostTransfer>>,
    fetches: Vec<Option<HostTransfer>>,
    /// By home lane and kernel: how many operations there are beside it.
    counts: HashMap<(u32, &'a str), u32>,
    /// By home lane, kernel and number among its like: the lane.
    guests: HashMap<(u32, &'a str, u32), u32>,
}

struct PartLane<'a> {
    device: u32,
    home: u32,
    arena: u64,
    steps: Vec<Step<'a>>,
}

impl<'a> Part<'a> {
    /// Starts with lanes and ports of the whole that are on this rank, already numbered as here.
    pub fn new(lanes: impl Iterator<Item = Lane>, ports: Vec<Port>) -> Self {
        let lane = |Lane { device, home, arena, .. }| PartLane { device, home, arena, steps: Vec::new() };
        let lanes: Vec<_> = lanes.map(lane).collect();
        let (feeds, fetches) = (feeds(&ports, lanes.len()), fetches(&ports, lanes.len()));
        let (counts, guests) = (HashMap::new(), HashMap::new());
        Part { lanes, order: Vec::new(), ports, feeds, fetches, counts, guests }
    }

    /// Adds an operation to a lane; its position.
    pub fn push(&mut self, lane: u32, step: Step<'a>) -> u32 {
        let steps = &mut self.lanes[lane as usize].steps;
        let position = steps.len() as u32;
        steps.push(step);
        self.order.push(Wait { lane, position });
        position
    }

    /// Adds a [`SEND`] or an [`ARRIVE`](crate::ARRIVE) beside a home lane, on the lanes for its like in turn.
    pub fn push_beside(&mut self, home: u32, step: Step<'a>) {
        let count = self.counts.entry((home, step.draft.kernel)).or_default();
        let number = *count % if step.draft.kernel == SEND { OUT_LANES } else { IN_LANES };
        *count += 1;
        let lane = *self.guests.entry((home, step.draft.kernel, number)).or_insert_with(|| {
            let device = self.lanes[home as usize].device;
            self.lanes.push(PartLane { device, home, arena: 0, steps: Vec::new() });
            self.lanes.len() as u32 - 1
        });
        self.push(lane, step);
    }

    /// What a lane exchanges with the host, in place of what the whole has there.
    pub fn take_host(&mut self, lane: u32, kernel: &str) -> Step<'a> {
        let transfers = if kernel == FETCH { &mut self.fetches } else { &mut self.feeds };
        let transfer = transfers[lane as usize].take();
        Step::of(&transfer.expect("a tile that the whole moves on this lane is a tile of the part"))
    }

    /// Freezes the part.
    pub fn finish(mut self, name: &str, part: PartOf) -> Result<Program, Vec<ProgramError>> {
        // The whole fetches one of several equal tiles; the others may be the only ones on their ranks.
        for (lane, fetch) in (0..).zip(std::mem::take(&mut self.fetches)) {
            fetch.iter().for_each(|fetch| _ = self.push(lane, Step::of(fetch)));
        }
        let mut builder = Builder::new(name);
        builder.part(part);
        self.ports.into_iter().for_each(|port| builder.port(port));
        for (number, lane) in (0..).zip(self.lanes) {
            match lane.home == number {
                true => builder.lane(lane.device, lane.arena),
                false => builder.transfer_lane(lane.device, lane.home),
            };
            for Step { draft, reads, writes, scratch, waits } in lane.steps {
                builder.operation(Draft { reads: &reads, writes: &writes, scratch, waits: &waits, ..draft });
            }
        }
        builder.settle(&self.order);
        builder.finish()
    }
}

impl<'a> Step<'a> {
    fn of(transfer: &HostTransfer) -> Step<'a> {
        let Draft { pieces, reads, writes, scratch, .. } = transfer.draft();
        let (kernel, label) = transfer.names();
        let draft = Draft { kernel, label, pieces, ..Draft::default() };
        Step { draft, reads: reads.to_vec(), writes: writes.to_vec(), scratch, waits: Vec::new() }
    }
}
