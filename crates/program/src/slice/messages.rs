//! The sends and the arrival of a group of transits.
//!
//! Each transit is a message, with a tag that no other one between the same ranks has. A group has one arrival and, for
//! each device that it comes from, one send.

use std::collections::{BTreeMap, HashMap};

use super::Slicer;
use super::part::{Part, Step};
use super::receive::Group;
use crate::{ARRIVE, ByteRuns, Draft, MessageEnd, Operation, SEND, Slice, Wait};

impl<'a> Slicer<'a> {
    /// Adds the messages of a group of the receive `at`; `landing` is where parts of sums land.
    pub(super) fn messages(
        &mut self,
        at: Wait,
        operation: &Operation,
        group: &Group,
        landing: Option<Slice>,
    ) {
        let whole = self.whole;
        let (reads, writes) = (whole.slices(&operation.reads), whole.slices(&operation.writes));
        let (rank, device) = (self.ranks[at.lane as usize], whole.lanes[at.lane as usize].device);
        let label = whole.label(operation);
        let mut arrival = Ends::new(ARRIVE, label, self.here(operation.scratch).lane);
        // By the lane of the whole where the bytes are.
        let mut sends: BTreeMap<u32, Ends<'a>> = BTreeMap::new();
        for transit in &group.transits {
            let source = reads[transit.read as usize];
            let target = transit.write.map_or(landing, |write| Some(self.here(writes[write as usize])));
            let target = target.expect("a group lands somewhere if one of its transits does");
            let peer = self.ranks[source.lane as usize];
            let count = self.tags.entry((peer, rank)).or_default();
            let tag = *count;
            *count += 1;
            arrival.push([peer, tag, whole.lanes[source.lane as usize].device], target, &transit.to);
            let here = self.here(source);
            let send = sends.entry(source.lane).or_insert_with(|| Ends::new(SEND, label, here.lane));
            send.push([rank, tag, device], here, &transit.from);
        }
        for (lane, send) in sends {
            send.add_to(self.parts[self.ranks[lane as usize] as usize].as_mut());
        }
        if !group.transits.is_empty() {
            arrival.add_to(self.parts[rank as usize].as_mut());
        }
    }
}

/// A send or an arrival while its message ends are collected.
struct Ends<'a> {
    kernel: &'static str,
    label: &'a str,
    home: u32,
    slices: Vec<Slice>,
    /// By first byte and size of a slice: its number.
    known: HashMap<(u64, u64), u32>,
    ends: Vec<MessageEnd>,
}

impl<'a> Ends<'a> {
    fn new(kernel: &'static str, label: &'a str, home: u32) -> Self {
        Ends { kernel, label, home, slices: Vec::new(), known: HashMap::new(), ends: Vec::new() }
    }

    /// Adds an end in a slice.
    fn push(&mut self, [peer, tag, device]: [u32; 3], slice: Slice, runs: &ByteRuns) {
        let number = *self.known.entry((slice.offset, slice.bytes)).or_insert_with(|| {
            self.slices.push(slice);
            self.slices.len() as u32 - 1
        });
        self.ends.push(MessageEnd { peer, tag, device, slice: number, runs: runs.clone() });
    }

    /// Adds the operation to its part, if that is wanted.
    fn add_to(self, part: Option<&mut Part<'a>>) {
        let Some(part) = part else { return };
        let Ends { kernel, label, home, slices, ends, .. } = self;
        let (reads, writes) = if kernel == SEND { (slices, Vec::new()) } else { (Vec::new(), slices) };
        let draft = Draft { kernel, label, messages: ends, ..Draft::default() };
        let scratch = Slice { lane: home, ..Slice::default() };
        part.push_beside(home, Step { draft, reads, writes, scratch, waits: Vec::new() });
    }
}
