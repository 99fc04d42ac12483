//! What a plan says. It names things of a model by patterns and knows nothing else about it.

use std::collections::BTreeMap;

use crate::PlanError;

/// The most devices a plan can have. Far fewer can be run; a step of all can be simulated.
pub const MOST_DEVICES: usize = 1 << 17;

/// How a model is laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What people call it.
    pub name: String,
    /// The devices.
    pub mesh: Mesh,
    /// Into how many parts the batch is cut, worked on one after the other.
    pub microbatches: usize,
    /// How tensors are cut. All rules that match a tensor count; they must not disagree.
    pub rules: Vec<PlanRule>,
    /// Which layers are on which devices, if not all on all.
    pub pipeline: Option<Pipeline>,
}

impl Default for Plan {
    /// One device, the whole batch at once.
    fn default() -> Self {
        Plan { name: "one".into(), mesh: Mesh::default(), microbatches: 1, rules: Vec::new(), pipeline: None }
    }
}

impl Plan {
    /// This plan with one more axis of the mesh, the last, that cuts a dimension of each tensor whose name matches.
    pub fn cut_along(mut self, axis: &str, size: usize, cuts: &[(&str, usize)]) -> Plan {
        self.mesh.axes.push((axis.into(), size));
        for &(pattern, dim) in cuts {
            let shard = [(dim, vec![axis.to_string()])].into();
            self.rules.push(PlanRule { pattern: pattern.into(), shard, ..PlanRule::default() });
        }
        self
    }
}

/// Devices as a grid with named axes. A device's number counts the grid with the last axis fastest.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Mesh {
    /// Names and extents.
    pub axes: Vec<(String, usize)>,
}

impl Mesh {
    /// How many devices there are; more than can be counted are `usize::MAX`.
    pub fn devices(&self) -> usize {
        self.axes.iter().fold(1, |devices, (_, size)| devices.saturating_mul(*size))
    }

    /// Checks that it has devices, not too many of them, and that its axes can be told apart.
    pub fn check(&self) -> Result<(), PlanError> {
        for (place, (axis, size)) in self.axes.iter().enumerate() {
            if *size == 0 {
                return Err(PlanError::EmptyAxis { axis: axis.clone(), size: *size });
            }
            if self.axes[..place].iter().any(|(other, _)| other == axis) {
                return Err(PlanError::TwoAxes { axis: axis.clone() });
            }
        }
        match self.devices() {
            0..=MOST_DEVICES => Ok(()),
            _ => Err(PlanError::TooManyDevices { most: MOST_DEVICES }),
        }
    }
}

/// How the tensors whose names match a pattern are cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanRule {
    /// `*` is any text, `?` one character, `[0-9]` one of a set. Names of microbatches' parts are matched without `.mb<m>`.
    pub pattern: String,
    /// For each dimension the axes that cut it, outermost first. Dimensions left out stay as they come.
    pub shard: BTreeMap<usize, Vec<String>>,
    /// Parameters only: axes by which it is cut further while it is not in use.
    pub store: BTreeMap<usize, Vec<String>>,
    /// What `store` cuts is joined anew in the backward pass, instead of being kept.
    pub regather: bool,
}

impl Default for PlanRule {
    fn default() -> Self {
        PlanRule { pattern: "*".into(), shard: BTreeMap::new(), store: BTreeMap::new(), regather: true }
    }
}

/// Layers dealt to the places of one mesh axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// The axis: one stage a place.
    pub axis: String,
    /// For each stage the patterns of its layers' names; the first stage with a match has the layer.
    ///
    /// A layer that none matches goes with the latest stage among its operands, a parameter with its first user.
    pub stages: Vec<Vec<String>>,
}
