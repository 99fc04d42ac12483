//! `phalanx cluster`: what a cluster file says, and what connects the ranks of a job.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use phalanx::job::Job;
use phalanx::train::TrainConfig;
use phalanx::{Cluster, MeasuredCluster, MeasuredLink};
use serde_json::json;

use crate::failure::Failure;
use crate::step::at_least_one;
use crate::{job, output};

/// Cluster files: what connects devices, and what each of them can do.
#[derive(Subcommand)]
pub enum Command {
    Show(ShowCluster),
    Measure(MeasureCluster),
}

/// Measure latency and bandwidth between the ranks of a job, and write a cluster file.
///
/// Ranks of one host and ranks of different hosts are measured apart, and what all ranks of a host send together. Every rank
/// is a device of the file.
#[derive(Args)]
#[command(after_help = "\
Examples:
  phalanx launch -n 4 -- cluster measure --out here.toml
  phalanx launch -n 8 --hosts hosts.txt -- cluster measure --out room.toml
  phalanx plan overlap --plan fsdp --cluster room.toml       # what a step would take there")]
pub struct MeasureCluster {
    /// File to write; standard output if absent
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// How often each pair plays
    #[arg(long, value_name = "N", default_value = "50", value_parser = at_least_one)]
    rounds: usize,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
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
        Command::Show(show) => show.run().map(|()| ExitCode::SUCCESS),
        Command::Measure(measure) => measure.run(),
    }
}

impl MeasureCluster {
    fn run(self) -> Result<ExitCode, Failure> {
        job::run(&TrainConfig::default(), &[], |connection| {
            let Some(connection) = connection else {
                let why = "this measures between ranks: start it as `phalanx launch -n 2 -- cluster measure`";
                return Err(Failure::Input(why.into()));
            };
            let options = TrainConfig::default().rank_options()?;
            let job = Job::start(connection, options).map_err(phalanx::Error::from)?;
            connection.phases.enter("measuring");
            let measured = MeasuredCluster::measure(&job, self.rounds)?;
            if job.network.rank() == 0 {
                self.print(&measured)?;
            }
            Ok(ExitCode::SUCCESS)
        })
    }

    fn print(&self, measured: &MeasuredCluster) -> Result<(), Failure> {
        let text = measured.to_text();
        if let Some(out) = &self.out {
            let wrong = |error| Failure::Run(format!("cannot write {}: {error}", out.display()));
            std::fs::write(out, &text).map_err(wrong)?;
        }
        if self.json {
            let mut line = json!(measured);
            line["out"] = json!(self.out);
            return output::json(&line);
        }
        let Some(out) = &self.out else { return output::part(&text) };
        for (class, link) in [("one host", measured.same_host), ("two hosts", measured.between_hosts)] {
            if let Some(MeasuredLink { pairs, latency_s, bytes_per_s, .. }) = link {
                let (us, pairs) = (latency_s * 1e6, output::count(pairs, "pair"));
                let rate = bytes_per_s / 1e9;
                output::line(format!("ranks of {class}: {us:.1} us, {rate:.2} GB/s in {pairs}"))?;
            }
        }
        if let Some(uplink) = measured.uplink_bytes_per_s {
            output::line(format!("all ranks of a host together: {:.2} GB/s", uplink / 1e9))?;
        }
        output::line(format!("wrote {}", out.display()))
    }
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
