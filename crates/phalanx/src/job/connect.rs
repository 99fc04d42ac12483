//! Joining the job that a launcher started this process for.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use phalanx_net::Network;
use phalanx_net::mpi::{self, Mpi};

use super::alerts::Alerts;
use super::watch::Say;
use super::{Arrival, JobError, Launched, Launcher, Leaving, Neighbors, Phases, Waiting};

/// Names the MPI library to use, where the system has several and the launcher does not say which.
pub const LIBRARY: &str = "PHALANX_MPI_LIBRARY";

/// The exit code of a job some of whose ranks never came.
pub const MISSING: i32 = 4;

/// How long ranks have to start: as long as they may stand still later, but no less than it takes on a busy host, and
/// no more than makes sense.
const START: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_secs(60);

/// This process among the ranks of a job.
pub struct Connection {
    /// What connects them.
    pub network: Arc<dyn Network>,
    /// The same, for comparisons with the library alone, if there is one.
    pub mpi: Option<Arc<Mpi>>,
    /// Alerts between ranks.
    pub alerts: Arc<Alerts>,
    /// What this rank does outside of steps.
    pub phases: Arc<Phases>,
    /// Says what is wrong, for people.
    pub say: Say,
    /// Shows others that this rank has started, as long as it lives.
    arrival: Option<Arc<Arrival>>,
    /// The other ranks, if all are on this host.
    beside: Vec<u32>,
    /// Waits for them to leave the job, too. The last field: what ends the library is dropped before it.
    leaving: OnceLock<Leaving>,
}

/// Joins the job, if this process was started as one of several ranks. `limit` is how long it may wait for the others.
pub fn connect(limit: Duration, say: Say) -> Result<Option<Connection>, JobError> {
    let variable = |name: &str| std::env::var(name).ok();
    let Some(launched) = Launched::from_env(variable).filter(|launched| launched.size > 1) else {
        return Ok(None);
    };
    let arrival = Arrival::of_this_process(launched.rank).ok().map(Arc::new);
    // Without knowing better, all ranks are on this host if as many were started here as there are.
    let here = launched.local.is_some_and(|(_, here)| here == launched.size);
    let ranks: Vec<u32> = if here { (0..launched.size).collect() } else { Vec::new() };
    let neighbors = arrival.as_ref().map(|arrival| arrival.neighbors());
    let waiting = neighbors
        .and_then(|neighbors| wait_for_others(&launched, neighbors, ranks.clone(), start_limit(limit), &say));
    let launcher = match launched.launcher {
        Launcher::OpenMpi => mpi::Launcher::OpenMpi,
        Launcher::Mpich => mpi::Launcher::Mpich,
        Launcher::Slurm | Launcher::Unknown => mpi::Launcher::Unknown,
    };
    let mpi = Arc::new(Mpi::start(mpi::Options { library: variable(LIBRARY).map(PathBuf::from), launcher })?);
    drop(waiting);
    let network: Arc<dyn Network> = mpi.clone();
    if network.size() != launched.size {
        let (found, told) = (network.size(), launched.size);
        return Err(JobError::Library { rank: launched.rank, found, told, carrier: network.carrier() });
    }
    let beside = ranks.into_iter().filter(|rank| *rank != launched.rank).collect();
    Ok(Some(Connection { mpi: Some(mpi), arrival, beside, ..Connection::new(network, limit, say) }))
}

fn start_limit(stall: Duration) -> Duration {
    stall.clamp(*START.start(), *START.end())
}

/// The library waits forever for ranks that do not come; this names them and ends the process.
fn wait_for_others(
    launched: &Launched,
    neighbors: Neighbors,
    ranks: Vec<u32>,
    limit: Duration,
    say: &Say,
) -> Option<Waiting> {
    let &Launched { rank, size, .. } = launched;
    let say = Arc::clone(say);
    let late = move || {
        let missing = neighbors.missing(&ranks);
        let who = match (missing.as_slice(), neighbors.stopped(&ranks).as_slice()) {
            ([], [one, ..]) => format!("rank {one} is stopped and has not connected"),
            ([], []) if !ranks.is_empty() => {
                "all ranks have started, but the MPI library has not connected them".to_string()
            }
            ([], []) => "some rank on another host has not started".to_string(),
            ([one], _) => format!("rank {one} has not started"),
            (several, _) => format!("ranks {several:?} have not started"),
        };
        let seconds = limit.as_secs();
        say(&format!(
            "{who} after {seconds} s, and rank {rank} of {size} waits for it; look at its output or host"
        ));
        std::process::exit(MISSING);
    };
    Waiting::start(limit, late).ok()
}

impl Connection {
    /// A rank of a job that is connected already; a rank may stand still outside of steps for `limit`.
    pub fn new(network: Arc<dyn Network>, limit: Duration, say: Say) -> Connection {
        let alerts = Alerts::listen(&network);
        let phases = Arc::new(Phases::watch(&alerts, limit, &say));
        Connection {
            network,
            mpi: None,
            alerts,
            phases,
            say,
            arrival: None,
            beside: Vec::new(),
            leaving: OnceLock::new(),
        }
    }

    /// Waits for the other ranks to end, too: the library would wait for them without a limit. From then on this process
    /// has a limit for leaving the job.
    pub fn finish(&self) -> Result<(), JobError> {
        self.phases.enter("waiting for the others to end");
        self.network.barrier()?;
        let (arrival, beside) = (self.arrival.clone(), self.beside.clone());
        self.leaving.get_or_init(|| Leaving::start(arrival, self.network.rank(), beside, &self.say));
        Ok(())
    }

    /// Ends the job because this rank has failed. Of all ranks that fail, the lowest says why.
    pub fn fail(&self, message: &str, code: i32) -> ! {
        let message = format!("rank {}: {message}", self.network.rank());
        self.alerts.fail(&message, code, |message| (self.say)(message))
    }
}
