//! One run in many processes, the ranks of a job: how they find that they belong together and what they agree on.
//!
//! Before anything is shared, [`Launched`] reads from the environment which rank a process is, and [`Waiting`] finds
//! which ranks are missing while the message library starts. Then all ranks say [`Hello`] and make sure that they run
//! the same binary with the same configuration. Rank 0 decides what only one can decide ([`shared`]): plan, seed and
//! measured times. Every rank compiles the whole program by itself, and [`same_program`] checks that it came out alike.
//! From hellos and plan follows the [`Topology`]: which devices and cores each rank has. While steps run, ranks
//! exchange a [`StepVote`] each.
//!
//! Everything here is replicated: from the same hellos all ranks conclude the same, so errors are the same on all of
//! them and no rank waits for one that has given up. What a rank does not survive is reported by others: see
//! [`Network::alert`].

mod agree;
mod alerts;
mod arrivals;
mod chain;
mod connect;
mod drill;
mod elastic;
mod hello;
mod launcher;
mod pin;
pub mod shared;
mod step;
mod topology;
mod watch;

pub use agree::same_program;
pub use alerts::{Alerts, Heard};
pub use arrivals::{Arrival, Waiting};
pub use chain::{LaneProgress, ProgressReport, WaitLink, Why, chain};
pub use connect::{Connection, LIBRARY, MISSING, connect};
pub use drill::{Drill, DrillError, DrillKind, FaultTrigger, StepDrill, When};
pub use elastic::{Elastic, ElasticError, Smaller};
pub use hello::{FREE_FIELDS, Hello, compare};
pub use launcher::{Launched, Launcher};
pub use pin::Pin;
pub use step::{Agreed, StepVote};
pub(crate) use topology::deal_devices;
pub use topology::{Host, Topology};
pub use watch::{FAILED, STALLED, Say, Watchdog, Watched};

use std::sync::Arc;

use phalanx_ir::graph::Graph;
use phalanx_net::{NetError, Network};
use phalanx_program::{Certificate, Program};

use crate::emit::EmitError;
use crate::pipeline::{CompileError, Settings, compile, first};
use crate::train::TrainConfig;
use crate::{Error, Trainer};

/// Why ranks cannot work together.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The network fails.
    #[error(transparent)]
    Net(#[from] NetError),
    /// A rank cannot find out which program it runs.
    #[error(
        "rank {rank}: cannot read its own executable, which is to be compared with that of others: {source}"
    )]
    Executable {
        /// The rank.
        rank: u32,
        /// Why not.
        source: std::io::Error,
    },
    /// A configuration cannot be written down.
    #[error("rank {rank}: the configuration cannot be compared with that of others: {problem}")]
    Configuration {
        /// The rank.
        rank: u32,
        /// Why not.
        problem: String,
    },
    /// What a rank sent is not understood.
    #[error("rank {rank} sends a {what} that cannot be read: install the same build on every host")]
    Garbled {
        /// The rank that sent it.
        rank: u32,
        /// What it should be.
        what: &'static str,
    },
    /// A rank runs another program.
    #[error(
        "rank {rank} on {host} runs {binary}, but rank 0 on {host_of_first} runs {binary_of_first}: \
         install the same build on every host"
    )]
    Binary {
        /// The rank.
        rank: u32,
        /// Where it runs.
        host: String,
        /// Its version and fingerprint.
        binary: String,
        /// Where rank 0 runs.
        host_of_first: String,
        /// Version and fingerprint of rank 0.
        binary_of_first: String,
    },
    /// A rank computes with other instructions.
    #[error(
        "rank {rank} on {host} computes with {isa}, but rank 0 on {host_of_first} with {isa_of_first}: the bits are \
         promised for one instruction set; take hosts of one kind"
    )]
    Isa {
        /// The rank.
        rank: u32,
        /// Where it runs.
        host: String,
        /// Its instruction set.
        isa: String,
        /// Where rank 0 runs.
        host_of_first: String,
        /// The instruction set of rank 0.
        isa_of_first: String,
    },
    /// A rank is configured in another way.
    #[error(
        "`{field}` is {value} on rank {rank} ({host}), but {value_of_first} on rank 0: give all ranks the same"
    )]
    Field {
        /// The field.
        field: String,
        /// The rank.
        rank: u32,
        /// Where it runs.
        host: String,
        /// The field's value there.
        value: String,
        /// The field's value on rank 0.
        value_of_first: String,
    },
    /// Rank 0 cannot decide.
    #[error("rank 0 has no {what}: {problem}")]
    First {
        /// What it should have.
        what: &'static str,
        /// Why not.
        problem: String,
    },
    /// A rank has compiled another program.
    #[error(
        "rank {rank} compiled another program than rank 0: line {line} is\n  {text}\nbut on rank 0\n  {text_of_first}\n\
         this is a defect; please report it"
    )]
    Program {
        /// The rank.
        rank: u32,
        /// The first line that differs, from 1.
        line: usize,
        /// The line there, or what surrounds the difference.
        text: String,
        /// The same of rank 0.
        text_of_first: String,
    },
    /// The launcher and the message library do not know each other.
    #[error(
        "rank {rank}: the launcher says {told} ranks, {carrier} says {found}: the launcher is of another MPI; take its own, \
         or name the library with {LIBRARY}"
    )]
    Library {
        /// The rank.
        rank: u32,
        /// Ranks that the library knows of.
        found: u32,
        /// Ranks that the launcher started.
        told: u32,
        /// The library.
        carrier: String,
    },
    /// The parts of all ranks could deadlock: a bug.
    #[error("the ranks could deadlock: {0}; this is a defect, please report it")]
    Certificate(String),
    /// Ranks would have nothing to do.
    #[error(
        "the plan has {devices} devices for {ranks} ranks, and rank {devices} would have none: start at most {devices} \
         ranks, or take a plan of {ranks} devices"
    )]
    TooManyRanks {
        /// Devices of the plan.
        devices: usize,
        /// Ranks of the job.
        ranks: usize,
    },
    /// The devices do not fit on the ranks as asked.
    #[error(
        "{ranks} ranks with {per_rank} devices each are not {devices} devices, and rank {rank} would have {left}: \
         start {wanted} ranks, or leave out --devices-per-rank"
    )]
    DevicesPerRank {
        /// Devices of the plan.
        devices: usize,
        /// Ranks of the job.
        ranks: usize,
        /// Devices each is to have.
        per_rank: usize,
        /// The last rank.
        rank: usize,
        /// The devices that remain for it.
        left: usize,
        /// How many ranks it takes.
        wanted: usize,
    },
}

