//! Ends processes of a job with their parents, also with one that was killed and could do nothing about it.
//!
//! The launcher is started by way of this program, which asks the system for a signal at the death of its parent and then
//! becomes the launcher; ranks ask for themselves (`job.rs`). The system sends the signal when the thread ends that started
//! the process, which here is a main thread. On the way it can also move into a network of its own (`isolation.rs`).

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

use super::isolation;
use crate::failure::Failure;

/// The name of the command, which is not for people.
const NAME: &str = "leash";

/// Run a program that ends when its parent does.
#[derive(clap::Args)]
pub struct Args {
    /// The process that starts it
    #[arg(long)]
    parent: i32,
    /// Whether it gets a network of its own
    #[arg(long)]
    isolate: bool,
    /// The program and its arguments; nothing is run without
    #[arg(last = true)]
    line: Vec<OsString>,
}

/// The command line that runs `line` as a process that ends with this one, in a network of its own if that is asked for.
pub fn on(line: Vec<OsString>, isolate: bool) -> Vec<OsString> {
    let Ok(program) = std::env::current_exe() else { return line };
    let parent = Pid::this().to_string();
    let mut words: Vec<OsString> = vec![program.into(), NAME.into(), "--parent".into(), parent.into()];
    words.extend(isolate.then(|| "--isolate".into()));
    words.push("--".into());
    words.into_iter().chain(line).collect()
}

/// Becomes the program.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.isolate {
        isolation::enter().map_err(|error| Failure::Run(format!("no network of its own: {error}")))?;
    }
    // Entering forgets this request, so it comes second.
    end_with_parent(Signal::SIGTERM);
    // The parent may have ended before the system was asked.
    if getppid() != Pid::from_raw(args.parent) {
        return Err(Failure::Run("the process that starts the job has ended".into()));
    }
    let [program, rest @ ..] = args.line.as_slice() else { return Ok(ExitCode::SUCCESS) };
    let error = Command::new(program).args(rest).exec();
    Err(Failure::Run(format!("cannot run the launcher `{}`: {error}", program.display())))
}

/// From now on this process gets a signal when its parent dies, where the system can do that.
pub fn end_with_parent(signal: Signal) {
    #[cfg(target_os = "linux")]
    {
        _ = nix::sys::prctl::set_pdeathsig(signal);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = signal;
}
