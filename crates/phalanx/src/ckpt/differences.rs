//! Where two checkpoints differ, bit by bit.
//!
//! Only tensors are compared: checkpoints of different plans and numbers of ranks are equal if weights and optimizer
//! states are.

use std::collections::BTreeSet;

use half::bf16;
use phalanx_ir::DType;
use serde::Serialize;

use super::{Checkpoint, CkptError, TensorEntry};

/// How a tensor differs between two checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "difference", rename_all = "lowercase")]
pub enum Difference {
    /// It is not the same kind of tensor, or absent from one of them.
    Tensor {
        /// Its name.
        tensor: String,
        /// What it is on the left.
        left: String,
        /// What it is on the right.
        right: String,
    },
    /// It has other elements.
    Elements {
        /// Its name.
        tensor: String,
        /// Coordinates of the first element that differs.
        index: Vec<usize>,
        /// That element on the left.
        left: f64,
        /// That element on the right.
        right: f64,
        /// How many elements differ.
        differing: usize,
        /// How many there are.
        elements: usize,
        /// The largest difference of two elements.
        largest: f64,
    },
}

/// The first tensor by name that differs.
pub fn first_difference(left: &Checkpoint, right: &Checkpoint) -> Result<Option<Difference>, CkptError> {
    let tensors = [left, right].map(|checkpoint| &checkpoint.manifest().tensors);
    let names: BTreeSet<&String> = tensors.into_iter().flatten().map(|tensor| &tensor.name).collect();
    for name in names {
        let entries = [left, right].map(|checkpoint| checkpoint.manifest().tensor(name));
        let [found, wanted] = entries.map(|entry| entry.map_or("absent".into(), TensorEntry::describe));
        if found != wanted {
            return Ok(Some(Difference::Tensor { tensor: name.clone(), left: found, right: wanted }));
        }
        let Some(entry) = entries[0] else { continue };
        let difference = of_elements(entry, &left.tensor(name)?, &right.tensor(name)?);
        if difference.is_some() {
            return Ok(difference);
        }
    }
    Ok(None)
}

/// How the elements of two tensors of the same kind differ.
fn of_elements(entry: &TensorEntry, left: &[u8], right: &[u8]) -> Option<Difference> {
    let dtype: DType = entry.dtype.parse().ok()?;
    let pairs = left.chunks_exact(dtype.bytes()).zip(right.chunks_exact(dtype.bytes()));
    let differ = pairs.enumerate().filter(|(_, (left, right))| left != right);
    let values = differ.map(|(at, (left, right))| (at, value(dtype, left), value(dtype, right)));
    let (mut first, mut differing, mut largest) = (None, 0, 0.0f64);
    for (at, left, right) in values {
        first.get_or_insert((at, left, right));
        differing += 1;
        largest = largest.max((left - right).abs());
    }
    let (at, left, right) = first?;
    let (tensor, index) = (entry.name.clone(), coordinates(at, &entry.shape));
    let elements = entry.shape.iter().product();
    Some(Difference::Elements { tensor, index, left, right, differing, elements, largest })
}

/// An element as a number.
fn value(dtype: DType, bytes: &[u8]) -> f64 {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(all);
    match dtype {
        DType::F32 => f64::from(f32::from_bits(bits as u32)),
        DType::Bf16 => f64::from(bf16::from_bits(bits as u16)),
        DType::I32 => f64::from(bits as i32),
        DType::I64 => bits as i64 as f64,
        DType::Bool => bits as f64,
    }
}

/// The coordinates of a row-major position.
fn coordinates(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (index, extent) in index.iter_mut().zip(shape).rev() {
        (*index, at) = (at % extent, at / extent);
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ckpt::TensorKind;

    #[test]
    fn the_first_element_is_named_and_all_are_counted() {
        let shape = vec![2, 3];
        let entry = TensorEntry {
            name: "w".into(),
            kind: TensorKind::Param,
            dtype: "f32".into(),
            shape,
            parts: vec![],
        };
        let bytes = |values: [f32; 6]| values.map(f32::to_le_bytes).concat();
        let left = bytes([1.0, 2.0, 3.0, 4.0, 0.0, 6.0]);
        assert_eq!(of_elements(&entry, &left, &left), None);
        let right = bytes([1.0, 2.0, 3.0, 4.5, -0.0, 2.0]);
        let found = of_elements(&entry, &left, &right).unwrap();
        let (tensor, index) = ("w".to_string(), vec![1, 0]);
        let (left, right, largest) = (4.0, 4.5, 4.0);
        let (differing, elements) = (3, 6);
        assert_eq!(found, Difference::Elements { tensor, index, left, right, differing, elements, largest });
    }
}
