//! The Python module `phalanx._phalanx`: graphs, models and the runner of a training. What needs no compiled code is in
//! `python/phalanx`, which users import.

mod buffers;
mod errors;
mod graph;
mod model;
mod plan;
mod runner;
mod worker;

use phalanx::internals::kernels::random;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::errors::DataError;

/// The elements of a dropout that are kept in a step, as bytes of 0 and 1, in the order of the whole tensor.
#[pyfunction]
fn dropout_mask<'py>(
    py: Python<'py>,
    name: &str,
    shape: Vec<usize>,
    rate: f32,
    seed: u64,
    step: u64,
) -> PyResult<Bound<'py, PyByteArray>> {
    if !(0.0..1.0).contains(&rate) {
        return Err(DataError::new_err(format!("`rate` is {rate}; it must be at least 0 and below 1")));
    }
    let elements = shape.iter().try_fold(1_usize, |all, &extent| all.checked_mul(extent));
    let Some(elements) = elements.filter(|&elements| elements <= MOST_ELEMENTS) else {
        return Err(DataError::new_err(format!("`shape` is {shape:?}, more than {MOST_ELEMENTS} elements")));
    };
    let kept = py.detach(|| {
        let seed = random::derive(seed, phalanx::internals::lower::mask_salt(name), step);
        let keep = |index| u8::from(random::uniform(seed, 0, index as u64) >= rate);
        (0..elements).map(keep).collect::<Vec<u8>>()
    });
    Ok(PyByteArray::new(py, &kept))
}

/// More than a mask has.
const MOST_ELEMENTS: usize = 1 << 32;

/// What users import as `phalanx`.
#[pymodule]
fn _phalanx(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    errors::add(module)?;
    module.add_class::<graph::PyGraph>()?;
    module.add_class::<model::PyModel>()?;
    module.add_class::<plan::PyPlan>()?;
    module.add_class::<runner::PyRunner>()?;
    module.add_function(wrap_pyfunction!(dropout_mask, module)?)
}
