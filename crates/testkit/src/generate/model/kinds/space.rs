//! Layers that look at windows of `[batch, space…, channels]`, and batch norm.

use phalanx_ir::graph::ValueId;
use phalanx_ir::{Activation, Op, Pooling, Resampling, ScaleFactors, Shape, TensorType};
use phalanx_ops::{BatchNormOptions, Conv, Layers, Pool, Reshape, Resize};

use super::super::Draft;

/// The most elements a result may have.
const ELEMENTS: usize = 600;

/// How often numbers are drawn in search of some that fit.
const TRIES: usize = 20;

impl Draft {
    /// The value as `[batch, space…, channels]` with one to three dimensions of space.
    fn image(&mut self, x: ValueId) -> ValueId {
        let mut dims = self.dims(x);
        let rank = dims.len();
        while dims.len() < 3 {
            let at = self.rng.below(dims.len() + 1);
            dims.insert(at, 1);
        }
        while dims.len() > 5 {
            let outer = dims.remove(0);
            dims[0] *= outer;
        }
        if dims.len() == rank {
            return x;
        }
        self.add(Op::from(Reshape { shape: Shape::new(dims) }), &[x])
    }

    /// A number for each of `count` places, one of the choices each.
    fn numbers(&mut self, count: usize, choices: &[usize]) -> Vec<usize> {
        (0..count).map(|_| self.rng.choose(choices)).collect()
    }

    /// Whether these operands are legal, and their result is not large.
    fn fits(&self, op: &Op, operands: &[TensorType]) -> bool {
        op.infer(operands).is_ok_and(|results| results[0].shape.elements() <= ELEMENTS)
    }

    pub(super) fn conv(&mut self, x: ValueId) {
        let x = self.image(x);
        let dims = self.model.shape(x).rank() - 2;
        let channels = self.model.shape(x).last();
        let divisors: Vec<_> = (1..=channels).filter(|groups| channels.is_multiple_of(*groups)).collect();
        for attempt in 0..TRIES {
            let (groups, adjoint) = (self.rng.choose(&divisors), self.rng.once_in(3));
            // The last attempt is one that always fits, unless x is large.
            let small: &[usize] = if attempt + 1 < TRIES { &[1, 2, 3] } else { &[1] };
            let conv = Conv {
                stride: self.numbers(dims, small),
                dilation: self.numbers(dims, if small.len() > 1 { &[1, 1, 2] } else { small }),
                padding: self.numbers(2 * dims, if small.len() > 1 { &[0, 0, 1, 2] } else { &[0] }),
                groups,
                adjoint,
                output_padding: if adjoint { self.numbers(dims, &[0, 0, 1]) } else { Vec::new() },
                activation: self.rng.choose(Activation::ALL),
            };
            let other = groups * self.rng.choose(&[1, 2, 4]);
            let lead = if adjoint { [channels, other / groups] } else { [other, channels / groups] };
            let weight = Shape::new([&lead[..], &self.numbers(dims, small)].concat());
            let op = Op::from(conv);
            if self.fits(&op, &[self.model.ty(x).clone(), TensorType::f32(weight.clone())]) {
                let mut operands = vec![x, self.leaf(weight)];
                if self.rng.once_in(2) {
                    operands.push(self.leaf(Shape::from([other])));
                }
                self.add(op, &operands);
                return;
            }
        }
    }

    pub(super) fn pool(&mut self, x: ValueId) {
        let x = self.image(x);
        let dims = self.model.shape(x).rank() - 2;
        for _ in 0..TRIES {
            let kind = self.rng.choose(Pooling::ALL);
            let pool = match self.rng.once_in(4) {
                true => Pool { kind, adaptive: self.numbers(dims, &[1, 2, 3]), ..Pool::default() },
                false => Pool {
                    kind,
                    kernel: self.numbers(dims, &[1, 2, 3]),
                    stride: if self.rng.once_in(2) { self.numbers(dims, &[1, 2, 3]) } else { Vec::new() },
                    padding: self.numbers(2 * dims, &[0, 0, 1]),
                    ceil: self.rng.once_in(2),
                    count_padding: self.rng.once_in(2),
                    adaptive: Vec::new(),
                },
            };
            let op = Op::from(pool);
            if self.fits(&op, &[self.model.ty(x).clone()]) {
                self.add(op, &[x]);
                return;
            }
        }
    }

    pub(super) fn resize(&mut self, x: ValueId) {
        let x = self.image(x);
        let dims = self.model.shape(x).rank() - 2;
        for _ in 0..TRIES {
            let kind = self.rng.choose(Resampling::ALL);
            let (mut size, mut scale) = (Vec::new(), ScaleFactors::default());
            match self.rng.once_in(2) {
                true => size = self.numbers(dims, &[1, 2, 3, 5]),
                false => scale = ScaleFactors((0..dims).map(|_| self.rng.choose(&[0.5, 1.5, 2.0])).collect()),
            }
            let align = kind == Resampling::Linear && self.rng.once_in(2);
            let op = Op::from(Resize { kind, align, size, scale });
            if self.fits(&op, &[self.model.ty(x).clone()]) {
                self.add(op, &[x]);
                return;
            }
        }
    }

    pub(super) fn batch_norm(&mut self, x: ValueId) {
        let x = self.at_least(x, 2);
        let (channels, batch) = (self.model.shape(x).last(), self.dims(x)[0]);
        let divisors: Vec<_> = (1..=batch).filter(|groups| batch.is_multiple_of(*groups)).collect();
        let groups = if self.rng.once_in(3) { self.rng.choose(&divisors) } else { 1 };
        let weights = self.rng.once_in(2).then(|| [(); 2].map(|()| self.leaf(Shape::from([channels]))));
        let training = self.model.shape(x).elements() / channels / groups > 1;
        let momentum = self.rng.choose(&[Some(0.1), None]);
        let options = BatchNormOptions { eps: 0.1, momentum, groups, training };
        let name = self.name();
        let y = self.model.batch_norm(&name, x, weights, options).expect("a drawn layer is legal");
        self.used.extend(weights.into_iter().flatten().chain([x]));
        self.floats.push(y);
    }
}
