//! `phalanx launch`: starts a command as the ranks of a job, with the launcher that this machine has.
//!
//! It adds what `mpirun` lacks: flags that suit us, an orderly stop at Ctrl-C, an error that is not buried, and a
//! restart of jobs that break off. A rank cannot tell whether it was started by it, except that a drill is not repeated
//! in a restart.

mod exit_reason;
mod hosts;
pub mod isolation;
mod launcher;
pub mod leash;
mod log_filter;
mod reach;
mod restarts;
mod running;
mod words;

use std::env;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use clap::Parser;
use nix::sys::signal::Signal;

use crate::failure::Failure;
use crate::{Cli, Command, job, output, stop};
use exit_reason::ExitReason;
use hosts::{HostList, Share};
use launcher::{Job, Kind, Launcher};
use restarts::{Attempt, Restarts};
use running::{Ending, JobEvent, Running};

/// Start a command as several ranks, on this machine or many.
///
/// Finds `mpirun` or `mpiexec` (Open MPI, MPICH), or `srun` inside of a Slurm allocation, and starts this very program
/// with the arguments after its own as the ranks of one job. Plain `mpirun -n 4 phalanx train …` and
/// `srun -n 4 phalanx train …` do the same; `--dry-run` shows the command line.
///
/// The first Ctrl-C asks all ranks to stop after their step, the second one ends them. The exit code is the job's: 0 it
/// is done; 1 it failed and would again, as after divergence; 2 command, configuration or input are wrong; 3 it stood
/// still; 4 a rank did not start; 5 an operation or a connection broke; 130 it was asked to stop; others are the
/// launcher's.
///
/// With --max-restarts a job of `train` whose rank dies, stands still or does not come (neither 0, 1, 2 nor 130) is
/// started again with --resume. It is started on the same number of ranks; if it then breaks off again before it has
/// committed a checkpoint, and --min-ranks is given, on the next smaller number that suits the plan. Every rank brings
/// its devices: a preset is made again for those that are left, with the same bits. A host of --hosts that no longer
/// answers ssh, or a node of a Slurm allocation that no longer answers srun, is left out. This machine must see the directory of checkpoints.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  phalanx launch -n 2 -- train --plan dp --devices 2
  phalanx launch -n 2 --cores-per-rank 4 --json -- train --plan fsdp --devices 2
  phalanx launch -n 16 --hosts cluster.txt -- train run.toml
  phalanx launch -n 16 --hosts cluster.txt --dry-run -- train run.toml
  phalanx launch -n 4 --max-restarts 5 --min-ranks 2 -- train --plan fsdp --checkpoint ck --every 100
  phalanx launch -n 2 --max-restarts 1 -- train --checkpoint ck --every 2 --drill kill@1:5   # try it
A file of hosts has one a line, which ranks fill in order; without a number, hosts share what is left:
  node-1 slots=8    # or node-1:8
  node-2
The program and its files must be at the same paths on all hosts, and ssh must reach these without a password.")]
pub struct Args {
    /// Processes of the job
    #[arg(short = 'n', long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,
    /// File that lists the hosts; this one if absent, or those of a batch system's allocation
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Launcher to use; the first of mpirun and mpiexec in PATH if absent
    #[arg(long, value_name = "PATH")]
    mpirun: Option<PathBuf>,
    /// Cores to which each rank is bound by the launcher; if absent, ranks share their host's cores among them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cores_per_rank: Option<u32>,
    /// Environment variable that ranks on other hosts shall see, beside RUST_BACKTRACE and all PHALANX_*
    #[arg(long, value_name = "NAME")]
    env: Vec<String>,
    /// Start the job again from its last checkpoint when it breaks off, in all at most so often
    #[arg(long, value_name = "K")]
    max_restarts: Option<u32>,
    /// Ranks that suffice when restarts make no progress with more or hosts are lost; -n if absent. The plan must be a
    /// preset
    #[arg(long, value_name = "M", requires = "max_restarts", value_parser = clap::value_parser!(u32).range(1..))]
    min_ranks: Option<u32>,
    /// Let ranks on this host use its network. They get one of their own with loopback alone if absent, where the system
    /// permits it, because MPI libraries listen on all addresses
    #[arg(long)]
    share_network: bool,
    /// Start more ranks than 32 for each core of this host
    #[arg(long)]
    oversubscribe: bool,
    /// Print the command line instead of running it
    #[arg(long)]
    dry_run: bool,
    /// Hand --json to the job; restarts are lines of JSON then, too
    #[arg(long)]
    json: bool,
    /// A command of phalanx and its arguments; `--` may stand before it
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    job: Vec<OsString>,
}

