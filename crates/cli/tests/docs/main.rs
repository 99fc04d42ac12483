//! Runs every command and every program of README and book as a new user would: in an empty directory, from the top of a
//! page to its end, and compares what is printed with what the page shows.
//!
//! Comments of a page, which a reader does not see, say what a block is (`page.rs`):
//!
//! * `<!-- run: train --steps 3 -->`: the `train` commands of the next block get these flags, in place of their own.
//! * `<!-- fails: 2 -->`: the next block must end with this exit code.
//! * `<!-- file: my.toml -->`: the next block is the content of a file.
//! * `<!-- given: book.txt -->`: the reader has these files, of which `user.rs` knows the content.
//! * `<!-- not run: REASON -->`: the next block cannot be run here. There may be few of these.
//!
//! A `text` block behind commands is their output: each of its lines must be printed, in this order, where all numbers count
//! as equal and `...` stands for any lines. Hashes that are equal on the page must be equal when printed. A `rust` block is a doc test of the library, or a file that a command builds.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod output;
mod page;
mod user;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use page::{Block, Page};
use user::User;

/// The most blocks that may be left out.
const MOST_NOT_RUN: usize = 6;

/// The shortest reason that says something.
const LEAST_REASON: usize = 20;

macro_rules! pages {
    ($($test:ident: $path:literal,)*) => {
        const PAGES: &[&str] = &[$($path),*];
        $(#[test]
        fn $test() {
            follow($path);
        })*
    };
}

