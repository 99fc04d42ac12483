//! A new user: an empty directory, the command in the path, and a page to follow.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::common::batch;
use super::output::compare;
use super::page::Block;
use super::root;

/// Seconds after which a block counts as hanging.
const LIMIT: &str = "900";

/// What stands for `phalanx` in the path: the real one, with other flags where the page's comment says so.
const STAND_IN: &str = r#"#!/bin/bash
while read -r -a words; do
  if [ ${#words[@]} -gt 0 ] && [[ " $* " == *" ${words[0]} "* ]]; then
    args=()
    while [ $# -gt 0 ]; do
      if [[ "$1" == --?* && " ${words[*]} " == *" $1 "* ]]; then shift; else args+=("$1"); fi
      shift
    done
    set -- "${args[@]}" "${words[@]:1}"
  fi
done <<< "${DOCS_RUN:-}"
exec "$PHALANX" "$@"
"#;

/// A reader who follows a page.
pub struct User {
    dir: PathBuf,
    path: String,
    /// Hashes that the page shows, and those that were printed.
    hashes: BTreeMap<String, String>,
}

impl User {
    /// A user with nothing but the command.
    pub fn new(page: &str) -> User {
        let name = Path::new(page).file_stem().unwrap().to_str().unwrap();
        // Outside of the workspace, of which cargo would make a project of the reader's a member.
        let dir = std::env::temp_dir().join(format!("phalanx-docs-{name}-{}", std::process::id()));
        for part in ["bin", "work"] {
            fs::create_dir_all(dir.join(part)).unwrap();
        }
        // The clone of the repository, beside the reader's own projects.
        symlink(root().canonicalize().unwrap(), dir.join("work/phalanx")).unwrap();
        let stand_in = dir.join("bin/phalanx");
        fs::write(&stand_in, STAND_IN).unwrap();
        fs::set_permissions(stand_in, fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", dir.join("bin").display(), std::env::var("PATH").unwrap());
        User { dir, path, hashes: BTreeMap::new() }
    }

    /// Does what a block says.
    pub fn follow(&mut self, block: &Block) {
        let place = &block.place;
        if block.not_run.is_some() {
            return;
        }
        block.given.iter().for_each(|name| self.bring(place, name));
        match (&block.file, block.language.as_str()) {
            (Some(file), _) => {
                self.write(file, &block.text);
                if file.ends_with("Cargo.toml") {
                    self.resolve(place, file);
                }
            }
            (None, "sh") => self.run(block),
            // The library's doc tests, pictures, and what the tests of the Python package run.
            (None, "rust" | "text" | "python") => {}
            (None, language) => {
                panic!("{place}: a block of `{language}` is neither run nor written to a file")
            }
        }
    }

    /// Brings a file that the reader is taken to have.
    fn bring(&self, place: &str, name: &str) {
        match name {
            "book.txt" => {
                let line = |number| format!("Call me Ishmael. This is sentence {number} of a short book.\n");
                self.write(name, (0..400).map(line).collect::<String>());
            }
            "batch.safetensors" => self.write(name, batch(4, 32)),
            _ => panic!("{place}: nothing is known of {name}"),
        }
    }

    fn write(&self, file: &str, text: impl AsRef<[u8]>) {
        let path = self.dir.join("work").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Checks that cargo finds what a manifest depends on, in the versions of this workspace.
    fn resolve(&self, place: &str, manifest: &str) {
        let manifest = self.dir.join("work").join(manifest);
        fs::copy(root().join("Cargo.lock"), manifest.with_file_name("Cargo.lock")).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["tree", "--offline", "--edges", "normal", "--manifest-path"]).arg(manifest);
        let output = cargo.output().unwrap();
        assert!(output.status.success(), "{place}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn run(&mut self, block: &Block) {
        let mut command = Command::new("timeout");
        command.args(["--kill-after", "5", LIMIT, "bash", "-eu", "-o", "pipefail", "-c"]);
        // Both streams in one, as in a terminal.
        command.arg(format!("exec 2>&1\n{}", block.text));
        let output = command
            .current_dir(self.dir.join("work"))
            .env("PATH", &self.path)
            .env("PHALANX", env!("CARGO_BIN_EXE_phalanx"))
            .env("DOCS_RUN", block.run.join("\n"))
            .env("XDG_CACHE_HOME", cache())
            .envs(ANYBODY)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        let (place, text) = (&block.place, &block.text);
        assert_eq!(
            output.status.code(),
            Some(block.fails.unwrap_or(0)),
            "{place}:\n{text}\nprinted\n{printed}"
        );
        let Some(shown) = &block.shown else { return };
        let pairs = compare(shown, &printed)
            .unwrap_or_else(|line| panic!("{place}:\n{text}\nshould print\n{line}\nbut printed\n{printed}"));
        for (shown, printed) in pairs {
            let before = self.hashes.entry(shown.into()).or_insert_with(|| printed.into());
            assert_eq!(before, printed, "{place}: these are one hash, {shown}, on the page");
        }
    }
}

impl Drop for User {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.dir);
    }
}

/// Lets Open MPI start more ranks than there are cores, as any user.
const ANYBODY: [(&str, &str); 3] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
];

/// Times of kernels, measured once for all pages.
fn cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("docs-cache")
}
