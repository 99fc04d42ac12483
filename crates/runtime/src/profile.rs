//! Profiles: what one task did when, told once, to whoever asked.
//!
//! A task that nobody asks about pays one branch where a time would be taken. Times come from the clock in the runtime's
//! configuration; the runtime itself reads none. A report is delivered before the task's finish event triggers, on the
//! thread that brings the task to its end.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::fault::Outcome;
use crate::sync::{Mutex, lock};

/// Tells the time in nanoseconds, from wherever it likes to start.
pub type Clock = fn() -> u64;

/// A request to be told how a task went: exactly one [`Report`] for each task that carries it.
#[derive(Clone)]
pub struct Profile {
    sink: Arc<dyn Fn(Report) + Send + Sync>,
    only_abnormal: bool,
}

impl Profile {
    /// Reports go to `sink`, which is called on threads of the runtime and of whoever cancels tasks.
    pub fn new(sink: impl Fn(Report) + Send + Sync + 'static) -> Profile {
        Profile { sink: Arc::new(sink), only_abnormal: false }
    }

    /// The same, but silent about tasks that complete.
    pub fn only_abnormal(self) -> Profile {
        Profile { only_abnormal: true, ..self }
    }
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile").field("only_abnormal", &self.only_abnormal).finish_non_exhaustive()
    }
}

/// What one task did when. A time is missing if the task did not get so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its name.
    pub name: Box<str>,
    /// When it was spawned.
    pub created: u64,
    /// When what it comes after had happened.
    pub ready: Option<u64>,
    /// When its body was called.
    pub started: Option<u64>,
    /// When its body had returned.
    pub ended: Option<u64>,
    /// When it and all that it attached was over.
    pub completed: u64,
    /// When its body waited.
    pub waits: Vec<Range<u64>>,
    /// The number of the processor that ran it.
    pub processor: Option<u32>,
    /// What became of it.
    pub outcome: Outcome,
}

/// A task that somebody asked about.
pub(crate) struct Measured {
    profile: Profile,
    clock: Clock,
    /// Nothing once it is delivered.
    report: Mutex<Option<Report>>,
}

impl Measured {
    pub(crate) fn new(profile: &Profile, clock: Clock, name: &str) -> Measured {
        let report = Report {
            name: name.into(),
            created: clock(),
            ready: None,
            started: None,
            ended: None,
            completed: 0,
            waits: Vec::new(),
            processor: None,
            outcome: Ok(()),
        };
        Measured { profile: profile.clone(), clock, report: Mutex::new(Some(report)) }
    }

    pub(crate) fn now(&self) -> u64 {
        (self.clock)()
    }

    pub(crate) fn ready(&self) {
        self.note(|report, now| report.ready = Some(now));
    }

    pub(crate) fn started(&self, processor: u32) {
        self.note(|report, now| (report.started, report.processor) = (Some(now), Some(processor)));
    }

    /// A wait that `began` at a time is over.
    pub(crate) fn waited(&self, began: u64) {
        self.note(|report, now| report.waits.push(began..now));
    }

    pub(crate) fn ended(&self) {
        self.note(|report, now| report.ended = Some(now));
    }

    /// The task is over: delivers the report.
    pub(crate) fn completed(&self, outcome: &Outcome) {
        self.note(|report, now| report.completed = now);
        let Some(report) = lock(&self.report).take() else { return };
        if outcome.is_err() || !self.profile.only_abnormal {
            let report = Report { outcome: outcome.clone(), ..report };
            // A sink that panics must not keep the finish event from triggering; the panic hook has told of it.
            let _ = catch_unwind(AssertUnwindSafe(|| (self.profile.sink)(report)));
        }
    }

    fn note(&self, note: impl FnOnce(&mut Report, u64)) {
        let now = self.now();
        if let Some(report) = &mut *lock(&self.report) {
            note(report, now);
        }
    }
}
