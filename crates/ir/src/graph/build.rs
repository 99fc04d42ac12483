//! Building a model layer by layer; each is checked when it is added.

use std::collections::BTreeSet;

use super::{Graph, Layer, LayerGraph, LayerId, Update, Value, ValueId, VerifyError};
use crate::{Id, Init, Op, OpError, Shape, Table, TensorType};

/// Why a layer cannot be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum BuildError {
    /// The operator does not take these operands.
    #[error("layer `{layer}` ({op}): {source}")]
    Op { layer: String, op: String, source: Box<OpError> },
    /// A leaf has a type it cannot have.
    #[error("layer `{layer}`: {ty} {reason}")]
    Leaf { layer: String, ty: TensorType, reason: String },
    /// An update does not fit its state.
    #[error(transparent)]
    Update(Box<VerifyError>),
}

/// Collects layers; [`Builder::finish`] gives the graph.
///
/// ```
/// use phalanx_ir::{TensorType, graph::Builder, Init};
/// let mut model = Builder::new("line");
/// let x = model.input("x", TensorType::f32([4, 2]))?;
/// let w = model.param("w", [1, 2], Init::Normal(0.1))?;
/// println!("{}", model.finish([x, w]));
/// # Ok::<(), phalanx_ir::graph::BuildError>(())
/// ```
pub struct Builder {
    graph: Graph,
    names: BTreeSet<String>,
}

impl Builder {
    /// Starts an empty model.
    pub fn new(name: impl Into<String>) -> Self {
        let graph = LayerGraph {
            name: name.into(),
            layers: Default::default(),
            values: Default::default(),
            outputs: Vec::new(),
            updates: Vec::new(),
        };
        Builder { graph, names: BTreeSet::new() }
    }

    /// The type of a value added so far.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        self.graph.ty(value)
    }

    /// The shape of a value added so far.
    pub fn shape(&self, value: ValueId) -> &Shape {
        &self.graph.ty(value).shape
    }

    /// The value called `name`, if one was added.
    pub fn find(&self, name: &str) -> Option<ValueId> {
        self.graph.find(name)
    }

    /// What a value added so far is called.
    pub fn name_of(&self, value: ValueId) -> &str {
        &self.graph.values[value].name
    }

    /// The layer that computes a value added so far.
    pub fn layer_of(&self, value: ValueId) -> LayerId {
        self.graph.values[value].layer
    }

    /// The operator that computes a value added so far.
    pub fn op_of(&self, value: ValueId) -> &Op {
        self.graph.op_of(value)
    }

    /// Calls a value by another name; one already taken gets a number appended.
    pub fn rename(&mut self, value: ValueId, name: &str) {
        self.names.remove(&self.graph.values[value].name);
        let name = self.unused(name.to_string());
        self.graph.values[value].name = name;
    }

    /// Ends the model; `outputs` are what it returns, a scalar loss first if it is to be trained.
    pub fn finish(mut self, outputs: impl Into<Vec<ValueId>>) -> Graph {
        self.graph.outputs = outputs.into();
        self.graph
    }

    /// Adds a layer and gives its results. A name already taken gets a number appended. Leaves are added by
    /// [`Builder::leaf`], which knows their type.
    pub fn add(
        &mut self,
        name: &str,
        op: impl Into<Op>,
        operands: &[ValueId],
    ) -> Result<Vec<ValueId>, BuildError> {
        let op = op.into();
        assert!(!op.is_leaf(), "layer `{name}`: a leaf operator is added by `leaf`");
        let types: Vec<_> = operands.iter().map(|&value| self.ty(value).clone()).collect();
        match op.infer(&types) {
            Ok(results) => Ok(self.push(name, op, operands, results)),
            Err(source) => Err(BuildError::Op {
                layer: name.to_string(),
                op: op.to_text().0.to_string(),
                source: Box::new(source),
            }),
        }
    }

    /// Adds a layer with one result.
    pub fn add_one(
        &mut self,
        name: &str,
        op: impl Into<Op>,
        operands: &[ValueId],
    ) -> Result<ValueId, BuildError> {
        self.add(name, op, operands).map(|results| results[0])
    }

    /// Adds a leaf layer of the given type.
    pub fn leaf(&mut self, name: &str, op: Op, ty: TensorType) -> Result<ValueId, BuildError> {
        assert!(op.is_leaf(), "layer `{name}`: only a leaf operator is added by `leaf`");
        match op.check_leaf(&ty) {
            Ok(()) => Ok(self.push(name, op, &[], vec![ty])[0]),
            Err((wanted, fix)) => {
                let reason = format!("{wanted}; {fix}");
                Err(BuildError::Leaf { layer: name.to_string(), ty, reason })
            }
        }
    }

    /// Lets training steps write `state`, which becomes `new` at their end.
    pub fn update(&mut self, state: ValueId, new: ValueId) -> Result<(), BuildError> {
        self.graph.updates.push(Update { state, new });
        let last = self.graph.updates.len() - 1;
        match self.graph.check_update(last) {
            None => Ok(()),
            Some(error) => {
                self.graph.updates.pop();
                Err(BuildError::Update(Box::new(error)))
            }
        }
    }

    fn push(&mut self, name: &str, op: Op, operands: &[ValueId], types: Vec<TensorType>) -> Vec<ValueId> {
        let layer = LayerId::from_index(self.graph.layers.len());
        let single = types.len() == 1;
        let mut results = Vec::new();
        for (index, ty) in types.into_iter().enumerate() {
            let name = if single { name.to_string() } else { format!("{name}.{index}") };
            let name = self.unused(name);
            results.push(self.graph.values.push(Value { name, ty, layer }));
        }
        let operands = operands.to_vec();
        self.graph.layers.push(Layer { op, operands, results: results.clone(), label: () });
        results
    }

    fn unused(&mut self, name: String) -> String {
        let mut candidate = name.clone();
        let mut number = 1;
        while !self.names.insert(candidate.clone()) {
            number += 1;
            candidate = format!("{name}_{number}");
        }
        candidate
    }
}

/// Leaves; layers of operators are shorthands of the crate `ops`.
impl Builder {
    /// A tensor fed before each step.
    pub fn input(&mut self, name: &str, ty: TensorType) -> Result<ValueId, BuildError> {
        self.leaf(name, Op::Input, ty)
    }

    /// A trained tensor of 32-bit floats.
    pub fn param(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<ValueId, BuildError> {
        self.leaf(name, Op::Param(init), TensorType::f32(shape))
    }

    /// A tensor of 32-bit floats that is kept between steps and not trained; see [`Builder::update`].
    pub fn state(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<ValueId, BuildError> {
        self.leaf(name, Op::State(init), TensorType::f32(shape))
    }

    /// A tensor with the elements of `table`.
    pub fn table(
        &mut self,
        name: &str,
        shape: impl Into<Shape>,
        table: Table,
    ) -> Result<ValueId, BuildError> {
        let ty = TensorType::new(table.dtype(), shape);
        self.leaf(name, Op::Table(table), ty)
    }
}
