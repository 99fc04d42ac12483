//! What holds for every flow:
//!
//! 1. operands are defined by earlier layers;
//! 2. each value is a result of the layer it names; its name is unique and, like the graph's, writable;
//! 3. result types are what the shape rules give for the operands; leaves have one result of a legal type;
//! 4. the graph returns something it computes;
//! 5. an update names a state and a value of its type; no state has two.

use std::collections::BTreeSet;

use super::{Graph, Layer, LayerGraph, LayerId, Update};
use crate::parallel::ParallelType;
use crate::{Op, OpError, TensorType};

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum VerifyError {
    /// An operand is not defined before its use.
    #[error("layer `{layer}` uses a value that no earlier layer defines")]
    UseBeforeDefinition { layer: String },
    /// A name is taken twice or cannot be written.
    #[error("`{name}` is not a unique name of letters, digits, `_`, `.`, `-`")]
    Name { name: String },
    /// Results do not match the shape rule.
    #[error("layer `{layer}` is written as {written} but its operator gives {inferred}")]
    Type { layer: String, written: String, inferred: String },
    /// The operator does not take the operands.
    #[error("layer `{layer}`: {source}")]
    Op { layer: String, source: OpError },
    /// An output is not a value of the graph, or there is none.
    #[error("the graph returns nothing it computes")]
    Outputs,
    /// An update of something else than a state.
    #[error("`{value}` is updated but it is a {op}; only a state is")]
    NotState { value: String, op: String },
    /// A state becomes something of another type.
    #[error("state `{state}` is {ty} but is updated with `{new}`, which is {found}; make them alike")]
    UpdateType { state: String, ty: String, new: String, found: String },
    /// Two updates of one state.
    #[error("state `{state}` is updated twice; join the updates into one value")]
    UpdatedTwice { state: String },
}

/// Checks a flow; `infer` gives the result types of a layer by this level's rules, for a
/// leaf those it has if they are legal.
pub fn verify_flow<T: PartialEq + ToString + GlobalType, L>(
    flow: &LayerGraph<T, L>,
    infer: impl Fn(&Layer<L>, &[&T]) -> Result<Vec<T>, OpError>,
) -> Result<(), Vec<VerifyError>> {
    let mut errors = Vec::new();
    let mut names = BTreeSet::new();
    if !is_name(&flow.name) {
        errors.push(VerifyError::Name { name: flow.name.clone() });
    }
    for (id, layer) in flow.layers.iter() {
        let name = || layer.results.first().map_or(String::new(), |&value| flow.values[value].name.clone());
        if !layer.operands.iter().all(|&value| flow.values.get(value).is_some_and(|v| v.layer < id)) {
            errors.push(VerifyError::UseBeforeDefinition { layer: name() });
            continue;
        }
        for &result in &layer.results {
            let value = &flow.values[result];
            if value.layer != id || !is_name(&value.name) || !names.insert(&value.name) {
                errors.push(VerifyError::Name { name: value.name.clone() });
            }
        }
        errors.extend(check_types(flow, id, &infer, name()));
    }
    errors.extend((0..flow.updates.len()).filter_map(|index| flow.check_update(index)));
    if flow.outputs.is_empty() || flow.outputs.iter().any(|&value| flow.values.get(value).is_none()) {
        errors.push(VerifyError::Outputs);
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

fn check_types<T: PartialEq + ToString, L>(
    flow: &LayerGraph<T, L>,
    id: LayerId,
    infer: &impl Fn(&Layer<L>, &[&T]) -> Result<Vec<T>, OpError>,
    name: String,
) -> Option<VerifyError> {
    let layer = &flow.layers[id];
    let operands: Vec<&T> = layer.operands.iter().map(|&value| flow.ty(value)).collect();
    let inferred = match infer(layer, &operands) {
        Ok(inferred) => inferred,
        Err(source) => return Some(VerifyError::Op { layer: name, source }),
    };
    let written: Vec<&T> = layer.results.iter().map(|&value| flow.ty(value)).collect();
    if inferred.iter().eq(written.iter().copied()) {
        return None;
    }
    let list = |types: &mut dyn Iterator<Item = String>| types.collect::<Vec<_>>().join(", ");
    Some(VerifyError::Type {
        layer: name,
        written: list(&mut written.iter().map(|ty| ty.to_string())),
        inferred: list(&mut inferred.iter().map(|ty| ty.to_string())),
    })
}

/// A value's type on the whole model.
pub trait GlobalType {
    /// Element type and extents of the whole tensor.
    fn whole(&self) -> TensorType;
}

impl GlobalType for TensorType {
    fn whole(&self) -> TensorType {
        self.clone()
    }
}

impl GlobalType for ParallelType {
    fn whole(&self) -> TensorType {
        self.global()
    }
}

impl<T: GlobalType, L> LayerGraph<T, L> {
    /// What is wrong with an update, seen from those before it.
    pub(super) fn check_update(&self, index: usize) -> Option<VerifyError> {
        let Update { state, new } = self.updates[index];
        let name = |value| self.values[value].name.clone();
        let Op::State(_) = self.op_of(state) else {
            let op = self.op_of(state).to_text().0.to_string();
            return Some(VerifyError::NotState { value: name(state), op });
        };
        if self.updates[..index].iter().any(|update| update.state == state) {
            return Some(VerifyError::UpdatedTwice { state: name(state) });
        }
        let [ty, found] = [state, new].map(|value| self.ty(value).whole());
        (ty != found).then(|| {
            let [ty, found] = [ty, found].map(|ty| ty.to_string());
            VerifyError::UpdateType { state: name(state), ty, new: name(new), found }
        })
    }
}

impl Graph {
    /// Checks every invariant of this file's head; all broken ones are reported.
    pub fn verify(&self) -> Result<(), Vec<VerifyError>> {
        verify_flow(self, |layer, operands| {
            let operands: Vec<TensorType> = operands.iter().map(|&ty| ty.clone()).collect();
            let written: Vec<_> = layer.results.iter().map(|&value| self.ty(value).clone()).collect();
            layer.op.infer_or_keep(&operands, &written)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::ParallelGraph;
    use crate::{Id, Operators};

    /// Three layers in a row; what they compute plays no part.
    fn chain() -> ParallelGraph {
        let text = "parallel @x {
            %a = input f32[1] on dev0
            %b = replicate degree=1 %a : f32[1] on dev0
            %c = replicate degree=1 %b : f32[1] on dev0
            return %c
        }";
        ParallelGraph::parse(text, &Operators::default()).expect("the text is a graph")
    }

    #[test]
    fn operands_come_from_earlier_layers() {
        let mut graph = chain();
        let last = graph.outputs[0];
        graph.layers[LayerId::from_index(1)].operands[0] = last;
        assert_eq!(graph.verify(), Err(vec![VerifyError::UseBeforeDefinition { layer: "b".into() }]));
    }

    #[test]
    fn values_and_layers_name_each_other() {
        let mut graph = chain();
        let first = graph.layers[LayerId::from_index(0)].results[0];
        graph.values[first].name = "b".into();
        let last = graph.outputs[0];
        graph.values[last].layer = LayerId::from_index(0);
        let name = |name: &str| VerifyError::Name { name: name.into() };
        assert_eq!(graph.verify(), Err(vec![name("b"), name("c")]));
    }
}
