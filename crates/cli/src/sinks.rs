//! Where a training run reports: standard output and its logs. One that cannot be written any more is given up, and not the
//! run: training goes on without it, the user learns of it at once, and the exit code tells in the end. A strict run stops
//! instead, as if it was asked to.

use serde::Serialize;

use crate::failure::Failure;
use crate::log::Log;
use crate::{output, stop};

/// What standard output is made for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// People: a progress bar and a summary.
    People,
    /// Programs: lines of JSON.
    Program,
    /// Nothing is printed: this is not the first rank, or the output is closed.
    None,
}

/// The places to which a run reports.
pub struct Sinks {
    audience: Audience,
    /// Nothing is written to it once it has failed.
    log: Option<Log>,
    is_strict: bool,
    problems: Vec<String>,
}

impl Sinks {
    /// Reports to `audience` and `log`.
    pub fn new(audience: Audience, log: Log, is_strict: bool) -> Sinks {
        Sinks { audience, log: Some(log), is_strict, problems: Vec::new() }
    }

    /// What standard output is made for, now.
    pub fn audience(&self) -> Audience {
        self.audience
    }

    /// The log, unless it has failed.
    pub fn log(&self) -> Option<&Log> {
        self.log.as_ref()
    }

    /// Prints lines for people, if they read along.
    pub fn people(&mut self, lines: impl IntoIterator<Item = String>) {
        if self.audience == Audience::People {
            let printed = lines.into_iter().try_for_each(output::line);
            self.printed(printed);
        }
    }

    /// Prints a line of JSON, if a program reads along.
    pub fn program(&mut self, value: &impl Serialize) {
        if self.audience == Audience::Program {
            self.printed(output::json(value));
        }
    }

    /// Writes to the log.
    pub fn write_log(&mut self, write: impl FnOnce(&mut Log) -> Result<(), Failure>) {
        let Some(Err(failure)) = self.log.as_mut().map(write) else { return };
        self.log = None;
        self.give_up(failure.parts().map_or_else(String::new, |(message, _)| message));
    }

    fn printed(&mut self, result: Result<(), Failure>) {
        let Err(failure) = result else { return };
        self.audience = Audience::None;
        let closed = || "standard output was closed by its reader".to_string();
        self.give_up(failure.parts().map_or_else(closed, |(message, _)| message));
    }

    fn give_up(&mut self, problem: String) {
        let what = match self.is_strict {
            true => "the run stops, because it is strict",
            false => "training goes on without it",
        };
        eprintln!("warning: {problem}; {what}");
        if self.is_strict {
            stop::ask();
        }
        self.problems.push(problem);
    }

    /// What could not be written, if anything.
    pub fn check(self) -> Result<(), Failure> {
        match self.problems.as_slice() {
            [] => Ok(()),
            problems => {
                Err(Failure::Run(format!("the report of the run is not whole: {}", problems.join("; "))))
            }
        }
    }
}
