//! `phalanx artifact`: what `phalanx compile` has written, looked at, checked and compared.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use phalanx::artifact::{Artifact, ArtifactManifest, StepSummary, differences};
use serde_json::json;

use crate::failure::Failure;
use crate::output;

/// Look at, check and compare what `phalanx compile` writes.
#[derive(clap::Subcommand)]
pub enum Command {
    Show(ShowArtifact),
    Verify(VerifyArtifact),
    Diff(DiffArtifacts),
}

/// Show what an artifact was compiled from and what it needs.
#[derive(clap::Args)]
pub struct ShowArtifact {
    /// The directory
    dir: PathBuf,
    /// Show every kernel and every tensor
    #[arg(long)]
    all: bool,
    /// Print the manifest as one line of JSON
    #[arg(long)]
    json: bool,
}

/// Check an artifact: every byte, both programs, and the proof that its ranks cannot deadlock.
#[derive(clap::Args)]
pub struct VerifyArtifact {
    /// The directory
    dir: PathBuf,
    /// Compile its models again, too, and compare the programs
    #[arg(long)]
    again: bool,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Compare two artifacts: settings, models, programs.
#[derive(clap::Args)]
pub struct DiffArtifacts {
    /// The first directory
    left: PathBuf,
    /// The other directory
    right: PathBuf,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Runs a subcommand.
pub fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Show(args) => show(&args),
        Command::Verify(args) => verify(&args),
        Command::Diff(args) => diff(&args),
    }
}

fn read(dir: &Path) -> Result<Artifact, Failure> {
    Ok(Artifact::read(dir)?)
}

fn show(args: &ShowArtifact) -> Result<ExitCode, Failure> {
    let artifact = read(&args.dir)?;
    let manifest = artifact.manifest()?;
    if args.json {
        let mut line = serde_json::to_value(&manifest).unwrap_or_default();
        line["hash"] = json!(artifact.hash());
        output::json(&line)?;
        return Ok(ExitCode::SUCCESS);
    }
    for line in described(&artifact, &manifest) {
        output::line(line)?;
    }
    for step in manifest.steps.iter().filter(|_| args.all) {
        for line in details(step) {
            output::line(line)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// An artifact for people.
fn described(artifact: &Artifact, manifest: &ArtifactManifest) -> Vec<String> {
    let settings = &manifest.settings;
    let plan = artifact.config().and_then(|config| config.plan.clone());
    let plan = plan.map_or(String::new(), |plan| format!("plan {plan} on "));
    let [batch, feature, sequence] = settings.blocks;
    let mut lines = vec![
        format!("{}, compiled by phalanx {}", manifest.name, manifest.phalanx),
        format!("{:14}{}", "hash", artifact.hash()),
        format!(
            "{:14}{plan}{} of {}, at most {}",
            "devices",
            output::count(settings.devices, "device"),
            output::count(settings.cores, "core"),
            output::count(settings.ranks as usize, "rank"),
        ),
        format!(
            "{:14}products in {}, seed {}, reduction blocks {batch}, {feature}, {sequence}",
            "bits", settings.precision, settings.seed
        ),
        format!("{:14}{}", "goal", settings.goal),
    ];
    lines.extend(settings.topology.as_ref().map(|topology| format!("{:14}{topology}", "network")));
    for step in &manifest.steps {
        let most = step.arenas.iter().copied().max().unwrap_or(0);
        lines.push(format!(
            "{:14}{} operations, {}, at most {} on a device",
            step.name,
            output::grouped(step.operations as u64),
            output::count(step.kernels.len(), "kernel"),
            output::bytes(most)
        ));
    }
    let bytes: u64 = manifest.files.iter().map(|file| file.bytes).sum();
    let names: Vec<&str> = manifest.files.iter().map(|file| &*file.name).collect();
    lines.push(format!("{:14}{}: {}", "files", output::bytes(bytes), names.join(", ")));
    lines
}

/// The kernels and tensors of a step, for people.
fn details(step: &StepSummary) -> Vec<String> {
    let mut lines = vec![format!("kernels of {}", step.name)];
    for kernel in &step.kernels {
        let sets = kernel.instruction_sets.join(", ");
        lines.push(format!("  {:24}{:6}  {}; {sets}", kernel.name, kernel.operations, kernel.precision));
    }
    lines.push(format!("tensors of {}", step.name));
    for port in &step.ports {
        let tiles: Vec<String> =
            port.tiles.iter().map(|(tile, devices)| format!("{tile} on {}", listed(devices))).collect();
        let initial = step.initial.iter().find(|initial| initial.name == port.name);
        let initial = initial.map_or(String::new(), |initial| format!("; begins as {}", initial.init));
        lines.push(format!("  {:7}{} {}: {}{initial}", port.kind, port.name, port.ty, tiles.join("; ")));
    }
    lines
}

/// Devices, the first few of them.
fn listed(devices: &[u32]) -> String {
    const FEW: usize = 8;
    let shown: Vec<String> = devices.iter().take(FEW).map(|device| format!("dev{device}")).collect();
    match devices.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn verify(args: &VerifyArtifact) -> Result<ExitCode, Failure> {
    let artifact = read(&args.dir)?;
    let certificate = artifact.certificate().map_err(phalanx::Error::from)?;
    if args.again {
        artifact.check_again()?;
    }
    let manifest = artifact.manifest()?;
    let operations: usize = manifest.steps.iter().map(|step| step.operations).sum();
    let ranks = certificate.as_ref().map_or(1, |certificate| certificate.parts().len());
    if args.json {
        output::json(&json!({
            "valid": true, "hash": artifact.hash(), "operations": operations, "ranks": ranks,
            "compiled_again": args.again,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let steps = output::count(manifest.steps.len(), "step");
    let dir = args.dir.display();
    output::line(format!(
        "{dir} is valid: {steps} of {} operations in all",
        output::grouped(operations as u64)
    ))?;
    if ranks > 1 {
        output::line(format!("{ranks} ranks cannot deadlock, even if no message is buffered"))?;
    }
    if args.again {
        output::line("compiled again, its models become the same programs")?;
    }
    output::line(format!("hash {}", artifact.hash()))?;
    Ok(ExitCode::SUCCESS)
}

fn diff(args: &DiffArtifacts) -> Result<ExitCode, Failure> {
    let all = differences(&read(&args.left)?, &read(&args.right)?)?;
    if args.json {
        output::json(&json!({ "equal": all.is_empty(), "differences": all }))?;
    } else if all.is_empty() {
        output::line("equal")?;
    } else {
        for difference in &all {
            let (what, left, right) = (&difference.what, &difference.left, &difference.right);
            output::line(format!("{what}: {} | {}", short(left), short(right)))?;
        }
    }
    Ok(if all.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A value on a line with another one.
fn short(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}
