//! File tests: what a level or pass makes of a text, written next to the text.
//!
//! A file holds cases. A case starts with its commands, then comes a graph of any level, then what is expected:
//!
//! ```text
//! ;! pass fold-transpose            ; a command, and a comment
//! graph @twice { … }                ;~ error: a broken invariant expected on this line
//! ;> graph @twice { … }             the expected text
//! ```
//!
//! | command | what it checks |
//! | --- | --- |
//! | `print` | the graph parses, verifies, and prints as the expected text, which parses to the same graph |
//! | `verify` | parsing and verifying give exactly the errors written on their lines |
//! | `pass NAME` | the pass called so turns the graph into the expected text |
//! | `equal` | the graph and the expected text, both models, return the same on random inputs |
//!
//! With `PHALANX_BLESS=1` in the environment the expected texts are rewritten instead of compared.

mod case;
mod level;

use std::fmt;
use std::path::{Path, PathBuf};

use case::Case;
pub use level::Level;
use level::Reader;

/// A pass on texts: parses, transforms and prints; an error is given as text.
pub type PassFn = fn(&str) -> Result<String, String>;

/// Why a case of a file test failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaseFailure {
    /// A file or folder cannot be read or written.
    #[error("{0}")]
    File(String),
    /// There is nothing to test.
    #[error("no case: a case starts with a line `;! command`")]
    Empty,
    /// A command is not known.
    #[error("`{0}` is no command; there are print, verify, pass NAME, equal")]
    Command(String),
    /// A pass is not in the table.
    #[error("there is no pass `{0}`")]
    UnknownPass(String),
    /// A pass failed.
    #[error("the pass failed: {0}")]
    Pass(String),
    /// The text differs from what is expected.
    #[error("expected\n{expected}\nbut found\n{found}")]
    Text {
        /// The text after `;>`.
        expected: String,
        /// The text that came out.
        found: String,
    },
    /// An expected error did not occur.
    #[error("expected the error: {0}")]
    MissingError(String),
    /// An error occurred that is not expected.
    #[error("unexpected error: {0}")]
    UnexpectedError(String),
    /// What was printed parses to something else.
    #[error("the printed text parses to another graph:\n{0}")]
    RoundTrip(String),
    /// Two models return different tensors.
    #[error("the models return different tensors as output {0}")]
    Unequal(usize),
}

/// A failure and where it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFailure {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// What happened.
    pub failure: CaseFailure,
}

impl fmt::Display for FileFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.failure)
    }
}

/// Runs all `*.ir` files of a folder, in the order of their names, and gives the number of cases.
pub fn run(folder: &Path, passes: &[(&str, PassFn)]) -> Result<usize, Vec<FileFailure>> {
    run_with(folder, passes, Reader::by_keyword)
}

fn run_with(
    folder: &Path,
    passes: &[(&str, PassFn)],
    reader: fn(&str) -> Reader,
) -> Result<usize, Vec<FileFailure>> {
    let bless = std::env::var_os("PHALANX_BLESS").is_some_and(|value| value == "1");
    let mut run = Run { passes, reader, bless, n_cases: 0, failures: Vec::new() };
    match files(folder) {
        Ok(files) => files.iter().for_each(|path| run.file(path)),
        Err(error) => run.fail(folder, 1, CaseFailure::File(error.to_string())),
    }
    if run.n_cases == 0 {
        run.fail(folder, 1, CaseFailure::Empty);
    }
    if run.failures.is_empty() { Ok(run.n_cases) } else { Err(run.failures) }
}

/// Runs all `*.ir` files of a folder and reports every failure in one panic.
///
/// # Panics
/// If a case fails or there is none.
pub fn check(folder: &Path, passes: &[(&str, PassFn)]) {
    report(run(folder, passes));
}

/// As [`check`], on texts of a level that is not one of `ir`.
///
/// # Panics
/// If a case fails or there is none.
pub fn check_level<L: Level>(folder: &Path, passes: &[(&str, PassFn)]) {
    report(run_with(folder, passes, |_| Reader::of::<L>()));
}

fn report(outcome: Result<usize, Vec<FileFailure>>) {
    if let Err(failures) = outcome {
        let list: Vec<_> = failures.iter().map(FileFailure::to_string).collect();
        panic!("{} file tests failed\n{}", failures.len(), list.join("\n"));
    }
}

fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "ir") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// What is known while files are run.
struct Run<'a> {
    passes: &'a [(&'a str, PassFn)],
    /// How a text is read.
    reader: fn(&str) -> Reader,
    bless: bool,
    n_cases: usize,
    failures: Vec<FileFailure>,
}

impl Run<'_> {
    fn fail(&mut self, path: &Path, line: usize, failure: CaseFailure) {
        self.failures.push(FileFailure { path: path.to_path_buf(), line, failure });
    }

    /// Runs or blesses one file.
    fn file(&mut self, path: &Path) {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => return self.fail(path, 1, CaseFailure::File(error.to_string())),
        };
        let mut cases = case::split(&text);
        if cases.is_empty() {
            self.fail(path, 1, CaseFailure::Empty);
        }
        self.n_cases += cases.len();
        for case in &mut cases {
            for (line, failure) in case.run(self.passes, (self.reader)(&case.text), self.bless) {
                self.fail(path, line, failure);
            }
        }
        let blessed = case::join(&text, &cases);
        if self.bless
            && blessed != text
            && let Err(error) = std::fs::write(path, blessed)
        {
            self.fail(path, 1, CaseFailure::File(error.to_string()));
        }
    }
}

impl Case {
    /// Runs every command; with `bless`, the expected text becomes what comes out.
    fn run(&mut self, passes: &[(&str, PassFn)], reader: Reader, bless: bool) -> Vec<(usize, CaseFailure)> {
        let mut failures = Vec::new();
        for (line, command) in self.commands.clone() {
            let words: Vec<_> = command.split_whitespace().collect();
            let found = match words[..] {
                ["verify"] => {
                    failures.extend(self.verify(reader));
                    continue;
                }
                ["equal"] => {
                    failures.extend(level::equal(&self.text, &self.expected).err().map(|f| (line, f)));
                    continue;
                }
                ["print"] => (reader.print)(&self.text),
                ["pass", name] => run_pass(name, &self.text, passes).map_err(|failure| (line, failure)),
                _ => Err((line, CaseFailure::Command(command))),
            };
            match found {
                Ok(found) if bless => self.expected = found,
                Ok(found) if found == self.expected => {}
                Ok(found) => {
                    failures.push((line, CaseFailure::Text { expected: self.expected.clone(), found }));
                }
                Err(failure) => failures.push(failure),
            }
        }
        failures
    }

    /// Compares expected and found errors, line by line.
    fn verify(&self, reader: Reader) -> Vec<(usize, CaseFailure)> {
        let found = (reader.errors)(&self.text);
        let missing = self.errors.iter().filter(|error| !found.contains(error));
        let unexpected = found.iter().filter(|error| !self.errors.contains(error));
        let missing = missing.map(|(line, text)| (*line, CaseFailure::MissingError(text.clone())));
        missing
            .chain(unexpected.map(|(line, text)| (*line, CaseFailure::UnexpectedError(text.clone()))))
            .collect()
    }
}

fn run_pass(name: &str, text: &str, passes: &[(&str, PassFn)]) -> Result<String, CaseFailure> {
    let Some((_, pass)) = passes.iter().find(|(known, _)| *known == name) else {
        return Err(CaseFailure::UnknownPass(name.to_string()));
    };
    pass(text).map_err(CaseFailure::Pass)
}

#[cfg(test)]
mod tests;
