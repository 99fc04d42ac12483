//! One run in many processes, the ranks of a job: how they find that they belong together and what they agree on.
//!
//! Before anything is shared, [`Launched`] reads from the environment which rank a process is, and [`Waiting`] finds
//! which ranks are missing while the message library starts. Then all ranks say [`Hello`] and make sure that they run
//! the same binary with the same configuration. Rank 0 decides what only one can decide ([`shared`]): plan, seed and
//! measured times. [`same_source`] checks that all ranks would compile the same, and rank 0 compiles for all of them.
//! From hellos and plan follows the [`RankLayout`]: which devices and cores each rank has. While steps run, ranks
//! exchange a [`StepVote`] each.
//!
//! Everything here is replicated: from the same hellos all ranks conclude the same, so errors are the same on all of
//! them and no rank waits for one that has given up. What a rank does not survive is reported by others: see
//! [`Network::alert`].

mod agree;
mod alerts;
mod arrivals;
mod chain;
mod clocks;
mod connect;
mod drill;
mod hello;
mod launcher;
mod leaving;
mod phases;
pub mod shared;
mod step;
mod topology;
mod watch;

pub use agree::same_source;
pub use alerts::{Alerts, Heard};
pub use arrivals::{Arrival, Neighbors, Waiting};
pub use chain::{LaneProgress, ProgressReport, WaitLink, Why, chain};
pub use clocks::RankSpans;
pub use connect::{Connection, LIBRARY, MISSING, connect};
pub use drill::{Drill, DrillError, DrillKind, FaultTrigger, StepDrill, When};
pub(crate) use hello::fingerprint;
pub use hello::{Hello, RankOptions, compare};
pub use launcher::{Launched, Launcher};
pub use leaving::Leaving;
pub use phases::Phases;
pub use step::{Agreed, StepVote};
pub(crate) use topology::deal_devices;
pub use topology::{Host, RankLayout};
pub use watch::{FAILED, STALLED, Say, Watchdog, Watched};

use std::sync::Arc;

use phalanx_ir::graph::Graph;
use phalanx_net::{NetError, Network};
use phalanx_program::{Certificate, Program};

use crate::cache::{ProgramCache, source};
use crate::emit::EmitError;
use crate::pipeline::{CompileError, Settings, first};
use crate::{Error, Trainer};

/// Why ranks cannot work together.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum JobError {
    /// The network fails.
    #[error(transparent)]
    Net(#[from] NetError),
    /// A rank cannot find out which program it runs.
    #[error(
        "rank {rank}: cannot read its own executable, which is to be compared with that of others: {source}"
    )]
    Executable { rank: u32, source: std::io::Error },
    /// A configuration cannot be written down.
    #[error("rank {rank}: the configuration cannot be compared with that of others: {problem}")]
    Configuration { rank: u32, problem: String },
    /// What a rank sent is not understood.
    #[error("rank {rank} sends a {what} that cannot be read: install the same build on every host")]
    Garbled { rank: u32, what: &'static str },
    /// A rank runs another program.
    #[error(
        "rank {rank} on {host} runs {binary}, but rank 0 on {host_of_first} runs {binary_of_first}: \
         install the same build on every host"
    )]
    Binary { rank: u32, host: String, binary: String, host_of_first: String, binary_of_first: String },
    /// A rank computes with other instructions.
    #[error(
        "rank {rank} on {host} computes with {isa}, but rank 0 on {host_of_first} with {isa_of_first}: the bits are \
         promised for one instruction set; take hosts of one kind"
    )]
    Isa { rank: u32, host: String, isa: String, host_of_first: String, isa_of_first: String },
    /// A rank is configured in another way.
    #[error(
        "`{field}` is {value} on rank {rank} ({host}), but {value_of_first} on rank 0: give all ranks the same"
    )]
    Field { field: String, rank: u32, host: String, value: String, value_of_first: String },
    /// Rank 0 cannot decide.
    #[error("on rank 0, which decides for all: {problem}")]
    First { problem: String },
    /// A rank has compiled another program.
    #[error(
        "rank {rank} compiles something else than rank 0: line {line} of its model and settings is\n  {text}\n\
         but on rank 0\n  {text_of_first}\ngive all ranks the same options and files"
    )]
    Source {
        rank: u32,
        /// The first line that differs, from 1.
        line: usize,
        /// The line there, or what surrounds the difference.
        text: String,
        text_of_first: String,
    },
    /// The launcher and the message library do not know each other.
    #[error(
        "rank {rank}: the launcher says {told} ranks, {carrier} says {found}: the launcher is of another MPI; take its own, \
         or name the library with {LIBRARY}"
    )]
    Library { rank: u32, found: u32, told: u32, carrier: String },
    /// The parts of all ranks could deadlock: a bug.
    #[error("the ranks could deadlock: {0}; this is a defect, please report it")]
    Certificate(String),
    /// Ranks would have nothing to do.
    #[error(
        "the plan has {devices} devices for {ranks} ranks, and rank {devices} would have none: start at most {devices} \
         ranks, or take a plan of {ranks} devices"
    )]
    TooManyRanks { devices: usize, ranks: usize },
    /// The devices do not fit on the ranks as asked.
    #[error(
        "{ranks} ranks with {per_rank} devices each are not {devices} devices, and rank {rank} would have {left}: \
         start {wanted} ranks, or leave out --devices-per-rank"
    )]
    DevicesPerRank { devices: usize, ranks: usize, per_rank: usize, rank: usize, left: usize, wanted: usize },
}

