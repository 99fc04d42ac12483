//! The tensors beside an exchange file.

use std::collections::HashMap;

use phalanx_ir::DType;
use safetensors::SafeTensors;

use crate::format::Leaf;
use crate::{ImportError, StoredDtype};

/// A tensor that never changes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Constant {
    pub(crate) dtype: StoredDtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// The element type that a word of the format stands for, if tensors may have it.
pub(crate) fn dtype(word: &str) -> Option<DType> {
    word.parse().ok().filter(|dtype| *dtype != DType::Bf16)
}

/// The same for a stored tensor.
pub(crate) fn stored_dtype(dtype: StoredDtype) -> Option<DType> {
    match dtype {
        StoredDtype::F32 => Some(DType::F32),
        StoredDtype::I64 => Some(DType::I64),
        StoredDtype::I32 => Some(DType::I32),
        StoredDtype::BOOL => Some(DType::Bool),
        _ => None,
    }
}

impl Constant {
    /// Its elements as numbers; none if they are of a type that graphs do not have.
    pub(crate) fn numbers(&self) -> Option<Vec<f64>> {
        phalanx_ir::Table::new(stored_dtype(self.dtype)?, &self.bytes[..]).elements()
    }

    /// Its elements as integers, if they are.
    pub(crate) fn integers(&self) -> Option<Vec<i64>> {
        match stored_dtype(self.dtype)? {
            DType::Bool => Some(self.bytes.iter().map(|&byte| i64::from(byte)).collect()),
            dtype => phalanx_ir::Table::new(dtype, &self.bytes[..]).integers(),
        }
    }

    /// The one number that all elements are.
    pub(crate) fn uniform(&self) -> Option<f64> {
        let size = self.bytes.len() / self.shape.iter().product::<usize>().max(1);
        let first = self.bytes.get(..size).filter(|first| !first.is_empty())?;
        let is_uniform = self.bytes.chunks(size).all(|element| element == first);
        let one = Constant { dtype: self.dtype, shape: Vec::new(), bytes: first.to_vec() };
        one.numbers().filter(|_| is_uniform).map(|numbers| numbers[0])
    }
}

/// All stored tensors by name.
pub(crate) struct Stored<'a>(HashMap<String, safetensors::tensor::TensorView<'a>>);

impl<'a> Stored<'a> {
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self, ImportError> {
        let file =
            SafeTensors::deserialize(bytes).map_err(|error| ImportError::Tensors(error.to_string()))?;
        Ok(Stored(file.tensors().into_iter().collect()))
    }

    /// The tensor of a leaf.
    pub(crate) fn of(&self, leaf: &Leaf) -> Result<Constant, ImportError> {
        let wrong = |problem| Err(ImportError::Tensor { name: leaf.name.clone(), problem });
        let Some(view) = self.0.get(&leaf.name) else {
            return wrong("it is not in the file of tensors".into());
        };
        if view.shape() != leaf.shape {
            return wrong(format!("the graph says {:?}, the file of tensors {:?}", leaf.shape, view.shape()));
        }
        let constant =
            Constant { dtype: view.dtype(), shape: leaf.shape.clone(), bytes: view.data().to_vec() };
        match stored_dtype(constant.dtype) {
            known if known == dtype(&leaf.dtype) => Ok(constant),
            _ => wrong(format!("the graph says {}, the file of tensors {:?}", leaf.dtype, view.dtype())),
        }
    }
}
