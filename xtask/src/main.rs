//! Project tasks: `cargo xtask check|test|tidy|bless|bench|fuzz|soak|wheel|torch`.
#![forbid(unsafe_code)]

mod bench;
mod check;
mod fuzz;
mod ranks;
mod setup;
mod soak;
mod tidy;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const HELP: &str = "\
cargo xtask COMMAND

  test          set up what is missing, then run everything below that `check` runs
  check         tidy, formatting, lints, documentation, all tests and examples, loom models; every stage even if one fails
  loom          the models of the runtime's protocols only, in every order of their steps
  tsan          the runtime's tests of threads under ThreadSanitizer (x86-64 Linux); not part of `check`
  fuzz          random bytes for every parser of a user's file (x86-64 Linux) [TARGET ...] [--seconds N]; not part of `check`
  soak          training runs killed and resumed, again and again [--kills N] [--seed S] [--case K]; or jobs of two ranks
                that fail in every way, N of each kind [--faults N] [--jobs J] [--drill D]
                [--busy]; or ranks killed, stopped and frozen at random moments [--strikes N]; or flipped bits, full disks
                and closed pipes [--storage N]; or all random cases of the tests, ten times those of `check` [--tests];
                [--program FILE] instead of a release build; not part of `check`
  wheel         the Python package: built, installed under target/python, and tested without PyTorch; part of `check`
  torch         the same beside PyTorch, which is installed under target/torch [PYTEST ARGUMENT ...]; not part of `check`
  tidy          rules about crates and files only
  bless         rewrite the expected texts of file tests, then show what changed with git diff
  bench train   `phalanx bench train` beside PyTorch, in alternating rounds [--threads N] [--rounds N] [--wide]
  bench ranks   two processes of a core beside one and beside PyTorch's DDP and FSDP [--rounds N] [--mode eager] [--json]
  bench gemm    our matrix product beside the gemm crate and OpenBLAS [--threads N]
  bench tasks   small tasks beside Rayon, OpenMP, Taskflow and StarPU [--patterns a,b] [--widths 2,8] [--workers N] [--peers a,b] [--json]
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["test"] => setup::setup().and_then(|()| check::check()),
        ["check"] => check::check(),
        ["loom"] => loom(),
        ["wheel"] => wheel::wheel(),
        ["torch", ..] => wheel::torch(&words[1..]),
        ["tsan"] => tsan(),
        ["fuzz", ..] => fuzz::fuzz(&words[1..]),
        ["soak", ..] => soak::soak(&words[1..]),
        ["tidy"] => tidy::tidy(&root()),
        ["bless"] => bless(),
        ["bench", "train", ..] => bench::train(&words[2..]),
        ["bench", "ranks", ..] => ranks::ranks(&words[2..]),
        ["bench", "gemm", ..] => bench::gemm(&words[2..]),
        ["bench", "tasks", ..] => bench::tasks(&words[2..]),
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        _ => Err(format!("unknown task `{}`\n\n{HELP}", words.join(" "))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's root directory.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// Whether a program is there and ends well.
fn works(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

/// Runs the models of the lock-free protocols of runtime and pipes in every order of their steps.
fn loom() -> Result<(), String> {
    let crates = ["runtime", "immediate", "kernels", "net"].map(|name| format!("--package=phalanx-{name}"));
    let packages: Vec<&str> = crates.iter().map(String::as_str).collect();
    let models = [&["test", "--quiet"][..], &packages, &["--lib", "--release", "models"]].concat();
    // A directory of its own: the flag would make cargo build everything again.
    let variables = [("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", "target/loom")];
    run_with("cargo", &models, &variables)
}

/// Runs the runtime's tests of threads under ThreadSanitizer, which stable Rust has behind a switch.
fn tsan() -> Result<(), String> {
    let target = "x86_64-unknown-linux-gnu";
    let packages = ["--package", "phalanx-runtime", "--package", "phalanx-immediate"];
    let mut args = [&["test", "--quiet"][..], &packages, &["--target", target]].concat();
    args.extend(["--test", "main", "--test", "graphs", "--", "--test-threads", "1"]);
    // The modules of `main`, and all of `graphs`.
    args.extend(["lanes::", "tasks::", "turns::", "device_graphs::", "graphs::"]);
    let suppressions = root().join("xtask/tsan.suppressions");
    let options = format!("history_size=4 suppressions={}", suppressions.display());
    let flags = "--cfg tsan -Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer";
    let variables = [
        ("RUSTC_BOOTSTRAP", "1"),
        ("RUSTFLAGS", flags),
        ("TSAN_OPTIONS", &options),
        ("CARGO_TARGET_DIR", "target/tsan"),
    ];
    run_with("cargo", &args, &variables)
}

fn bless() -> Result<(), String> {
    let levels = ["ir", "lower", "schedule"].map(|name| format!("--package=phalanx-{name}"));
    let levels: Vec<&str> = levels.iter().map(String::as_str).collect();
    let files = [&["test", "--quiet"][..], &levels, &["--test", "main", "files::"]].concat();
    run_with("cargo", &files, &[("PHALANX_BLESS", "1")])?;
    for (package, test, filter) in [("phalanx-program", "files", ""), ("phalanx", "main", "malformed::")] {
        let args = ["test", "--quiet", "--package", package, "--test", test, filter];
        run_with("cargo", &args, &[("PHALANX_BLESS", "1")])?;
    }
    Ok(())
}

fn cargo(args: &[&str]) -> Result<(), String> {
    run_with("cargo", args, &[])
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    run_with(program, args, &[])
}

fn run_with(program: &str, args: &[&str], variables: &[(&str, &str)]) -> Result<(), String> {
    println!("$ {program} {}", args.join(" "));
    let mut command = Command::new(program);
    // A whole check builds everything once: what rustc would keep for the next build is most of the disk it takes.
    command.args(args).env("CARGO_INCREMENTAL", "0").envs(variables.iter().copied()).current_dir(root());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{program} {}` ended with {status}", args.join(" "))),
        Err(error) => Err(format!("cannot run `{program}`: {error}")),
    }
}
