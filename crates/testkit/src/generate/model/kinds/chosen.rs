//! Layers that choose rows and elements: by index, by size, by comparison.

use phalanx_ir::graph::ValueId;
use phalanx_ir::{CompareKind, DType, Op, Shape, TensorType};
use phalanx_ops::{Compare, Gather, GatherElements, GroupedLinear, ScatterAdd, TopK, Where};

use super::super::Draft;

const COMPARISONS: [CompareKind; 6] =
    [CompareKind::Lt, CompareKind::Le, CompareKind::Gt, CompareKind::Ge, CompareKind::Eq, CompareKind::Ne];

impl Draft {
    /// An input of truth values.
    pub(super) fn truths(&mut self, shape: Shape) -> ValueId {
        let name = self.name();
        self.model.input(&name, TensorType::new(DType::Bool, shape)).expect("a drawn leaf is legal")
    }

    pub(super) fn gather(&mut self, x: ValueId) {
        let x = self.at_least(x, 1);
        let axis = self.rng.below(self.model.shape(x).rank());
        let index = (0..self.rng.below(3)).map(|_| self.extent().min(4)).collect::<Vec<_>>();
        let index = self.indices(Shape::new(index));
        self.add(Op::from(Gather { axis }), &[x, index]);
    }

    pub(super) fn gather_elements(&mut self, x: ValueId) {
        let x = self.at_least(x, 1);
        let mut dims = self.dims(x);
        let axis = self.rng.below(dims.len());
        dims[axis] = self.extent();
        let narrow = self.rng.below(dims.len());
        if self.rng.once_in(3) && narrow != axis {
            dims[narrow] = 1 + self.rng.below(dims[narrow]);
        }
        let index = self.indices(Shape::new(dims));
        self.add(Op::from(GatherElements { axis }), &[x, index]);
    }

    pub(super) fn scatter_add(&mut self, x: ValueId) {
        let x = self.at_least(x, 1);
        let dims = self.dims(x);
        let axis = self.rng.below(dims.len());
        let end = axis + self.rng.below(dims.len() - axis + 1);
        let index = self.indices(Shape::new(&dims[axis..end]));
        let size = self.extent();
        self.add(Op::from(ScatterAdd { axis, size }), &[x, index]);
    }

    pub(super) fn grouped_linear(&mut self, x: ValueId) {
        let x = self.at_least(x, 1);
        let dims = self.dims(x);
        let (&inner, rows) = dims.split_last().expect("it has at least one dimension");
        let ids = self.indices(Shape::new(rows));
        let shape = Shape::from([self.extent(), self.extent(), inner]);
        let weight = self.leaf(shape);
        self.add(Op::from(GroupedLinear), &[x, ids, weight]);
    }

    /// The largest elements; where they stand sometimes chooses others.
    pub(super) fn topk(&mut self, x: ValueId) {
        let x = self.at_least(x, 1);
        let last = self.model.shape(x).last();
        let (k, axis) = (1 + self.rng.below(last), self.model.shape(x).rank() - 1);
        let name = self.name();
        let results = self.model.add(&name, TopK { k }, &[x]).expect("a drawn layer is legal");
        self.used.insert(x);
        self.floats.push(results[0]);
        if self.rng.once_in(2) {
            let other = self.leaf(self.model.shape(x).clone());
            self.add(Op::from(GatherElements { axis }), &[other, results[1]]);
        }
    }

    /// Elements of x or of another value, as a comparison or two say, or truth values that are given.
    pub(super) fn choice(&mut self, x: ValueId) {
        let shape = self.model.shape(x).clone();
        let mut dims = shape.dims().to_vec();
        for extent in &mut dims {
            if self.rng.once_in(4) {
                *extent = 1;
            }
        }
        let stretched = Shape::new(dims);
        let kind = self.rng.choose(&COMPARISONS);
        let first = match self.rng.below(4) {
            0 => self.truths(stretched.clone()),
            1 => self.add(Op::from(Compare { kind, scalar: Some(0.25) }), &[x]),
            2 => {
                let integers = self.indices(stretched.clone());
                self.add(Op::from(Compare { kind, scalar: Some(2.0) }), &[integers])
            }
            _ => {
                let other = self.leaf(stretched.clone());
                self.add(Op::from(Compare { kind, scalar: None }), &[x, other])
            }
        };
        let condition = match self.rng.once_in(3) {
            false => first,
            true => {
                let second = self.truths(shape);
                let kind = self.rng.choose(&[CompareKind::And, CompareKind::Or]);
                self.add(Op::from(Compare { kind, scalar: None }), &[first, second])
            }
        };
        let other = self.leaf(stretched);
        let sides = if self.rng.once_in(2) { [x, other] } else { [other, x] };
        self.add(Op::from(Where), &[condition, sides[0], sides[1]]);
    }
}
