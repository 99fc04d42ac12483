//! What the tests of the command share: running it, and a directory of its own for each test.
#![allow(dead_code, clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Flags of a model that trains in milliseconds.
pub const SMALL: &[&str] =
    &["--layers", "1", "--heads", "2", "--width", "16", "--context", "16", "--batch", "8"];

/// The command.
pub fn phalanx() -> Command {
    Command::new(env!("CARGO_BIN_EXE_phalanx"))
}

/// Runs the command with these arguments.
pub fn run(args: &[&str]) -> Output {
    phalanx().args(args).output().unwrap()
}

/// Standard output of a run that must succeed.
pub fn stdout(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The lines of JSON of a run that must succeed.
pub fn json_lines(args: &[&str]) -> Vec<Value> {
    stdout(args).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The one line on standard error of a run that must fail with `code`.
pub fn error(args: &[&str], code: i32) -> String {
    let output = run(args);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    assert!(text.starts_with("error: "), "{args:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
    text.trim_end().trim_start_matches("error: ").to_string()
}

/// An empty directory that is removed at the end.
pub struct Dir(PathBuf);

impl Dir {
    /// A directory for the test of this name.
    pub fn new(test: &str) -> Dir {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }

    /// A path in the directory, as an argument.
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_string()
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        std::fs::write(self.0.join(name), bytes).unwrap();
        self.path(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A program in the directory that calls itself Open MPI, and what it does.
pub fn script(dir: &Dir, name: &str, does: &str) -> String {
    script_of(dir, name, "mpirun (Open MPI) 4.1.4", does)
}

/// A program in the directory that calls itself by its version, and what it does.
pub fn script_of(dir: &Dir, name: &str, version: &str, does: &str) -> String {
    let text = format!("#!/bin/sh\n[ \"$1\" = --version ] && echo '{version}' && exit\n{does}\n");
    let path = dir.write(name, text);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A safetensors file with `tokens` and `targets`, i64 `[rows, time]`, of small numbers.
pub fn batch(rows: usize, time: usize) -> Vec<u8> {
    let bytes = rows * time * 8;
    let tensor = |start: usize| {
        format!(
            "{{\"dtype\":\"I64\",\"shape\":[{rows},{time}],\"data_offsets\":[{start},{}]}}",
            start + bytes
        )
    };
    let mut header = format!("{{\"tokens\":{},\"targets\":{}}}", tensor(0), tensor(bytes));
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    let tokens = (0..rows * time).map(|index| (index * 7 % 50) as i64);
    let targets = (0..rows * time).map(|index| ((index + 1) * 7 % 50) as i64);
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend(tokens.chain(targets).flat_map(i64::to_le_bytes));
    file
}
