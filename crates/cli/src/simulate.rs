//! `phalanx simulate`: what a step takes on a cluster that need not be there.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use phalanx::pipeline::Settings;
use phalanx::{Cluster, DeviceModel, Simulation};
use serde_json::json;

use crate::failure::Failure;
use crate::flags::{self, Options, PlannedStep};
use crate::output;
use crate::overlap::{Drawings, time};

/// Predict a step on a cluster of any size: its time, what of its communication is exposed on which level, and the
/// memory of each device.
///
/// Nothing runs. Devices that do the same are one class, and one device of each is scheduled and simulated, so the time
/// that this takes does not grow with the number of devices. Kernel times are estimated, unless --costs names a file.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  phalanx simulate --plan dp --cluster clusters/cpu512.toml --batch 512 --blocks-batch 512
  phalanx simulate --plan dp8-tp8-pp8 --link 10us,100Gbit --layers 96 --batch 64 --report step.html")]
pub struct Args {
    /// Configuration file, as for train
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options<PlannedStep>,
    /// The device of which the cluster is made: a TOML file with rates, launch time and sizes of elements
    #[arg(long, value_name = "FILE")]
    device: Option<PathBuf>,
    #[command(flatten)]
    drawings: Drawings,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// What the command was asked for.
struct Asked {
    settings: Settings,
    cluster: Option<Cluster>,
    /// Tokens of a step.
    tokens: u64,
    parameters: u64,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut config = args.options.config(args.config.as_ref())?;
    if config.cluster.is_none() && config.link.is_none() {
        let message = "what connects the devices? Say it with --cluster FILE or --link 10us,100Gbit";
        return Err(Failure::Input(message.into()));
    }
    if !args.options.given().any(|name| name == "costs") {
        config.costs = Some("modelled".into());
    }
    args.drawings.check()?;
    flags::warn(&config);
    let model = config.build_model(config.vocab_without_data()).map_err(phalanx::Error::from)?;
    let graph = config.training_graph(&model)?;
    let device = args.device.as_deref().map(DeviceModel::read).transpose();
    let device = device.map_err(|error| Failure::Input(error.to_string()))?;
    let asked = Asked {
        settings: config.settings(&graph)?.device_model(device.map(Arc::new)),
        cluster: config.read_cluster().map_err(phalanx::Error::from)?,
        tokens: (config.batch * config.context_of(&model)) as u64,
        parameters: model.parameters(),
    };
    let start = Instant::now();
    let simulation = Simulation::new(&graph, &asked.settings).map_err(phalanx::Error::from)?;
    let seconds = start.elapsed().as_secs_f64();
    if args.drawings.any() {
        args.drawings.write(&simulation.report())?;
    }
    match args.json {
        true => json(&asked, &simulation, seconds)?,
        false => print(&asked, &simulation, seconds)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn tokens_per_second(asked: &Asked, simulation: &Simulation) -> f64 {
    asked.tokens as f64 / (simulation.step_ns.max(1) as f64 / 1e9)
}

fn json(asked: &Asked, simulation: &Simulation, seconds: f64) -> Result<(), Failure> {
    output::json(&json!({
        "plan": asked.settings.plan.name, "cluster": asked.cluster.as_ref().map(|cluster| &cluster.name),
        "devices": simulation.devices, "parameters": asked.parameters,
        "step_ns": simulation.step_ns, "lower_bound_ns": simulation.bound_ns,
        "tokens_per_s": tokens_per_second(asked, simulation),
        "peak_bytes": simulation.peak_bytes(), "memory_bytes": asked.settings.memory,
        "classes": simulation.classes, "tasks": simulation.tasks, "seconds": seconds,
    }))
}

/// The most classes printed.
const SHOWN: usize = 20;

fn print(asked: &Asked, simulation: &Simulation, seconds: f64) -> Result<(), Failure> {
    let Simulation { devices, step_ns, bound_ns, classes, .. } = simulation;
    let members = classes.first().map_or(1, |class| class.members);
    let row = |name: &str, value: String| output::line(format!("{name:24}{value}"));
    let classes_of = match (classes.len(), members) {
        (one, 1) => format!("{one} that differ"),
        (1, _) => "all alike".to_string(),
        (count, members) => format!("{count} classes of {members}"),
    };
    row("devices", format!("{}, {classes_of}", output::grouped(*devices as u64)))?;
    row("parameters", output::grouped(asked.parameters))?;
    row("step", format!("{}, no order can beat {}", time(*step_ns), time(*bound_ns)))?;
    row("tokens a second", output::grouped(tokens_per_second(asked, simulation) as u64))?;
    let share = |ns: u64| format!("{} ({:.1} %)", time(ns), 100.0 * ns as f64 / (*step_ns).max(1) as f64);
    row("computing", share(simulation.mean(|class| class.compute_ns)))?;
    let levels = classes.first().map_or(0, |class| class.exposed_ns.len());
    for level in 0..levels {
        let exposed = share(simulation.mean(|class| class.exposed_ns[level]));
        let received = output::bytes(simulation.mean(|class| class.received_bytes[level]));
        row(&format!("waiting on level {level}"), format!("{exposed}, {received} a device"))?;
    }
    row("bubble", share(simulation.mean(|class| class.bubble_ns)))?;
    let fits = match asked.settings.memory {
        Some(memory) if simulation.peak_bytes() > memory => {
            format!(": does not fit, a device has {}", output::bytes(memory))
        }
        Some(memory) => format!(" of {}", output::bytes(memory)),
        None => String::new(),
    };
    row("peak of a device", format!("{}{fits}", output::bytes(simulation.peak_bytes())))?;
    output::line(format!(
        "\n{:8}{:>12}{:>12}{:>12}{:>12}",
        "class", "computing", "waiting", "bubble", "peak"
    ))?;
    for class in classes.iter().take(SHOWN) {
        let waiting = class.exposed_ns.iter().sum();
        let times = [class.compute_ns, waiting, class.bubble_ns].map(|ns| format!("{:>12}", time(ns)));
        let (name, peak) = (format!("dev{}", class.device), output::bytes(class.peak_bytes));
        output::line(format!("{name:8}{}{peak:>12}", times.concat()))?;
    }
    if classes.len() > SHOWN {
        output::line(format!("… and {} more (--json has all)", classes.len() - SHOWN))?;
    }
    let tasks = output::grouped(simulation.tasks as u64);
    output::line(format!("\n{tasks} tasks scheduled in {seconds:.1} s"))
}
