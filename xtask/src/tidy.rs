//! Rules that no compiler checks: which crates may use which, how files begin, how long they are, and their words.

mod type_names;
mod unsafe_table;

use std::fs;
use std::path::{Path, PathBuf};

use type_names::check_type_names;
use unsafe_table::check_unsafe_table;

/// Our crates and which of ours each may use.
const DIRECTIONS: &[(&str, &str)] = &[
    ("ir", ""),
    ("ops", "ir"),
    ("nn", "ir ops"),
    ("models", "ir ops nn"),
    ("import", "ir ops"),
    ("plan", "ir ops"),
    ("lower", "ir"),
    ("link", ""),
    ("schedule", "ir link"),
    ("inductor", "ir schedule"),
    ("strided", ""),
    ("mapping", ""),
    ("net", "link strided"),
    ("program", "ir strided"),
    ("kernels", "ir"),
    ("opencl", ""),
    ("runtime", "program net link strided"),
    ("immediate", "program runtime strided"),
    (
        "phalanx",
        "ir ops nn models import plan lower schedule link net mapping program runtime kernels opencl",
    ),
    ("bench", "ir ops models net program runtime immediate kernels phalanx"),
    ("cli", "phalanx inductor bench"),
    ("py", "phalanx import"),
    ("testkit", "ir ops models"),
];

/// Crates that may contain unsafe code.
const UNSAFE: &[&str] =
    &["strided", "mapping", "runtime", "immediate", "kernels", "net", "opencl", "bench", "py", "testkit"];

/// Lines above which a file must say in its head why it is long.
const LONG: usize = 600;

/// Text that must not be in the code. The parts are joined so that this file does not contain them.
const FORBIDDEN: &[(&str, &str)] = &[
    ("todo", "!("),
    ("unimplemented", "!("),
    ("dbg", "!("),
    ("#[igno", "re"),
    ("thread::sl", "eep"),
    ("FIX", "ME"),
];

/// Files that may read the wall clock, which an administrator or a time server moves: for what a jump spoils nothing else.
/// Everything else measures time with `Instant`, which never goes back.
const WALL_CLOCK: &[(&str, &str)] = &[
    ("crates/cli/src/job.rs", "stamps that `xtask soak` compares between processes"),
    ("crates/cli/src/log.rs", "when a run began, in its log"),
    ("crates/cli/src/watch.rs", "how old the last line of a log is"),
    ("crates/phalanx/src/watch/events.rs", "times of events as TensorBoard reads them"),
    ("crates/phalanx/src/cache.rs", "when a program was last used; the oldest go first"),
    ("crates/phalanx/src/cache/tests.rs", "the same, set by the test"),
    ("crates/phalanx/src/data/stamp.rs", "whether a file has just changed; if in doubt it is read"),
    ("crates/phalanx/src/data/tests.rs", "the same, set by the test"),
    ("xtask/src/soak.rs", "a seed"),
];

/// Words that comments of `src` do without: they name the thread, the rank or the caller instead.
const VAGUE: &[&str] = &["nobody", "somebody", "whoever", "who"];

/// Where comments may still use [`VAGUE`] words, until they are rewritten.
const EXEMPT: &[&str] = &["crates/testkit/"];

