//! What is raised: one class of exceptions, and classes below it for what programs treat differently.

use phalanx::nn::TrainingError;
use phalanx::{CompileError, Error as PhalanxError};
use phalanx_import::ImportError;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(phalanx, Error, PyException, "Anything that goes wrong in Phalanx.");
create_exception!(
    phalanx,
    UnsupportedError,
    Error,
    "A module uses operators that have no counterpart; `operators` lists them."
);
create_exception!(phalanx, PlanError, Error, "A plan is wrong, or does not suit the model or its devices.");
create_exception!(
    phalanx,
    DataError,
    Error,
    "An array does not have the type, shape or values that it must have."
);
create_exception!(
    phalanx,
    BudgetError,
    Error,
    "A step needs more memory than there is, or than it may have."
);

/// Adds the classes to the module.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Error", py.get_type::<Error>())?;
    module.add("UnsupportedError", py.get_type::<UnsupportedError>())?;
    module.add("PlanError", py.get_type::<PlanError>())?;
    module.add("DataError", py.get_type::<DataError>())?;
    module.add("BudgetError", py.get_type::<BudgetError>())
}

/// The exception of an error of the library.
pub fn raised(error: &PhalanxError) -> PyErr {
    let message = with_keywords(&error.to_string());
    match error {
        PhalanxError::Plan(_) | PhalanxError::Compile(CompileError::Plan(_) | CompileError::Lower(_)) => {
            PlanError::new_err(message)
        }
        PhalanxError::Compile(CompileError::OverBudget(_))
        | PhalanxError::Memory { .. }
        | PhalanxError::EvaluationMemory { .. } => BudgetError::new_err(message),
        PhalanxError::Port(_)
        | PhalanxError::Bounds(_)
        | PhalanxError::NotFed { .. }
        | PhalanxError::MissingTable { .. }
        | PhalanxError::Training(
            TrainingError::NoInput { .. }
            | TrainingError::NoOutput { .. }
            | TrainingError::NoWeight { .. }
            | TrainingError::NoBatches,
        ) => DataError::new_err(message),
        _ => Error::new_err(message),
    }
}

/// The exception of a model that cannot be imported.
pub fn refused(py: Python<'_>, error: &ImportError) -> PyErr {
    let ImportError::Unsupported(operators) = error else { return Error::new_err(error.to_string()) };
    let names: Vec<String> = operators.iter().map(|operator| operator.operator.clone()).collect();
    let raised = UnsupportedError::new_err(error.to_string());
    match raised.value(py).setattr("operators", names) {
        Ok(()) => raised,
        Err(other) => other,
    }
}

/// A message of the library with the flags that it names as keywords: `devices` for `--devices`, as Python has them.
fn with_keywords(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(at) = rest.find("--") {
        let (before, flag) = rest.split_at(at);
        text.push_str(before);
        let name = &flag[2..];
        let end = name.find(|c: char| !(c.is_ascii_lowercase() || c == '-')).unwrap_or(name.len());
        text.push_str(&name[..end].replace('-', "_"));
        rest = &name[end..];
    }
    text.push_str(rest);
    text
}
