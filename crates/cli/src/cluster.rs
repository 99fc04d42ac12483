//! `phalanx cluster`: what a cluster file says.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use phalanx::Cluster;
use serde_json::json;

use crate::failure::Failure;
use crate::output;

/// Cluster files: what connects devices, and what each of them can do.
#[derive(Subcommand)]
pub enum Command {
    Show(ShowCluster),
}

/// Draw a cluster: its levels from the outermost to the innermost, and its devices.
#[derive(Args)]
#[command(after_help = "\
Examples:
  phalanx cluster show clusters/mixed.toml
  phalanx plan overlap --plan dp --cluster clusters/gcp-a100-40.toml    # what a step would take there")]
pub struct ShowCluster {
    /// The file.
    file: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs a command.
pub fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Show(show) => show.run()?,
    }
    Ok(ExitCode::SUCCESS)
}

impl ShowCluster {
    fn run(self) -> Result<(), Failure> {
        let cluster = Cluster::read(&self.file).map_err(|error| Failure::Input(error.to_string()))?;
        if self.json {
            let level = |level: &phalanx::NetworkLevel| {
                json!({
                    "size": level.size.min(cluster.devices),
                    "latency_s": level.link.latency.as_secs_f64(),
                    "bytes_per_s": level.link.bytes_per_second,
                    "uplink_bytes_per_s": level.uplink,
                    "per_message_s": level.per_message.as_secs_f64(),
                })
            };
            let levels: Vec<_> = cluster.topology.levels().iter().map(level).collect();
            return output::json(&json!({
                "name": cluster.name, "devices": cluster.devices, "levels": levels, "memory": cluster.memory,
                "cores": cluster.cores, "speeds": cluster.speeds,
            }));
        }
        output::line(format!("{} ({})", cluster.name, output::count(cluster.devices, "device")))?;
        output::part(&cluster.draw())?;
        let memory = cluster.memory.map(|memory| format!("{} of memory", output::bytes(memory)));
        let cores = cluster.cores.map(|cores| output::count(cores, "core"));
        let slow = cluster.speeds.iter().filter(|speed| **speed != 1.0).count();
        let slow = (slow > 0).then(|| format!("{} of another speed", output::count(slow, "device")));
        let facts: Vec<String> = [memory, cores, slow].into_iter().flatten().collect();
        if facts.is_empty() { Ok(()) } else { output::line(format!("each device: {}", facts.join(", "))) }
    }
}
