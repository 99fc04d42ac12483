//! A task as its kernel sees it: attributes, and the tiles it reads and writes.

use std::borrow::Cow;

use super::{Buffer, BufferId, Task, TaskGraph, TaskOp};
use crate::text::Attrs;
use crate::{Attribute, DType, Shape};

/// See the head of the file.
pub struct TaskView<'a> {
    graph: &'a TaskGraph,
    task: &'a Task,
    attrs: Cow<'a, Attrs>,
}

impl<'a> TaskView<'a> {
    /// The view of `task`.
    pub fn new(graph: &'a TaskGraph, task: &'a Task) -> Self {
        let attrs = match &task.op {
            TaskOp::Call { attrs, .. } => Cow::Borrowed(attrs),
            op => Cow::Owned(op.to_text().1),
        };
        TaskView { graph, task, attrs }
    }

    /// What the task computes.
    pub fn op(&self) -> &'a TaskOp {
        &self.task.op
    }

    /// Attribute `key`.
    pub fn attr<T: Attribute>(&self, key: &str) -> Result<T, String> {
        self.attrs.get(key)
    }

    /// Attribute `key`, or the default if it is absent.
    pub fn attr_or<T: Attribute>(&self, key: &str, default: T) -> Result<T, String> {
        if self.attrs.has(key) { self.attrs.get(key) } else { Ok(default) }
    }

    /// Whether truth value `key` is set.
    pub fn is(&self, key: &str) -> bool {
        self.attrs.is(key)
    }

    /// The tile read in `slot`.
    pub fn source(&self, slot: usize) -> Result<&'a Buffer, String> {
        self.buffer(&self.task.reads, "reads", slot)
    }

    /// The tile written in `slot`.
    pub fn target(&self, slot: usize) -> Result<&'a Buffer, String> {
        self.buffer(&self.task.writes, "writes", slot)
    }

    fn buffer(&self, buffers: &[BufferId], does: &str, slot: usize) -> Result<&'a Buffer, String> {
        let missing =
            || format!("the task {does} {}, but the kernel needs at least {}", buffers.len(), slot + 1);
        buffers.get(slot).map(|&buffer| &self.graph.buffers[buffer]).ok_or_else(missing)
    }

    /// All tiles that are read.
    pub fn sources(&self) -> impl Iterator<Item = &'a Buffer> {
        self.task.reads.iter().map(|&buffer| &self.graph.buffers[buffer])
    }

    /// All tiles that are written.
    pub fn targets(&self) -> impl Iterator<Item = &'a Buffer> {
        self.task.writes.iter().map(|&buffer| &self.graph.buffers[buffer])
    }

    /// The shape of the tile read in `slot`.
    pub fn read(&self, slot: usize) -> Result<&'a Shape, String> {
        Ok(&self.source(slot)?.ty.shape)
    }

    /// The shape of the tile written in `slot`.
    pub fn write(&self, slot: usize) -> Result<&'a Shape, String> {
        Ok(&self.target(slot)?.ty.shape)
    }

    /// Whether the tile read in `slot` has integers of 32 bits.
    pub fn is_i32(&self, slot: usize) -> Result<bool, String> {
        Ok(self.source(slot)?.ty.dtype == DType::I32)
    }

    /// The extents before, along and after `axis` of the tile read first.
    pub fn around(&self, axis: usize) -> Result<(usize, usize, usize), String> {
        let dims = self.read(0)?.dims();
        Ok((dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product()))
    }

    /// Rows and columns of the tile read first, if `rows` has one element for each row.
    pub fn rows_of(&self, rows: &Shape) -> Result<(usize, usize), String> {
        Ok((rows.elements(), self.read(0)?.elements() / rows.elements()))
    }
}
