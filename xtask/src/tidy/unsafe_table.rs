//! The page that lists every file with `unsafe` code names the files that have some, and tests that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{comment, read};

/// The page, below the root.
const PAGE: &str = "docs/src/unsafe.md";

/// Reports files with `unsafe` code that the page does not list, and rows of it that are no longer true.
pub fn check_unsafe_table(root: &Path, files: &[PathBuf], offences: &mut Vec<String>) {
    let (mut found, mut tests) = (BTreeSet::new(), BTreeSet::new());
    for file in files {
        let (name, text) = (file.strip_prefix(root).unwrap_or(file).display().to_string(), read(file));
        tests.extend(test_names(&text).map(String::from));
        if is_source(&name) && text.lines().any(has_unsafe) {
            found.insert(name);
        }
    }
    for file in ["test_errors.py", "test_training.py"] {
        let text = read(&root.join("crates/py/tests").join(file));
        tests.extend(python_test_names(&text).map(String::from));
    }
    let listed = rows(&read(&root.join(PAGE)));
    let missing = found.iter().filter(|name| !listed.contains_key(*name));
    offences.extend(
        missing.map(|name| format!("{name} has unsafe code: add it to {PAGE}, with invariant and test")),
    );
    for (name, test) in &listed {
        if !found.contains(name) {
            offences.push(format!("{PAGE} lists {name}, which has no unsafe code: remove the row"));
        }
        if !tests.contains(test) {
            offences.push(format!("{PAGE} names the test `{test}` for {name}: there is none"));
        }
    }
}

/// Whether a file is part of a crate, and no test of it.
fn is_source(name: &str) -> bool {
    name.starts_with("crates/")
        && name.contains("/src/")
        && !["tests.rs", "models.rs"].iter().any(|end| name.ends_with(end))
}

/// Whether a line begins `unsafe` code; words in comments, strings and attributes do not.
fn has_unsafe(line: &str) -> bool {
    let code = line.strip_suffix(comment(line)).unwrap_or(line);
    let unquoted: String = code.split('"').step_by(2).collect();
    let mut words = unquoted.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    words.any(|word| word == "unsafe")
}

/// The files of the page's tables, each with its test: the first and the last cell of a row.
fn rows(page: &str) -> BTreeMap<String, String> {
    let cell = |text: &str| Some(text.trim().strip_prefix('`')?.strip_suffix('`')?.to_string());
    let row = |line: &str| {
        let cells: Vec<&str> = line.strip_prefix('|')?.strip_suffix('|')?.split('|').collect();
        Some((cell(cells.first()?)?, cell(cells.last()?)?))
    };
    page.lines().filter_map(row).collect()
}

/// The names of the functions behind `#[test]`.
fn test_names(text: &str) -> impl Iterator<Item = &str> {
    let behind = text.split("#[test]").skip(1);
    behind.filter_map(|rest| rest.split_once("fn ")?.1.split(['(', '<']).next())
}

/// The names of the functions that pytest runs.
fn python_test_names(text: &str) -> impl Iterator<Item = &str> {
    let names = text.lines().filter_map(|line| line.strip_prefix("def ")?.split('(').next());
    names.filter(|name| name.starts_with("test_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_code_is_told_from_the_word() {
        for line in
            ["unsafe { a }", "let a = unsafe { b };", "unsafe impl Send for A {}", "pub unsafe fn a() {"]
        {
            assert!(has_unsafe(line), "{line}");
        }
        for line in ["// unsafe { a }", "#![forbid(unsafe_code)]", "let a = \"unsafe\";", "a(); // unsafe"] {
            assert!(!has_unsafe(line), "{line}");
        }
    }

    #[test]
    fn rows_have_a_file_and_a_test() {
        let page =
            "# Page\n| file | invariant | test |\n| --- | --- | --- |\n| `a.rs` | it `holds` | `b` |\n";
        assert_eq!(rows(page), BTreeMap::from([("a.rs".into(), "b".into())]));
        assert_eq!(
            test_names("#[test]\nfn a() {}\n#[test]\n#[b]\nfn c() {}").collect::<Vec<_>>(),
            ["a", "c"]
        );
        let python = "import a\n\ndef test_b(c):\n    pass\n\ndef d():\n    pass\n";
        assert_eq!(python_test_names(python).collect::<Vec<_>>(), ["test_b"]);
    }
}
