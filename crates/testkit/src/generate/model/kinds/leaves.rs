//! Values that are neither fed nor trained: tables, states, random numbers.

use phalanx_ir::graph::ValueId;
use phalanx_ir::{Binary, Init, Op, Reduce, Shape, Table, Unary};
use phalanx_ops::{BinaryOp, Distribution, Gather, Random, ReduceOp, UnaryOp};

use super::super::Draft;

impl Draft {
    /// A factor for each element or channel, or rows in the order of a table.
    pub(super) fn table(&mut self, x: ValueId) {
        let x = self.at_least(x, 1);
        let shape = self.model.shape(x).clone();
        let name = self.name();
        if self.rng.once_in(3) {
            let axis = self.rng.below(shape.rank());
            let rows: Vec<_> =
                (0..self.extent()).map(|_| self.rng.below(shape.dims()[axis]) as i64).collect();
            let rows =
                self.model.table(&name, [rows.len()], Table::i64s(&rows)).expect("a drawn leaf is legal");
            self.add(Op::from(Gather { axis }), &[x, rows]);
            return;
        }
        let shape = if self.rng.once_in(2) { shape } else { Shape::from([shape.last()]) };
        let factors: Vec<_> = (0..shape.elements()).map(|_| self.rng.uniform(-1.0, 1.0) as f32).collect();
        let factors = self.model.table(&name, shape, Table::f32s(&factors)).expect("a drawn leaf is legal");
        self.add(Op::from(BinaryOp(Binary::Mul)), &[x, factors]);
    }

    /// Positive weights of classes, which get no gradient.
    pub(in super::super) fn class_weights(&mut self, classes: usize) -> ValueId {
        let weights: Vec<_> = (0..classes).map(|_| self.rng.uniform(0.5, 2.0) as f32).collect();
        let name = self.name();
        self.model.table(&name, [classes], Table::f32s(&weights)).expect("a drawn leaf is legal")
    }

    /// A state that scales the value and follows its sum over the outermost dimension.
    pub(super) fn state(&mut self, x: ValueId) {
        let x = self.at_least(x, 1);
        let inner = Shape::new(&self.dims(x)[1..]);
        let name = self.name();
        let state = self.model.state(&name, inner, Init::Ones).expect("a drawn leaf is legal");
        self.add(Op::from(BinaryOp(Binary::Mul)), &[x, state]);
        let sum = self.add(Op::from(ReduceOp { kind: Reduce::Sum, axes: vec![0], keep: false }), &[x]);
        let half = self.add(Op::from(UnaryOp(Unary::MulScalar(0.5))), &[state]);
        let new = self.add(Op::from(BinaryOp(Binary::Add)), &[half, sum]);
        self.model.update(state, new).expect("a drawn state has the type of its new value");
        // It need not be a term of the loss.
        self.used.insert(new);
    }

    /// Random numbers that are always one, which the evaluator knows; tests of bits draw others in their place.
    pub(super) fn random(&mut self, x: ValueId) {
        let shape = self.model.shape(x).clone();
        let name = self.name();
        let drawn = self.model.add_one(&name, Random { kind: Distribution::Bernoulli(1.0), shape }, &[]);
        let drawn = drawn.expect("a drawn leaf is legal");
        self.add(Op::from(BinaryOp(Binary::Mul)), &[x, drawn]);
    }
}
