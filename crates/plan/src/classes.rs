//! Classes of axes: which dimensions of which values are cut alike, found from the operators' index signatures.
//!
//! Two dimensions are in one class if an operator runs along both with one axis of its iteration space. A class is *whole*
//! if some operator needs one of its dimensions in one piece. The batch and the sequence are classes: those of
//! the inputs' dimensions.

use phalanx_ir::graph::{Graph, Layer, ValueId};
use phalanx_ir::{Cuts, IdVec, Op, Shape};

/// A class, by one of its dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Class(usize);

/// The classes of a model.
pub(crate) struct Classes<'a> {
    pub(crate) model: &'a Graph,
    /// The number of every value's first dimension; the others follow.
    first: IdVec<ValueId, usize>,
    /// A dimension of the same class; the class is the one that is its own.
    parents: Vec<usize>,
    /// Whether a class is needed whole, by the dimension that stands for it.
    whole: Vec<bool>,
    /// Whether a parameter runs along a class.
    trained: Vec<bool>,
}

impl<'a> Classes<'a> {
    /// The classes of `model`.
    pub(crate) fn new(model: &'a Graph) -> Classes<'a> {
        let mut count = 0;
        let first = model.values().iter().map(|(_, value)| {
            count += value.ty.shape.rank();
            count - value.ty.shape.rank()
        });
        let first = first.collect();
        let mut classes =
            Classes { model, first, parents: (0..count).collect(), whole: Vec::new(), trained: Vec::new() };
        let mut needed = Vec::new();
        for (_, layer) in model.layers().iter() {
            classes.add_layer(layer, &mut needed);
        }
        for dim in 0..count {
            classes.parents[dim] = classes.parents[classes.parents[dim]];
        }
        (classes.whole, classes.trained) = (vec![false; count], vec![false; count]);
        for dim in needed {
            let class = classes.root(dim);
            classes.whole[class] = true;
        }
        for param in model.leaves(|op| matches!(op, Op::Param(_))) {
            for dim in 0..model.ty(param).shape.rank() {
                let class = classes.root(classes.first[param] + dim);
                classes.trained[class] = true;
            }
        }
        classes
    }

    /// The class of a dimension.
    pub(crate) fn of(&self, value: ValueId, dim: usize) -> Class {
        Class(self.root(self.first[value] + dim))
    }

    /// Whether some operator needs it in one piece.
    pub(crate) fn is_whole(&self, class: Class) -> bool {
        self.whole[class.0]
    }

    /// The dimension of an input along which samples lie. It is the outermost, unless the model mixes what lies along that
    /// or has parameters for it, and another one is free of both.
    pub(crate) fn batch_dim(&self, input: ValueId) -> usize {
        let is_free = |dim: &usize| {
            let class = self.of(input, *dim);
            !self.is_whole(class) && !self.trained[class.0]
        };
        (0..self.model.ty(input).shape.rank()).find(is_free).unwrap_or(0)
    }

    /// The classes of the batch.
    pub(crate) fn batch(&self) -> Vec<Class> {
        let inputs = self.inputs().filter(|&input| self.model.ty(input).shape.rank() > 0);
        inputs.map(|input| self.of(input, self.batch_dim(input))).collect()
    }

    /// The classes of the other dimensions of inputs, such as the sequence.
    pub(crate) fn sequence(&self) -> Vec<Class> {
        let batch = self.batch();
        let dims = |input: ValueId| (0..self.model.ty(input).shape.rank()).map(move |dim| (input, dim));
        let classes = self.inputs().flat_map(dims).map(|(input, dim)| self.of(input, dim));
        classes.filter(|class| !batch.contains(class)).collect()
    }

    fn inputs(&self) -> impl Iterator<Item = ValueId> {
        self.model.leaves(|op| matches!(op, Op::Input))
    }

    fn root(&self, mut dim: usize) -> usize {
        while self.parents[dim] != dim {
            dim = self.parents[dim];
        }
        dim
    }

    /// Joins what one operator cuts alike; adds the dimensions that it needs whole.
    fn add_layer(&mut self, layer: &Layer<()>, needed: &mut Vec<usize>) {
        let Some(operator) = layer.op.operator() else { return };
        let (operands, results) = (shapes(self.model, &layer.operands), shapes(self.model, &layer.results));
        let cuts = operator.cuts(&operands, &results);
        let sum = operator.apart(&operands).map(|apart| {
            let cuts = apart.sum.operator().map(|sum| sum.cuts(&operands[..apart.operands], &results));
            cuts.unwrap_or_default()
        });
        for cuts in [Some(&cuts), sum.as_ref()].into_iter().flatten() {
            self.join(layer, cuts, [&operands, &results]);
        }
        for (slot, (&operand, dims)) in layer.operands.iter().zip(&cuts.operands).enumerate() {
            for (dim, axis) in dims.iter().enumerate() {
                let has_axis = |cuts: &Cuts| cuts.operands.get(slot).is_some_and(|dims| dims[dim].is_some());
                let is_kept = match axis {
                    Some(axis) => is_kept(&cuts, *axis),
                    None => !sum.as_ref().is_some_and(has_axis),
                };
                if is_kept && operands[slot].dims()[dim] > 1 {
                    needed.push(self.first[operand] + dim);
                }
            }
        }
        // What it gives in one piece is not cut later either.
        for ((&result, dims), shape) in layer.results.iter().zip(&cuts.results).zip(&results) {
            let whole =
                dims.iter().enumerate().filter(|(dim, axis)| axis.is_none() && shape.dims()[*dim] > 1);
            needed.extend(whole.map(|(dim, _)| self.first[result] + dim));
        }
    }

    /// Joins the dimensions along each axis that can be cut: one of a single element may be stretched, and says nothing about
    /// the others.
    fn join(&mut self, layer: &Layer<()>, cuts: &Cuts, shapes: [&[&Shape]; 2]) {
        let mut seen: Vec<Option<usize>> = vec![None; cuts.axes()];
        let limits = cuts.limits(shapes[0], shapes[1]);
        let slots = layer.operands.iter().zip(&cuts.operands).chain(layer.results.iter().zip(&cuts.results));
        for (&value, dims) in slots {
            for (dim, axis) in dims.iter().enumerate() {
                let Some(axis) = axis.filter(|&axis| !limits[axis].contains(&1)) else { continue };
                let own = self.root(self.first[value] + dim);
                match seen[axis] {
                    Some(other) => {
                        let other = self.root(other);
                        self.parents[own.max(other)] = own.min(other);
                    }
                    None => seen[axis] = Some(own),
                }
            }
        }
    }
}

/// The shapes of some values.
pub(crate) fn shapes<'a>(model: &'a Graph, values: &[ValueId]) -> Vec<&'a Shape> {
    values.iter().map(|&value| &model.ty(value).shape).collect()
}

/// Whether an axis stays in one piece although dimensions run along it.
fn is_kept(cuts: &Cuts, axis: usize) -> bool {
    cuts.blocks.contains(&(axis, 1)) || cuts.unordered == Some(axis)
}
