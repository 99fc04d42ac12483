//! A flow inside another one: copied in, so that it costs nothing at run time.
//!
//! The copy has no gate of its own: its operations start as soon as their own predecessors allow. To make it start or
//! end as one, order its roots and sinks. Mode, processors and switches are those of the flow around it.

use phalanx_program::Id;

use super::{Builder, Insert, Op, id_at};
use crate::flow::{InputId, OpId, PostId};

/// Where the parts of a nested flow are in the flow around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nested {
    ops: IdRange,
    inputs: IdRange,
    posts: IdRange,
    roots: Vec<OpId>,
    sinks: Vec<OpId>,
}

impl Nested {
    /// The operation that `inner` has become. An id that is not of the nested flow gives one of no flow, whose use is
    /// an error; the same holds for inputs and posts.
    pub fn op(&self, inner: OpId) -> OpId {
        self.ops.shift(inner)
    }

    /// The input that `inner` has become.
    pub fn input(&self, inner: InputId) -> InputId {
        self.inputs.shift(inner)
    }

    /// The post that `inner` has become.
    pub fn post(&self, inner: PostId) -> PostId {
        self.posts.shift(inner)
    }

    /// Its operations without a predecessor: what has to wait if all of it has to.
    pub fn roots(&self) -> &[OpId] {
        &self.roots
    }

    /// Its operations without a successor: what to wait for if one waits for all of it.
    pub fn sinks(&self) -> &[OpId] {
        &self.sinks
    }
}

/// Things of the nested flow that follow those the flow around it had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IdRange {
    start: usize,
    len: usize,
}

impl IdRange {
    fn shift<I: Id>(self, inner: I) -> I {
        id_at(if inner.index() < self.len { self.start + inner.index() } else { usize::MAX })
    }
}

impl Builder {
    /// Copies a flow into this one. Its names get its own name in front, as in `inner/name`; the first byte of its
    /// run's arguments is byte `args_at` of this one's.
    pub fn nest(&mut self, inner: &Builder, args_at: u32) -> Nested {
        let ops = IdRange { start: self.ops.len(), len: inner.ops.len() };
        let inputs = IdRange { start: self.inputs.len(), len: inner.inputs.len() };
        let posts = IdRange { start: self.posts.len(), len: inner.posts.len() };
        self.nest_ops(inner);
        let prefixed = |name: &String| format!("{}/{name}", inner.name);
        self.inputs.extend(inner.inputs.iter().map(prefixed));
        self.posts.extend(inner.posts.iter().map(prefixed));
        let both = |&(from, to): &(OpId, OpId)| (ops.shift(from), ops.shift(to));
        self.edges.extend(inner.edges.iter().map(both));
        self.carried.extend(inner.carried.iter().map(both));
        self.gates.extend(inner.gates.iter().map(|&(input, op)| (inputs.shift(input), ops.shift(op))));
        self.posters.extend(inner.posters.iter().map(|&(op, post)| (ops.shift(op), posts.shift(post))));
        self.inserts.extend(inner.inserts.iter().map(|insert| {
            let from = insert.from.start + u64::from(args_at)..insert.from.end + u64::from(args_at);
            Insert { op: ops.shift(insert.op), from, ..*insert }
        }));
        self.errors.extend_from_slice(&inner.errors);
        let (roots, sinks) = inner.ends(ops);
        Nested { ops, inputs, posts, roots, sinks }
    }

    fn nest_ops(&mut self, inner: &Builder) {
        let labels: Vec<u32> =
            inner.labels.iter().map(|label| self.label(&format!("{}/{label}", inner.name))).collect();
        let bytes = self.args.len();
        self.args.extend_from_slice(&inner.args);
        self.ops.extend(inner.ops.iter().map(|op| Op {
            label: labels[op.label as usize],
            args: (op.args.0 + bytes, op.args.1 + bytes),
            ..*op
        }));
    }

    /// Operations that no edge enters and those that none leaves, as they are called around.
    fn ends(&self, ops: IdRange) -> (Vec<OpId>, Vec<OpId>) {
        let (mut entered, mut left) = (vec![false; self.ops.len()], vec![false; self.ops.len()]);
        for &(from, to) in &self.edges {
            left[from.index()] = true;
            entered[to.index()] = true;
        }
        let untouched = |touched: &[bool]| {
            let free = touched.iter().enumerate().filter(|(_, touched)| !**touched);
            free.map(|(op, _)| id_at(ops.start + op)).collect()
        };
        (untouched(&entered), untouched(&left))
    }
}
