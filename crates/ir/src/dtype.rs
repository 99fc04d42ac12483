//! Element types.

use std::fmt;
use std::str::FromStr;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// 32-bit float: what arithmetic is done in.
    F32,
    /// 16-bit brain float: storage only, cast to and from `F32`.
    Bf16,
    /// 32-bit signed integer.
    I32,
    /// 64-bit signed integer.
    I64,
    /// A truth value, one byte, 0 or 1.
    Bool,
}

impl DType {
    /// Every element type.
    pub const ALL: [DType; 5] = [DType::F32, DType::Bf16, DType::I32, DType::I64, DType::Bool];

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            DType::Bool => 1,
            DType::Bf16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::I64 => 8,
        }
    }

    /// Whether gradients can flow through tensors of this type.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::Bf16)
    }

    /// Whether elements can index a table.
    pub fn is_index(self) -> bool {
        matches!(self, DType::I32 | DType::I64)
    }

    fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = ();
    fn from_str(name: &str) -> Result<Self, ()> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or(())
    }
}
