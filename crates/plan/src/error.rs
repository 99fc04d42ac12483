//! Why a plan cannot be read, written or applied. Every message names the thing, both values and what to do.

use std::fmt;

use phalanx_ir::cut_choices;

use crate::microbatch::MicrobatchError;

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum PlanError {
    /// The text is not a plan.
    #[error("the plan cannot be read: {reason}")]
    Text { reason: String },
    /// A key that plans do not have.
    #[error("line {line}: there is no key `{key}` {place}: {hint}")]
    UnknownKey { line: usize, key: String, place: &'static str, hint: String },
    /// A dimension is not written as a number.
    #[error("rule `{pattern}`: `{key}` is not a dimension; write its number, such as 0 = \"dp\"")]
    NotADim { pattern: String, key: String },
    /// A pattern cannot be matched.
    #[error("pattern `{pattern}` has a set without end or content; write sets as [0-9]")]
    Pattern { pattern: String },
    /// The mesh has an axis without places.
    #[error("mesh axis `{axis}` has {size} places; give it at least 1")]
    EmptyAxis { axis: String, size: usize },
    /// The mesh names an axis twice.
    #[error("the mesh has two axes called `{axis}`; rename one")]
    TwoAxes { axis: String },
    /// The mesh is larger than any machine.
    #[error("the mesh has more than {most} devices; make its axes smaller")]
    TooManyDevices { most: usize },
    /// A rule or the pipeline names an axis that the mesh does not have.
    #[error("{place} names the axis `{axis}` but the mesh has {known}; use one of these or add it to [mesh]")]
    UnknownAxis { place: String, axis: String, known: String },
    /// A pattern matches nothing of the model.
    #[error("{place}: `{pattern}` matches no {wanted} of the model; the closest names are {close}")]
    NoMatch { place: String, pattern: String, wanted: &'static str, close: String },
    /// A rule names a dimension that a tensor does not have.
    #[error(
        "rule `{pattern}` cuts dim {dim} of `{tensor}`, which is {ty}; name a dim below {rank} or match fewer tensors"
    )]
    NoDim { pattern: String, tensor: String, ty: String, dim: usize, rank: usize },
    /// A dimension cannot be cut into that many equal blocks.
    #[error(
        "`{tensor}` is {ty}: its dim {dim} of {extent} cannot be cut into {degree} ({axes}); use {}",
        cuts(*extent)
    )]
    Indivisible { tensor: String, ty: String, dim: usize, extent: usize, degree: usize, axes: String },
    /// Two rules disagree.
    #[error(
        "two rules disagree about `{tensor}`: {about} is {first} and {second}; make the patterns exclude each other or the \
         values equal"
    )]
    Conflict { tensor: String, about: String, first: Said, second: Said },
    /// One axis is to cut a tensor in two places.
    #[error("`{tensor}` is cut by `{axis}` both in {first} and in {second}; an axis can cut a tensor once")]
    AxisTwice { tensor: String, axis: String, first: String, second: String },
    /// Something else than a parameter is to be stored cut.
    #[error(
        "rule `{pattern}` has `store` for `{tensor}`, a result of {op}; only parameters are stored, use `shard`"
    )]
    NotStored { pattern: String, tensor: String, op: String },
    /// The axis of the pipeline is used for something else.
    #[error("rule `{pattern}` cuts by `{axis}`, the axis of the pipeline; use another axis")]
    PipelineAxis { pattern: String, axis: String },
    /// There are not as many stages as places for them.
    #[error("the pipeline has {stages} stages but its axis `{axis}` has {size} places; make them equal")]
    Stages { stages: usize, axis: String, size: usize },
    /// The batch cannot be cut.
    #[error(transparent)]
    Microbatch(#[from] MicrobatchError),
    /// There is no such preset.
    #[error(
        "{} is neither a file nor a preset; presets are {known}, with a number of devices behind them from 1 on, as in dp2, \
         joined by `-` as in dp2-tp2",
        preset_part(name, part)
    )]
    UnknownPreset { name: String, part: String, known: String },
    /// Parts of a preset that cannot be combined.
    #[error("preset `{name}` has both {first} and {second}; use one of them")]
    Exclusive { name: String, first: String, second: String },
    /// A preset is for another number of devices.
    #[error(
        "preset `{name}` is for {wanted} devices but there are {devices}; change the numbers or use --devices {wanted}"
    )]
    Devices { name: String, wanted: usize, devices: usize },
    /// The sizes of a preset are incomplete.
    #[error(
        "preset `{name}` does not divide {devices} devices: say how many are for `{part}`, such as {part}2"
    )]
    Unsized { name: String, part: String, devices: usize },
    /// A model has no features that could be cut.
    #[error(
        "preset `tp` cuts features that one layer makes from a parameter and another takes in, into {size}; model `{model}` \
         has none: of its kinds of features {found}; write a plan file for it"
    )]
    NoFeatures { model: String, size: usize, found: String },
    /// A model has no sequence that could be cut.
    #[error(
        "preset `sp` cuts a sequence, a dimension of inputs between batch and features, behind embeddings and layers whose \
         inputs are cut; model `{model}` has none there: use tp{size}, or write a plan file for it"
    )]
    NoSequence { model: String, size: usize },
    /// There are too few places where a model can be cut into stages.
    #[error(
        "preset `pp` cuts a model where one activation is alive; model `{model}` has {places} such places, for at most {} \
         stages, not {stages}: use fewer stages, or write a plan file for it",
        places + 1
    )]
    FewPlaces { model: String, places: usize, stages: usize },
    /// There are fewer blocks than stages.
    #[error(
        "model `{model}` has {blocks} blocks but the pipeline {stages} stages; use at most {blocks} stages"
    )]
    FewBlocks { model: String, blocks: usize, stages: usize },
}

impl PlanError {
    /// Whether its message names the preset, so that its name need not be put before it.
    pub fn names_preset(&self) -> bool {
        use PlanError::{Devices, Exclusive, UnknownPreset, Unsized};
        matches!(self, UnknownPreset { .. } | Exclusive { .. } | Devices { .. } | Unsized { .. })
    }
}

/// Into how many blocks `extent` can be cut.
pub(crate) fn cuts(extent: usize) -> String {
    let choices = cut_choices(extent, 1024);
    match extent.is_power_of_two() {
        true => choices,
        false => format!("{choices}, or another divisor with --bits free"),
    }
}

/// A part of a preset's name, and the name where it is longer.
fn preset_part(name: &str, part: &str) -> String {
    if name == part { format!("the plan `{name}`") } else { format!("`{part}` of the plan `{name}`") }
}

/// What a rule says; prints as ``dp=2 by `tokens` ``.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Its value.
    pub what: Box<str>,
    /// The rule's pattern.
    pub rule: Box<str>,
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by `{}`", self.what, self.rule)
    }
}
