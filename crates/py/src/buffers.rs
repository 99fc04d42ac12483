//! Arrays of Python, read in place through the buffer protocol.

use phalanx::ir::DType;
use phalanx::nn::Feeds;
use phalanx::{Error as PhalanxError, Feed};
use pyo3::buffer::{ElementType, PyUntypedBuffer};
use pyo3::prelude::*;

use crate::errors::DataError;
use crate::graph::TensorInfo;

/// An array that is to be fed, and for what.
pub struct NamedArray {
    name: String,
    dtype: DType,
    buffer: PyUntypedBuffer,
}

impl NamedArray {
    /// Checks that `array` can be read in place as the tensor `wanted`; `kind` says what that is.
    pub fn new(kind: &str, wanted: &TensorInfo, array: &Bound<'_, PyAny>) -> PyResult<NamedArray> {
        let (name, dtype, shape) = wanted;
        let fail = |problem: String| Err(DataError::new_err(format!("{kind} `{name}` {problem}")));
        let Ok(buffer) = PyUntypedBuffer::get(array) else {
            let found = array.get_type().name()?;
            return fail(format!("is a {found}; give it an array, such as one of numpy"));
        };
        let Some(found) = element_type(&buffer) else {
            let format = buffer.format().to_string_lossy().into_owned();
            return fail(format!(
                "has elements of format `{format}`, but it must be {dtype}: {}",
                cast(dtype)
            ));
        };
        if found.to_string() != *dtype {
            return fail(format!("is {found}, but it must be {dtype}: {}", cast(dtype)));
        }
        if buffer.shape() != shape {
            let is_other_batch =
                !shape.is_empty() && kind == "input" && buffer.shape().get(1..) == shape.get(1..);
            let hint = match is_other_batch {
                true => ": all batches are of one size, so leave out a smaller last one (`drop_last=True`)",
                false => "",
            };
            return fail(format!("has the shape {:?}, but it must be {shape:?}{hint}", buffer.shape()));
        }
        if !buffer.is_c_contiguous() {
            return fail(
                "is not contiguous: give `numpy.ascontiguousarray(...)`, or `.contiguous()` of a tensor"
                    .into(),
            );
        }
        Ok(NamedArray { name: name.clone(), dtype: found, buffer })
    }

    /// The elements, for as long as the array lives, to be read while Python runs on.
    pub fn borrow(&self) -> PyResult<BorrowedArray> {
        let elements = self.buffer.item_count();
        let array = BorrowedArray {
            name: self.name.clone(),
            dtype: self.dtype,
            first: self.buffer.buf_ptr().cast(),
            elements,
        };
        if self.dtype == DType::Bool && array.bytes().iter().any(|&byte| byte > 1) {
            return Err(DataError::new_err(format!(
                "`{}` is bool but has bytes other than 0 and 1",
                self.name
            )));
        }
        if !array.first.addr().is_multiple_of(self.dtype.bytes()) {
            let problem = "does not begin where its element type may: give a copy of it";
            return Err(DataError::new_err(format!("`{}` {problem}", self.name)));
        }
        Ok(array)
    }
}

/// How an array becomes one of another element type.
fn cast(dtype: &str) -> String {
    let name = match dtype {
        "f32" => "float32",
        "i64" => "int64",
        "i32" => "int32",
        other => other,
    };
    format!("use `.astype(\"{name}\")`, or `.to(torch.{name})` of a tensor")
}

/// Our type of the elements of a buffer.
fn element_type(buffer: &PyUntypedBuffer) -> Option<DType> {
    match (ElementType::from_format(buffer.format()), buffer.item_size()) {
        (ElementType::Float { bytes: 4 }, 4) => Some(DType::F32),
        (ElementType::SignedInteger { bytes: 8 }, 8) => Some(DType::I64),
        (ElementType::SignedInteger { bytes: 4 }, 4) => Some(DType::I32),
        (ElementType::Bool, 1) => Some(DType::Bool),
        _ => None,
    }
}

/// The elements of a [`NamedArray`] that must outlive it.
pub struct BorrowedArray {
    name: String,
    dtype: DType,
    /// Aligned for its type, unless there are no elements.
    first: *const u8,
    elements: usize,
}

// SAFETY: the memory is read only, and `Worker::call_reading` keeps the buffer that owns it until the reader has ended.
unsafe impl Send for BorrowedArray {}

impl BorrowedArray {
    /// What it is for.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// As a feed.
    pub fn feed(&self) -> Feed<'_> {
        match self.dtype {
            DType::F32 => Feed::F32(self.slice()),
            DType::I64 => Feed::I64(self.slice()),
            DType::I32 => Feed::I32(self.slice()),
            DType::Bool => Feed::Bool(self.slice()),
            // `element_type` gives no other.
            DType::Bf16 => Feed::F32(&[]),
        }
    }

    /// The elements of floats; none of another type.
    pub fn floats(&self) -> &[f32] {
        if let Feed::F32(values) = self.feed() { values } else { &[] }
    }

    fn bytes(&self) -> &[u8] {
        self.slice_of(self.elements * self.dtype.bytes())
    }

    fn slice<T>(&self) -> &[T] {
        self.slice_of(self.elements)
    }

    fn slice_of<T>(&self, elements: usize) -> &[T] {
        if elements == 0 {
            return &[];
        }
        // SAFETY: `NamedArray::new` has checked that the buffer is contiguous and has this element type, `borrow` that it is
        // aligned and that truth values are 0 or 1; `T` is that type, or bytes. The buffer is locked: its owner cannot move
        // or free it. A program that writes into an array while it is fed is wrong, as it is with every library that
        // releases the interpreter's lock.
        unsafe { std::slice::from_raw_parts(self.first.cast(), elements) }
    }
}

impl Feeds for BorrowedArray {
    fn each(
        &self,
        feed: &mut dyn FnMut(&str, Feed<'_>) -> Result<(), PhalanxError>,
    ) -> Result<(), PhalanxError> {
        feed(&self.name, self.feed())
    }
}

/// All arrays of a step.
pub struct BorrowedBatch(pub Vec<BorrowedArray>);

impl Feeds for BorrowedBatch {
    fn each(
        &self,
        feed: &mut dyn FnMut(&str, Feed<'_>) -> Result<(), PhalanxError>,
    ) -> Result<(), PhalanxError> {
        self.0.iter().try_for_each(|array| array.each(feed))
    }
}
