//! The exchange format `phalanx.aten/1`: what the Python half writes.
//!
//! One JSON object. `leaves` are tensors that nodes read: fed, kept or constant; the bytes of all that are not fed lie in a
//! safetensors file under the leaf's name. `train` and `eval` are lists of nodes in an order in which operands come first.
//! An argument that is a tensor is `{"v": name}`, with `"i"` if its node has several results; a number that JSON does not
//! have is `{"f": "inf"}`, an element type `{"dtype": "f32"}`. Fields that are not known are errors.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// The only version there is.
pub(crate) const VERSION: &str = "phalanx.aten/1";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Exchange {
    /// Read before all else.
    #[serde(rename = "version")]
    pub(crate) _version: String,
    /// What the module's class is called.
    pub(crate) name: String,
    pub(crate) leaves: Vec<Leaf>,
    pub(crate) train: Section,
    #[serde(default)]
    pub(crate) eval: Option<Section>,
}

/// A tensor that nodes read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Leaf {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) role: Role,
    /// Other names of the same tensor of the `state_dict`.
    #[serde(default)]
    pub(crate) aliases: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// Fed: an argument of the module.
    Input,
    /// Fed: computed from arguments on the host.
    Computed,
    /// Trained.
    Param,
    /// Written by steps, not trained.
    State,
    /// Counts steps.
    Counter,
    /// In the `state_dict`, and never changed.
    Fixed,
    /// Not in the `state_dict`, and never changed.
    Constant,
}

impl Role {
    /// Whether the tensor is fed before each step.
    pub(crate) fn is_fed(self) -> bool {
        matches!(self, Role::Input | Role::Computed)
    }
}

/// The nodes of one graph.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Section {
    pub(crate) nodes: Vec<Node>,
    pub(crate) loss: Reference,
    #[serde(default)]
    pub(crate) outputs: Vec<NamedOutput>,
    #[serde(default)]
    pub(crate) updates: Vec<StateUpdate>,
}

/// One application of an operator.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// `aten.name` or `aten.name.overload`; other namespaces keep theirs.
    pub(crate) op: String,
    /// By the names of the operator's schema, those with defaults as well.
    pub(crate) args: BTreeMap<String, Value>,
    pub(crate) results: Vec<Typed>,
    /// The path of the module that applies it.
    #[serde(default)]
    pub(crate) module: String,
    /// The user's file and line.
    #[serde(default)]
    pub(crate) source: String,
    /// What that line says.
    #[serde(default)]
    pub(crate) code: String,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Typed {
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
}

/// A result of a node, or a leaf.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reference {
    pub(crate) v: String,
    #[serde(default)]
    pub(crate) i: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NamedOutput {
    pub(crate) name: String,
    pub(crate) value: Reference,
}

/// A state and what it becomes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StateUpdate {
    pub(crate) state: String,
    pub(crate) value: Reference,
}
