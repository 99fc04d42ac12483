//! The random models: a few layers, one kind after the other drawn from a table, then a loss over everything unused.

mod kinds;

use std::collections::BTreeSet;

use phalanx_ir::graph::{Builder, Graph, ValueId};
use phalanx_ir::{Binary, DType, Init, Op, Reduce, Shape, TensorType, Unary};
use phalanx_ops::{BinaryOp, CrossEntropy, Layers, ReduceOp, Reshape, UnaryOp};

use crate::Rng;

/// Draws a model whose dimensions have these extents, and what follows from them.
pub(super) fn build(rng: Rng, extents: &[usize]) -> Graph {
    let mut draft = Draft {
        rng,
        extents: extents.to_vec(),
        model: Builder::new("random"),
        floats: Vec::new(),
        used: BTreeSet::new(),
        layers: 0,
    };
    let leaf = draft.shape();
    draft.leaf(leaf);
    for _ in 0..1 + draft.rng.below(5) {
        let kind = draft.rng.choose(kinds::KINDS);
        let x = draft.pick();
        kind(&mut draft, x);
    }
    let loss = draft.loss();
    draft.model.finish([loss])
}

struct Draft {
    rng: Rng,
    extents: Vec<usize>,
    model: Builder,
    floats: Vec<ValueId>,
    used: BTreeSet<ValueId>,
    layers: usize,
}

/// Pieces of layers.
impl Draft {
    fn name(&mut self) -> String {
        self.layers += 1;
        format!("v{}", self.layers)
    }

    fn add(&mut self, op: Op, operands: &[ValueId]) -> ValueId {
        let name = self.name();
        let results = self.model.add(&name, op, operands).expect("a drawn layer is legal");
        self.used.extend(operands);
        self.floats.extend(results.iter().filter(|&&value| self.model.ty(value).dtype == DType::F32));
        results[0]
    }

    /// A fresh parameter, or sometimes an input, of floats.
    fn leaf(&mut self, shape: Shape) -> ValueId {
        let name = self.name();
        let leaf = match self.rng.below(4) {
            0 => self.model.input(&name, TensorType::f32(shape)),
            1 => self.model.param(&name, shape, Init::Uniform(0.5)),
            _ => self.model.param(&name, shape, Init::Normal(0.5)),
        };
        let leaf = leaf.expect("a drawn leaf is legal");
        self.floats.push(leaf);
        leaf
    }

    fn indices(&mut self, shape: Shape) -> ValueId {
        let name = self.name();
        let dtype = self.rng.choose(&[DType::I64, DType::I32]);
        self.model.input(&name, TensorType::new(dtype, shape)).expect("a drawn leaf is legal")
    }

    fn extent(&mut self) -> usize {
        self.rng.choose(&self.extents)
    }

    /// A random shape of one to three dimensions.
    fn shape(&mut self) -> Shape {
        let rank = 1 + self.rng.below(3);
        Shape::new((0..rank).map(|_| self.extent()).collect::<Vec<_>>())
    }

    /// A value to go on from: any there is, the newest ones more often.
    fn pick(&mut self) -> ValueId {
        let newest = self.floats.len() - 1;
        if self.rng.once_in(2) { self.floats[newest] } else { self.rng.choose(&self.floats) }
    }

    fn dims(&self, x: ValueId) -> Vec<usize> {
        self.model.shape(x).dims().to_vec()
    }

    /// The value in a shape with at least `rank` dimensions.
    fn at_least(&mut self, x: ValueId, rank: usize) -> ValueId {
        let dims = self.dims(x);
        if dims.len() >= rank {
            return x;
        }
        let ones = vec![1; rank - dims.len()];
        self.add(Op::from(Reshape { shape: Shape::new([ones, dims].concat()) }), &[x])
    }

    /// The value as `[batch, time, heads, dim]`.
    fn four(&mut self, x: ValueId) -> ValueId {
        let dims = self.dims(x);
        if dims.len() <= 4 {
            return self.at_least(x, 4);
        }
        let (outer, inner) = dims.split_at(dims.len() - 3);
        let shape = [&[outer.iter().product()], inner].concat();
        self.add(Op::from(Reshape { shape: Shape::new(shape) }), &[x])
    }

    fn scalar(&mut self) -> f32 {
        self.rng.choose(&[0.5, -1.5, 2.0, 0.75])
    }
}

/// The end of a model.
impl Draft {
    fn loss(&mut self) -> ValueId {
        let unused: Vec<_> = self.floats.iter().copied().filter(|x| !self.used.contains(x)).collect();
        let terms: Vec<_> = unused.into_iter().map(|x| self.term(x)).collect();
        let first = terms[0];
        terms[1..].iter().fold(first, |sum, &term| self.add(Op::from(BinaryOp(Binary::Add)), &[sum, term]))
    }

    /// A scalar that depends on every element of `x`.
    fn term(&mut self, x: ValueId) -> ValueId {
        let shape = self.model.shape(x).clone();
        match self.rng.below(3) {
            0 if shape.rank() > 0 => {
                let labels = self.indices(Shape::new(&shape.dims()[..shape.rank() - 1]));
                let (name, ignore) = (self.name(), self.rng.choose(&[-100, -1]));
                let loss = CrossEntropy { ignore, smoothing: self.rng.choose(&[0.0, 0.0, 0.2]) };
                let weights = self.rng.once_in(3).then(|| self.class_weights(shape.last()));
                let loss = self.model.smooth_cross_entropy(&name, [x, labels], weights, loss);
                loss.expect("a drawn layer is legal")
            }
            1 => {
                let (target, name) = (self.leaf(shape), self.name());
                self.model.mse(&name, x, target).expect("a drawn layer is legal")
            }
            _ => {
                let square = self.add(Op::from(UnaryOp(Unary::Square)), &[x]);
                let axes = (0..shape.rank()).collect();
                let kind = self.rng.choose(&[Reduce::Sum, Reduce::Mean]);
                self.add(Op::from(ReduceOp { kind, axes, keep: false }), &[square])
            }
        }
    }
}
