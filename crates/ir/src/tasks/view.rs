//! A task of the open set as its kernel sees it: attributes, and the tiles it reads and writes.

use super::{Buffer, Task, TaskGraph};
use crate::text::Attrs;
use crate::{Attribute, DType, Shape};

/// See the head of the file.
pub struct TaskView<'a> {
    graph: &'a TaskGraph,
    task: &'a Task,
    attrs: &'a Attrs,
}

impl<'a> TaskView<'a> {
    /// The view of `task`, whose operator has these attributes.
    pub fn new(graph: &'a TaskGraph, task: &'a Task, attrs: &'a Attrs) -> Self {
        TaskView { graph, task, attrs }
    }

    /// Attribute `key`.
    pub fn attr<T: Attribute>(&self, key: &str) -> Result<T, String> {
        self.attrs.get(key)
    }

    /// Whether truth value `key` is set.
    pub fn is(&self, key: &str) -> bool {
        self.attrs.is(key)
    }

    /// The shape of the tile read in `slot`.
    pub fn read(&self, slot: usize) -> &'a Shape {
        &self.buffer(&self.task.reads, slot).ty.shape
    }

    /// The shape of the tile written in `slot`.
    pub fn write(&self, slot: usize) -> &'a Shape {
        &self.buffer(&self.task.writes, slot).ty.shape
    }

    /// The element type of the tile read in `slot`.
    pub fn dtype(&self, slot: usize) -> DType {
        self.buffer(&self.task.reads, slot).ty.dtype
    }

    fn buffer(&self, buffers: &[super::BufferId], slot: usize) -> &'a Buffer {
        &self.graph.buffers[buffers[slot]]
    }

    /// The extents before, along and after `axis` of the tile read first.
    pub fn around(&self, axis: usize) -> (usize, usize, usize) {
        let dims = self.read(0).dims();
        (dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product())
    }

    /// Rows and columns of the tile read first, if `rows` has one element for each row.
    pub fn rows_of(&self, rows: &Shape) -> (usize, usize) {
        (rows.elements(), self.read(0).elements() / rows.elements())
    }
}
