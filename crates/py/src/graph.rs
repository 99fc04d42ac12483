//! Graphs as Python sees them.

use std::sync::Arc;

use phalanx::ir::graph::{Graph, ValueId};
use phalanx::ir::{Op, TensorType};
use pyo3::prelude::*;

use crate::errors::Error;

/// A tensor of a graph: name, element type and shape.
pub type TensorInfo = (String, String, Vec<usize>);

/// A graph: layers and values, as for one device.
#[pyclass(frozen, name = "Graph", module = "phalanx")]
pub struct PyGraph {
    pub graph: Arc<Graph>,
}

#[pymethods]
impl PyGraph {
    #[new]
    fn new(py: Python<'_>, text: &str) -> PyResult<Self> {
        py.detach(|| {
            let graph = Graph::parse(text, phalanx::ops::operators()).map_err(|error| error.to_string())?;
            let problem = |errors: Vec<_>| errors.first().map(ToString::to_string).unwrap_or_default();
            graph.verify().map_err(problem)?;
            Ok(PyGraph { graph: Arc::new(graph) })
        })
        .map_err(|problem: String| Error::new_err(problem))
    }

    /// What it is called.
    #[getter]
    fn name(&self) -> &str {
        self.graph.name()
    }

    /// The graph as text, which `Graph` reads.
    #[getter]
    fn text(&self) -> String {
        self.graph.to_string()
    }

    /// The inputs: name, element type and shape of each.
    #[getter]
    fn inputs(&self) -> Vec<TensorInfo> {
        self.leaves(|op| *op == Op::Input)
    }

    /// The parameters, likewise.
    #[getter]
    fn parameters(&self) -> Vec<TensorInfo> {
        self.leaves(|op| matches!(op, Op::Param(_)))
    }

    /// What is kept between steps and not trained, likewise.
    #[getter]
    fn states(&self) -> Vec<TensorInfo> {
        self.leaves(|op| matches!(op, Op::State(_)))
    }

    /// The outputs, likewise; the first one is the loss.
    #[getter]
    fn outputs(&self) -> Vec<TensorInfo> {
        self.graph.outputs().iter().map(|&output| self.tensor(output)).collect()
    }

    fn __str__(&self) -> String {
        self.text()
    }

    fn __repr__(&self) -> String {
        let numbers: usize =
            self.parameters().iter().map(|(_, _, shape)| shape.iter().product::<usize>()).sum();
        format!("<Graph {}: {} layers, {numbers} parameters>", self.name(), self.graph.layers().len())
    }
}

impl PyGraph {
    /// The leaves that are wanted, in the order of the graph.
    pub fn leaves(&self, wanted: impl Fn(&Op) -> bool) -> Vec<TensorInfo> {
        self.graph.leaves(wanted).map(|leaf| self.tensor(leaf)).collect()
    }

    fn tensor(&self, value: ValueId) -> TensorInfo {
        let TensorType { dtype, shape } = self.graph.ty(value);
        (self.graph.values()[value].name.clone(), dtype.to_string(), shape.dims().to_vec())
    }
}
