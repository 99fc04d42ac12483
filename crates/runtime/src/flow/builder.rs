//! Collecting a flow before it is frozen.
//!
//! What a builder holds names only operations and inputs that are there: a call with an id of another builder is kept
//! as an error and has no other effect. Everything else is checked by [`Builder::finish`].

mod nest;

pub use nest::Nested;

use std::collections::HashMap;
use std::ops::Range;

use phalanx_program::Id;

use super::{Flow, FlowError, InputId, Mode, OpId, Patch, PostId, TaskKind, compile};

/// A task about to be added.
#[derive(Clone, Copy, Debug, Default)]
pub struct Task<'a> {
    /// Where it runs.
    pub processor: u32,
    /// Position of its body in the table of functions.
    pub function: u32,
    /// What the body promises.
    pub kind: TaskKind,
    /// What people call it.
    pub name: &'a str,
    /// Its arguments.
    pub args: &'a [u8],
}

/// An operation about to be added that the thread which releases it executes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Direct<'a> {
    /// Position of its body in the table of functions.
    pub function: u32,
    /// What people call it.
    pub name: &'a str,
    /// Its arguments.
    pub args: &'a [u8],
}

/// An operation as it was added.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    /// Where it runs; nowhere in particular if it is direct.
    pub processor: Option<u32>,
    pub function: u32,
    pub kind: TaskKind,
    pub label: u32,
    /// Its part of the builder's arguments: first byte and the one after the last.
    pub args: (usize, usize),
}

/// An interpolation as it was added.
#[derive(Clone, Debug)]
pub(super) struct Insert {
    pub op: OpId,
    pub at: u32,
    /// Wider than a run's arguments, because nesting shifts it before anything is checked.
    pub from: Range<u64>,
    pub patch: Patch,
}

/// Collects a flow.
///
/// ```
/// use phalanx_runtime::flow::{Builder, Task, TaskKind};
///
/// let mut builder = Builder::new("pair", 1);
/// let first = builder.task(Task { kind: TaskKind::NonBlocking, name: "first", ..Task::default() });
/// let second = builder.task(Task { kind: TaskKind::NonBlocking, name: "second", ..Task::default() });
/// builder.edge(first, second);
/// let flow = builder.finish().unwrap();
/// assert_eq!(flow.segments().len(), 1);
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    pub(super) name: String,
    pub(super) processors: u32,
    pub(super) mode: Mode,
    pub(super) run_args: u32,
    pub(super) fuse: bool,
    pub(super) reduce: bool,
    pub(super) ops: Vec<Op>,
    pub(super) args: Vec<u8>,
    pub(super) labels: Vec<String>,
    known_labels: HashMap<String, u32>,
    pub(super) edges: Vec<(OpId, OpId)>,
    pub(super) carried: Vec<(OpId, OpId)>,
    pub(super) inputs: Vec<String>,
    pub(super) gates: Vec<(InputId, OpId)>,
    pub(super) posts: Vec<String>,
    pub(super) posters: Vec<(OpId, PostId)>,
    pub(super) inserts: Vec<Insert>,
    pub(super) errors: Vec<FlowError>,
}

