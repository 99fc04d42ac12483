//! The Python package: built as a wheel, installed in an environment under `target`, and tested by pytest and stubtest.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use crate::{root, run, run_with};

/// What tests of the package need beside it.
const NEEDED: &[&str] = &["maturin>=1.9,<2", "numpy", "pytest", "mypy"];
/// What `cargo xtask torch` needs beside that.
const TORCH: &[&str] = &["torch", "torchvision", "transformers", "timm"];
/// What leaves the tests of the package out where there is no Python.
const WITHOUT: &str = "PHALANX_WITHOUT_PYTHON";

/// Builds and tests the package, without PyTorch.
pub fn wheel() -> Result<(), String> {
    let Some(python) = environment("python", NEEDED)? else { return Ok(()) };
    install(&python)?;
    let tests = root().join("crates/py/tests").display().to_string();
    pytest(&python, &[&tests, "--ignore-glob=*torch*"])?;
    run(&python, &["-m", "mypy.stubtest", "phalanx._phalanx"])?;
    run(&python, &["-m", "mypy", "--config-file", "crates/py/pyproject.toml", "-p", "phalanx"])
}

/// The same with PyTorch: modules of many kinds, beside it.
pub fn torch(args: &[&str]) -> Result<(), String> {
    let needed = [NEEDED, TORCH].concat();
    let Some(python) = environment("torch", &needed)? else { return Ok(()) };
    install(&python)?;
    let tests = root().join("crates/py/tests").display().to_string();
    pytest(&python, &[&[tests.as_str()], args].concat())
}

fn pytest(python: &str, args: &[&str]) -> Result<(), String> {
    let quiet = ["-m", "pytest", "-q", "-p", "no:cacheprovider"];
    run_with(python, &[&quiet[..], args].concat(), &[("OMP_NUM_THREADS", "1")])
}

/// Builds the wheel and installs it.
fn install(python: &str) -> Result<(), String> {
    let wheels = root().join("target/wheels");
    // Of an earlier build, perhaps of another version.
    drop(std::fs::remove_dir_all(&wheels));
    let (out, manifest) =
        (wheels.display().to_string(), root().join("crates/py/Cargo.toml").display().to_string());
    let build = [
        "-m",
        "maturin",
        "build",
        "--quiet",
        "--profile",
        "checked",
        "--manifest-path",
        &manifest,
        "--out",
        &out,
    ];
    run(python, &build)?;
    let made = std::fs::read_dir(&wheels).map_err(|error| format!("{out}: {error}"))?;
    let wheel =
        made.flatten().map(|entry| entry.path().display().to_string()).find(|path| path.ends_with(".whl"));
    let wheel = wheel.ok_or_else(|| format!("no wheel in {out}"))?;
    run(python, &["-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", &wheel])
}

/// The interpreter of an environment under `target` that has these packages; none if there is no Python and that is allowed.
fn environment(name: &str, packages: &[&str]) -> Result<Option<String>, String> {
    let dir = root().join("target").join(name);
    let own = dir.join("bin/python");
    if !own.is_file() {
        let Some(python) = system_python() else {
            let wanted = "the Python package needs Python 3.11 or later with venv";
            if env::var_os(WITHOUT).is_some() {
                println!("{wanted}; {WITHOUT} is set, so its tests are left out");
                return Ok(None);
            }
            return Err(format!("{wanted}: install it, or set {WITHOUT}=1 to leave its tests out"));
        };
        run(&python.display().to_string(), &["-m", "venv", &dir.display().to_string()])?;
    }
    let own = own.display().to_string();
    run(&own, &[&["-m", "pip", "install", "--quiet", "--disable-pip-version-check"][..], packages].concat())?;
    Ok(Some(own))
}

/// The first Python of the path that is new enough.
fn system_python() -> Option<PathBuf> {
    let names = ["python3", "python3.14", "python3.13", "python3.12", "python3.11", "python"];
    let check = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))";
    let fits = |name: &&str| {
        Command::new(name).args(["-c", check]).output().is_ok_and(|output| output.status.success())
    };
    names.into_iter().find(fits).map(PathBuf::from)
}
