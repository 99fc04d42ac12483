//! What people watch while a run goes on: its numbers, step by step, in a file that TensorBoard draws.
//!
//! Rank 0 writes for the whole job. Arenas are those of all processes; resident memory and waiting are its own. Nothing
//! here runs unless a board is open.

mod events;
mod exposed;

pub(crate) use events::unix_time;
pub use events::{EventError, EventFile};
pub use exposed::Exposed;

use std::path::Path;

use crate::train::{Report, Run};

/// The numbers of a run on their way to TensorBoard.
pub struct Board {
    events: EventFile,
    /// None before the first step; then none inside if there is nothing to wait for.
    exposed: Option<Option<Exposed>>,
}

impl Board {
    /// A new event file in `dir`, which is made if it is not there. TensorBoard takes a directory for one run.
    pub fn open(dir: &Path) -> Result<Board, EventError> {
        Ok(Board { events: EventFile::create(dir)?, exposed: None })
    }

    /// Adds the numbers of a step.
    pub fn step(&mut self, run: &Run, report: &Report) -> Result<(), EventError> {
        let session = run.trainer().session();
        let exposed = self.exposed.get_or_insert_with(|| Exposed::of(session.part()));
        let numbers = [
            ("loss", Some(report.loss)),
            ("eval_loss", report.eval_loss),
            ("eval_perplexity", report.eval_perplexity.map(|perplexity| perplexity as f32)),
            ("lr", Some(report.lr)),
            ("gradient_norm", report.gradient_norm),
            ("tokens_per_s", Some(report.tokens_per_s as f32)),
            ("memory/arena_bytes", Some(session.arena_bytes() as f32)),
            ("memory/eval_arena_bytes", run.eval_bytes().map(|bytes| bytes as f32)),
            ("memory/resident_bytes", resident_bytes().map(|bytes| bytes as f32)),
            ("exposed_communication_s", exposed.as_ref().map(|it| it.seconds(run.profile()) as f32)),
        ];
        let known = numbers.into_iter().filter_map(|(name, number)| Some((name, number?)));
        self.events.scalars(report.step, known)
    }
}

/// The memory this process holds now, where the system tells.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}
