//! What CI runs: stages one after the other, all of them even if one fails, and a table of what each took.

use std::time::{Duration, Instant};

use crate::{cargo, loom, root, run_with, tidy, wheel, works};

/// A stage by its name, and what it does.
type Stage = (&'static str, fn() -> Result<(), String>);

/// In the order in which failures are found fastest. Examples are doc tests (`crates/phalanx/src/documents.rs`).
const STAGES: [Stage; 9] = [
    ("tidy", || tidy::tidy(&root())),
    ("format", || cargo(&["fmt", "--all", "--check"])),
    ("lints", || {
        cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ])
    }),
    ("documentation", documentation),
    ("tests", tests),
    ("doc tests", || {
        cargo(&["test", "--workspace", "--doc", "--quiet", "--no-fail-fast", "--profile", "checked"])
    }),
    ("Python", wheel::wheel),
    ("benchmarks", benchmarks),
    ("loom models", loom),
];

/// Runs every stage and lists those that failed.
pub fn check() -> Result<(), String> {
    let mut rows = Vec::new();
    for (name, stage) in STAGES {
        let start = Instant::now();
        let result = stage();
        rows.push((name, start.elapsed(), result));
    }
    println!("\n{}", table(&rows));
    let failed: Vec<_> =
        rows.iter().filter_map(|(name, _, result)| Some((name, result.as_ref().err()?))).collect();
    match failed.as_slice() {
        [] => Ok(()),
        failed => {
            let lines: Vec<_> = failed.iter().map(|(name, why)| format!("{name}: {why}")).collect();
            Err(format!("{} of {} stages failed:\n  {}", failed.len(), rows.len(), lines.join("\n  ")))
        }
    }
}

/// Minutes of each stage and how it ended.
fn table(rows: &[(&str, Duration, Result<(), String>)]) -> String {
    let line = |name: &str, took: Duration, end: &str| {
        format!("{name:15} {:6.1} min  {end}\n", took.as_secs_f64() / 60.0)
    };
    let all = rows.iter().map(|(_, took, _)| took).sum();
    let mut table: String = rows
        .iter()
        .map(|(name, took, result)| line(name, *took, if result.is_ok() { "passed" } else { "FAILED" }))
        .collect();
    table.push_str(&line("all", all, ""));
    table
}

fn documentation() -> Result<(), String> {
    let args = ["doc", "--workspace", "--no-deps", "--quiet"];
    run_with("cargo", &args, &[("RUSTDOCFLAGS", "-D warnings")])
}

/// All tests. With nextest, tests of different programs run side by side and the slow ones are named.
fn tests() -> Result<(), String> {
    let all = ["--workspace", "--no-fail-fast", "--cargo-profile", "checked"];
    if works("cargo", &["nextest", "--version"]) {
        return cargo(&[&["nextest", "run"][..], &all, &["--status-level", "slow"]].concat());
    }
    cargo(&[
        "test",
        "--workspace",
        "--no-fail-fast",
        "--quiet",
        "--profile",
        "checked",
        "--lib",
        "--bins",
        "--tests",
    ])
}

/// Workspaces of their own, which nothing else builds.
fn benchmarks() -> Result<(), String> {
    for peers in ["benches/peers/gemm/Cargo.toml", "benches/peers/tasks/Cargo.toml"] {
        run_with("cargo", &["check", "--quiet", "--manifest-path", peers], &[("RUSTFLAGS", "-D warnings")])?;
    }
    Ok(())
}
