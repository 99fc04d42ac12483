//! `phalanx run`: trains what `phalanx compile` has compiled.

use std::path::PathBuf;
use std::process::ExitCode;

use phalanx::artifact::{Artifact, ArtifactError, ArtifactFiles};
use phalanx::job::Connection;
use phalanx::train::TrainConfig;

use crate::failure::Failure;
use crate::flags::{self, ArtifactRun, Options};
use crate::job::{self, CertificateFlag};
use crate::train::{Shown, drive};

/// Train what `phalanx compile` has written: alone, or as one rank of a job.
///
/// Nothing is compiled and the model's source is not needed. What was not decided by compiling can be given here: data, steps,
/// learning rate, checkpoints, logs. In a job rank 0 reads the directory and sends it to the others.
#[derive(clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  phalanx run step
  phalanx run step --data book.txt --checkpoint ck --resume --steps 500
  phalanx launch -n 4 -- run step
  phalanx run step --steps 1 --stepped 7     # one thread, an order chosen by the seed: for reports of defects"
)]
pub struct Args {
    /// The directory
    dir: PathBuf,
    #[command(flatten)]
    options: Options<ArtifactRun>,
    #[command(flatten)]
    certificate: CertificateFlag,
    /// Print one line of JSON a step and a last one with the summary
    #[arg(long)]
    json: bool,
}

/// Loads, trains, saves and prints the summary.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let given: Vec<_> = args.options.given().collect();
    // What concerns the job itself is not compiled.
    let of_job = args.options.set(TrainConfig::default())?;
    job::run(&of_job, &given, |connection| {
        let artifact = load(args, connection)?;
        let own = artifact.config().cloned().ok_or(ArtifactError::NoRun).map_err(phalanx::Error::from)?;
        let config = args.options.set(own)?;
        config.check_given(&given).map_err(phalanx::Error::from)?;
        flags::mask_files(&config);
        let shown = Shown { json: args.json, certificate: &args.certificate, drawings: None };
        drive(config, connection, &shown, |config| job::start(config, connection, Some(&artifact)))
    })
}

fn load(args: &Args, connection: Option<&Connection>) -> Result<Artifact, Failure> {
    let Some(connection) = connection else { return Ok(Artifact::read(&args.dir)?) };
    connection.phases.enter("reading the artifact");
    let files = ArtifactFiles::share(&*connection.network, || ArtifactFiles::read(&args.dir))?;
    Ok(Artifact::of_files(&files)?)
}
