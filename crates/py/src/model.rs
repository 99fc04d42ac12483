//! Models as Python sees them: graphs for training and evaluation, and the values that parameters begin with.

use std::sync::Arc;

use phalanx::ir::Op;
use phalanx::nn::{BuiltModel, ModelGraphs};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::buffers::NamedArray;
use crate::errors::DataError;
use crate::graph::{PyGraph, TensorInfo};

/// A model: a graph for training and, perhaps, one for evaluation.
#[pyclass(frozen, name = "CompiledGraphs", module = "phalanx._phalanx")]
pub struct PyModel {
    pub graphs: Arc<ModelGraphs>,
    training: Py<PyGraph>,
    evaluation: Option<Py<PyGraph>>,
}

#[pymethods]
impl PyModel {
    /// `weights` are arrays for parameters and states by name; `frozen` are names of parameters that stay as they are.
    #[new]
    #[pyo3(signature = (training, evaluation=None, weights=None, frozen=Vec::new()))]
    fn new(
        py: Python<'_>,
        training: Py<PyGraph>,
        evaluation: Option<Py<PyGraph>>,
        weights: Option<&Bound<'_, PyDict>>,
        frozen: Vec<String>,
    ) -> PyResult<Self> {
        let built = |graph: &Py<PyGraph>| BuiltModel::of_graph((*graph.get().graph).clone());
        let mut graphs = ModelGraphs {
            training: BuiltModel { frozen, ..built(&training) },
            evaluation: evaluation.as_ref().map(built),
            initial: Vec::new(),
        };
        let known = weights_of(training.get());
        for (name, array) in weights.into_iter().flatten() {
            let name: String = name.extract()?;
            let array = weight(&known, &name, &array)?.borrow()?;
            let values = py.detach(move || array.floats().to_vec());
            graphs.initial.push((name, values));
        }
        Ok(PyModel { graphs: Arc::new(graphs), training, evaluation })
    }

    /// A step.
    #[getter]
    fn training(&self, py: Python<'_>) -> Py<PyGraph> {
        self.training.clone_ref(py)
    }

    /// The same model without training.
    #[getter]
    fn evaluation(&self, py: Python<'_>) -> Option<Py<PyGraph>> {
        self.evaluation.as_ref().map(|graph| graph.clone_ref(py))
    }
}

impl PyModel {
    pub fn training_graph(&self) -> &PyGraph {
        self.training.get()
    }

    pub fn evaluation_graph(&self) -> Option<&PyGraph> {
        self.evaluation.as_ref().map(|graph| graph.get())
    }
}

/// All parameters and states of a graph.
pub fn weights_of(graph: &PyGraph) -> Vec<TensorInfo> {
    graph.leaves(Op::is_weight)
}

/// An array for the parameter or state called `name`.
pub fn weight(known: &[TensorInfo], name: &str, array: &Bound<'_, PyAny>) -> PyResult<NamedArray> {
    let Some(wanted) = known.iter().find(|(known, ..)| known == name) else {
        let some: Vec<_> = known.iter().take(4).map(|(name, ..)| format!("`{name}`")).collect();
        let problem = format!("the model has no parameter or state `{name}`; it has {}", some.join(", "));
        return Err(DataError::new_err(problem + if known.len() > 4 { ", ..." } else { "" }));
    };
    NamedArray::new("weight", wanted, array)
}
