//! What the checks need beside Rust: components of the toolchain, and programs of the system.

use crate::{run, run_with, works};

/// Programs that tests need: any one of them will do, and the packages of Debian that have them.
const PROGRAMS: &[(&[&str], &[&str])] = &[
    (&["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"], &["chromium"]),
    // Both kinds, since ranks must work under either.
    (&["mpirun.openmpi"], &["openmpi-bin"]),
    (&["mpiexec.mpich"], &["mpich"]),
];

/// Adds what is missing.
pub fn setup() -> Result<(), String> {
    for (tool, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if !works("cargo", &[tool, "--version"]) {
            run("rustup", &["component", "add", component])?;
        }
    }
    let is_missing = |programs: &[&str]| !programs.iter().any(|program| works(program, &["--version"]));
    let missing = PROGRAMS.iter().filter(|(programs, _)| is_missing(programs));
    let mut packages: Vec<&str> = missing.flat_map(|(_, packages)| packages.iter().copied()).collect();
    if !works("ip", &["-Version"]) {
        packages.push("iproute2");
    }
    if !works("python3", &["-c", "import venv, ensurepip"]) {
        packages.extend(["python3", "python3-venv"]);
    }
    if let Err(message) = install(&packages) {
        // Not every user may install packages; the tests that need them say so themselves.
        eprintln!("xtask: {message}");
    }
    Ok(())
}

/// Installs packages of Debian.
fn install(packages: &[&str]) -> Result<(), String> {
    if packages.is_empty() {
        return Ok(());
    }
    let variables = [("DEBIAN_FRONTEND", "noninteractive")];
    run_with("apt-get", &["update", "--quiet"], &variables)?;
    let flags = ["install", "--quiet", "--yes", "--no-install-recommends"];
    run_with("apt-get", &[&flags, packages].concat(), &variables)
}