pages! {
    readme: "README.md",
    start: "docs/src/start.md",
    data: "docs/src/data.md",
    fine_tune: "docs/src/fine-tune.md",
    plans: "docs/src/plans.md",
    processes: "docs/src/processes.md",
    precision: "docs/src/precision.md",
    memory_and_overlap: "docs/src/memory-and-overlap.md",
    clusters: "docs/src/clusters.md",
    checkpoints: "docs/src/checkpoints.md",
    own_model: "docs/src/own-model.md",
    traces: "docs/src/traces.md",
    troubleshooting: "docs/src/troubleshooting.md",
    trust: "docs/src/trust.md",
    unsafe_code: "docs/src/unsafe.md",
    inside: "docs/src/inside.md",
    introduction: "docs/src/introduction.md",
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> Page {
    Page::parse(path, &fs::read_to_string(root().join(path)).unwrap())
}

/// Does what a page says.
fn follow(path: &str) {
    let mut user = User::new(path);
    for block in &read(path).blocks {
        user.follow(block);
    }
}

#[test]
fn the_table_of_contents_has_every_page() {
    let summary = fs::read_to_string(root().join("docs/src/SUMMARY.md")).unwrap();
    let links = summary.split("](").skip(1).map(|link| link.split(')').next().unwrap());
    let links: BTreeSet<String> =
        links.map(|link| format!("docs/src/{}", link.trim_start_matches("./"))).collect();
    let files = fs::read_dir(root().join("docs/src")).unwrap().map(|file| file.unwrap().file_name());
    let files = files.map(|name| format!("docs/src/{}", name.to_str().unwrap()));
    let files: BTreeSet<String> =
        files.filter(|path| path.ends_with(".md") && !path.ends_with("SUMMARY.md")).collect();
    assert_eq!(links, files, "SUMMARY.md and the files beside it");
    let tested: BTreeSet<String> =
        PAGES.iter().filter(|path| **path != "README.md").map(|path| path.to_string()).collect();
    assert_eq!(tested, files, "the pages of this test and the files of the book");
}

#[test]
fn few_blocks_are_left_out_and_each_says_why() {
    let pages: Vec<Page> = PAGES.iter().map(|path| read(path)).collect();
    let left_out: Vec<(&Block, &str)> = pages
        .iter()
        .flat_map(|page| &page.blocks)
        .filter_map(|block| block.not_run.as_deref().map(|reason| (block, reason)))
        .collect();
    for (block, reason) in &left_out {
        assert!(reason.len() >= LEAST_REASON, "{}: `{reason}` is no reason", block.place);
    }
    assert!(
        left_out.len() <= MOST_NOT_RUN,
        "{} blocks are not run, at most {MOST_NOT_RUN} may be",
        left_out.len()
    );
}

#[test]
fn rust_blocks_are_doc_tests_of_the_library() {
    let library = fs::read_to_string(root().join("crates/phalanx/src/documents.rs")).unwrap();
    for path in PAGES {
        let is_program =
            |block: &Block| block.language == "rust" && block.file.is_none() && block.not_run.is_none();
        if let Some(block) = read(path).blocks.iter().find(|block| is_program(block)) {
            let include = format!("include_str!(\"../../../{path}\")");
            assert!(
                library.contains(&include),
                "{}: crates/phalanx/src/documents.rs lacks {include}",
                block.place
            );
        }
    }
}

#[test]
fn examples_are_doc_tests_of_the_library() {
    let library = ["documents.rs", "lib.rs"].map(|file| root().join("crates/phalanx/src").join(file));
    let library = library.map(|path| fs::read_to_string(path).unwrap()).concat();
    for example in fs::read_dir(root().join("examples")).unwrap() {
        let name = example.unwrap().file_name();
        let include = format!("include_str!(\"../../../examples/{}\")", name.to_str().unwrap());
        assert!(library.contains(&include), "crates/phalanx/src/documents.rs lacks {include}");
    }
}

#[test]
fn long_programs_of_the_book_are_examples() {
    let page = fs::read_to_string(root().join("docs/src/own-model.md")).unwrap();
    for example in ["own_model", "infer"] {
        let text = fs::read_to_string(root().join(format!("examples/{example}.rs"))).unwrap();
        assert!(page.contains(&text), "docs/src/own-model.md has another program than examples/{example}.rs");
    }
}

/// Documents beside the pages, of which nothing is run.
const OTHERS: &[&str] =
    &["ARCHITECTURE.md", "CONTRIBUTING.md", "BENCHMARKS.md", "CHANGELOG.md", "docs/src/SUMMARY.md"];

#[test]
fn links_between_documents_lead_somewhere() {
    for path in PAGES.iter().chain(OTHERS) {
        let text = fs::read_to_string(root().join(path)).unwrap();
        let dir = root().join(path).parent().unwrap().to_path_buf();
        for link in text.split("](").skip(1).map(|link| link.split([')', '#']).next().unwrap()) {
            let is_local = !link.is_empty() && !link.contains("://");
            assert!(!is_local || dir.join(link).exists(), "{path}: the link to {link} leads nowhere");
        }
    }
}

/// All commands; their help lists all flags.
const COMMANDS: &str = "train; step; explain; opt; plan show; plan overlap; plan write; bench train; bench tasks; bench copies; \
    bench launches; bench gemm; bench conv; bench compile; bench overlap; bench checkpoints; bench pingpong; bench allreduce; \
    bench alltoall; costs measure; costs show; costs merge; profile; doctor; generate; schedule; launch; verify; ckpt list; \
    ckpt show; ckpt verify; ckpt export; ckpt import; diff; watch; data tokenize; data show; completions; man";

/// Programs whose flags are not ours.
const OTHER_PROGRAMS: &[&str] = &["cargo", "mpirun", "srun", "salloc", "tensorboard", "nice", "chrt"];

#[test]
fn flags_named_in_sentences_exist() {
    let help = |command: &str| common::stdout(&command.split(' ').chain(["--help"]).collect::<Vec<_>>());
    let help: String = COMMANDS.split("; ").map(help).collect();
    let flags = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        words.filter(|word| word.starts_with("--") && word.len() > 2).map(str::to_string).collect()
    };
    let known = flags(&help);
    for path in PAGES.iter().chain(OTHERS) {
        let text = fs::read_to_string(root().join(path)).unwrap();
        // Every second part of a line is between backticks.
        let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
        let ours = quoted.filter(|code| !OTHER_PROGRAMS.iter().any(|other| code.starts_with(other)));
        let is_unknown = |flag: &String| !known.contains(flag) && flag != "--version";
        let unknown: Vec<String> = ours.flat_map(flags).filter(is_unknown).collect();
        assert!(unknown.is_empty(), "{path} names flags that do not exist: {unknown:?}");
    }
}

#[test]
fn documents_stay_short() {
    let text = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let readme = text("README.md");
    let (screen, rest) = readme.split_once("\n## ").unwrap();
    let counts = [screen.lines().count(), rest.lines().count()];
    assert!(
        counts[0] <= 40 && counts[1] <= 120,
        "README.md: {counts:?} lines before and after its first heading"
    );
    let rows = rest.lines().filter(|line| line.starts_with("| ")).count() - 2;
    assert!(rows <= 8, "README.md: its table has {rows} rows");
    for (number, line) in text("ARCHITECTURE.md").lines().enumerate() {
        assert!(line.chars().count() <= 120, "ARCHITECTURE.md:{}: more than 120 columns", number + 1);
    }
    for example in fs::read_dir(root().join("examples")).unwrap() {
        let path = example.unwrap().path();
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        // An operator with its kernels, and a model that trains with it.
        let most = if path.ends_with("custom_operator.rs") { 100 } else { 60 };
        assert!(lines <= most, "{}: {lines} lines", path.display());
    }
}
