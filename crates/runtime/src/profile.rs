//! Profiles: what a task, a copy, an instance or a graph's run did when, reported once for each request.
//!
//! What is not profiled pays one branch where a time would be taken. Times come from the clock in the runtime's
//! configuration; the runtime itself reads none. A report is delivered before the finish event triggers, on the thread
//! that brings the matter to its end. What never comes to its end is reported when it is forgotten: one report for each
//! request, never two.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::fault::{Fault, Outcome};
use crate::flow::OpId;
use crate::processor::without_promise;
use crate::sync::{Mutex, lock};

/// Tells the time in nanoseconds, from wherever it likes to start.
pub type Clock = fn() -> u64;

/// A request for reports: exactly one [`Report`] for each task, copy, instance and run that carries it.
#[derive(Clone)]
pub struct Profile {
    sink: Arc<dyn Fn(Report) + Send + Sync>,
    spans: Option<Arc<SpanSink>>,
    only_abnormal: bool,
}

type SpanSink = dyn Fn(Span<'_>) + Send + Sync;

impl Profile {
    /// Reports go to `sink`, which is called on threads of the runtime and on threads that trigger or cancel.
    pub fn new(sink: impl Fn(Report) + Send + Sync + 'static) -> Profile {
        Profile { sink: Arc::new(sink), spans: None, only_abnormal: false }
    }

    /// The same, but silent about what completes.
    pub fn only_abnormal(self) -> Profile {
        Profile { only_abnormal: true, ..self }
    }

    /// The same, and of a graph's run each operation that is called is reported to `sink` too, as soon as its body has
    /// returned. All processors call it at the same time.
    pub fn with_spans(self, sink: impl Fn(Span<'_>) + Send + Sync + 'static) -> Profile {
        Profile { spans: Some(Arc::new(sink)), ..self }
    }
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile").field("only_abnormal", &self.only_abnormal).finish_non_exhaustive()
    }
}

/// What one task, copy, instance or run did when. A time is missing if it did not get so far or has no such time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its name: a task's own, a copy as its plan is displayed, an instance's id, or the number of a run and its graph.
    pub name: Box<str>,
    /// When it was asked for.
    pub created: u64,
    /// When what it comes after had happened; for an instance, when it had its bytes.
    pub ready: Option<u64>,
    /// When its body was called, the first byte was about to be copied, or a run began.
    pub started: Option<u64>,
    /// When its body had returned, or the last byte was copied.
    pub ended: Option<u64>,
    /// When it and all that it attached was over; for an instance, when it gave its bytes back or was refused them.
    pub completed: u64,
    /// When its body waited.
    pub waits: Vec<Range<u64>>,
    /// The number of the processor that ran it.
    pub processor: Option<u32>,
    /// How many bytes a copy copies or an instance has.
    pub bytes: Option<usize>,
    /// What became of it.
    pub outcome: Outcome,
}

/// When the body of one operation ran in one run of a graph. Work that it left on a device may take longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span<'a> {
    /// The graph's name.
    pub graph: &'a str,
    /// The operation's name.
    pub name: &'a str,
    /// The operation.
    pub op: OpId,
    /// The number of the run.
    pub run: u64,
    /// The number of the processor that ran it.
    pub processor: u32,
    /// When its body was called.
    pub started: u64,
    /// When its body had returned.
    pub ended: u64,
}

/// Something that is profiled.
pub struct Measured {
    profile: Profile,
    clock: Clock,
    /// Nothing once it is delivered.
    report: Mutex<Option<Report>>,
}

impl Measured {
    /// An operation, which counts as failed until it completes.
    pub fn new(profile: &Profile, clock: Clock, name: &str) -> Measured {
        let why =
            "forgotten, since what it comes after has not happened; trigger that before the runtime ends";
        Measured::with(profile, clock, name, Err(Fault::refused(name, why)))
    }

    /// An instance. One that is never released goes with its memories, which is no failure.
    pub fn instance(profile: &Profile, clock: Clock, name: &str) -> Measured {
        Measured::with(profile, clock, name, Ok(()))
    }

    /// The same, of `bytes` bytes.
    pub fn of_bytes(self, bytes: usize) -> Measured {
        lock(&self.report).iter_mut().for_each(|report| report.bytes = Some(bytes));
        self
    }

    fn with(profile: &Profile, clock: Clock, name: &str, outcome: Outcome) -> Measured {
        let report = Report {
            name: name.into(),
            created: clock(),
            ready: None,
            started: None,
            ended: None,
            completed: 0,
            waits: Vec::new(),
            processor: None,
            bytes: None,
            outcome,
        };
        Measured { profile: profile.clone(), clock, report: Mutex::new(Some(report)) }
    }

    pub(crate) fn now(&self) -> u64 {
        (self.clock)()
    }

    /// What it comes after has happened.
    pub fn ready(&self) {
        self.note(|report, now| report.ready = Some(now));
    }

    /// It starts, on a processor if it needs one.
    pub fn started(&self, processor: impl Into<Option<u32>>) {
        self.note(|report, now| (report.started, report.processor) = (Some(now), processor.into()));
    }

    /// A wait that `began` at a time is over.
    pub(crate) fn waited(&self, began: u64) {
        self.note(|report, now| report.waits.push(began..now));
    }

    /// Its work is done.
    pub fn ended(&self) {
        self.note(|report, now| report.ended = Some(now));
    }

    /// It is over: delivers the report.
    pub fn completed(&self, outcome: &Outcome) {
        self.over(outcome);
        self.deliver();
    }

    /// It is over; the caller holds a lock and delivers the report later.
    pub fn over(&self, outcome: &Outcome) {
        self.note(|report, now| (report.completed, report.outcome) = (now, outcome.clone()));
    }

    /// Delivers the report, if that is still to be done.
    pub fn deliver(&self) {
        let Some(report) = lock(&self.report).take() else { return };
        if report.outcome.is_err() || !self.profile.only_abnormal {
            without_promise(|| (self.profile.sink)(report));
        }
    }

    /// Whether spans are asked for.
    pub(crate) fn has_spans(&self) -> bool {
        self.profile.spans.is_some()
    }

    /// Calls `body` and reports when it ran; the rest of `span` is known.
    pub(crate) fn around<R>(&self, span: Span<'_>, body: impl FnOnce() -> R) -> R {
        let started = self.now();
        let result = body();
        let ended = self.now();
        if let Some(sink) = &self.profile.spans {
            without_promise(|| sink(Span { started, ended, ..span }));
        }
        result
    }

    /// Notes something if the report is still here.
    fn note(&self, note: impl FnOnce(&mut Report, u64)) {
        if let Some(report) = &mut *lock(&self.report) {
            note(report, self.now());
        }
    }
}

impl Drop for Measured {
    /// Reports what has not come to its end.
    fn drop(&mut self) {
        self.note(|report, now| report.completed = now);
        self.deliver();
    }
}
