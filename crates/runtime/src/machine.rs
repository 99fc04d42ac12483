//! What there is to run on: processors, memories, and how well they reach each other.
//!
//! A description, filled in by whoever knows the hardware; it starts nothing and measures nothing. A [`Query`] holds the
//! candidates that are left, in the order in which they were added; each filter takes some away. So filters compose in
//! any order, except that [`Query::best`] compares only who is left, and a copy goes its own way.

use crate::runtime::ProcessorId;

/// A memory of a machine, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemoryId(pub u32);

/// What a processor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProcessorKind {
    /// Runs bodies on cores of the host.
    Cpu,
    /// Issues work to a device.
    Device,
}

/// What a memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Memory of the host.
    Host,
    /// Memory of the host that devices reach without a copy.
    Pinned,
    /// Memory of a device.
    Device,
    /// A file.
    File,
}

/// A processor of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processor {
    /// What it is.
    pub kind: ProcessorKind,
    /// How many cores it has.
    pub cores: u32,
}

/// A memory of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What it is.
    pub kind: MemoryKind,
    /// How many bytes it holds.
    pub capacity: u64,
}

/// How well two things reach each other. Of two, the one with the higher bandwidth is the better, then the one with the
/// lower latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// Bytes per second.
    pub bandwidth: u64,
    /// Nanoseconds until the first byte.
    pub latency: u64,
}

/// A processor or a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// A processor.
    Processor(ProcessorId),
    /// A memory.
    Memory(MemoryId),
}

/// Why two things cannot be given an affinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// One of them does not exist.
    #[error("{place:?} of a machine with {processors} processors and {memories} memories; add it first")]
    NoSuchPlace {
        /// Which.
        place: Place,
        /// How many processors there are.
        processors: usize,
        /// How many memories there are.
        memories: usize,
    },
    /// Neither is a memory.
    #[error("{0:?} and {1:?} reach each other only through a memory; give each of them an affinity to that")]
    NoMemory(Place, Place),
}

/// A description of a machine.
///
/// ```
/// use phalanx_runtime::machine::{Affinity, Machine, Memory, MemoryKind, Processor, ProcessorKind};
///
/// let mut machine = Machine::default();
/// let cpu = machine.add_processor(Processor { kind: ProcessorKind::Cpu, cores: 8 });
/// let host = machine.add_memory(Memory { kind: MemoryKind::Host, capacity: 64 << 30 });
/// machine.connect(cpu, host, Affinity { bandwidth: 40_000_000_000, latency: 90 })?;
/// let first = machine.memories().of_kind(MemoryKind::Host).with_affinity(cpu).with_capacity(1 << 30).first();
/// assert_eq!(first, Some(host));
/// # Ok::<(), phalanx_runtime::machine::MachineError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Machine {
    processors: Vec<Processor>,
    memories: Vec<Memory>,
    affinities: Vec<(Place, Place, Affinity)>,
}

impl Machine {
    /// Adds a processor.
    pub fn add_processor(&mut self, processor: Processor) -> ProcessorId {
        self.processors.push(processor);
        ProcessorId(self.processors.len() as u32 - 1)
    }

    /// Adds a memory.
    pub fn add_memory(&mut self, memory: Memory) -> MemoryId {
        self.memories.push(memory);
        MemoryId(self.memories.len() as u32 - 1)
    }

    /// Says how well a processor and a memory, or two memories, reach each other; the last word counts.
    pub fn connect(
        &mut self,
        a: impl Into<Place>,
        b: impl Into<Place>,
        affinity: Affinity,
    ) -> Result<(), MachineError> {
        let (a, b) = (a.into(), b.into());
        self.check(a)?;
        self.check(b)?;
        if let (Place::Processor(_), Place::Processor(_)) = (a, b) {
            return Err(MachineError::NoMemory(a, b));
        }
        self.affinities.retain(|&(c, d, _)| (c, d) != (a, b) && (c, d) != (b, a));
        self.affinities.push((a, b, affinity));
        Ok(())
    }

    fn check(&self, place: Place) -> Result<(), MachineError> {
        let (processors, memories) = (self.processors.len(), self.memories.len());
        let exists = match place {
            Place::Processor(ProcessorId(number)) => (number as usize) < processors,
            Place::Memory(MemoryId(number)) => (number as usize) < memories,
        };
        if exists { Ok(()) } else { Err(MachineError::NoSuchPlace { place, processors, memories }) }
    }

