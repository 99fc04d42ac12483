//! Where numbers stop being finite: `--debug nan`.
//!
//! A step that ends with a loss, a weight or an optimizer state that is not finite is done again from a copy of what it
//! began with, on one thread, one operation at a time, looking at every float that each writes. The bits are those of the
//! step itself, so the same numbers come up. All that an operation reads was written by one before it: the first that
//! writes something not finite has made it from finite numbers, unless a tensor had it from the start, which is reported
//! instead.

use std::fmt;

use phalanx_ir::DType;
use phalanx_ir::graph::Graph;
use phalanx_ir::tasks::{BufferId, TaskGraph, TaskId};
use phalanx_program::{Port, PortKind};

use crate::emit::{origins, select};
use crate::pipeline::{Settings, lay_out};
use crate::{Error, Session};

/// The first number of a step that is not finite.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    /// The step began with it.
    Input {
        /// `weight`, `optimizer state` or `input`.
        kind: &'static str,
        /// The tensor.
        tensor: String,
        /// The coordinates of its first element that is not finite.
        element: Vec<usize>,
        /// That element.
        value: f32,
    },
    /// An operation made it from finite ones.
    Operation {
        /// What is computed.
        operation: &'static str,
        /// The layer of the model that it belongs to.
        layer: String,
        /// The device that computes it.
        device: u32,
        /// The tensor that it writes.
        tensor: String,
        /// The coordinates of the first element that is not finite, in the whole tensor.
        element: Vec<usize>,
        /// That element.
        value: f32,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Input { kind, tensor, element, value } => {
                write!(f, "element {element:?} of the {kind} `{tensor}` is {value} before the step")
            }
            Origin::Operation { operation, layer, device, tensor, element, value } => write!(
                f,
                "operation {operation} of layer `{layer}` on dev{device} writes {value} to element {element:?} of `{tensor}`"
            ),
        }
    }
}

/// A copy of what the step under way began with.
pub(super) struct Guard {
    model: Graph,
    settings: Settings,
    kept: Vec<u8>,
}

impl Guard {
    /// Watches over a session that was compiled from `model` with `settings`.
    pub fn new(model: Graph, settings: Settings) -> Guard {
        Guard { model, settings, kept: Vec::new() }
    }

    /// Keeps a copy of weights and optimizer state, after all steps under way.
    pub fn keep(&mut self, session: &mut Session) -> Result<(), Error> {
        self.kept.clear();
        session.visit_state(|_, _, bytes| self.kept.extend_from_slice(bytes))
    }

    /// Inspects the state after a step with this loss, while the session's inputs are still those of that step. If not all
    /// of it is finite, restores the state before the step and returns the first number that is not.
    pub fn inspect(&self, session: &mut Session, loss: f32) -> Result<Option<Origin>, Error> {
        let mut finite = loss.is_finite();
        session.visit_state(|port, _, bytes| finite = finite && first_bad(port.ty.dtype, bytes).is_none())?;
        if finite {
            return Ok(None);
        }
        self.restore(session)?;
        let origin = find(&self.model, &self.settings, session)?;
        self.restore(session)?;
        Ok(origin)
    }

    fn restore(&self, session: &mut Session) -> Result<(), Error> {
        let mut rest = &self.kept[..];
        session.visit_state(|_, _, bytes| {
            let (tile, behind) = rest.split_at(bytes.len());
            bytes.copy_from_slice(tile);
            rest = behind;
        })
    }
}

/// Runs `session`, which was compiled from `model` with `settings` and has all devices in this process, once on the inputs
/// fed last, and returns the first number that is not finite, if there is one.
pub fn find(model: &Graph, settings: &Settings, session: &mut Session) -> Result<Option<Origin>, Error> {
    if let Some(origin) = first_in_inputs(session)? {
        return Ok(Some(origin));
    }
    let layout = lay_out(model, settings, |_, _| ())?;
    let tasks: Vec<Option<TaskId>> = origins(&layout.tasks, &layout.schedule).concat();
    let mut made = None;
    session.run_seen(&mut |position, writes| {
        if let (None, Some(task)) = (&made, tasks[position]) {
            made = first_made(&layout.tasks, task, writes);
        }
    })?;
    Ok(made)
}

/// The first number of the step's inputs, weights and states that is not finite.
fn first_in_inputs(session: &Session) -> Result<Option<Origin>, Error> {
    let is_float_input = |port: &&Port| port.kind != PortKind::Output && port.ty.dtype == DType::F32;
    for port in session.program().ports().iter().filter(is_float_input) {
        let kind = match port.kind {
            PortKind::Param => "weight",
            PortKind::Table => "table",
            PortKind::State => "optimizer state",
            PortKind::Input | PortKind::Output => "input",
        };
        if let Some((index, value)) = first_bad(DType::F32, bytemuck::cast_slice(&session.read(&port.name)?))
        {
            let element = coordinates(index, port.ty.shape.dims());
            return Ok(Some(Origin::Input { kind, tensor: port.name.clone(), element, value }));
        }
    }
    Ok(None)
}

/// The first number that is not finite in what a task has written.
fn first_made(tasks: &TaskGraph, id: TaskId, writes: &[&[u8]]) -> Option<Origin> {
    let task = &tasks.tasks[id];
    let bad = |(&buffer, bytes): (&BufferId, &&[u8])| {
        let (index, value) = first_bad(tasks.buffers[buffer].ty.dtype, bytes)?;
        Some((buffer, index, value))
    };
    let choice = select(tasks, id).ok()?;
    let (buffer, index, value) = choice.writes.iter().zip(writes).find_map(bad)?;
    let buffer = &tasks.buffers[buffer];
    let mut element = coordinates(index, buffer.ty.shape.dims());
    if let Some(tile) = &buffer.tile {
        element.iter_mut().zip(&tile.origin).for_each(|(at, origin)| *at += origin);
    }
    Some(Origin::Operation {
        operation: task.op.to_text().0,
        layer: task.layer.to_string(),
        device: phalanx_ir::Id::index(task.device) as u32,
        tensor: buffer.name.to_string(),
        element,
        value,
    })
}

/// The first element that is not finite, of floats.
fn first_bad(dtype: DType, bytes: &[u8]) -> Option<(usize, f32)> {
    let elements = bytes.as_chunks().0.iter().map(|&bytes| f32::from_ne_bytes(bytes));
    elements.enumerate().find(|(_, value)| dtype == DType::F32 && !value.is_finite())
}

/// The coordinates of element `index` of a tensor, rows first.
fn coordinates(mut index: usize, dims: &[usize]) -> Vec<usize> {
    let mut element = vec![0; dims.len()];
    for (at, &extent) in element.iter_mut().zip(dims).rev() {
        (*at, index) = (index % extent, index / extent);
    }
    element
}
