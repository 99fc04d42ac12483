//! The model: layers that compute values from values, in an order in which every value exists before it is used.
//!
//! [`LayerGraph`] is that structure with open labels; the model labels its values with [`TensorType`] and its layers with
//! nothing ([`Graph`]), the parallel level with tilings and placements. A layer is called by its first result.

mod build;
mod text;
mod verify;

pub use build::{BuildError, Builder};
pub use text::Label;
pub use verify::{GlobalType, VerifyError, verify_flow};

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use crate::{IdVec, Op, Table, TensorType};

crate::id! {
    /// A layer: one application of an operator.
    pub struct LayerId("layer");
    /// A value: one result of a layer.
    pub struct ValueId("v");
}

/// One application of an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer<L> {
    /// What is computed.
    pub op: Op,
    /// From which values, by slot.
    pub operands: Vec<ValueId>,
    /// Into which values.
    pub results: Vec<ValueId>,
    /// What this level knows about the layer.
    pub label: L,
}

/// One result of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Value<T> {
    /// Its name, unique in the graph.
    pub name: String,
    /// What this level knows about the value: at least its type.
    pub ty: T,
    /// The layer that computes it.
    pub layer: LayerId,
}

/// Layers in topological order and the values between them.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerGraph<T, L> {
    pub(crate) name: String,
    pub(crate) layers: IdVec<LayerId, Layer<L>>,
    pub(crate) values: IdVec<ValueId, Value<T>>,
    pub(crate) outputs: Vec<ValueId>,
    pub(crate) updates: Vec<Update>,
}

/// A state that is written at the end of a training step. All layers of the step read what it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// The state.
    pub state: ValueId,
    /// What it becomes.
    pub new: ValueId,
}

/// A model as for one device.
pub type Graph = LayerGraph<TensorType, ()>;

impl<T, L> LayerGraph<T, L> {
    /// The graph's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All layers, in an order in which operands come first.
    pub fn layers(&self) -> &IdVec<LayerId, Layer<L>> {
        &self.layers
    }

    /// All values.
    pub fn values(&self) -> &IdVec<ValueId, Value<T>> {
        &self.values
    }

    /// The values the model returns; a trained model returns its scalar loss first.
    pub fn outputs(&self) -> &[ValueId] {
        &self.outputs
    }

    /// The states that a training step writes; other steps only read them.
    pub fn updates(&self) -> &[Update] {
        &self.updates
    }

    /// All tables, with their values.
    pub fn tables(&self) -> impl Iterator<Item = (ValueId, &Table)> {
        self.layers.iter().filter_map(|(_, layer)| match &layer.op {
            Op::Table(table) => Some((layer.results[0], table)),
            _ => None,
        })
    }

    /// Gives `bytes` to every table that a text named by their hash; how many these are.
    pub fn provide_table(&mut self, bytes: impl Into<Arc<[u8]>>) -> usize {
        let bytes = bytes.into();
        let hash = xxh3_128(&bytes);
        let mut provided = 0;
        for id in self.layers.ids().collect::<Vec<_>>() {
            if let Op::Table(table) = &mut self.layers[id].op {
                provided += usize::from(table.provide(&bytes, hash));
            }
        }
        provided
    }

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> &T {
        &self.values[value].ty
    }

    /// The operator that computes a value.
    pub fn op_of(&self, value: ValueId) -> &Op {
        &self.layers[self.values[value].layer].op
    }

    /// A layer's name: that of its first result.
    pub fn layer_name(&self, layer: LayerId) -> &str {
        &self.values[self.layers[layer].results[0]].name
    }

    /// The values computed by layers that satisfy `wanted`, in order.
    pub fn leaves(&self, wanted: impl Fn(&Op) -> bool) -> impl Iterator<Item = ValueId> {
        self.layers.iter().filter(move |(_, layer)| wanted(&layer.op)).map(|(_, layer)| layer.results[0])
    }

    /// The value called `name`.
    pub fn find(&self, name: &str) -> Option<ValueId> {
        self.values.iter().find(|(_, value)| value.name == name).map(|(id, _)| id)
    }
}