/// Variables by which batch systems tell that they have set processors aside.
const ALLOCATIONS: [&str; 4] = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE"];

/// Starts the job and waits for its end.
pub fn run(mut args: Args) -> Result<ExitCode, Failure> {
    if args.json && !args.job.iter().any(|arg| arg == "--json") {
        args.job.push("--json".into());
    }
    let job = check_job(&args.job)?;
    let launcher = Launcher::find(args.mpirun.as_deref(), env::var_os("SLURM_JOB_ID").is_some())?;
    let attempt = Attempt { number: 0, ranks: args.ranks, job: args.job.clone(), lost: Vec::new() };
    let variables = variables(&args.env)?;
    let line = command_line(&args, &launcher, &attempt, &variables)?;
    let restarts = restarts(&args, job)?;
    if args.dry_run {
        output::line(line.iter().map(words::quoted).collect::<Vec<_>>().join(" "))?;
        return Ok(ExitCode::SUCCESS);
    }
    let restarts = restarts.map(Restarts::begin).transpose()?;
    let (sender, events) = mpsc::channel();
    let signals = sender.clone();
    stop::on_each(move || _ = signals.send(JobEvent::Signal))?;
    let isolate = launcher.kind != Kind::Slurm
        && args.hosts.is_none()
        && !is_allocated()
        && !args.share_network
        && isolation::is_permitted();
    Starter { args: &args, launcher: &launcher, isolate, variables, sender, events }.run(attempt, restarts)
}

/// A job that cannot be understood is refused once, not by each rank. None if all it does is to print its help.
fn check_job(job: &[OsString]) -> Result<Option<Command>, Failure> {
    let words = ["phalanx".into()].into_iter().chain(job.iter().cloned());
    match Cli::try_parse_from(words) {
        Ok(Cli { command: Command::Launch(_) }) => {
            Err(Failure::Input("a job cannot be `launch` again; give what each rank runs".into()))
        }
        Ok(Cli { command }) => Ok(Some(command)),
        Err(error) if error.use_stderr() => Err(error.into()),
        Err(_) => Ok(None),
    }
}

/// How the job is to be restarted, if it is.
fn restarts(args: &Args, job: Option<Command>) -> Result<Option<Restarts>, Failure> {
    match (args.max_restarts, job) {
        (None, _) => Ok(None),
        (Some(most), Some(Command::Train(train))) => Restarts::new(most, args, &train).map(Some),
        (Some(_), _) => {
            let why =
                "--max-restarts is for jobs of `train`, which have checkpoints to go on from; leave it out";
            Err(Failure::Input(why.into()))
        }
    }
}

/// Starts one attempt after the other.
struct Starter<'a> {
    args: &'a Args,
    launcher: &'a Launcher,
    /// Whether each attempt gets a network of its own.
    isolate: bool,
    variables: Vec<(String, OsString)>,
    sender: Sender<JobEvent>,
    events: Receiver<JobEvent>,
}

