//! A training as `phalanx.Trainer` drives it.

use std::path::PathBuf;
use std::sync::Arc;

use phalanx::internals::timeline::html;
use phalanx::nn::{Args, Metrics, StepOutcome, Training, TrainingRun};
use phalanx::train::Notice;
use phalanx::{Decays, Optimizer, UpdateRule};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::buffers::{BorrowedBatch, NamedArray};
use crate::errors::{DataError, raised};
use crate::graph::{PyGraph, TensorInfo};
use crate::model::{PyModel, weight, weights_of};
use crate::plan::PyPlan;
use crate::worker::Worker;

/// A step: number, loss, learning rate, gradient norm.
type StepTuple = (u64, f32, f32, Option<f32>);

/// A training.
#[pyclass(frozen, name = "Runner", module = "phalanx._phalanx")]
pub struct PyRunner {
    worker: Worker,
    model: Py<PyModel>,
    /// All parameters and states.
    weights: Vec<TensorInfo>,
}

/// An optimizer as `phalanx.Optimizer` describes it.
#[derive(FromPyObject)]
struct OptimizerFields {
    kind: String,
    lr: f32,
    betas: (f32, f32),
    eps: f32,
    momentum: f32,
    nesterov: bool,
    weight_decay: f32,
    decay_vectors: bool,
    clip: Option<f32>,
    frozen: Vec<String>,
    groups: Vec<(String, f32, Option<f32>)>,
}

impl OptimizerFields {
    fn build(self) -> Optimizer {
        let (beta1, beta2) = self.betas;
        let rule = match self.kind.as_str() {
            "sgd" => UpdateRule::Sgd { momentum: self.momentum, nesterov: self.nesterov },
            kind => UpdateRule::Adam { beta1, beta2, eps: self.eps, decoupled: kind == "adamw" },
        };
        let decays = if self.decay_vectors { Decays::All } else { Decays::Matrices };
        let optimizer = Optimizer::new(rule).decay(self.weight_decay).decays(decays).clip(self.clip);
        let optimizer = optimizer.frozen(self.frozen);
        self.groups
            .into_iter()
            .fold(optimizer, |optimizer, (pattern, rate, decay)| optimizer.group(pattern, rate, decay))
    }
}

#[pymethods]
impl PyRunner {
    /// Compiles the model; options are those of `phalanx train`, by name.
    #[new]
    fn new(
        py: Python<'_>,
        model: Py<PyModel>,
        optimizer: OptimizerFields,
        options: Vec<(String, String)>,
    ) -> PyResult<Self> {
        let args = Args::of_options(options).map_err(|error| raised(&error))?;
        let graphs = Arc::clone(&model.get().graphs);
        let worker = Worker::start(py, move || {
            let lr = optimizer.lr;
            let training = Training::of_graphs(&args, (*graphs).clone())?;
            drop(graphs);
            let mut run = training.lr(lr).optimizer(optimizer.build()).start()?;
            run.measure()?;
            Ok(run)
        })?;
        let weights = weights_of(model.get().training_graph());
        Ok(PyRunner { worker, model, weights })
    }

