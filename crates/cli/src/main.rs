//! The `phalanx` command: translates flags into calls of the library and prints what comes back.
//!
//! Exit codes: 0 done; 1 it failed while running; 2 the command, its configuration or an input file is wrong; 3 the job stood
//! still; 4 a rank did not start; 5 an operation or a connection broke; 130 stopped by Ctrl-C.
#![forbid(unsafe_code)]

mod artifact;
mod bench;
mod ckpt;
mod cluster;
mod compile;
mod costs;
mod data;
mod devices;
mod diff;
mod doctor;
mod explain;
mod failure;
mod flags;
mod generate;
mod graph;
mod job;
mod launch;
mod log;
mod opt;
mod output;
mod overlap;
mod plan;
mod plot;
mod profile;
mod run;
mod save;
mod schedule;
mod shell;
mod simulate;
mod sinks;
mod starting;
mod step;
mod stop;
mod train;
mod verify;
mod watch;

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use phalanx::internals::kernels::isa::Isa;
use signal_hook::consts::SIGXFSZ;

use failure::Failure;

/// Trains neural networks on CPUs: model and plan become one static program.
#[derive(Parser)]
#[command(
    name = "phalanx",
    version,
    long_version = long_version(),
    max_term_width = 100,
    args_override_self = true,
    after_help = "\
Start here:
  phalanx train                      train a small GPT on embedded text, about a minute
  phalanx train --save out           the same, and keep the model
  phalanx generate --hf out --prompt 'Max '
  phalanx launch -n 2 -- train       two processes, on this machine or many; the same bits
  phalanx doctor                     check the kernels on this machine"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Train(Box<train::Args>),
    Compile(Box<compile::Args>),
    Run(Box<run::Args>),
    #[command(subcommand)]
    Artifact(artifact::Command),
    Step(Box<step::Args>),
    Explain(explain::Args),
    Import(graph::Args),
    ExportTorch(graph::ExportTorchArgs),
    Opt(opt::Args),
    #[command(subcommand)]
    Plan(plan::Command),
    #[command(subcommand)]
    Bench(bench::Command),
    #[command(subcommand)]
    Cluster(cluster::Command),
    #[command(subcommand)]
    Costs(costs::Command),
    Profile(Box<profile::Args>),
    Doctor(doctor::Args),
    Devices(devices::Args),
    Generate(generate::Args),
    Schedule(schedule::Args),
    Simulate(simulate::Args),
    Launch(launch::Args),
    #[command(hide = true)]
    Leash(launch::leash::Args),
    Verify(verify::Args),
    #[command(subcommand)]
    Ckpt(ckpt::Command),
    Diff(diff::Args),
    Watch(watch::Args),
    #[command(subcommand)]
    Data(data::Command),
    Completions(shell::Completions),
    Man(shell::Man),
}

/// The version, the commit it was built from where that is known, and the processor features that kernels use here.
fn long_version() -> String {
    let isa = Isa::current();
    let commit = match env!("BUILD_COMMIT") {
        "" => String::new(),
        commit => format!(" (commit {commit})"),
    };
    let features = match isa.features() {
        [] => "whatever every processor of this architecture has".to_string(),
        features => features.join(", "),
    };
    format!("{}{commit}\nkernels: {}, using {features}", env!("CARGO_PKG_VERSION"), isa.name())
}

/// A file larger than `ulimit -f` allows is an error of the write, which is reported like a full disk, and no signal that
/// ends the process.
fn let_large_writes_fail() {
    // If it cannot be registered, the process ends as it would without.
    _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

fn main() -> ExitCode {
    let_large_writes_fail();
    let result = match Cli::try_parse() {
        Ok(cli) => dispatch(cli.command),
        Err(error) if !error.use_stderr() => {
            // Help and version: a reader that closes the pipe early has seen enough.
            _ = error.print();
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => Err(Failure::from(error)),
    };
    result.unwrap_or_else(|failure| failure.report())
}

fn dispatch(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Train(args) => train::run(&args),
        Command::Compile(args) => compile::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Artifact(command) => artifact::run(command),
        Command::Step(args) => step::run(&args),
        Command::Explain(args) => explain::run(args),
        Command::Import(args) => graph::run(&args),
        Command::ExportTorch(args) => graph::export(&args),
        Command::Opt(args) => opt::run(args),
        Command::Plan(command) => plan::run(command),
        Command::Bench(command) => bench::run(command),
        Command::Cluster(command) => cluster::run(command),
        Command::Costs(command) => costs::run(command),
        Command::Profile(args) => profile::run(&args),
        Command::Doctor(args) => doctor::run(args),
        Command::Devices(args) => devices::run(&args),
        Command::Generate(args) => generate::run(args),
        Command::Schedule(args) => schedule::run(args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Launch(args) => launch::run(args),
        Command::Leash(args) => launch::leash::run(args),
        Command::Verify(args) => verify::run(&args),
        Command::Ckpt(command) => ckpt::run(command),
        Command::Diff(args) => diff::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::Data(command) => data::run(command),
        Command::Completions(args) => shell::completions(&args),
        Command::Man(args) => shell::man(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Commands that print a text for a shell or a place, or lines of JSON whatever is asked for.
    const WITHOUT_JSON: [&str; 3] = ["completions", "man", "schedule"];

    #[test]
    fn every_command_that_prints_a_result_can_print_json() {
        fn check(command: &clap::Command) {
            let is_leaf = !command.has_subcommands() && !command.is_hide_set();
            let has_json = command.get_arguments().any(|argument| argument.get_id() == "json");
            let name = command.get_name();
            assert!(!is_leaf || has_json || WITHOUT_JSON.contains(&name), "`{name}` has no --json");
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}
