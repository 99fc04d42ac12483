//! How a model lies on its devices, as Python sees it.

use std::sync::{Arc, OnceLock};

use phalanx::internals::layout::{DeviceRow, MovementRow, TensorRow};
use phalanx::ir::graph::Graph;
use phalanx::pipeline::lay_out;
use phalanx::train::TrainConfig;
use phalanx::{Error as PhalanxError, Settings};
use pyo3::prelude::*;

use crate::errors::raised;
use crate::graph::PyGraph;

/// The rows of a layout.
struct Rows {
    tensors: Vec<TensorRow>,
    movements: Vec<MovementRow>,
    devices: Vec<DeviceRow>,
}

/// A plan for a model.
#[pyclass(frozen, name = "Plan", module = "phalanx")]
pub struct PyPlan {
    graph: Arc<Graph>,
    settings: Settings,
    rows: OnceLock<Rows>,
}

#[pymethods]
impl PyPlan {
    /// The plan that `name`, a preset, a file or the text of one, gives for a graph.
    #[new]
    #[pyo3(signature = (name, graph, devices=None))]
    fn new(py: Python<'_>, name: String, graph: Py<PyGraph>, devices: Option<usize>) -> PyResult<Self> {
        let graph = Arc::clone(&graph.get().graph);
        py.detach(|| {
            let config = TrainConfig::default().plan(Some(name)).devices(devices).clip(0.0);
            let settings = config.settings(&graph)?;
            Ok(PyPlan { graph, settings, rows: OnceLock::new() })
        })
        .map_err(|error: PhalanxError| raised(&error))
    }

    /// What it is called.
    #[getter]
    fn name(&self) -> &str {
        &self.settings.plan.name
    }

    /// The plan as a file has it.
    #[getter]
    fn text(&self) -> String {
        self.settings.plan.to_text()
    }

    /// The number of devices.
    #[getter]
    fn devices(&self) -> usize {
        self.settings.plan.mesh.devices()
    }

    /// Inputs, parameters, states and tables: name, operator, type with cuts, and on how many devices parts of it lie.
    fn tensors(&self, py: Python<'_>) -> PyResult<Vec<(String, String, String, usize)>> {
        let rows = self.rows(py)?.tensors.iter();
        Ok(rows.map(|row| (row.name.clone(), row.op.clone(), row.ty.clone(), row.parts.len())).collect())
    }

    /// What moves between devices in a step: kind, layer, how often, and bytes.
    fn movements(&self, py: Python<'_>) -> PyResult<Vec<(String, String, usize, u64)>> {
        let rows = self.rows(py)?.movements.iter();
        Ok(rows.map(|row| (row.kind.clone(), row.layer.clone(), row.count, row.bytes)).collect())
    }

    /// For each device: bytes at its peak, of parameters, of optimizer state, and received in a step.
    fn memory(&self, py: Python<'_>) -> PyResult<Vec<(u64, u64, u64, u64)>> {
        let rows = self.rows(py)?.devices.iter();
        Ok(rows.map(|row| (row.peak_bytes, row.param_bytes, row.state_bytes, row.received_bytes)).collect())
    }

    fn __str__(&self) -> String {
        self.text()
    }

    fn __repr__(&self) -> String {
        format!("<Plan {}: {} devices>", self.shown_name(), self.devices())
    }

    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        let devices = table(
            "Devices",
            ["device", "peak", "parameters", "optimizer state", "received in a step"],
            self.memory(py)?.into_iter().enumerate().map(|(device, (peak, params, state, received))| {
                [format!("dev{device}"), size(peak), size(params), size(state), size(received)]
            }),
        );
        let tensors = table(
            "Tensors",
            ["name", "operator", "type and cuts", "parts"],
            self.tensors(py)?.into_iter().map(|(name, op, ty, parts)| [name, op, ty, parts.to_string()]),
        );
        let movements = table(
            "Movements of a step",
            ["kind", "layer", "count", "bytes"],
            self.movements(py)?
                .into_iter()
                .map(|(kind, layer, count, bytes)| [kind, layer, count.to_string(), size(bytes)]),
        );
        let head = format!("<p><b>Plan {}</b>, {} devices</p>", escape(self.shown_name()), self.devices());
        Ok(head + &devices + &tensors + &movements)
    }
}

impl PyPlan {
    /// The plan of settings.
    pub fn of(graph: Graph, settings: Settings) -> PyPlan {
        PyPlan { graph: Arc::new(graph), settings, rows: OnceLock::new() }
    }

    fn shown_name(&self) -> &str {
        if self.name().is_empty() { "for one device" } else { self.name() }
    }

    /// Lays the model out the first time.
    fn rows(&self, py: Python<'_>) -> PyResult<&Rows> {
        if self.rows.get().is_none() {
            let rows = py.detach(|| -> Result<Rows, PhalanxError> {
                let layout = lay_out(&self.graph, &self.settings, |_, _| ())?;
                let tensors = layout.tensors(false).unwrap_or_default();
                Ok(Rows { tensors, movements: layout.movements(), devices: layout.devices() })
            });
            // Another thread may have been faster, with the same rows.
            drop(self.rows.set(rows.map_err(|error| raised(&error))?));
        }
        Ok(self.rows.get_or_init(|| Rows { tensors: Vec::new(), movements: Vec::new(), devices: Vec::new() }))
    }
}

/// A table that can be opened.
fn table<const N: usize>(title: &str, head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let head: String = head.iter().map(|cell| format!("<th>{cell}</th>")).collect();
    let row = |row: [String; N]| -> String {
        let cells: String = row.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        format!("<tr>{cells}</tr>")
    };
    let rows: Vec<String> = rows.map(row).collect();
    format!(
        "<details><summary>{title} ({})</summary><table><tr>{head}</tr>{}</table></details>",
        rows.len(),
        rows.concat()
    )
}

/// `text` as the text of an element.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Bytes for people.
fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (bytes.max(1).ilog2() / 10).min(4);
    match power {
        0 => format!("{bytes} B"),
        _ => format!(
            "{:.1} {}",
            bytes as f64 / f64::from(1_u32 << 10).powi(power as i32),
            units[power as usize]
        ),
    }
}