impl Starter<'_> {
    fn run(mut self, mut attempt: Attempt, mut restarts: Option<Restarts>) -> Result<ExitCode, Failure> {
        loop {
            let ending = self.attempt(&attempt)?;
            let code = exit_code(self.launcher.kind, &ending);
            let again = restarts.as_mut().zip(ExitReason::of(code, &ending));
            let Some((restarts, reason)) = again else { return Ok(conclude(code, &ending)) };
            attempt = match restarts.next(&attempt, reason) {
                Ok(next) => next,
                Err(failure) => {
                    failure.report();
                    return Ok(conclude(code, &ending));
                }
            };
            // A request to stop between two attempts stops both.
            if let Ok(JobEvent::Signal) = self.events.try_recv() {
                return Ok(ExitCode::from(stop::STOPPED));
            }
            self.variables.retain(|(name, _)| name != job::ATTEMPT);
            self.variables.push((job::ATTEMPT.into(), attempt.number.to_string().into()));
        }
    }

    fn attempt(&self, attempt: &Attempt) -> Result<Ending, Failure> {
        let line = command_line(self.args, self.launcher, attempt, &self.variables)?;
        let cannot_run = |error| {
            Failure::Run(format!("cannot run the launcher `{}`: {error}", self.launcher.program.display()))
        };
        let line = leash::on(line, self.isolate);
        let running = Running::start(&line, &self.variables, self.sender.clone()).map_err(cannot_run)?;
        running.finish(self.launcher.kind.stop(), running::GRACE, &self.events).map_err(cannot_run)
    }
}

fn command_line(
    args: &Args,
    launcher: &Launcher,
    attempt: &Attempt,
    variables: &[(String, OsString)],
) -> Result<Vec<OsString>, Failure> {
    let program = env::current_exe()
        .map_err(|error| Failure::Run(format!("cannot tell where this program is: {error}")))?;
    let hosts = hosts_of(args, launcher.kind, attempt)?;
    let is_allocated = is_allocated();
    if hosts.is_none() && !is_allocated {
        check_ranks(args)?;
        check_cores(args)?;
    }
    let mut command = vec![program.into_os_string()];
    command.extend_from_slice(&attempt.job);
    Ok(launcher.command_line(&Job {
        ranks: attempt.ranks as usize,
        cores_per_rank: args.cores_per_rank.map(|cores| cores as usize),
        hosts: hosts.as_deref(),
        variables,
        is_allocated,
        is_root: nix::unistd::geteuid().is_root(),
        command: &command,
    }))
}

/// Whether a batch system has set processors aside.
fn is_allocated() -> bool {
    ALLOCATIONS.iter().any(|name| env::var_os(name).is_some())
}

fn hosts_of(args: &Args, kind: Kind, attempt: &Attempt) -> Result<Option<Vec<Share>>, Failure> {
    let shares = |list: HostList| list.shares(attempt.ranks as usize, &attempt.lost).map(Some);
    match &args.hosts {
        // An allocation is used as it is, unless one of its nodes is lost.
        None if attempt.lost.is_empty() => Ok(None),
        None => HostList::of_slurm().map_or(Ok(None), shares),
        Some(file) if kind == Kind::Slurm => Err(Failure::Input(format!(
            "--hosts {}: srun runs on the hosts of its allocation; leave --hosts out, or choose hosts with salloc",
            file.display()
        ))),
        Some(file) => shares(HostList::read(file)?),
    }
}

/// The most ranks for each core: more make no progress, and far more take all memory.
const RANKS_PER_CORE: usize = 32;

/// A host takes only so many ranks, unless the user insists.
fn check_ranks(args: &Args) -> Result<(), Failure> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let most = RANKS_PER_CORE * cores;
    match args.ranks as usize <= most || args.oversubscribe {
        true => Ok(()),
        false => Err(Failure::Input(format!(
            "-n {} is more than the {most} ranks that this host takes, {RANKS_PER_CORE} for each of its {}; take fewer, \
             list hosts with --hosts, or insist with --oversubscribe",
            args.ranks,
            output::count(cores, "core")
        ))),
    }
}

/// Bound ranks do not share cores.
fn check_cores(args: &Args) -> Result<(), Failure> {
    let Some(cores) = args.cores_per_rank else { return Ok(()) };
    let (ranks, have) = (args.ranks, thread::available_parallelism().map_or(1, usize::from));
    let need = u64::from(ranks) * u64::from(cores);
    match need <= have as u64 {
        true => Ok(()),
        false => Err(Failure::Input(format!(
            "{ranks} ranks of {cores} cores need {need}, this host has {have}; take fewer with --cores-per-rank, or \
             leave it out to let ranks share cores"
        ))),
    }
}

