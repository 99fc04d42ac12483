//! Collecting operations before they are frozen.

use std::collections::HashMap;

use crate::{Operation, Port, Program, ProgramError, Slice};

/// Collects a program.
pub struct Builder {
    program: Program,
    kernels: HashMap<String, u32>,
    labels: HashMap<String, u32>,
}

impl Builder {
    /// Starts a program whose arena has `arena` bytes.
    pub fn new(name: &str, arena: u64) -> Self {
        let program = Program {
            name: name.to_string(),
            arena,
            kernels: Vec::new(),
            labels: Vec::new(),
            operations: Vec::new(),
            slices: Vec::new(),
            words: Vec::new(),
            ports: Vec::new(),
        };
        Builder { program, kernels: HashMap::new(), labels: HashMap::new() }
    }

    /// Adds a tensor that the host can reach.
    pub fn port(&mut self, port: Port) {
        self.program.ports.push(port);
    }

    /// Adds an operation after the ones before.
    pub fn operation(
        &mut self,
        kernel: &str,
        label: &str,
        words: &[u64],
        [reads, writes]: [&[Slice]; 2],
        scratch: Slice,
    ) {
        let kernel = intern(&mut self.kernels, &mut self.program.kernels, kernel);
        let label = intern(&mut self.labels, &mut self.program.labels, label);
        let words = append(&mut self.program.words, words);
        let reads = append(&mut self.program.slices, reads);
        let writes = append(&mut self.program.slices, writes);
        self.program.operations.push(Operation { kernel, label, words, reads, writes, scratch });
    }

    /// Checks and freezes the program.
    pub fn finish(self) -> Result<Program, Vec<ProgramError>> {
        self.program.verify()?;
        Ok(self.program)
    }
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

fn append<T: Copy>(all: &mut Vec<T>, more: &[T]) -> std::ops::Range<u32> {
    let start = position_of(all.len());
    all.extend_from_slice(more);
    start..position_of(all.len())
}

fn position_of(len: usize) -> u32 {
    u32::try_from(len).expect("a program has fewer than 2^32 entries of a kind")
}
