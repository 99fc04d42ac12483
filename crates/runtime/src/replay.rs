//! Running a program again and again on one arena.
//!
//! A run walks the operations in order, builds each one's slices on the stack and calls its kernel: no allocation, no
//! lookup, no lock. The program's verifier has shown that an operation's written slices overlap nothing else of it.

use arrayvec::ArrayVec;
use phalanx_program::{MAX_SLICES, Operation, Port, Program};

use crate::Arena;

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

/// The kernels of a program, by their position in its kernel list.
pub trait Kernels {
    /// Executes kernel number `kernel`.
    fn execute(&self, kernel: usize, args: Args<'_>);
}

/// Why the host cannot reach a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// There is no such port.
    #[error("program `{program}` has no tensor `{name}`; it has {known}")]
    Unknown {
        /// The program.
        program: String,
        /// The name asked for.
        name: String,
        /// Names it has.
        known: String,
    },
    /// The host brings another number of bytes.
    #[error("`{name}` is {ty} of {need} bytes; {found} were given")]
    Size {
        /// The port.
        name: String,
        /// Its type.
        ty: String,
        /// Its bytes.
        need: usize,
        /// The bytes given.
        found: usize,
    },
}

/// A program with its memory and kernels, ready to run.
pub struct Replay<K> {
    program: Program,
    arena: Arena,
    kernels: K,
}

impl<K: Kernels> Replay<K> {
    /// Allocates the arena.
    pub fn new(program: Program, kernels: K) -> Self {
        let arena = Arena::new(program.arena());
        Replay { program, arena, kernels }
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The kernels.
    pub fn kernels(&self) -> &K {
        &self.kernels
    }

    /// Bytes of the arena.
    pub fn arena_bytes(&self) -> usize {
        self.arena.bytes()
    }

    /// The bytes of the tensor called `name`.
    pub fn read(&self, name: &str) -> Result<&[u8], PortError> {
        Ok(self.arena.get(self.port(name)?.slice))
    }

    /// Replaces the bytes of the tensor called `name`.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), PortError> {
        let target = self.bytes_mut(name)?;
        if target.len() == bytes.len() {
            target.copy_from_slice(bytes);
            return Ok(());
        }
        let port = self.port(name)?;
        Err(PortError::Size {
            name: name.to_string(),
            ty: port.ty.to_string(),
            need: port.ty.bytes(),
            found: bytes.len(),
        })
    }

    /// The bytes of the tensor called `name`, to be written in place.
    pub fn bytes_mut(&mut self, name: &str) -> Result<&mut [u8], PortError> {
        let slice = self.port(name)?.slice;
        Ok(self.arena.get_mut(slice))
    }

    /// The port called `name`.
    pub fn port(&self, name: &str) -> Result<&Port, PortError> {
        self.program.ports().iter().find(|port| port.name == name).ok_or_else(|| {
            let known: Vec<_> = self.program.ports().iter().take(8).map(|port| port.name.as_str()).collect();
            let program = self.program.name().to_string();
            PortError::Unknown { program, name: name.to_string(), known: known.join(", ") }
        })
    }

    /// Runs all operations once.
    pub fn run(&mut self) {
        self.run_observed(|_, execute| execute());
    }

    /// Runs all operations once; `around` is given each operation's position and must call the closure.
    pub fn run_observed(&mut self, mut around: impl FnMut(usize, &mut dyn FnMut())) {
        for (position, operation) in self.program.operations().iter().enumerate() {
            around(position, &mut || self.execute(operation));
        }
    }

    fn execute(&self, operation: &Operation) {
        let mut args = Args {
            words: self.program.words(operation),
            reads: ArrayVec::new(),
            writes: ArrayVec::new(),
            // SAFETY: verified: scratch overlaps no other slice of the operation, and operations run one at a time
            // under `&mut self` of `run`.
            scratch: unsafe { self.arena.part(operation.scratch) },
        };
        args.reads.extend(self.program.slices(&operation.reads).iter().map(|&slice| self.arena.get(slice)));
        for &slice in self.program.slices(&operation.writes) {
            // SAFETY: verified: a written slice overlaps no other slice of the operation; otherwise as above.
            args.writes.push(unsafe { self.arena.part(slice) });
        }
        self.kernels.execute(operation.kernel as usize, args);
    }
}
