//! What the time of a task depends on, on a given machine.
//!
//! Parameter words that tell *which* elements a kernel works on, but not how many, are zero in a signature: the seed of
//! dropout, or where a tile starts. So tasks that differ only in them are measured once, and devices that do the same
//! work on different tiles are thought to take the same time.

use phalanx_ir::tasks::{BufferId, TaskGraph, TaskId};
use phalanx_kernels::table;
use phalanx_program::{Operation, Program, RECEIVE};
use serde::Serialize;

use crate::emit::{Choice, select};

/// A kernel, its parameters and sizes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Signature {
    /// The kernel's name.
    pub kernel: String,
    /// Its parameter words.
    pub words: Vec<u64>,
    /// Bytes of each slice that it only reads.
    pub reads: Vec<u64>,
    /// Bytes of each slice that it writes.
    pub writes: Vec<u64>,
    /// Cores of the device.
    pub cores: usize,
}

impl Signature {
    /// The signature of a task on a device of `cores` cores; `None` if no kernel executes it.
    pub fn of(tasks: &TaskGraph, task: TaskId, cores: usize) -> Option<Signature> {
        let Choice { kernel, words, reads, writes } = select(tasks, task).ok()?;
        if kernel == RECEIVE {
            return None;
        }
        let bytes = |buffer: &BufferId| tasks.buffers[*buffer].ty.bytes() as u64;
        let (reads, writes) = (reads.iter().map(bytes).collect(), writes.iter().map(bytes).collect());
        Some(Signature { kernel: kernel.to_string(), words: anywhere(kernel, &words), reads, writes, cores })
    }

    /// The signature of an operation of a program on devices of `cores` cores; its words are as they are, and a movement
    /// has none.
    pub fn of_operation(program: &Program, operation: &Operation, cores: usize) -> Signature {
        let bytes = |range| program.slices(range).iter().map(|slice| slice.bytes).collect();
        Signature {
            kernel: program.kernel(operation).to_string(),
            words: program.params(operation).to_vec(),
            reads: bytes(&operation.reads),
            writes: bytes(&operation.writes),
            cores,
        }
    }

    /// The sizes for people, where words tell more than bytes do.
    pub fn sizes(&self) -> Option<String> {
        table::find(&self.kernel).and_then(|kernel| (kernel.sizes)(&self.words))
    }
}

/// The words of the same work at the beginning of its tensor, with no seed.
fn anywhere(kernel: &str, words: &[u64]) -> Vec<u64> {
    table::find(kernel).map_or_else(|| words.to_vec(), |kernel| (kernel.anywhere)(words))
}
