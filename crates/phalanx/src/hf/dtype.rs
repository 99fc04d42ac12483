//! The element types in which weights are saved.

use half::{bf16, f16};
use safetensors::Dtype;
use serde::{Deserialize, Serialize};

/// What elements of saved weights are. Those of 16 bits are the nearest ones, to even on a tie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SaveDtype {
    /// As they are trained.
    #[default]
    F32,
    /// 8 bits of the fraction are kept, and all magnitudes.
    Bf16,
    /// 11 bits of the fraction are kept, and magnitudes up to 65504.
    F16,
}

impl SaveDtype {
    /// As a file of tensors has it.
    pub(super) fn in_file(self) -> Dtype {
        match self {
            SaveDtype::F32 => Dtype::F32,
            SaveDtype::Bf16 => Dtype::BF16,
            SaveDtype::F16 => Dtype::F16,
        }
    }

    /// As `config.json` has it.
    pub(super) fn in_config(self) -> &'static str {
        match self {
            SaveDtype::F32 => "float32",
            SaveDtype::Bf16 => "bfloat16",
            SaveDtype::F16 => "float16",
        }
    }

    /// Bytes of an element.
    pub(super) fn bytes(self) -> usize {
        if self == SaveDtype::F32 { 4 } else { 2 }
    }

    /// The elements in this type, little-endian.
    pub(super) fn convert(self, values: &[f32]) -> Vec<u8> {
        match self {
            SaveDtype::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            SaveDtype::Bf16 => values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect(),
            SaveDtype::F16 => values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
        }
    }

    /// The first number that would become infinite.
    pub(super) fn first_overflow(self, values: &[f32]) -> Option<f32> {
        let overflows = |value: f32| match self {
            SaveDtype::F32 => false,
            SaveDtype::Bf16 => value.is_finite() && bf16::from_f32(value).is_infinite(),
            SaveDtype::F16 => value.is_finite() && f16::from_f32(value).is_infinite(),
        };
        values.iter().copied().find(|&value| overflows(value))
    }
}
