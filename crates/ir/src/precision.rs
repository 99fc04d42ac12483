//! What matrix products are computed in.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How matrix products read their operands, and in which order they add.
///
/// Each is one definition for every machine, so the bits of a model do not depend on where it runs; only the speed does.
/// Everything that is not a product stays in single precision, and so do the results of products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// Operands in single precision; one chain of fused multiply-adds.
    #[default]
    F32,
    /// Operands rounded to `bf16`; 32 steps at a time, even and odd ones apart: what a tile multiplication does.
    Bf16,
    /// Operands rounded to `bf16`; one chain, of each pair of steps the odd one first: what a dot product of pairs does.
    Bf16Pair,
}

impl Precision {
    /// Every precision.
    pub const ALL: &[Precision] = &[Precision::F32, Precision::Bf16, Precision::Bf16Pair];

    /// Whether operands are rounded to `bf16`.
    pub fn rounds(self) -> bool {
        self != Precision::F32
    }

    /// Its name, as options and texts have it.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::Bf16Pair => "bf16-pair",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Precision {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let found = Precision::ALL.iter().copied().find(|precision| precision.name() == name);
        found.ok_or_else(|| format!("`{name}` is no precision; there are f32, bf16 and bf16-pair"))
    }
}
