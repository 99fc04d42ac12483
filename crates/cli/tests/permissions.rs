//! `--umask`: who may read what a run writes.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::{Dir, SMALL, error, stdout};

/// The permissions of everything below a directory, and of it.
fn modes(path: &Path) -> Vec<(String, u32)> {
    let mode = path.metadata().unwrap().permissions().mode() & 0o777;
    let mut found = vec![(path.display().to_string(), mode)];
    if path.is_dir() {
        found.extend(std::fs::read_dir(path).unwrap().flat_map(|entry| modes(&entry.unwrap().path())));
    }
    found
}

/// Checks that everything below `path` has no permissions but these, and that there are so many files at least.
fn check(path: &str, mask: u32, least: usize) {
    let found = modes(Path::new(path));
    assert!(found.len() >= least, "{found:?}");
    for (path, mode) in found {
        assert_eq!(mode & mask, 0, "{path} has {mode:o}");
        assert_eq!(mode & 0o600, 0o600, "{path} has {mode:o}");
    }
}

#[test]
fn a_mask_keeps_other_users_from_checkpoints_models_logs_and_tokens() {
    let dir = Dir::new("umask");
    let text = dir.write("data.txt", "all work and no play makes jack a dull boy. ".repeat(40));
    let config = dir.write("run.toml", "umask = \"077\"\n");
    let by_flag: &[&str] = &["--umask", "0077"];
    for (name, how) in [("flag", by_flag), ("file", &[config.as_str()])] {
        let [checkpoints, model, logs] =
            ["checkpoints", "model", "logs"].map(|what| dir.path(&format!("{name}-{what}")));
        let flags = [
            "--steps",
            "2",
            "--data",
            &text,
            "--checkpoint",
            &checkpoints,
            "--save",
            &model,
            "--log-dir",
            &logs,
        ];
        stdout(&[&["train"], how, SMALL, &flags].concat());
        check(&checkpoints, 0o077, 4);
        check(&model, 0o077, 4);
        check(&logs, 0o077, 3);
        let (exported, imported) =
            (dir.path(&format!("{name}-exported")), dir.path(&format!("{name}-imported")));
        stdout(&["ckpt", "export", &checkpoints, "--hf", &exported, "--umask", "077"]);
        check(&exported, 0o077, 4);
        stdout(&["ckpt", "import", "--hf", &model, "--checkpoint", &imported, "--umask", "077"]);
        check(&imported, 0o077, 4);
    }
    let tokens = dir.path("data.bin");
    stdout(&["data", "tokenize", &text, "--out", &tokens, "--umask", "027"]);
    check(&tokens, 0o027, 1);
    assert_eq!(modes(Path::new(&tokens))[0].1, 0o640);
}

#[test]
fn a_mask_that_is_none_is_named() {
    for wrong in ["rwx", "8", "1777", "", "+77", "00077"] {
        let message = error(&["train", "--umask", wrong], 2);
        assert!(message.contains("octal digits up to 777, such as 077"), "{message}");
    }
}
