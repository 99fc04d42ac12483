//! This process as one of several: how it was started, what it prints, and how it ends.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;
use phalanx::artifact::Artifact;
use phalanx::job::{Connection, Drill, FaultTrigger, Job, Launched, StepDrill, When, connect};
use phalanx::train::{OptionGroup, Run, StartProgress, TrainConfig};

use crate::failure::Failure;
use crate::launch::{isolation, leash};
use crate::starting;

/// How often the job was started before, in the environment of ranks that `phalanx launch` has started again.
pub const ATTEMPT: &str = "PHALANX_ATTEMPT";

/// Lets ranks print when an operation panics, and when each of them knows that a rank has failed: `cargo xtask soak
/// --faults` measures how long that takes.
const STAMPS: &str = "PHALANX_FAULT_STAMPS";

/// Runs a command in the job that this process belongs to, if a launcher started it as one of several ranks; else alone,
/// with nothing. Whatever fails on one rank ends all of them, and one of them says why.
pub fn run(
    config: &TrainConfig,
    given: &[&str],
    command: impl FnOnce(Option<&Connection>) -> Result<ExitCode, Failure>,
) -> Result<ExitCode, Failure> {
    if launched().is_none() {
        config.check_alone(given).map_err(phalanx::Error::from)?;
    }
    let limit = Duration::from_secs(config.stall_seconds);
    let connection = connect(limit, Arc::new(say)).map_err(phalanx::Error::from)?;
    let Some(connection) = connection else { return command(None) };
    leave_panics_of_kernels_to_us(connection.network.rank());
    leash::end_with_parent(Signal::SIGKILL);
    if std::env::var_os(STAMPS).is_some() {
        stamp_failure(&connection);
    }
    let code = match command(Some(&connection)) {
        Ok(code) => code,
        // A closed pipe is no failure: the other ranks print nothing.
        Err(failure) => match failure.parts() {
            None => ExitCode::SUCCESS,
            Some((message, code)) => connection.fail(&message, i32::from(code)),
        },
    };
    connection.finish().map_err(phalanx::Error::from)?;
    let drill = config.parse_drill().map_err(phalanx::Error::from)?;
    if let Some(Drill::Step(StepDrill { kind, rank, when: When::Leave })) = drill
        && rank == connection.network.rank()
    {
        FaultTrigger::default().arm(kind, 0);
    }
    Ok(code)
}

/// Which rank this process is, if a launcher started it.
pub fn launched() -> Option<Launched> {
    Launched::from_env(|name| std::env::var(name).ok())
}

/// The job of this process, if it is one of several ranks; `config` gets what jobs take where nothing is said.
pub fn join(config: &mut TrainConfig, connection: Option<&Connection>) -> Result<Option<Job>, Failure> {
    let Some(connection) = connection else { return Ok(None) };
    *config = config.clone().for_ranks(connection.network.size());
    Ok(Some(Job::start(connection, config.rank_options()?).map_err(phalanx::Error::from)?))
}

/// Compiles the model, alone or together with the other ranks; or takes the steps of an artifact.
pub fn start(
    mut config: TrainConfig,
    connection: Option<&Connection>,
    artifact: Option<&Artifact>,
) -> Result<Run, Failure> {
    check_drill(&mut config, connection.map_or(1, |connection| connection.network.size()))?;
    let job = match (artifact, connection) {
        (Some(_), Some(connection)) => {
            Some(Job::start(connection, config.rank_options()?).map_err(phalanx::Error::from)?)
        }
        _ => join(&mut config, connection)?,
    };
    let start = |progress: &mut StartProgress<'_>| match (&job, artifact) {
        (None, None) => Run::with_progress(config, progress),
        (None, Some(artifact)) => Run::of_artifact(artifact, config, progress),
        (Some(job), None) => Run::in_job(config, job, progress),
        (Some(job), Some(artifact)) => Run::of_artifact_in_job(artifact, config, job, progress),
    };
    match &job {
        // One rank speaks for all.
        Some(job) if job.network.rank() > 0 => Ok(start(&mut |_| ())?),
        _ => Ok(starting::shown(start)?),
    }
}