    /// How well two things reach each other; nothing if nobody has said so.
    pub fn affinity(&self, a: impl Into<Place>, b: impl Into<Place>) -> Option<Affinity> {
        let (a, b) = (a.into(), b.into());
        let known = |&&(c, d, _): &&_| (c, d) == (a, b) || (c, d) == (b, a);
        self.affinities.iter().find(known).map(|&(_, _, affinity)| affinity)
    }

    /// What a processor is; nothing if there is none of that number.
    pub fn processor(&self, id: ProcessorId) -> Option<Processor> {
        self.processors.get(id.0 as usize).copied()
    }

    /// What a memory is; nothing if there is none of that number.
    pub fn memory(&self, id: MemoryId) -> Option<Memory> {
        self.memories.get(id.0 as usize).copied()
    }

    /// All processors.
    pub fn processors(&self) -> Query<'_, ProcessorId> {
        Query { machine: self, left: (0..self.processors.len() as u32).map(ProcessorId).collect() }
    }

    /// All memories.
    pub fn memories(&self) -> Query<'_, MemoryId> {
        Query { machine: self, left: (0..self.memories.len() as u32).map(MemoryId).collect() }
    }
}

/// Processors or memories of a machine that pass all filters so far.
#[derive(Clone, Debug)]
pub struct Query<'a, Id> {
    machine: &'a Machine,
    left: Vec<Id>,
}

impl<Id: Copy + Ord + Into<Place>> Query<'_, Id> {
    /// Leaves those that reach `place`.
    pub fn with_affinity(self, place: impl Into<Place>) -> Self {
        let place = place.into();
        self.filter(|machine, id| machine.affinity(id, place).is_some())
    }

    /// Leaves those that reach `place` best, all of them if several are alike.
    pub fn best(self, place: impl Into<Place>) -> Self {
        let place = place.into();
        let score = |machine: &Machine, id: Id| {
            let affinity = machine.affinity(id, place)?;
            Some((affinity.bandwidth, std::cmp::Reverse(affinity.latency)))
        };
        let best = self.left.iter().filter_map(|&id| score(self.machine, id)).max();
        self.filter(|machine, id| best.is_some() && score(machine, id) == best)
    }

    /// How many are left.
    pub fn count(&self) -> usize {
        self.left.len()
    }

    /// The first one left.
    pub fn first(&self) -> Option<Id> {
        self.left.first().copied()
    }

    /// The first one left after `id`, which itself need not be left.
    pub fn next(&self, id: Id) -> Option<Id> {
        self.left.get(self.left.partition_point(|&other| other <= id)).copied()
    }

    /// All that are left, in the order in which they were added.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Id> {
        self.left.iter().copied()
    }

    fn filter(mut self, keep: impl Fn(&Machine, Id) -> bool) -> Self {
        self.left.retain(|&id| keep(self.machine, id));
        self
    }
}

impl Query<'_, ProcessorId> {
    /// Leaves those of one kind.
    pub fn of_kind(self, kind: ProcessorKind) -> Self {
        self.filter(|machine, id| machine.processor(id).is_some_and(|processor| processor.kind == kind))
    }

    /// Leaves those with at least so many cores.
    pub fn with_cores(self, cores: u32) -> Self {
        self.filter(|machine, id| machine.processor(id).is_some_and(|processor| processor.cores >= cores))
    }
}

impl Query<'_, MemoryId> {
    /// Leaves those of one kind.
    pub fn of_kind(self, kind: MemoryKind) -> Self {
        self.filter(|machine, id| machine.memory(id).is_some_and(|memory| memory.kind == kind))
    }

    /// Leaves those that hold at least so many bytes.
    pub fn with_capacity(self, bytes: u64) -> Self {
        self.filter(|machine, id| machine.memory(id).is_some_and(|memory| memory.capacity >= bytes))
    }
}

impl From<ProcessorId> for Place {
    fn from(id: ProcessorId) -> Place {
        Place::Processor(id)
    }
}

impl From<MemoryId> for Place {
    fn from(id: MemoryId) -> Place {
        Place::Memory(id)
    }
}
