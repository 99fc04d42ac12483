//! Runs the blocks of a phase one after the other, each from the same bytes, and sees what each has changed.
//!
//! `live` is what the kernel works in, `before` what it holds when a block starts. After a block everything it has
//! changed is put back; what it may change is kept in `after`, together with the block that changed it, and put into `live` at the
//! end of the phase. The first fault is kept, and the kernel runs on as if nothing had happened.

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;

use super::AccessError;
use super::map::{Map, Part, Step};
use crate::spmd::Steps;

/// Bytes that are compared at once.
const CHUNK: usize = 256;

/// In `owners`: no block.
const NO_BLOCK: u32 = u32::MAX;

/// For each step a fingerprint of what it has left where results can come from.
pub(super) type Trace = Vec<(Step, u64)>;

/// Copies of the memory of a call; the last two only of what blocks share.
#[derive(Default)]
pub(super) struct Buffers {
    live: Vec<u8>,
    before: Vec<u8>,
    after: Vec<u8>,
    owners: Vec<u32>,
}

impl Buffers {
    /// The memory in which a kernel runs.
    pub(super) fn live(&mut self, map: &Map) -> &mut [u8] {
        aligned(&mut self.live, map)
    }
}

/// As much of `memory`, which grows if need be, as the map has, from where it may start.
fn aligned<'a>(memory: &'a mut Vec<u8>, map: &Map) -> &'a mut [u8] {
    if memory.len() < map.bytes + map.align {
        memory.resize(map.bytes + map.align, 0);
    }
    let shift = memory.as_ptr().align_offset(map.align);
    &mut memory[shift..shift + map.bytes]
}

/// The blocks of a call that is checked.
pub(super) struct Blocks<'a> {
    map: &'a Map,
    live: *mut u8,
    state: RefCell<State<'a>>,
}

/// What is known of the steps so far.
struct State<'a> {
    kernel: &'static str,
    map: &'a Map,
    before: &'a mut [u8],
    after: &'a mut [u8],
    owners: &'a mut [u32],
    phase: usize,
    error: Option<AccessError>,
    trace: Trace,
    /// The byte whose content a trace does not tell; none if there is no trace.
    except: Option<usize>,
}

impl<'a> Blocks<'a> {
    /// A call of `kernel` about to begin in `buffers`, whose live memory is prepared.
    pub(super) fn new(
        kernel: &'static str,
        map: &'a Map,
        buffers: &'a mut Buffers,
        except: Option<usize>,
    ) -> Blocks<'a> {
        let Buffers { live, before, after, owners } = buffers;
        let live = aligned(live, map);
        before.clear();
        before.extend_from_slice(live);
        after.resize(map.shared_end(), 0);
        owners.clear();
        owners.resize(map.shared_end(), NO_BLOCK);
        let live = live.as_mut_ptr();
        let trace = Trace::new();
        let state = State { kernel, map, before, after, owners, phase: 0, error: None, trace, except };
        Blocks { map, live, state: RefCell::new(state) }
    }

    /// A part of the live memory.
    ///
    /// # Safety
    /// While the part is alive no other part that overlaps it may be used.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &'a mut [u8] {
        assert!(range.start <= range.end && range.end <= self.map.bytes, "the map has this part");
        // SAFETY: in bounds by the assertion.
        let start = unsafe { self.live.add(range.start) };
        // SAFETY: in bounds, alive for 'a, and not shared by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(start, range.len()) }
    }

    /// Looks at the live memory between two steps.
    fn look<R>(&self, look: impl FnOnce(&mut State<'a>, &mut [u8]) -> R) -> R {
        // SAFETY: no block runs, and the kernel waits for its blocks or has returned.
        let live = unsafe { self.part(0..self.map.bytes) };
        look(&mut self.state.borrow_mut(), live)
    }

    /// The trace of the call, which has ended, or its first fault.
    pub(super) fn finish(self) -> Result<Trace, AccessError> {
        self.look(State::settle);
        let State { error, trace, .. } = self.state.into_inner();
        error.map_or(Ok(trace), Err)
    }
}

