//! The ways to run a pass of the reference.

/// Whether a pass keeps the reference's defects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PassMode {
    /// As the reference does, for comparison with its results.
    Reference,
    /// As the reference's later version does, which has repaired a few of them.
    Newer,
    /// With its defects repaired.
    #[default]
    Fixed,
}
