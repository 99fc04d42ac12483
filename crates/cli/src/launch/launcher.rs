//! Programs that start the ranks of a job: which one is there, and the command line each of them wants.
//!
//! Command lines are a pure function of a [`Job`], so that all of them are tested without any launcher.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use super::hosts::Share;
use crate::failure::Failure;

/// A family of launchers that understand the same flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// Hydra: `mpiexec` of MPICH and of what derives from it.
    Mpich,
    /// `srun` of Slurm.
    Slurm,
}

/// A launcher of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// Which flags it understands.
    pub kind: Kind,
    /// Its name or path.
    pub program: PathBuf,
}

/// What is to be started.
pub struct Job<'a> {
    /// How many processes.
    pub ranks: usize,
    /// Cores to which each rank is bound; not bound if absent.
    pub cores_per_rank: Option<usize>,
    /// The hosts and how many ranks each of them gets; this host, or what a batch system gave, if absent.
    pub hosts: Option<&'a [Share]>,
    /// Environment variables that other hosts shall see, with their values.
    pub variables: &'a [(String, OsString)],
    /// Whether a batch system has set processors aside, on which the launcher then goes by itself.
    pub is_allocated: bool,
    /// Whether root asks.
    pub is_root: bool,
    /// What each rank runs, with its arguments.
    pub command: &'a [OsString],
}

/// Where Phalanx looks, in this order.
const NAMES: [&str; 5] = ["mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.mpich", "mpiexec.hydra"];

const INSTALL: &str = "neither mpirun nor mpiexec of Open MPI or MPICH is in PATH; install one with `apt install \
    openmpi-bin` or `apt install mpich` (`dnf install openmpi`, `brew install open-mpi`), or name one with --mpirun";

impl Launcher {
    /// The launcher at `given`, or else the first one in PATH; `srun` only inside of an allocation of Slurm.
    pub fn find(given: Option<&Path>, is_slurm: bool) -> Result<Launcher, Failure> {
        if let Some(program) = given {
            return Launcher::at(program);
        }
        let names = NAMES.iter().chain(is_slurm.then_some(&"srun"));
        let found = names.map(Path::new).find_map(|name| Launcher::at(name).ok());
        found.ok_or_else(|| Failure::Input(INSTALL.into()))
    }

    /// Asks a program which launcher it is.
    fn at(program: &Path) -> Result<Launcher, Failure> {
        let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
        let output = output.map_err(|error| {
            Failure::Input(format!("cannot run the launcher `{}`: {error}", program.display()))
        })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let kind = Kind::of_version(&text).ok_or_else(|| {
            let said = text.lines().next().unwrap_or_default();
            Failure::Input(format!(
                "`{} --version` says `{said}`: neither Open MPI nor MPICH nor Slurm",
                program.display()
            ))
        })?;
        Ok(Launcher { kind, program: program.into() })
    }

    /// The whole command line, the launcher itself first.
    pub fn command_line(&self, job: &Job<'_>) -> Vec<OsString> {
        let mut line = vec![self.program.clone().into_os_string(), "-n".into(), job.ranks.to_string().into()];
        match self.kind {
            Kind::OpenMpi => open_mpi(job, &mut line),
            Kind::Mpich => mpich(job, &mut line),
            Kind::Slurm => slurm(job, &mut line),
        }
        line.extend_from_slice(job.command);
        line
    }
}

impl Kind {
    /// The kind that prints this for `--version`.
    fn of_version(text: &str) -> Option<Kind> {
        let is = |words: &[&str]| words.iter().any(|word| text.contains(word));
        match text {
            _ if is(&["Open MPI", "OpenRTE", "PRRTE"]) => Some(Kind::OpenMpi),
            _ if is(&["HYDRA", "Intel(R) MPI"]) => Some(Kind::Mpich),
            _ if text.starts_with("slurm") => Some(Kind::Slurm),
            _ => None,
        }
    }

    /// What asks this launcher to let the ranks stop after their step: it hands the signal on to all of them.
    ///
    /// Open MPI hands on only this one. The others it takes as an order to kill the ranks a second later.
    pub fn stop(self) -> Signal {
        match self {
            Kind::OpenMpi => Signal::SIGUSR1,
            Kind::Mpich | Kind::Slurm => Signal::SIGTERM,
        }
    }
}

fn open_mpi(job: &Job<'_>, line: &mut Vec<OsString>) {
    if job.is_root {
        line.push("--allow-run-as-root".into());
    }
    if let Some(hosts) = job.hosts {
        line.extend(["--host".into(), list(hosts).into()]);
    }
    // On this host alone no scheduler has allocated processors, and Open MPI counts fewer of them than there are
    // threads of hardware: more ranks than it counts are no mistake. It still informs ranks whether they share
    // processors.
    let is_free = job.hosts.is_none() && !job.is_allocated;
    let (mapping, binding) = match job.cores_per_rank {
        Some(cores) => (format!("slot:PE={cores}"), "core"),
        None if is_free => ("slot:OVERSUBSCRIBE".into(), "none"),
        None => ("slot".into(), "none"),
    };
    line.extend(["--map-by", &mapping, "--bind-to", binding, "--stdin", "none"].map(Into::into));
    for (name, _) in job.variables {
        line.extend(["-x".into(), name.into()]);
    }
}

fn mpich(job: &Job<'_>, line: &mut Vec<OsString>) {
    if let Some(hosts) = job.hosts {
        line.extend(["-hosts".into(), list(hosts).into()]);
    }
    let binding = job.cores_per_rank.map_or("none".into(), |cores| format!("core:{cores}"));
    line.extend(["-bind-to".into(), binding.into()]);
    for (name, value) in job.variables {
        line.extend(["-genv".into(), name.into(), value.clone()]);
    }
}

/// Hosts are those of the allocation, or some of them, and all variables are handed on.
fn slurm(job: &Job<'_>, line: &mut Vec<OsString>) {
    if let Some(hosts) = job.hosts {
        let names: Vec<&str> = hosts.iter().map(|share| share.host.as_str()).collect();
        line.push(format!("--nodes={}", names.len()).into());
        line.push(format!("--nodelist={}", names.join(",")).into());
    }
    match job.cores_per_rank {
        Some(cores) => line.extend([format!("--cpus-per-task={cores}").into(), "--cpu-bind=cores".into()]),
        None => line.push("--cpu-bind=none".into()),
    }
    line.extend(["--export=ALL", "--input=none", "--kill-on-bad-exit=1"].map(Into::into));
}

/// Hosts as Open MPI and MPICH read them on a command line.
fn list(hosts: &[Share]) -> String {
    let hosts: Vec<String> = hosts.iter().map(|Share { host, ranks }| format!("{host}:{ranks}")).collect();
    hosts.join(",")
}

#[cfg(test)]
mod tests;