/// A job whose ranks fit together.
pub struct Job {
    /// What connects them.
    pub network: Arc<dyn Network>,
    /// Alerts between them.
    pub alerts: Arc<Alerts>,
    /// What this rank does outside of steps.
    pub phases: Arc<Phases>,
    /// Says what is wrong, for people.
    pub say: Say,
    /// What each said about itself.
    pub hellos: Vec<Hello>,
}

impl Job {
    /// Meets the other ranks and compares binaries and options.
    pub fn start(connection: &Connection, options: RankOptions) -> Result<Job, JobError> {
        let Connection { network, alerts, phases, say, .. } = connection;
        phases.enter("comparing options");
        let hellos = Hello::of_this_process(network.rank(), options)?.exchange(&**network)?;
        compare(&hellos)?;
        let (network, alerts, phases) = (Arc::clone(network), Arc::clone(alerts), Arc::clone(phases));
        Ok(Job { network, alerts, phases, say: Arc::clone(say), hellos })
    }

    /// Checks that a value is the same on all ranks; the error, on all of them, names the first rank that differs.
    pub fn same_on_all_ranks(&self, what: &str, value: &str) -> Result<(), JobError> {
        let all = self.network.all_gather(value.as_bytes())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match (0..).zip(&all).find(|(_, other)| **other != all[0]) {
            None => Ok(()),
            Some((rank, other)) => Err(JobError::Field {
                field: what.into(),
                rank,
                host: self.hellos[rank as usize].host.clone(),
                value: text(other),
                value_of_first: text(&all[0]),
            }),
        }
    }

    /// Works on the first rank of every host, and on the others when all of those are done: what the first ones leave on
    /// their hosts is there by then.
    pub fn first_of_host_first<T>(&self, work: impl FnOnce() -> T) -> Result<T, JobError> {
        let (before, rest) = self.hellos.split_at(self.network.rank() as usize);
        let is_first = rest.first().is_none_or(|own| before.iter().all(|other| other.host != own.host));
        if is_first {
            let done = work();
            self.network.barrier()?;
            return Ok(done);
        }
        self.network.barrier()?;
        Ok(work())
    }

    /// Compiles `model` and takes this rank's part; rank 0 also proves that all parts together cannot deadlock.
    pub fn trainer(
        &self,
        model: &Graph,
        settings: &Settings,
        cache: &ProgramCache,
    ) -> Result<(Trainer, Option<Certificate>), Error> {
        let (program, certificate) = self.program(model, settings, cache)?;
        let trainer = Trainer::on_network(model, program, settings, Arc::clone(&self.network))?;
        Ok((trainer, certificate))
    }

    /// The program of `model`, which rank 0 compiles or has in its `cache`; rank 0 also proves that the parts of all ranks
    /// together cannot deadlock.
    pub fn program(
        &self,
        model: &Graph,
        settings: &Settings,
        cache: &ProgramCache,
    ) -> Result<(Program, Option<Certificate>), Error> {
        self.phases.enter("compiling");
        same_source(&*self.network, &source(model, settings))?;
        let program = shared::program(&*self.network, || Ok(cache.compile(model, settings)?))?;
        let certificate = match self.network.rank() {
            0 => Some(certify(&program, settings)?),
            _ => None,
        };
        Ok((program, certificate))
    }
}

/// Proves that the parts of all ranks of a program cannot deadlock.
pub(crate) fn certify(program: &Program, settings: &Settings) -> Result<Certificate, Error> {
    let unsound = |errors| CompileError::from(EmitError::Unsound(errors));
    let parts = program.parts(&settings.placement).map_err(unsound)?;
    Certificate::new(&parts).map_err(|errors| JobError::Certificate(first(&errors)).into())
}

#[cfg(test)]
mod tests;
