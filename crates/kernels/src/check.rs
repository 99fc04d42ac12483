//! Runs a kernel so that every access outside of what it was given is found and named.
//!
//! A [`Checker`] copies a call's arguments into memory of its own, with guards between them and poison in the guards and
//! in the workspace. There the blocks run one after the other, each from the same bytes (`check/blocks.rs`). A block may
//! change written arguments, the common part of the workspace and its own slice; no byte may be changed by two blocks of
//! a phase. Everything runs twice with different poison: where results differ, poison was read, and a search finds the
//! byte and the block. The results of a call without fault are copied back, so they are those of an unchecked call.
//!
//! What it cannot see: a write of what was there before, a read of poison that does not reach a result, an access beyond
//! the guards, and a written argument that is read although its content is arbitrary.

mod blocks;
mod error;
mod map;
#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::{Call, KernelEntry};
use blocks::{Blocks, Buffers, Trace};
pub use error::AccessError;
use map::Map;
pub use map::{Part, Spot, Step};

/// Not a number, whatever the type of float; -1 as an integer.
const POISON: u8 = 0xff;

/// A finite float of ordinary size; a large integer.
const OTHER_POISON: u8 = 0x47;

/// The kernels' function: reference or fast.
type Function = fn(&mut Call<'_>);

/// Memory in which calls are checked; it grows with them.
#[derive(Default)]
pub struct Checker {
    buffers: Buffers,
    /// What the first run has written.
    results: Vec<u8>,
}

impl Checker {
    /// Does what `function(call)`, a version of `kernel`, does if all its accesses are allowed; else its written arguments stay as they are.
    pub fn run(
        &mut self,
        kernel: &KernelEntry,
        function: Function,
        call: &mut Call<'_>,
    ) -> Result<(), AccessError> {
        let map = Map::of(kernel, call);
        let mut trial = Trial { checker: self, kernel: kernel.name, function, call, map };
        trial.run(0, None)?;
        trial.keep_results();
        if trial.differs(trial.map.bytes)? {
            return trial.find_read();
        }
        trial.give_results();
        Ok(())
    }
}

/// One call being checked.
struct Trial<'a, 'c> {
    checker: &'a mut Checker,
    kernel: &'static str,
    function: Function,
    call: &'a mut Call<'c>,
    map: Map,
}

impl Trial<'_, '_> {
    /// Runs the call with the other poison before position `split` and the usual one from there on. If there is a byte to
    /// be excepted, tells what every step has left of all others.
    fn run(&mut self, split: usize, except: Option<usize>) -> Result<Trace, AccessError> {
        self.prepare(split);
        self.execute(except)
    }

    /// Puts arguments where they belong and poison everywhere else.
    fn prepare(&mut self, split: usize) {
        let live = self.checker.buffers.live(&self.map);
        for Range { start, end } in self.map.outside(Part::is_argument) {
            let middle = split.clamp(start, end);
            live[start..middle].fill(OTHER_POISON);
            live[middle..end].fill(POISON);
        }
        for (part, range) in self.map.parts() {
            match part {
                Part::Read(slot, _) => live[range].copy_from_slice(self.call.reads[slot]),
                Part::Write(slot, _) => live[range].copy_from_slice(self.call.writes[slot]),
                Part::Common | Part::Slice(_) => {}
            }
        }
    }

    fn execute(&mut self, except: Option<usize>) -> Result<Trace, AccessError> {
        let map = &self.map;
        let blocks = Blocks::new(self.kernel, map, &mut self.checker.buffers, except);
        {
            // SAFETY: arguments and workspace do not overlap, and each is given out once. `blocks` looks at them only
            // when no block runs; the kernel then waits in a call to which it has given its blocks, and with them all
            // that they may change.
            let part = |range| unsafe { blocks.part(range) };
            let launch = self.call.launch.stepped(map.layout, part(map.workspace()), &blocks);
            let of = |wanted: fn(Part) -> bool| map.parts().filter(move |&(part, _)| wanted(part));
            let reads = of(|part| matches!(part, Part::Read(..)));
            let writes = of(|part| matches!(part, Part::Write(..)));
            (self.function)(&mut Call {
                params: self.call.params,
                reads: reads.map(|(_, range)| &*part(range)).collect(),
                writes: writes.map(|(_, range)| part(range)).collect(),
                launch,
            });
        }
        blocks.finish()
    }

    fn keep_results(&mut self) {
        let live = self.checker.buffers.live(&self.map);
        self.checker.results.clear();
        self.checker.results.extend_from_slice(&live[..self.map.shared_end()]);
    }

    /// Whether a run with this `split` writes something else than the first one.
    fn differs(&mut self, split: usize) -> Result<bool, AccessError> {
        self.run(split, None)?;
        let (live, results) = (self.checker.buffers.live(&self.map), &self.checker.results);
        Ok(self.map.written().any(|(_, range)| live[range.clone()] != results[range]))
    }

    fn give_results(&mut self) {
        for (slot, range) in self.map.written() {
            self.call.writes[slot].copy_from_slice(&self.checker.results[range]);
        }
    }

    /// Fails with a byte of poison on which the results depend, and the first step that leaves something else because of
    /// it.
    fn find_read(&mut self) -> Result<(), AccessError> {
        let (mut same, mut other) = (0, self.map.bytes);
        while other - same > 1 {
            let middle = same.midpoint(other);
            match self.differs(middle)? {
                true => other = middle,
                false => same = middle,
            }
        }
        let traces = (self.run(same, Some(same))?, self.run(other, Some(same))?);
        let differing = traces.0.into_iter().zip(traces.1).find(|(a, b)| a != b);
        let step = differing.map_or(Step { phase: 0, block: None }, |((step, _), _)| step);
        Err(AccessError::Read { kernel: self.kernel, step, spot: self.map.spot(same) })
    }
}