/// The variables that other hosts shall see: our own that are set, and the given ones, which must be.
fn variables(given: &[String]) -> Result<Vec<(String, OsString)>, Failure> {
    let mut variables: Vec<(String, OsString)> = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| name.starts_with("PHALANX_") || name == "RUST_BACKTRACE" || given.contains(name))
        .collect();
    variables.sort();
    match given.iter().find(|name| !variables.iter().any(|(set, _)| set == *name)) {
        Some(name) => Err(Failure::Input(format!("--env {name}: no variable of this name is set"))),
        None => Ok(variables),
    }
}

/// The exit code of a job.
fn exit_code(kind: Kind, ending: &Ending) -> i32 {
    match ending.status.code() {
        _ if ending.signals > 1 => i32::from(stop::STOPPED),
        // Hydra mostly forgets the exit codes of ranks that end after a signal it has handed on.
        Some(0) if kind == Kind::Mpich && ending.signals > 0 => i32::from(stop::STOPPED),
        // Ranks and launchers that do not listen yet die of the request to stop.
        _ if ending.signals > 0 && died_of(ending.status, kind.stop()) => i32::from(stop::STOPPED),
        Some(code) => code,
        // Shells count the same way.
        None => 128 + ending.status.signal().unwrap_or(0),
    }
}

/// Whether a launcher, or a rank whose end it reports as its own, died of a signal.
fn died_of(status: ExitStatus, signal: Signal) -> bool {
    let signal = signal as i32;
    status.signal() == Some(signal) || status.code() == Some(128 + signal)
}

/// Shows the launcher's remarks if the job failed and no rank has said why.
fn conclude(code: i32, ending: &Ending) -> ExitCode {
    let is_explained = ending.stream_ends.iter().any(|end| !end.errors.is_empty());
    if code != 0 && code != i32::from(stop::STOPPED) && !is_explained {
        ending.stream_ends.iter().flat_map(|end| &end.held).for_each(|line| eprint!("{line}"));
    }
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_is_stopped_while_it_starts_ends_like_one_that_runs() {
        let code = |kind: Kind, status: i32, signals| {
            let status = ExitStatus::from_raw(status);
            exit_code(kind, &Ending { status, signals, stream_ends: Default::default() })
        };
        let (user, terminated) = (Signal::SIGUSR1 as i32, Signal::SIGTERM as i32);
        // The launcher itself, or a rank of whose end it tells.
        assert_eq!(code(Kind::OpenMpi, user, 1), 130);
        assert_eq!(code(Kind::OpenMpi, (128 + user) << 8, 1), 130);
        assert_eq!(code(Kind::Slurm, (128 + terminated) << 8, 1), 130);
        // What has other causes keeps its code.
        assert_eq!(code(Kind::OpenMpi, (128 + user) << 8, 0), 138);
        assert_eq!(code(Kind::OpenMpi, Signal::SIGKILL as i32, 1), 137);
        assert_eq!(code(Kind::OpenMpi, 3 << 8, 1), 3);
    }

    #[test]
    fn a_job_is_written_with_two_hyphens_before_it_or_without() {
        for words in
            ["phalanx launch -n 2 -- train --steps 3 --json", "phalanx launch -n 2 train --steps 3 --json"]
        {
            let Ok(Cli { command: Command::Launch(args) }) = Cli::try_parse_from(words.split(' ')) else {
                panic!("{words} is refused")
            };
            assert_eq!(args.job, ["train", "--steps", "3", "--json"]);
            assert!(!args.json, "the flag is the job's");
        }
        let Err(error) = Cli::try_parse_from(["phalanx", "launch", "-n", "2", "--dryrun", "train"]) else {
            panic!("--dryrun is no flag")
        };
        assert!(error.to_string().contains("'--dry-run'"), "{error}");
    }

    #[test]
    fn a_job_is_a_command_of_ours() {
        let check = |words: &[&str]| check_job(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert!(check(&["train", "--steps", "3"]).is_ok() && check(&["train", "--help"]).is_ok());
        for (words, part) in [
            (&["frobnicate"][..], "frobnicate"),
            (&["train", "--stepz", "3"], "--stepz"),
            (&["launch", "-n", "2", "--", "train"], "a job cannot be `launch` again"),
        ] {
            let Err(Failure::Input(message)) = check(words) else { panic!("{words:?} passed") };
            assert!(message.contains(part), "{message}");
        }
    }
}
