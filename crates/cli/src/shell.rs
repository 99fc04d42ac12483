//! `phalanx completions` and `phalanx man`: what a shell and a reader of manuals want, made from the flags themselves.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::failure::Failure;
use crate::output;

/// Print completions for a shell
///
/// Put them where the shell looks for them, or load them at once: `source <(phalanx completions bash)`.
#[derive(clap::Args)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Write the manual pages of all commands
#[derive(clap::Args)]
pub struct Man {
    /// Directory to write them to, one page a command; `man -M` wants it below `man1`
    dir: PathBuf,
}

/// Prints the completions.
pub fn completions(args: &Completions) -> Result<ExitCode, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "phalanx", &mut text);
    output::part(&String::from_utf8_lossy(&text))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the pages.
pub fn man(args: &Man) -> Result<ExitCode, Failure> {
    let failed = |error| Failure::Run(format!("cannot write to {}: {error}", args.dir.display()));
    fs::create_dir_all(&args.dir).map_err(failed)?;
    clap_mangen::generate_to(crate::Cli::command(), &args.dir).map_err(failed)?;
    output::line(format!("manual pages in {}", args.dir.display()))?;
    Ok(ExitCode::SUCCESS)
}
