//! Measurements beside other systems, in alternating rounds so that a noisy machine hits both alike.

use std::process::Command;

use crate::{cargo, root};

/// Our training step and PyTorch's, round after round.
pub fn train(args: &[&str]) -> Result<(), String> {
    let threads = option(args, "--threads")?.unwrap_or("1");
    let rounds: usize =
        option(args, "--rounds")?.unwrap_or("3").parse().map_err(|_| "--rounds takes a number")?;
    let wide = args.contains(&"--wide");
    let (ours_model, peer_model): (&[&str], &[&str]) = match wide {
        true => (&["--wide"], &["--width", "768", "--layers", "12", "--heads", "12", "--batch", "4"]),
        false => (&[], &[]),
    };
    cargo(&["build", "--release", "--quiet", "--package", "phalanx-cli"])?;
    let mut ratios = Vec::new();
    for round in 1..=rounds.max(1) {
        let peer = rate(python("torch_gpt.py", threads, "best").args(peer_model))?;
        let ours = rate(phalanx().args(["bench", "train", "--json", "--cores", threads]).args(ours_model))?;
        let ratio = ours / peer;
        println!("round {round}: phalanx {ours:.0} tokens/s, torch {peer:.0} tokens/s, ratio {ratio:.3}");
        ratios.push(ratio);
    }
    println!("median ratio {:.3} with {threads} thread(s)", median(&ratios));
    Ok(())
}

/// The models of `phalanx bench model`.
const MODELS: [&str; 5] = ["resnet18", "resnet50", "bert", "vit", "dlrm"];

/// Models of the zoo here and in PyTorch, round after round.
pub fn models(args: &[&str]) -> Result<(), String> {
    let threads = option(args, "--threads")?.unwrap_or("1");
    let rounds: usize =
        option(args, "--rounds")?.unwrap_or("3").parse().map_err(|_| "--rounds takes a number")?;
    let named: Vec<&str> = args.iter().copied().filter(|arg| MODELS.contains(arg)).collect();
    cargo(&["build", "--release", "--quiet", "--package", "phalanx-cli"])?;
    for name in if named.is_empty() { MODELS.to_vec() } else { named } {
        let mut ratios = Vec::new();
        for round in 1..=rounds.max(1) {
            let peer = samples(python("torch_models.py", threads, "best").arg(name))?;
            let ours = samples(phalanx().args(["bench", "model", name, "--json", "--cores", threads]))?;
            let ratio = ours / peer;
            println!(
                "{name} round {round}: phalanx {ours:.1} samples/s, torch {peer:.1} samples/s, ratio {ratio:.3}"
            );
            ratios.push(ratio);
        }
        println!("{name}: median ratio {:.3} with {threads} thread(s)", median(&ratios));
    }
    Ok(())
}

/// Our matrix product beside the gemm crate and OpenBLAS.
pub fn gemm(args: &[&str]) -> Result<(), String> {
    run_peers("gemm", args)
}

/// Our replays beside Rayon, OpenMP, Taskflow and StarPU.
pub fn tasks(args: &[&str]) -> Result<(), String> {
    cargo(&["build", "--release", "--quiet", "--package", "phalanx-cli"])?;
    // `cargo run` builds only the program that it runs, which is not the one that measures Rayon.
    cargo(&["build", "--release", "--quiet", "--manifest-path", "benches/peers/tasks/Cargo.toml"])?;
    run_peers("tasks", &[&["--ours", "target/release/phalanx"], args].concat())
}

/// Runs the program of `benches/peers/<name>`.
fn run_peers(name: &str, args: &[&str]) -> Result<(), String> {
    let manifest = format!("benches/peers/{name}/Cargo.toml");
    let mut all = vec!["run", "--release", "--quiet", "--manifest-path", &manifest, "--"];
    all.extend(args);
    cargo(&all)
}

/// Our command, as `cargo build --release` leaves it.
pub fn phalanx() -> Command {
    Command::new(root().join("target/release/phalanx"))
}

/// A script of PyTorch in `benches/peers`.
pub fn python(script: &str, threads: &str, mode: &str) -> Command {
    let mut command = Command::new("python3");
    command.arg(root().join("benches/peers").join(script));
    command.args(["--threads", threads, "--mode", mode, "--json"]).env("OMP_NUM_THREADS", threads);
    command
}

/// Runs a command that prints a JSON object with `tokens_per_s` and takes that number out of it.
pub fn rate(command: &mut Command) -> Result<f64, String> {
    measured(command, "tokens_per_s")
}

/// Runs a command that prints a JSON object with `samples_per_s` and takes that number out of it.
fn samples(command: &mut Command) -> Result<f64, String> {
    measured(command, "samples_per_s")
}

fn measured(command: &mut Command, key: &str) -> Result<f64, String> {
    let output = command.output().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    number(&String::from_utf8_lossy(&output.stdout), key).ok_or_else(|| {
        let errors = String::from_utf8_lossy(&output.stderr);
        format!("{command:?} printed no {key} (is PyTorch installed? pip install torch)\n{errors}")
    })
}

/// The first number of this name in a text of JSON.
pub fn number(text: &str, key: &str) -> Option<f64> {
    let number = text.split(&format!("\"{key}\":")).nth(1)?.split([',', '}']).next()?;
    number.trim().parse().ok()
}

/// The number in the middle; of an even count the higher one.
pub fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The value after `name`, if it is there.
pub fn option<'a>(args: &[&'a str], name: &str) -> Result<Option<&'a str>, String> {
    match args.iter().position(|arg| *arg == name) {
        None => Ok(None),
        Some(position) => args.get(position + 1).copied().map(Some).ok_or(format!("{name} needs a value")),
    }
}
