//! The difference between the tensors a model wants and those at hand.

use std::fmt;

use phalanx_ir::Shape;

/// Names shown per kind before the rest is only counted.
const SHOWN: usize = 10;

/// Every tensor that does not fit; prints as one sentence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mismatch {
    /// Wanted and absent, with the wanted shape.
    pub missing: Vec<(String, Shape)>,
    /// Present and not wanted, with the shape found.
    pub unexpected: Vec<(String, Shape)>,
    /// Present with another shape: name, found, wanted.
    pub reshaped: Vec<(String, Shape, Shape)>,
    /// Present with an element type that cannot be read: name, type.
    pub unreadable: Vec<(String, String)>,
}

impl Mismatch {
    /// Whether everything fits.
    pub fn is_empty(&self) -> bool {
        *self == Mismatch::default()
    }

    /// Sorts each list by name.
    pub(super) fn sort(&mut self) {
        self.missing.sort_by(|a, b| a.0.cmp(&b.0));
        self.unexpected.sort_by(|a, b| a.0.cmp(&b.0));
        self.reshaped.sort_by(|a, b| a.0.cmp(&b.0));
        self.unreadable.sort();
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |(name, shape): &(String, Shape)| format!("`{name}` {shape}");
        let parts = [
            list("missing: ", self.missing.iter().map(named)),
            list("unexpected: ", self.unexpected.iter().map(named)),
            list(
                "wrong shape: ",
                self.reshaped
                    .iter()
                    .map(|(name, found, wanted)| format!("`{name}` is {found} but the model wants {wanted}")),
            ),
            list(
                "wrong element type: ",
                self.unreadable
                    .iter()
                    .map(|(name, dtype)| format!("`{name}` is {dtype} but must be F32, BF16 or F16")),
            ),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join("; "))
    }
}

fn list(title: &str, entries: impl ExactSizeIterator<Item = String>) -> Option<String> {
    let hidden = entries.len().saturating_sub(SHOWN);
    let mut shown: Vec<String> = entries.take(SHOWN).collect();
    if shown.is_empty() {
        return None;
    }
    if hidden > 0 {
        shown.push(format!("and {hidden} more"));
    }
    Some(format!("{title}{}", shown.join(", ")))
}
