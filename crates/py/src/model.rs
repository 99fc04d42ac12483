//! Models as Python sees them: graphs for training and evaluation, and the values that parameters begin with.

use std::sync::Arc;

use phalanx::ir::Op;
use phalanx::ir::graph::Graph;
use phalanx::nn::{BuiltModel, ModelGraphs};
use phalanx_import::{ImportedModel, ImportedWeight, StoredDtype, WeightKind};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict};

use crate::buffers::NamedArray;
use crate::errors::{DataError, refused};
use crate::graph::{PyGraph, TensorInfo};

/// A model: a graph for training and, perhaps, one for evaluation.
#[pyclass(frozen, name = "CompiledGraphs", module = "phalanx._phalanx")]
pub struct PyModel {
    pub graphs: Arc<ModelGraphs>,
    training: Py<PyGraph>,
    evaluation: Option<Py<PyGraph>>,
    entries: Vec<StateEntry>,
}

/// A tensor of a `state_dict`.
struct StateEntry {
    name: String,
    aliases: Vec<String>,
    /// `trained`, `state`, `counter` or `constant`.
    kind: &'static str,
    /// The element type as numpy calls it.
    dtype: &'static str,
    shape: Vec<usize>,
    /// The elements, unless steps change them.
    bytes: Vec<u8>,
}

/// Name, aliases, kind, element type and shape.
type EntryTuple = (String, Vec<String>, &'static str, &'static str, Vec<usize>);

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
        let entries = entries_of(training.get());
        Ok(PyModel { graphs: Arc::new(graphs), training, evaluation, entries })
    }

    /// A model that was exported from PyTorch: a graph file and the tensors beside it.
    #[staticmethod]
    fn read(py: Python<'_>, json: &[u8], tensors: &[u8]) -> PyResult<Self> {
        let read = py.detach(|| phalanx_import::read(json, tensors));
        let ImportedModel { train, eval, weights, .. } = read.map_err(|error| refused(py, &error))?;
        let floats = |weight: &ImportedWeight| Some((weight.name.clone(), weight.floats()?));
        let moving = weights.iter().filter(|weight| is_moving(weight.kind));
        let graphs = ModelGraphs {
            initial: moving.filter_map(floats).collect(),
            training: BuiltModel::of_graph(train.clone()),
            evaluation: eval.clone().map(BuiltModel::of_graph),
        };
        let graph = |graph: Graph| Py::new(py, PyGraph { graph: Arc::new(graph) });
        Ok(PyModel {
            graphs: Arc::new(graphs),
            training: graph(train)?,
            evaluation: eval.map(graph).transpose()?,
            entries: weights.into_iter().map(StateEntry::of).collect::<PyResult<_>>()?,
        })
    }

    /// The tensors of a `state_dict`: name, other names, what becomes of it (`trained`, `state`, `counter` or `constant`),
    /// element type and shape.
    #[getter]
    fn entries(&self) -> Vec<EntryTuple> {
        let entry = |entry: &StateEntry| {
            (entry.name.clone(), entry.aliases.clone(), entry.kind, entry.dtype, entry.shape.clone())
        };
        self.entries.iter().map(entry).collect()
    }

    /// The elements of a counter or constant when the model was exported.
    fn stored<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyByteArray>> {
        let entry = self.entries.iter().find(|entry| entry.name == name);
        let entry = entry.ok_or_else(|| DataError::new_err(format!("there is no tensor `{name}`")))?;
        Ok(PyByteArray::new(py, &entry.bytes))
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

/// Whether steps change it.
fn is_moving(kind: WeightKind) -> bool {
    matches!(kind, WeightKind::Trained | WeightKind::State)
}

impl StateEntry {
    fn of(weight: ImportedWeight) -> PyResult<StateEntry> {
        let ImportedWeight { name, aliases, kind, dtype, shape, bytes } = weight;
        let dtype = match dtype {
            StoredDtype::F32 => "float32",
            StoredDtype::F64 => "float64",
            StoredDtype::F16 => "float16",
            StoredDtype::I64 => "int64",
            StoredDtype::I32 => "int32",
            StoredDtype::I16 => "int16",
            StoredDtype::I8 => "int8",
            StoredDtype::U8 => "uint8",
            StoredDtype::BOOL => "bool",
            other => {
                let problem = format!("`{name}` is {other:?}, which numpy has not: use another element type");
                return Err(DataError::new_err(problem));
            }
        };
        let bytes = if is_moving(kind) { Vec::new() } else { bytes };
        let kind = match kind {
            WeightKind::Trained => "trained",
            WeightKind::State => "state",
            WeightKind::Counter => "counter",
            WeightKind::Constant => "constant",
        };
        Ok(StateEntry { name, aliases, kind, dtype, shape, bytes })
    }
}

/// The tensors of a graph that has no other names for them.
fn entries_of(graph: &PyGraph) -> Vec<StateEntry> {
    let entry = |(name, _, shape): TensorInfo, kind| StateEntry {
        name,
        aliases: Vec::new(),
        kind,
        dtype: "float32",
        shape,
        bytes: Vec::new(),
    };
    let params = graph.leaves(|op| matches!(op, Op::Param(_))).into_iter().map(|info| entry(info, "trained"));
    let states = graph.leaves(|op| matches!(op, Op::State(_))).into_iter().map(|info| entry(info, "state"));
    params.chain(states).collect()
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
