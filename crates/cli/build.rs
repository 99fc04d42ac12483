//! Tells the command which commit it is built from: `PHALANX_COMMIT` if it is set, else what a package or a clone says.
//! Neither git nor a clone is needed: without them no commit is named.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=PHALANX_COMMIT");
    let given = std::env::var("PHALANX_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(of_package).or_else(of_clone).unwrap_or_default();
    println!("cargo::rustc-env=BUILD_COMMIT={}", commit.trim());
}

/// The commit in the file that `cargo package` adds.
fn of_package() -> Option<String> {
    let text = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let after = text.split("\"sha1\":").nth(1)?;
    Some(short(after.split('"').nth(1)?))
}

/// The commit of the clone that this crate is in; other repositories around it do not count.
fn of_clone() -> Option<String> {
    if !Path::new("../../.git").exists() {
        return None;
    }
    // Every commit and every checkout adds a line to it.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    println!("cargo::rerun-if-changed={log}");
    Some(short(&git(&["rev-parse", "HEAD"])?))
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_string())
}

fn short(commit: &str) -> String {
    commit.chars().take(12).collect()
}
