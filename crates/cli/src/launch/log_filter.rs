//! Tells a launcher's own remarks from what the ranks print.
//!
//! A job that fails says why in a line beginning with `error: `. Launchers then add pages about processes that ended,
//! which hide that line. They are held back, and shown at the end only if no rank has said why the job failed.
//! Everything else passes at once, line by line; equal errors of many ranks pass once.

use std::io::{BufRead, Write};

/// One stream of a job: standard output or standard error.
pub struct LogFilter<F> {
    /// Called for every error, and when the launcher tells that a process has died.
    on_error: F,
    /// The errors that have passed, each with the indented lines that follow it.
    errors: Vec<String>,
    /// Whether the last line belongs to the last of them.
    is_in_error: bool,
    /// The launcher's remarks.
    held: Vec<String>,
    /// Lines whose meaning depends on the next ones: an open banner of Open MPI, or the empty line before one of MPICH.
    open: Vec<String>,
}

/// What a stream has left at its end.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StreamEnd {
    /// Why ranks say that they failed.
    pub errors: Vec<String>,
    /// The launcher's remarks.
    pub held: Vec<String>,
}

/// How a remark of a launcher begins.
const REMARKS: &[&str] = &[
    "[mpiexec@",
    "[proxy:",
    "Abort(",
    "====================",
    "=   ",
    "YOUR APPLICATION TERMINATED WITH",
    "This typically refers to a problem with your application",
    "Please see the FAQ page for debugging suggestions",
    "srun: error: ",
    "srun: Job step aborted",
    "srun: Terminating",
    "slurmstepd: error: ",
];

/// What stands inside of a remark of a launcher, or of one of its banners.
const PHRASES: &[&str] = &[
    ": Forwarding signal ",
    " sent help message ",
    "orte_base_help_aggregate",
    "MPI_ABORT was invoked",
    "Primary job  terminated normally, but ",
    "one or more processes exited with non-zero status",
    "noticed that process rank ",
    "A process or daemon was unable to complete",
];

/// What launchers say of a process that has died. They end the others then, or should.
const DEATHS: &[&str] =
    &["noticed that process rank ", "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES"];

/// The edge of a banner of Open MPI: this many dashes and nothing else.
const EDGE: usize = 74;

/// Lines after which an edge was not that of a banner.
const LONGEST_BANNER: usize = 40;

impl<F: FnMut()> LogFilter<F> {
    /// A filter that calls `on_error` when a rank says why it fails, or the launcher that one has died.
    pub fn new(on_error: F) -> LogFilter<F> {
        LogFilter { on_error, errors: Vec::new(), is_in_error: false, held: Vec::new(), open: Vec::new() }
    }

    /// Lets a stream through until it ends.
    ///
    /// A closed pipe does not stop the job: output without a reader is dropped.
    pub fn pass(mut self, mut from: impl BufRead, to: &mut impl Write) -> StreamEnd {
        let mut bytes = Vec::new();
        while from.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
            self.line(String::from_utf8_lossy(&bytes).into_owned(), to);
            _ = to.flush();
            bytes.clear();
        }
        for line in std::mem::take(&mut self.open) {
            self.judge(line, to);
        }
        _ = to.flush();
        StreamEnd { errors: self.errors, held: self.held }
    }

    fn line(&mut self, line: String, to: &mut impl Write) {
        if line.starts_with("error: ") {
            // Even inside of a banner, where the output of a rank may land.
            self.is_in_error = !self.errors.iter().any(|error| error.lines().next() == Some(line.trim_end()));
            if self.is_in_error {
                _ = to.write_all(line.as_bytes());
                self.errors.push(line);
                (self.on_error)();
            }
            return;
        }
        if DEATHS.iter().any(|phrase| line.contains(phrase)) {
            (self.on_error)();
        }
        self.is_in_error &= line.starts_with("  ");
        if let Some(error) = self.errors.last_mut().filter(|_| self.is_in_error) {
            error.push_str(&line);
        }
        if self.open.first().is_some_and(|first| is_edge(first)) {
            self.banner_line(line, to);
        } else if is_edge(&line) || line.trim().is_empty() {
            self.release(to);
            self.open.push(line);
        } else {
            match is_remark(&line) {
                true => self.held.append(&mut self.open),
                false => self.release(to),
            }
            self.judge(line, to);
        }
    }

    fn banner_line(&mut self, line: String, to: &mut impl Write) {
        let is_end = is_edge(&line);
        self.open.push(line);
        if is_end && self.open.iter().any(|line| is_remark(line)) {
            self.held.append(&mut self.open);
        } else if is_end || self.open.len() > LONGEST_BANNER {
            self.release(to);
        }
    }

    /// What was open is none of the launcher's remarks.
    fn release(&mut self, to: &mut impl Write) {
        for line in self.open.drain(..) {
            _ = to.write_all(line.as_bytes());
        }
    }

    fn judge(&mut self, line: String, to: &mut impl Write) {
        match is_remark(&line) {
            true => self.held.push(line),
            false => _ = to.write_all(line.as_bytes()),
        }
    }
}

fn is_edge(line: &str) -> bool {
    let line = line.trim_end();
    line.len() == EDGE && line.bytes().all(|byte| byte == b'-')
}

fn is_remark(line: &str) -> bool {
    REMARKS.iter().any(|start| line.starts_with(start)) || PHRASES.iter().any(|phrase| line.contains(phrase))
}

#[cfg(test)]
mod tests;
