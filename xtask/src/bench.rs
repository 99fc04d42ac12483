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
    for round in 1..=rounds {
        let peer = rate(peer(threads, "best").args(peer_model))?;
        let ours = rate(phalanx(threads).args(ours_model))?;
        let ratio = ours / peer;
        println!("round {round}: phalanx {ours:.0} tokens/s, torch {peer:.0} tokens/s, ratio {ratio:.3}");
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.3} with {threads} thread(s)", ratios[ratios.len() / 2]);
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

fn phalanx(threads: &str) -> Command {
    let mut command = Command::new(root().join("target/release/phalanx"));
    command.args(["bench", "train", "--json", "--cores", threads]);
    command
}

fn peer(threads: &str, mode: &str) -> Command {
    let mut command = Command::new("python3");
    command.arg(root().join("benches/peers/torch_gpt.py"));
    command.args(["--threads", threads, "--mode", mode, "--json"]).env("OMP_NUM_THREADS", threads);
    command
}

/// Runs a command that prints a JSON object with `tokens_per_s` and takes that number out of it.
fn rate(command: &mut Command) -> Result<f64, String> {
    let output = command.output().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text.split("\"tokens_per_s\":").nth(1).and_then(|rest| rest.split([',', '}']).next());
    number.and_then(|number| number.trim().parse().ok()).ok_or_else(|| {
        let errors = String::from_utf8_lossy(&output.stderr);
        format!("{command:?} printed no tokens_per_s (is PyTorch installed? pip install torch)\n{errors}")
    })
}

/// The value after `name`, if it is there.
fn option<'a>(args: &[&'a str], name: &str) -> Result<Option<&'a str>, String> {
    match args.iter().position(|arg| *arg == name) {
        None => Ok(None),
        Some(position) => args.get(position + 1).copied().map(Some).ok_or(format!("{name} needs a value")),
    }
}