    /// Feeds arrays by the names of inputs, and starts a step.
    fn launch(&self, py: Python<'_>, feeds: Vec<(String, Bound<'_, PyAny>)>) -> PyResult<()> {
        let (arrays, batch) = arrays(self.model.get().training_graph(), &feeds)?;
        let launched = self.worker.call_reading(py, move |run| run.launch(batch));
        drop(arrays);
        launched
    }

    /// The first step that was launched and not reported, if there is one.
    fn finish(&self, py: Python<'_>) -> PyResult<Option<StepTuple>> {
        let outcome = self.worker.call(py, TrainingRun::finish)?;
        let step = |StepOutcome { number, loss, lr, gradient_norm, .. }| (number, loss, lr, gradient_norm);
        Ok(outcome.map(step))
    }

    /// How many steps were launched and not reported.
    fn pending(&self, py: Python<'_>) -> PyResult<usize> {
        self.worker.call(py, |run| Ok(run.launched()))
    }

    /// Gives the weights of now to the evaluation.
    fn begin_evaluation(&self, py: Python<'_>) -> PyResult<()> {
        self.worker.call(py, TrainingRun::begin_evaluation)
    }

    /// The loss of a batch, and further scalars by name.
    fn evaluate(
        &self,
        py: Python<'_>,
        feeds: Vec<(String, Bound<'_, PyAny>)>,
    ) -> PyResult<Vec<(String, f32)>> {
        let model = self.model.get();
        let (arrays, batch) = arrays(model.evaluation_graph().unwrap_or(model.training_graph()), &feeds)?;
        let metrics = self.worker.call_reading(py, move |run| run.evaluate_batch(batch))?;
        drop(arrays);
        Ok(pairs(&metrics))
    }

    /// The output called `name` of the last step, as bytes of floats.
    fn read<'py>(&self, py: Python<'py>, name: String) -> PyResult<Bound<'py, PyByteArray>> {
        let values = self.worker.call(py, move |run| run.read(&name))?;
        Ok(bytes(py, &values))
    }

    /// The parameter or state called `name`, likewise.
    fn read_weight<'py>(&self, py: Python<'py>, name: String) -> PyResult<Bound<'py, PyByteArray>> {
        let values = self.worker.call(py, move |run| run.read_weight(&name))?;
        Ok(bytes(py, &values))
    }

    /// Sets parameters and states.
    fn set_weights(&self, py: Python<'_>, weights: Vec<(String, Bound<'_, PyAny>)>) -> PyResult<()> {
        let arrays: Vec<NamedArray> = weights
            .iter()
            .map(|(name, array)| weight(&self.weights, name, array))
            .collect::<PyResult<_>>()?;
        let borrowed = arrays.iter().map(NamedArray::borrow).collect::<PyResult<Vec<_>>>()?;
        let set = self.worker.call_reading(py, move |run| {
            borrowed.iter().try_for_each(|array| run.set_weight(array.name(), array.floats()))
        });
        drop(arrays);
        set
    }

    /// Writes a checkpoint below a directory.
    fn save(&self, py: Python<'_>, dir: PathBuf) -> PyResult<()> {
        self.worker.call(py, move |run| run.save(dir))
    }

    /// Goes on from the newest checkpoint below a directory.
    fn resume(&self, py: Python<'_>, dir: PathBuf) -> PyResult<()> {
        self.worker.call(py, move |run| run.resume(dir))
    }

    /// Takes weights from a checkpoint or a `.safetensors` file.
    fn load(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.worker.call(py, move |run| run.load(path))
    }

    /// Writes weights to a `.safetensors` file.
    fn export(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.worker.call(py, move |run| run.export(path))
    }

    /// Fingerprint of all parameters and states.
    fn weights_hash(&self, py: Python<'_>) -> PyResult<String> {
        self.worker.call(py, |run| Ok(format!("{:032x}", run.weights_hash()?)))
    }

    /// Steps done, also before the run was resumed, and those in flight.
    fn steps(&self, py: Python<'_>) -> PyResult<u64> {
        self.worker.call(py, |run| Ok(run.steps()))
    }

    /// Which rank of a job this process is, and how many there are.
    fn rank(&self, py: Python<'_>) -> PyResult<(u32, u32)> {
        self.worker.call(py, |run| Ok((run.rank(), run.ranks())))
    }

    /// How the model lies on its devices.
    fn plan(&self, py: Python<'_>) -> PyResult<PyPlan> {
        self.worker.call(py, |run| Ok(PyPlan::of(run.graph().clone(), run.settings().clone())))
    }

    /// The last step as a page, with its headline; nothing on ranks other than the first.
    fn report(&self, py: Python<'_>) -> PyResult<Option<(String, String)>> {
        self.worker.call(py, |run| {
            let Some(report) = run.report()? else { return Ok(None) };
            let mut page = Vec::new();
            // Memory takes all that is written.
            drop(html::write(&report, &mut page));
            Ok(Some((report.subtitle, String::from_utf8_lossy(&page).into_owned())))
        })
    }

    /// Messages since the last call: whether each is a warning, and its text.
    fn notices(&self, py: Python<'_>) -> PyResult<Vec<(bool, String)>> {
        self.worker.call(py, |run| Ok(run.take_notices().into_iter().map(notice).collect()))
    }

    /// Marks the training as failed, so that its job ends when it is closed.
    fn fail(&self, py: Python<'_>, message: String) -> PyResult<()> {
        self.worker.call(py, move |run| {
            run.fail(message);
            Ok(())
        })
    }

    /// Ends the training: saves what options ask for, and leaves the job.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.worker.close());
    }
}

fn notice(notice: Notice) -> (bool, String) {
    match notice {
        Notice::Note(text) => (false, text),
        Notice::Warning(text) => (true, text),
    }
}

/// The arrays for inputs of a graph, and what a run reads of them.
fn arrays(
    graph: &PyGraph,
    feeds: &[(String, Bound<'_, PyAny>)],
) -> PyResult<(Vec<NamedArray>, BorrowedBatch)> {
    let inputs = graph.leaves(|op| *op == phalanx::ir::Op::Input);
    let array = |(name, array): &(String, Bound<'_, PyAny>)| {
        let Some(input) = inputs.iter().find(|(input, ..)| input == name) else {
            let names: Vec<_> = inputs.iter().map(|(name, ..)| format!("`{name}`")).collect();
            let problem = format!("the model has no input `{name}`; it has {}", names.join(", "));
            return Err(DataError::new_err(problem));
        };
        NamedArray::new("input", input, array)
    };
    let arrays = feeds.iter().map(array).collect::<PyResult<Vec<_>>>()?;
    let borrowed = arrays.iter().map(NamedArray::borrow).collect::<PyResult<Vec<_>>>()?;
    Ok((arrays, BorrowedBatch(borrowed)))
}

fn pairs(metrics: &Metrics) -> Vec<(String, f32)> {
    metrics.iter().map(|(name, value)| (name.to_string(), value)).collect()
}

/// Floats as bytes that `numpy.frombuffer` reads.
fn bytes<'py>(py: Python<'py>, values: &[f32]) -> Bound<'py, PyByteArray> {
    PyByteArray::new(py, bytemuck::cast_slice(values))
}