/// Checks all rules and lists every offence.
pub fn tidy(root: &Path) -> Result<(), String> {
    let mut offences = Vec::new();
    for (name, allowed) in DIRECTIONS {
        let dir = root.join("crates").join(name);
        check_manifest(&dir, name, allowed, &mut offences);
        check_unsafe(&dir, name, &mut offences);
    }
    let mut files = Vec::new();
    for top in ["crates", "xtask", "examples"] {
        collect(&root.join(top), &mut files);
    }
    for file in &files {
        check_file(root, file, &mut offences);
    }
    check_type_names(root, &files, &mut offences);
    check_unsafe_table(root, &files, &mut offences);
    match offences.len() {
        0 => Ok(()),
        count => Err(format!("{count} untidy places:\n  {}", offences.join("\n  "))),
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn check_manifest(dir: &Path, name: &str, allowed: &str, offences: &mut Vec<String>) {
    let manifest = read(&dir.join("Cargo.toml"));
    let normal = manifest.split("[dev-dependencies]").next().unwrap_or_default();
    for (other, _) in DIRECTIONS {
        let package = if *other == "phalanx" { "phalanx".to_string() } else { format!("phalanx-{other}") };
        let used = normal
            .lines()
            .any(|line| line.starts_with(&format!("{package}.")) || line.starts_with(&format!("{package} ")));
        if used && !allowed.split(' ').any(|name| name == *other) {
            offences.push(format!("crate {name} must not use {other}: see ARCHITECTURE.md"));
        }
    }
    if manifest.is_empty() {
        offences.push(format!("crate {name} has no manifest"));
    }
}

fn check_unsafe(dir: &Path, name: &str, offences: &mut Vec<String>) {
    let head = ["lib.rs", "main.rs"].map(|file| read(&dir.join("src").join(file))).concat();
    if !UNSAFE.contains(&name) && !head.contains("#![forbid(unsafe_code)]") {
        offences.push(format!("crate {name} must start with #![forbid(unsafe_code)]"));
    }
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn check_file(root: &Path, path: &Path, offences: &mut Vec<String>) {
    let text = read(path);
    let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
    let lines = text.lines().count();
    let is_tests = path.file_name().is_some_and(|name| name == "tests.rs");
    if !text.starts_with("//!") && !is_tests {
        offences.push(format!("{name}: a file begins with `//!` and what it is"));
    }
    if lines > LONG && !text.contains("Long because") {
        offences.push(format!("{name}: {lines} lines; split it, or say `Long because …` in its head"));
    }
    if is_plain(&name) {
        for (line, word) in vague_words(&text) {
            offences.push(format!(
                "{name}:{line}: `{word}` in a comment; name the thread, the rank or the caller"
            ));
        }
    }
    let wall_clock = ["System", "Time::"].concat();
    if text.contains(&wall_clock) && !WALL_CLOCK.iter().any(|(file, _)| *file == name) {
        offences.push(format!("{name}: reads the wall clock, which may jump: use `Instant`"));
    }
    for (first, second) in FORBIDDEN {
        let word = format!("{first}{second}");
        if let Some(line) = text.lines().position(|line| line.contains(&word)) {
            offences.push(format!("{name}:{}: `{word}` must not be here", line + 1));
        }
    }
}

/// Whether the comments of a file must do without [`VAGUE`] words.
fn is_plain(name: &str) -> bool {
    name.contains("/src/") && !EXEMPT.iter().any(|folder| name.starts_with(folder))
}

/// The [`VAGUE`] words in the comments of `text`, outside of quotes, each with its line.
fn vague_words(text: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let unquoted: String = comment(text).split(['"', '`']).step_by(2).collect();
        let words = unquoted.to_lowercase();
        let occurs = |vague: &str| words.split(|c: char| !c.is_alphanumeric()).any(|word| word == vague);
        found.extend(VAGUE.iter().filter(|vague| occurs(vague)).map(|vague| (line, *vague)));
    }
    found
}

/// What follows the first `//` of a line that is not inside of a string.
fn comment(line: &str) -> &str {
    let is_outside = |at: &usize| {
        let before = &line[..*at];
        before.matches('"').count().is_multiple_of(2)
            && before.chars().next_back().is_none_or(char::is_whitespace)
    };
    let start = line.match_indices("//").map(|(at, _)| at).find(is_outside);
    start.map_or("", |at| &line[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vague_words_count_in_comments_outside_of_quotes() {
        let text = "//! Whoever waits.\nlet who = 1;\nlet url = \"http://who\"; // nobody's\n/// Prints \"who waits\", whole.\n";
        assert_eq!(vague_words(text), [(1, "whoever"), (3, "nobody")]);
    }

    #[test]
    fn sources_are_checked_unless_they_are_exempt() {
        let plain = [
            "crates/net/src/lib.rs",
            "crates/ir/src/lib.rs",
            "crates/phalanx/src/job/mod.rs",
            "crates/cli/src/launch.rs",
            "crates/phalanx/src/lib.rs",
            "xtask/src/main.rs",
        ];
        let exempt = ["crates/testkit/src/lib.rs", "crates/net/tests/mpi/main.rs"];
        assert!(plain.iter().all(|name| is_plain(name)) && !exempt.iter().any(|name| is_plain(name)));
    }
}
