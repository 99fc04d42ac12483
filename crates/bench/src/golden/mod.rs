//! Operator cases computed elsewhere (PyTorch, double precision), replayed through the whole compiler.
//!
//! A case says what an operator gives for some inputs and which gradients follow from given output gradients. It
//! becomes a small model whose loss is the sum of outputs × output gradients, compiled and run like any other, once
//! with the reference and once with the fast kernels. The file format is one JSON object a line.

mod attrs;
mod build;

use std::collections::BTreeMap;
use std::io::Read;

use phalanx_ir::Shape;
use phalanx_ir::graph::BuildError;
use serde::Deserialize;

use phalanx::{Error, Feed, Flavor, Goal, Session, Settings};

/// Cases that come with this crate: those of the public set, and those of `op_cases.py` and `conv_cases.py` in
/// `benches/peers`.
const BUILT_IN: [&[u8]; 3] = [
    include_bytes!("../../golden/ops.jsonl.gz"),
    include_bytes!("../../golden/ops_more.jsonl.gz"),
    include_bytes!("../../golden/conv.jsonl.gz"),
];

/// The largest error let through, relative to numbers above one.
pub const TOLERANCE: f64 = 2e-5;

/// Operators of the case format that are several of ours in a row. Single precision rounds what is between them, and errors
/// are as large as the largest numbers make them (PyTorch in f32 misses the bound of single numbers, too), so these cases
/// are compared relative to the largest number of the case.
const COMPOSED: [&str; 1] = ["multi_head_attention"];

/// Why a case cannot be read or run.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum GoldenError {
    /// A line is not a case.
    #[error("line {line}: not an operator case: {source}")]
    Line { line: usize, source: serde_json::Error },
    /// A case contradicts itself.
    #[error("case `{id}`: {message}")]
    Case { id: String, message: String },
    /// Its operator does not fit the operands.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// It does not compile or run.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// A tensor of a case.
#[derive(Clone, Debug, Deserialize)]
pub struct Tensor {
    /// `f32`, `i64` or `bool`.
    pub dtype: String,
    /// Extents.
    pub shape: Vec<usize>,
    /// Elements, row-major.
    pub data: Vec<f64>,
}

/// One operator case.
#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    /// Its name.
    pub id: String,
    /// The operator.
    pub op: String,
    /// Its attributes.
    pub attrs: serde_json::Map<String, serde_json::Value>,
    /// Operands by slot.
    pub inputs: BTreeMap<String, Tensor>,
    /// Expected results by slot.
    pub outputs: BTreeMap<String, Tensor>,
    /// Gradients fed into results.
    pub output_grads: BTreeMap<String, Tensor>,
    /// Expected gradients of operands.
    pub input_grads: BTreeMap<String, Tensor>,
}

impl Case {
    fn wrong(&self, message: String) -> GoldenError {
        GoldenError::Case { id: self.id.clone(), message }
    }
}

/// What came of a case.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Everything within tolerance.
    Passed,
    /// What differs, for people.
    Failed(String),
    /// The operator does not exist here.
    Unsupported,
}

/// Reads cases, one a line.
pub fn read_cases(text: &str) -> Result<Vec<Case>, GoldenError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(index, line)| {
            let case: Case =
                serde_json::from_str(line).map_err(|source| GoldenError::Line { line: index + 1, source })?;
            case.check()?;
            Ok(case)
        })
        .collect()
}

/// The cases that come with this crate.
pub fn built_in() -> Vec<Case> {
    let mut text = String::new();
    for packed in BUILT_IN {
        let mut file = flate2::read::GzDecoder::new(packed);
        file.read_to_string(&mut text).expect("the embedded cases decompress");
    }
    read_cases(&text).expect("the embedded cases are well formed")
}

impl Case {
    fn check(&self) -> Result<(), GoldenError> {
        let tensors = [&self.inputs, &self.outputs, &self.output_grads, &self.input_grads];
        for (slot, tensor) in tensors.into_iter().flatten() {
            let Tensor { dtype, shape, data } = tensor;
            let shape = Shape::new(shape.clone());
            let (found, need) = (data.len(), shape.elements());
            let message = match dtype.as_str() {
                "f32" | "i64" | "bool" if found == need => continue,
                "f32" | "i64" | "bool" => {
                    format!("`{slot}` is {dtype}{shape} but has {found} elements, not {need}")
                }
                _ => format!("`{slot}` is {dtype}{shape}; its elements must be f32, i64 or bool"),
            };
            return Err(GoldenError::Case { id: self.id.clone(), message });
        }
        Ok(())
    }

    /// The number relative to which smaller ones are compared.
    fn unit(&self) -> f64 {
        let tensors = self.outputs.values().chain(self.input_grads.values());
        let numbers =
            tensors.flat_map(|tensor| &tensor.data).filter(|_| COMPOSED.contains(&self.op.as_str()));
        numbers.fold(1.0, |unit: f64, number| unit.max(number.abs()))
    }

    /// Compiles and runs the case with this version of the kernels.
    pub fn run(&self, flavor: Flavor, cores: usize) -> Result<Outcome, GoldenError> {
        let Some(graph) = build::graph(self)? else { return Ok(Outcome::Unsupported) };
        let goal = if self.input_grads.is_empty() { Goal::Infer } else { Goal::Gradients };
        let settings = Settings::new(goal).cores(cores);
        let mut session = Session::with_kernels(&graph, &settings, flavor)?;
        for (slot, tensor) in &self.inputs {
            feed(&mut session, slot, tensor)?;
        }
        for (slot, tensor) in &self.output_grads {
            feed(&mut session, &format!("{slot}.given"), tensor)?;
        }
        session.run()?;
        let outputs = self.outputs.iter().map(|(slot, expected)| (format!("{slot}.out"), expected));
        let gradients = self.input_grads.iter().map(|(slot, expected)| (format!("{slot}.grad"), expected));
        let unit = self.unit();
        for (name, expected) in outputs.chain(gradients) {
            if let Some(difference) = difference(&session.read(&name)?, &expected.data, unit) {
                return Ok(Outcome::Failed(format!("{name}: {difference}")));
            }
        }
        Ok(Outcome::Passed)
    }
}

fn feed(session: &mut Session, name: &str, tensor: &Tensor) -> Result<(), Error> {
    match tensor.dtype.as_str() {
        "i64" => {
            let values: Vec<i64> = tensor.data.iter().map(|&value| value as i64).collect();
            session.feed(name, Feed::I64(&values))
        }
        "bool" => {
            let values: Vec<bool> = tensor.data.iter().map(|&value| value != 0.0).collect();
            session.feed(name, Feed::Bool(&values))
        }
        _ => {
            let values: Vec<f32> = tensor.data.iter().map(|&value| value as f32).collect();
            session.feed(name, Feed::F32(&values))
        }
    }
}

/// The worst element if it is out of tolerance.
fn difference(found: &[f32], expected: &[f64], unit: f64) -> Option<String> {
    if found.len() != expected.len() {
        return Some(format!("{} elements, expected {}", found.len(), expected.len()));
    }
    let error = |index: usize| {
        let error = (f64::from(found[index]) - expected[index]).abs() / expected[index].abs().max(unit);
        if error.is_nan() { f64::INFINITY } else { error }
    };
    let worst = (0..found.len()).max_by(|&a, &b| error(a).total_cmp(&error(b)))?;
    (error(worst) > TOLERANCE).then(|| {
        format!(
            "element {worst} is {}, expected {} (error {:.1e})",
            found[worst],
            expected[worst],
            error(worst)
        )
    })
}
