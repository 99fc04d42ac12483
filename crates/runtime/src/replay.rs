//! Running a program again and again, each lane in its own arena.
//!
//! A lane walks its operations in order, waits for what each needs of other lanes, builds its slices on the stack and
//! calls its kernel: no allocation, no lookup. Movements the runtime executes itself (see `transfer`). A program of one
//! lane runs on the caller without any synchronisation; for others see `lanes`.
//!
//! Why accesses to arenas are sound, whatever the program: there is none that its verifier has not accepted. Inside an
//! operation, written slices overlap nothing else of it. Between operations of a lane, they run one after the other.
//! Between lanes, only movements touch another lane's bytes, and only to read; lane orders and waits put every
//! operation that writes these bytes, or works in them, before or after the movement. `lanes` keeps these orders: an
//! operation starts when all it waits for is complete in the same run, and a run starts when the last one has ended.

use std::borrow::Cow;

use arrayvec::ArrayVec;
use phalanx_program::{MAX_SLICES, Operation, Port, PortTile, Program, RECEIVE};

use crate::lanes::{Lanes, Turn};
use crate::ports::{self, Names};
use crate::transfer::{self, Operands};
use crate::{Arena, PortError};

/// What a kernel gets for one operation.
pub struct Args<'a> {
    /// Parameter words.
    pub words: &'a [u64],
    /// Slices only read.
    pub reads: ArrayVec<&'a [u8], MAX_SLICES>,
    /// Slices written.
    pub writes: ArrayVec<&'a mut [u8], MAX_SLICES>,
    /// Working memory with arbitrary content.
    pub scratch: &'a mut [u8],
}

/// The kernels of a program on one device, by their position in its kernel list. [`RECEIVE`] is never asked for.
pub trait Kernels {
    /// Executes kernel number `kernel`.
    fn execute(&self, kernel: usize, args: Args<'_>);
}

/// A program with its memory and kernels, ready to run.
pub struct Replay<K> {
    memory: Memory<K>,
    names: Names,
    /// The threads; none for a program of one lane.
    lanes: Option<Lanes>,
}

/// What the lanes share during a run.
struct Memory<K> {
    program: Program,
    arenas: Vec<Arena>,
    /// One for each lane.
    kernels: Vec<K>,
    /// The position of [`RECEIVE`] in the program's kernels.
    receive: Option<usize>,
}

impl<K: Kernels + Sync> Replay<K> {
    /// Allocates the arenas and starts the threads. `kernels` has a set for each lane, in order.
    ///
    /// A lane that waits for another looks `spins` times before it sleeps: worth it only if every lane has cores of its
    /// own. Any program may be run: every one is verified to be free of races (see the head of this file).
    pub fn new(program: Program, kernels: Vec<K>, spins: u32) -> Self {
        let count = program.lanes().len();
        assert_eq!(kernels.len(), count, "every lane has its kernels");
        let arenas = program.lanes().iter().map(|lane| Arena::new(lane.arena)).collect();
        let receive = program.kernels().iter().position(|name| name == RECEIVE);
        let names = Names::new(&program);
        let lanes = (count > 1).then(|| Lanes::new(count, spins));
        Replay { memory: Memory { program, arenas, kernels, receive }, names, lanes }
    }

    /// Runs all operations once. If a kernel panics, so does this, after all lanes have stopped.
    pub fn run(&mut self) {
        self.run_observed(|_, execute| execute());
    }

    /// Runs all operations once; `around` is given each one's position in the program and must call the closure. It is
    /// called by all lanes at the same time.
    pub fn run_observed(&mut self, around: impl Fn(usize, &mut dyn FnMut()) + Sync) {
        let memory = &self.memory;
        let Some(lanes) = &mut self.lanes else {
            let operations = memory.program.operations().iter().enumerate();
            return operations
                .for_each(|(index, operation)| around(index, &mut || memory.execute(0, operation)));
        };
        lanes.run(&|turn: &Turn<'_>| {
            let lane = &memory.program.lanes()[turn.lane];
            let first = lane.operations.start as usize;
            for (position, operation) in memory.program.operations_of(lane).iter().enumerate() {
                for wait in memory.program.waits(operation) {
                    turn.wait(wait.lane, wait.position)?;
                }
                around(first + position, &mut || memory.execute(turn.lane, operation));
                turn.done(position);
            }
            Ok(())
        });
    }
}

impl<K> Replay<K> {
    /// The program.
    pub fn program(&self) -> &Program {
        &self.memory.program
    }

    /// The kernels of each lane.
    pub fn kernels(&self) -> &[K] {
        &self.memory.kernels
    }

    /// Bytes of each lane's arena.
    pub fn arena_bytes(&self) -> impl Iterator<Item = usize> {
        self.memory.arenas.iter().map(Arena::bytes)
    }

    /// The port called `name`.
    pub fn port(&self, name: &str) -> Result<&Port, PortError> {
        self.names.find(&self.memory.program, name)
    }

    /// The bytes of the tensor called `name`: borrowed if one lane has all of it, else gathered from several.
    pub fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, PortError> {
        Ok(ports::read(self.port(name)?, &self.memory.arenas))
    }

    /// Replaces the bytes of the tensor called `name` on every lane that has some of it. Allocates nothing.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), PortError> {
        let port = self.names.find(&self.memory.program, name)?;
        ports::write(port, &mut self.memory.arenas, bytes)
    }

    /// Lets `fill` write every tile of the tensor called `name` in place, mirrored ones each.
    pub fn fill_tiles(
        &mut self,
        name: &str,
        mut fill: impl FnMut(&PortTile, &mut [u8]),
    ) -> Result<(), PortError> {
        for tile in &self.names.find(&self.memory.program, name)?.tiles {
            fill(tile, self.memory.arenas[tile.slice.lane as usize].get_mut(tile.slice));
        }
        Ok(())
    }
}

impl<K: Kernels> Memory<K> {
    fn execute(&self, lane: usize, operation: &Operation) {
        let program = &self.program;
        let (reads, writes) = (program.slices(&operation.reads), program.slices(&operation.writes));
        if self.receive == Some(operation.kernel as usize) {
            // SAFETY: verified: reads and writes do not overlap, and writes are in this lane, which runs one operation
            // at a time; other lanes write what is read here, and read what is written here, only before or after (see
            // the head).
            let mut operands = unsafe { Operands::new(&self.arenas, reads, writes) };
            return transfer::execute(program.words(operation), &mut operands);
        }
        let arena = &self.arenas[lane];
        let mut args = Args {
            words: program.words(operation),
            reads: ArrayVec::new(),
            writes: ArrayVec::new(),
            // SAFETY: verified: scratch is in this lane, which runs one operation at a time, and overlaps no other slice
            // of the operation; a movement that reads these bytes is ordered by waits (see the head).
            scratch: unsafe { arena.part(operation.scratch) },
        };
        for &slice in reads {
            // SAFETY: verified: it is in this lane, where this operation alone writes, and overlaps nothing it writes.
            args.reads.push(unsafe { arena.shared(slice) });
        }
        for &slice in writes {
            // SAFETY: verified: a written slice overlaps no other slice of the operation; otherwise as for scratch.
            args.writes.push(unsafe { arena.part(slice) });
        }
        self.kernels[lane].execute(operation.kernel as usize, args);
    }
}
