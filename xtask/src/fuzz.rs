//! Fuzzing: random bytes for every parser of a user's file, grown from the repository's own examples.
//!
//! A target is a format: a folder of the gallery of malformed files, or of `fuzz/seeds`. The program in `fuzz/`, a
//! workspace of its own, reads all of them; it is built with stable Rust, whose switch for unstable flags lets
//! AddressSanitizer and coverage in. What is found and what fuzzing starts from is kept under `target/fuzz`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{root, run_with};

const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// AddressSanitizer, which also reports every allocation to libFuzzer, and counters on all edges.
const FLAGS: &str = "--cfg fuzzing -Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// An input is a finding if it panics, takes more memory than any small file should, or ten seconds.
const LIMITS: [&str; 4] = ["-rss_limit_mb=1024", "-malloc_limit_mb=256", "-timeout=10", "-max_len=4096"];

/// Runs the targets named in `words`, or all, one after the other for `--seconds N` each.
pub fn fuzz(words: &[&str]) -> Result<(), String> {
    let (seconds, wanted) = arguments(words)?;
    let targets = targets();
    if let Some(unknown) = wanted.iter().find(|name| !targets.iter().any(|target| target == *name)) {
        return Err(format!("there is no target `{unknown}`; there are {}", targets.join(", ")));
    }
    let target_dir = root().join("target/fuzz");
    let manifest = root().join("fuzz/Cargo.toml");
    let build =
        ["build", "--release", "--quiet", "--target", TRIPLE, "--manifest-path", &manifest.to_string_lossy()];
    let variables =
        [("RUSTC_BOOTSTRAP", "1"), ("RUSTFLAGS", FLAGS), ("CARGO_TARGET_DIR", &target_dir.to_string_lossy())];
    run_with("cargo", &build, &variables)?;
    let mut findings = Vec::new();
    for target in targets.iter().filter(|target| wanted.is_empty() || wanted.contains(&target.as_str())) {
        let corpus = target_dir.join("corpus").join(target);
        seed(target, &corpus).map_err(|error| format!("{}: {error}", corpus.display()))?;
        let report = attack(target, &target_dir, seconds)?;
        println!(
            "{target:16} {:>10} executions  {}",
            report.executions,
            report.finding.as_deref().unwrap_or("ok")
        );
        findings.extend(report.finding.map(|finding| format!("{target}: {finding}")));
    }
    match findings.is_empty() {
        true => Ok(()),
        false => Err(format!("{} targets found something:\n  {}", findings.len(), findings.join("\n  "))),
    }
}

fn arguments<'a>(words: &[&'a str]) -> Result<(u64, Vec<&'a str>), String> {
    let Some(at) = words.iter().position(|word| *word == "--seconds") else {
        return Ok((60, words.to_vec()));
    };
    let seconds = words.get(at + 1).and_then(|word| word.parse().ok()).ok_or("--seconds needs a number")?;
    Ok((seconds, [&words[..at], &words[at + 2..]].concat()))
}

/// Where the inputs of targets lie, in a folder each.
fn seeds() -> [PathBuf; 2] {
    ["crates/phalanx/tests/malformed", "fuzz/seeds"].map(|folder| root().join(folder))
}

/// The names of all targets.
fn targets() -> Vec<String> {
    let folders = seeds().into_iter().flat_map(|folder| entries(&folder)).filter(|path| path.is_dir());
    folders.filter_map(|path| path.file_name().map(|name| name.to_string_lossy().into_owned())).collect()
}

/// What came of a target.
struct Report {
    executions: u64,
    /// What was found and where the input lies.
    finding: Option<String>,
}

fn attack(target: &str, target_dir: &Path, seconds: u64) -> Result<Report, String> {
    let artifacts = target_dir.join("findings").join(target);
    let scratch = target_dir.join("scratch");
    for folder in [&artifacts, &scratch] {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let log = artifacts.join("log.txt");
    let file = fs::File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    let status = Command::new(target_dir.join(TRIPLE).join("release/phalanx-fuzz"))
        .arg(target_dir.join("corpus").join(target))
        .args(LIMITS)
        .args([format!("-max_total_time={seconds}"), format!("-artifact_prefix={}/", artifacts.display())])
        .arg("-print_final_stats=1")
        .envs([("PHALANX_FORMAT", target.as_ref()), ("TMPDIR", scratch.as_os_str())])
        .stdout(Stdio::null())
        .stderr(file)
        .status()
        .map_err(|error| format!("cannot run {target}: {error}"))?;
    // Nothing in it is of use once the target has ended.
    let _ = fs::remove_dir_all(&scratch);
    let text = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
    let executions = text.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    let finding = (!status.success()).then(|| format!("a finding; see {}", log.display()));
    Ok(Report { executions: executions.and_then(|count| count.trim().parse().ok()).unwrap_or(0), finding })
}

/// Puts what the repository has of a format into a target's corpus: its seeds, and the graphs of file tests.
fn seed(target: &str, corpus: &Path) -> std::io::Result<()> {
    fs::create_dir_all(corpus)?;
    for folder in seeds().map(|folder| folder.join(target)) {
        for path in files(&folder).iter().filter(|path| path.extension().is_none_or(|end| end != "expected"))
        {
            fs::copy(path, corpus.join(path.file_name().unwrap_or_default()))?;
        }
    }
    let mut graphs = Vec::new();
    graphs_below(&root().join("filetests"), target, &mut graphs);
    for (number, graph) in graphs.iter().enumerate() {
        fs::write(corpus.join(format!("filetest-{number}")), graph)?;
    }
    Ok(())
}

/// The blocks `keyword @name { … }` of all file tests below `folder`.
fn graphs_below(folder: &Path, keyword: &str, graphs: &mut Vec<String>) {
    for path in files(folder) {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut block = String::new();
        for line in text.lines().map(|line| line.split(';').next().unwrap_or_default().trim_end()) {
            if !block.is_empty() || line.starts_with(&format!("{keyword} @")) {
                block.push_str(line);
                block.push('\n');
            }
            if line == "}" && !block.is_empty() {
                graphs.push(std::mem::take(&mut block));
            }
        }
    }
    for path in entries(folder).into_iter().filter(|path| path.is_dir()) {
        graphs_below(&path, keyword, graphs);
    }
}

/// The files of a folder, in order.
fn files(folder: &Path) -> Vec<PathBuf> {
    entries(folder).into_iter().filter(|path| path.is_file()).collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}