/// A job whose ranks fit together.
pub struct Job {
    /// What connects them.
    pub network: Arc<dyn Network>,
    /// Alerts between them.
    pub alerts: Arc<Alerts>,
    /// Says what is wrong, for people.
    pub say: Say,
    /// What each said about itself.
    pub hellos: Vec<Hello>,
}

impl Job {
    /// Meets the other ranks and compares binaries and configurations.
    pub fn start(connection: &Connection, config: &TrainConfig) -> Result<Job, JobError> {
        let Connection { network, alerts, say, .. } = connection;
        let hellos = Hello::of_this_process(network.rank(), config)?.exchange(&**network)?;
        compare(&hellos)?;
        Ok(Job { network: Arc::clone(network), alerts: Arc::clone(alerts), say: Arc::clone(say), hellos })
    }

    /// How all ranks compile `model`, and which part of it each has. Plan, seed and times of kernels are those of rank
    /// 0; `progress` is called there with the kernels that are measured.
    pub fn settings(
        &self,
        config: &TrainConfig,
        model: &Graph,
        progress: &mut dyn FnMut(usize, usize, &str),
    ) -> Result<(Settings, Topology), Error> {
        let network = &*self.network;
        let plan = shared::plan(network, || Ok(config.settings(model)?.plan))?;
        let devices = plan.mesh.devices();
        let topology = Topology::new(&self.hellos, network.rank(), devices, config.devices_per_rank)?;
        let config = TrainConfig {
            seed: shared::seed(network, config.seed)?,
            cores_per_device: topology.cores_per_device,
            ..config.clone()
        };
        // The rest does not depend on plan and costs, whose files other ranks may not have.
        let rest = TrainConfig { plan: None, devices: None, costs: None, ..config.clone() };
        let placement = topology.placement.clone();
        let mut settings = Settings { plan, placement, ..rest.settings(model)? };
        settings.book = shared::costs(network, || {
            let mut settings = settings.clone();
            config.measure(model, &mut settings, progress)?;
            Ok(settings.book)
        })?;
        Ok((settings, topology))
    }

    /// Compiles `model` and takes this rank's part; rank 0 also proves that all parts together cannot deadlock.
    pub fn trainer(
        &self,
        model: &Graph,
        settings: &Settings,
    ) -> Result<(Trainer, Option<Certificate>), Error> {
        let (program, certificate) = self.program(model, settings)?;
        let trainer = Trainer::on_network(model, program, settings, Arc::clone(&self.network))?;
        Ok((trainer, certificate))
    }

    /// Compiles `model`, the same on all ranks; rank 0 also proves that the parts of all together cannot deadlock.
    pub fn program(
        &self,
        model: &Graph,
        settings: &Settings,
    ) -> Result<(Program, Option<Certificate>), Error> {
        let program = compile(model, settings)?;
        same_program(&*self.network, &program)?;
        let certificate = match self.network.rank() {
            0 => Some(certify(&program, settings)?),
            _ => None,
        };
        Ok((program, certificate))
    }
}

fn certify(program: &Program, settings: &Settings) -> Result<Certificate, Error> {
    let unsound = |errors| CompileError::from(EmitError::Unsound(errors));
    let parts = program.parts(&settings.placement).map_err(unsound)?;
    Certificate::new(&parts).map_err(|errors| JobError::Certificate(first(&errors)).into())
}

#[cfg(test)]
mod tests;