/// Leaves out a drill that is over, because the job was started again, and refuses one for a rank that is not there.
fn check_drill(config: &mut TrainConfig, ranks: u32) -> Result<(), Failure> {
    let is_restart = std::env::var_os(ATTEMPT).is_some();
    match config.parse_drill().map_err(phalanx::Error::from)? {
        // A rank that fails after every start does so as long as it takes part.
        Some(Drill::Step(StepDrill { rank, when: When::Each(_), .. })) if is_restart && rank < ranks => {
            Ok(())
        }
        _ if is_restart => {
            config.drill = None;
            Ok(())
        }
        Some(Drill::Step(StepDrill { rank, .. })) if rank >= ranks => Err(Failure::Input(format!(
            "a drill for rank {rank} needs a job that has it, this one has {ranks}; see phalanx launch"
        ))),
        _ => Ok(()),
    }
}

/// Where the proof that ranks cannot deadlock goes.
#[derive(clap::Args)]
#[command(next_help_heading = OptionGroup::Ranks.heading())]
pub struct CertificateFlag {
    /// Write the proof that the ranks cannot deadlock; `phalanx verify` checks it
    #[arg(long, value_name = "FILE")]
    pub certificate: Option<PathBuf>,
}

impl CertificateFlag {
    /// Writes the proof, if it is asked for.
    pub fn write(&self, run: &Run) -> Result<(), Failure> {
        let Some(path) = &self.certificate else { return Ok(()) };
        if run.topology().is_none() {
            let why = "--certificate is about several ranks: start them with `phalanx launch -n R -- ...`";
            return Err(Failure::Input(why.into()));
        }
        let Some(certificate) = run.certificate() else { return Ok(()) };
        std::fs::write(path, certificate.to_string())
            .map_err(|error| Failure::Run(format!("cannot write {}: {error}", path.display())))
    }
}

/// Where the devices of a job are, and what reaches it.
pub fn description(run: &Run, connection: Option<&Connection>) -> Option<String> {
    let (topology, carrier) = (run.topology()?, connection?.network.carrier());
    let carrier = match isolation::is_isolated() {
        true => format!("{carrier} on loopback alone"),
        false => format!("{carrier} on the network"),
    };
    Some(topology.describe(run.config().pin, &carrier).trim_end().to_string())
}

/// An operation that panics is reported as the failure of its rank, once; its trace is printed if traces are asked for.
fn leave_panics_of_kernels_to_us(rank: u32) {
    let is_stamped = std::env::var_os(STAMPS).is_some();
    if std::env::var_os("RUST_BACKTRACE").is_some() {
        return;
    }
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !std::thread::current().name().is_some_and(|name| name.starts_with("processor ")) {
            usual(panic);
        } else if is_stamped {
            stamp(rank, "panics");
        }
    }));
}

/// Prints a stamp as soon as this rank knows of a failure.
fn stamp_failure(connection: &Connection) {
    let (rank, alerts) = (connection.network.rank(), Arc::clone(&connection.alerts));
    std::thread::spawn(move || {
        let mut heard = alerts.heard();
        while heard.failure().is_none() {
            heard = alerts.wait(heard, Duration::from_secs(1));
        }
        stamp(rank, "knows");
    });
}

/// Prints the time, in nanoseconds of the clock that all processes of a host share.
fn stamp(rank: u32, what: &str) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    // In one piece, as in `say`.
    let line = format!("stamp rank {rank} {what} {now}\n");
    eprint!("{line}");
}

fn say(message: &str) {
    // In one piece: several ranks may report into the same stream at the same time.
    let line = format!("error: {message}\n");
    eprint!("{line}");
}