impl Builder {
    /// Starts a flow for `processors` processors.
    pub fn new(name: &str, processors: u32) -> Self {
        Builder {
            name: name.to_string(),
            processors,
            mode: Mode::default(),
            run_args: 0,
            fuse: true,
            reduce: true,
            ops: Vec::new(),
            args: Vec::new(),
            labels: Vec::new(),
            known_labels: HashMap::new(),
            edges: Vec::new(),
            carried: Vec::new(),
            inputs: Vec::new(),
            gates: Vec::new(),
            posts: Vec::new(),
            posters: Vec::new(),
            inserts: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Sets how runs relate.
    pub fn mode(&mut self, mode: Mode) -> &mut Self {
        self.mode = mode;
        self
    }

    /// Sets how many bytes of arguments a run has.
    pub fn run_args(&mut self, bytes: u32) -> &mut Self {
        self.run_args = bytes;
        self
    }

    /// Sets whether chains become one segment; else every operation is its own. The default is yes.
    pub fn fuse(&mut self, on: bool) -> &mut Self {
        self.fuse = on;
        self
    }

    /// Sets whether edges that others imply are dropped. The default is yes.
    pub fn reduce(&mut self, on: bool) -> &mut Self {
        self.reduce = on;
        self
    }

    /// Adds a task.
    pub fn task(&mut self, task: Task<'_>) -> OpId {
        let Task { processor, function, kind, name, args } = task;
        self.push(Some(processor), Direct { function, name, args }, kind)
    }

    /// Adds a non-blocking operation that the thread which releases it executes.
    pub fn direct(&mut self, direct: Direct<'_>) -> OpId {
        self.push(None, direct, TaskKind::NonBlocking)
    }

    /// Adds an operation that the thread which releases it starts, and that is complete when it is reported so: see
    /// [`TaskKind::Remote`].
    pub fn remote(&mut self, direct: Direct<'_>) -> OpId {
        self.push(None, direct, TaskKind::Remote)
    }

    fn push(&mut self, processor: Option<u32>, body: Direct<'_>, kind: TaskKind) -> OpId {
        let id = id_at(self.ops.len());
        let label = self.label(body.name);
        let first = self.args.len();
        self.args.extend_from_slice(body.args);
        let args = (first, self.args.len());
        self.ops.push(Op { processor, function: body.function, kind, label, args });
        id
    }

    fn label(&mut self, name: &str) -> u32 {
        if let Some(&label) = self.known_labels.get(name) {
            return label;
        }
        // There are no more labels than operations, and `finish` refuses too many of those.
        let label = self.labels.len() as u32;
        self.labels.push(name.to_string());
        self.known_labels.insert(name.to_string(), label);
        label
    }

    /// Orders `to` after `from` in every run. Saying it twice changes nothing.
    pub fn edge(&mut self, from: OpId, to: OpId) {
        if self.knows_both("edge", from, to) {
            self.edges.push((from, to));
        }
    }

    /// Orders `to` after `from` of the run before.
    pub fn carried(&mut self, from: OpId, to: OpId) {
        if self.knows_both("carried edge", from, to) {
            self.carried.push((from, to));
        }
    }

    /// Adds an event outside that operations can wait for.
    pub fn input(&mut self, name: &str) -> InputId {
        self.inputs.push(name.to_string());
        id_at(self.inputs.len() - 1)
    }

    /// Lets an operation wait for an input.
    pub fn gate(&mut self, input: InputId, op: OpId) {
        let what = || format!("gate of {input} at {}", self.describe(op));
        let error = match self.inputs.get(input.index()) {
            None => Some(FlowError::UnknownInput {
                what: what(),
                input,
                flow: self.name.clone(),
                count: self.inputs.len(),
            }),
            Some(_) => self.unknown(op, what),
        };
        match error {
            Some(error) => self.errors.push(error),
            None => self.gates.push((input, op)),
        }
    }

    /// Adds an event outside that is triggered when all of `ops` are complete.
    pub fn post(&mut self, name: &str, ops: &[OpId]) -> PostId {
        let post = id_at(self.posts.len());
        self.posts.push(name.to_string());
        if ops.is_empty() {
            self.errors.push(FlowError::EmptyPost { post: format!("{post} `{name}`") });
        }
        for &op in ops {
            match self.unknown(op, || format!("{post} `{name}`")) {
                Some(error) => self.errors.push(error),
                None => self.posters.push((op, post)),
            }
        }
        post
    }

    /// Puts the bytes `from` of a run's arguments at byte `at` of the arguments of `op`; those that are added first
    /// are done first.
    pub fn interpolate(&mut self, op: OpId, at: u32, from: Range<u32>, patch: Patch) {
        match self.unknown(op, || format!("interpolation into {op}")) {
            Some(error) => self.errors.push(error),
            None => {
                let from = u64::from(from.start)..u64::from(from.end);
                self.inserts.push(Insert { op, at, from, patch });
            }
        }
    }

    /// Checks the flow and freezes it; all errors if there are any.
    pub fn finish(self) -> Result<Flow, Vec<FlowError>> {
        compile::compile(self)
    }

    /// An operation's number and, if it is there, its name.
    pub(super) fn describe(&self, op: OpId) -> String {
        match self.ops.get(op.index()) {
            Some(known) => format!("{op} `{}`", self.labels[known.label as usize]),
            None => op.to_string(),
        }
    }

    /// The complaint if there is no such operation.
    fn unknown(&self, op: OpId, what: impl FnOnce() -> String) -> Option<FlowError> {
        let count = self.ops.len();
        let complain = || FlowError::UnknownOp { what: what(), op, flow: self.name.clone(), count };
        (op.index() >= count).then(complain)
    }

    fn knows_both(&mut self, kind: &str, from: OpId, to: OpId) -> bool {
        let what = || format!("{kind} {} -> {}", self.describe(from), self.describe(to));
        let errors: Vec<_> = [from, to].into_iter().filter_map(|op| self.unknown(op, what)).collect();
        self.errors.extend_from_slice(&errors);
        errors.is_empty()
    }
}

/// The id of a position. All positions that are too large share the largest id: no thing of a flow that can be finished
/// has it, so using it is an error.
fn id_at<I: Id>(position: usize) -> I {
    I::from_index(position.min(u32::MAX as usize))
}