impl Steps for Blocks<'_> {
    fn run(&self, n: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        self.look(State::settle);
        for block in 0..n {
            let slice = block % self.map.layout.slices();
            body(block, slice);
            self.look(|state, live| state.leave(live, block, slice));
        }
        self.look(State::join);
    }
}

impl State<'_> {
    /// Takes over what the code outside blocks has done.
    fn settle(&mut self, live: &mut [u8]) {
        self.inspect(live, Step { phase: self.phase, block: None }, None);
        for range in self.map.shared() {
            self.before[range.clone()].copy_from_slice(&live[range.clone()]);
            self.after[range.clone()].copy_from_slice(&live[range]);
        }
    }

    /// Keeps what a block has done and puts its memory back.
    fn leave(&mut self, live: &mut [u8], block: usize, slice: usize) {
        self.inspect(live, Step { phase: self.phase, block: Some(block) }, Some(slice));
        for (part, range) in self.map.parts() {
            if part == Part::Slice(slice) {
                live[range.clone()].copy_from_slice(&self.before[range]);
            } else if part.is_shared() {
                self.claim(live, range, block);
            }
        }
    }

    /// Puts together what the blocks of a phase have done.
    fn join(&mut self, live: &mut [u8]) {
        for range in self.map.shared() {
            live[range.clone()].copy_from_slice(&self.after[range.clone()]);
            self.before[range.clone()].copy_from_slice(&self.after[range.clone()]);
            self.owners[range].fill(NO_BLOCK);
        }
        self.phase += 1;
    }

    /// Looks for changes where there must be none: all but what is shared and the slice of the block that ran.
    fn inspect(&mut self, live: &mut [u8], step: Step, own: Option<usize>) {
        self.note(live, step);
        let may_write = |part: Part| part.is_shared() || own.is_some_and(|slice| part == Part::Slice(slice));
        for range in self.map.outside(may_write) {
            let (live, before) = (&mut live[range.clone()], &self.before[range.clone()]);
            if *live == *before {
                continue;
            }
            let at = range.start + live.iter().zip(before).take_while(|(a, b)| a == b).count();
            live.copy_from_slice(before);
            let error = AccessError::Write { kernel: self.kernel, step, spot: self.map.spot(at) };
            self.error.get_or_insert(error);
        }
    }

    /// Moves the bytes of `range` that `block` has changed from the live memory to those kept for the end of the phase.
    fn claim(&mut self, live: &mut [u8], range: Range<usize>, block: usize) {
        for start in range.clone().step_by(CHUNK) {
            let chunk = start..range.end.min(start + CHUNK);
            if live[chunk.clone()] == self.before[chunk.clone()] {
                continue;
            }
            for at in chunk {
                if live[at] != self.before[at] {
                    self.claim_byte(live[at], at, block);
                    live[at] = self.before[at];
                }
            }
        }
    }

    fn claim_byte(&mut self, byte: u8, at: usize, block: usize) {
        let owner = std::mem::replace(&mut self.owners[at], block as u32);
        self.after[at] = byte;
        if owner != NO_BLOCK {
            let blocks = [owner as usize, block];
            let (kernel, phase, spot) = (self.kernel, self.phase, self.map.spot(at));
            self.error.get_or_insert(AccessError::Overlap { kernel, blocks, phase, spot });
        }
    }

    /// Adds a step to the trace, if there is one.
    fn note(&mut self, live: &[u8], step: Step) {
        let Some(except) = self.except else { return };
        let mut hasher = DefaultHasher::new();
        for range in self.map.shared() {
            let middle = except.clamp(range.start, range.end);
            hasher.write(&live[range.start..middle]);
            hasher.write(&live[range.end.min(middle + usize::from(middle == except))..range.end]);
        }
        self.trace.push((step, hasher.finish()));
    }
}
