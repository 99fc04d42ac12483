//! Two ways to run a pass of the reference.

/// Whether a pass keeps the reference's defects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// As the reference does, for comparison with its results.
    Reference,
    /// With its defects repaired.
    #[default]
    Fixed,
}
