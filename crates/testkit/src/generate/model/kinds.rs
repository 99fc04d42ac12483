//! The kinds of layers a random model is made of.

mod chosen;
mod leaves;
mod space;

use phalanx_ir::graph::ValueId;
use phalanx_ir::{Activation, Binary, DType, MAX_RANK, Op, Reduce, Shape, TensorType, Unary};
use phalanx_ops::{
    Attention, BinaryOp, Broadcast, Cast, Concat, Dropout, Embedding, LayerNorm, Linear, Matmul, ReduceOp,
    Reshape, Reverse, RmsNorm, Rotary, Softmax, Split, Transpose, UnaryOp,
};

use super::Draft;

/// The most elements a stretched value may have.
const ELEMENTS: usize = 150;

/// Adds layers that start at a value.
pub(super) type Kind = fn(&mut Draft, ValueId);

/// The kinds of layers; those listed twice are drawn twice as often.
pub(super) const KINDS: &[Kind] = &[
    Draft::unary,
    Draft::unary,
    Draft::positive,
    Draft::binary,
    Draft::binary,
    Draft::constant,
    Draft::linear,
    Draft::linear,
    Draft::matmul,
    Draft::softmax,
    Draft::layer_norm,
    Draft::rms_norm,
    Draft::rotary,
    Draft::attention,
    Draft::reshape,
    Draft::broadcast,
    Draft::transpose,
    Draft::split,
    Draft::concat,
    Draft::reduce,
    Draft::dropout,
    Draft::cast,
    Draft::embedding,
    Draft::integers,
    Draft::masked_attention,
    Draft::reverse,
    Draft::conv,
    Draft::conv,
    Draft::pool,
    Draft::resize,
    Draft::batch_norm,
    Draft::gather,
    Draft::gather_elements,
    Draft::scatter_add,
    Draft::grouped_linear,
    Draft::topk,
    Draft::choice,
    Draft::table,
    Draft::state,
    Draft::random,
];

/// One kind of layer each.
impl Draft {
    fn unary(&mut self, x: ValueId) {
        let scalar = self.scalar();
        let mut kinds =
            vec![Unary::Identity, Unary::Sin, Unary::Cos, Unary::Elu(1.0), Unary::Neg, Unary::Square];
        kinds.extend([Unary::Abs, Unary::AddScalar(scalar), Unary::SubScalar(scalar)]);
        kinds.extend([Unary::MulScalar(scalar), Unary::DivScalar(scalar), Unary::Erf, Unary::HardSwish]);
        kinds.extend([Unary::HardSigmoid, Unary::LeakyRelu(0.2), Unary::Softplus(2.0, 1.5)]);
        kinds.push(Unary::Clamp(-0.5, 0.75));
        kinds.extend(Activation::ALL.iter().filter(|&&a| a != Activation::None).map(|&a| Unary::Act(a)));
        let unary = self.rng.choose(&kinds);
        self.add(Op::from(UnaryOp(unary)), &[x]);
    }

    /// A function of positive numbers only, or one that grows fast, of a value first brought into bounds.
    fn positive(&mut self, x: ValueId) {
        let bounded = self.rng.choose(&[Activation::Sigmoid, Activation::Tanh]);
        let bounded = self.add(Op::from(UnaryOp(Unary::Act(bounded))), &[x]);
        let shifted = self.add(Op::from(UnaryOp(Unary::AddScalar(1.25))), &[bounded]);
        let power = self.rng.choose(&[2.0, 3.0, -1.0, 1.5]);
        let kinds = [Unary::Exp, Unary::Log, Unary::Sqrt, Unary::Rsqrt, Unary::PowScalar(power)];
        let unary = self.rng.choose(&kinds);
        self.add(Op::from(UnaryOp(unary)), &[shifted]);
    }

    fn binary(&mut self, x: ValueId) {
        let mut dims = self.dims(x);
        for extent in &mut dims {
            if self.rng.once_in(3) {
                *extent = 1;
            }
        }
        let from = self.rng.below(dims.len() + 1);
        let mut other = self.leaf(Shape::new(&dims[from..]));
        if self.rng.once_in(4) {
            let unlike = |&value: &ValueId| value != x && self.model.shape(value) == self.model.shape(x);
            let alike: Vec<_> = self.floats.iter().copied().filter(unlike).collect();
            other = alike.last().copied().unwrap_or(other);
        }
        let binary = self.rng.choose(Binary::ALL);
        let operands = if self.rng.once_in(2) { [x, other] } else { [other, x] };
        self.add(Op::from(BinaryOp(binary)), &operands);
    }

    fn constant(&mut self, x: ValueId) {
        let (name, value) = (self.name(), self.scalar());
        let shape = self.model.shape(x).clone();
        let shape = if self.rng.once_in(2) { shape } else { Shape::default() };
        let constant = self.model.leaf(&name, Op::Constant(value), TensorType::f32(shape));
        let constant = constant.expect("a drawn leaf is legal");
        self.add(Op::from(BinaryOp(Binary::Mul)), &[x, constant]);
    }

    fn linear(&mut self, x: ValueId) {
        let x = self.at_least(x, 1);
        let (inner, outer) = (self.model.shape(x).last(), self.extent());
        let transposed = self.rng.once_in(2);
        let weight = self.leaf(Shape::new(if transposed { [inner, outer] } else { [outer, inner] }));
        let mut operands = vec![x, weight];
        if self.rng.once_in(2) {
            operands.push(self.leaf(Shape::from([outer])));
        }
        let activation = self.rng.choose(Activation::ALL);
        self.add(Op::from(Linear { transposed, activation }), &operands);
    }

    fn matmul(&mut self, x: ValueId) {
        let x = self.at_least(x, 2);
        let (transpose_a, transpose_b) = (self.rng.once_in(2), self.rng.once_in(2));
        let mut dims = self.dims(x);
        let rank = dims.len();
        let inner = if transpose_a { dims[rank - 2] } else { dims[rank - 1] };
        let outer = self.extent();
        [dims[rank - 2], dims[rank - 1]] = if transpose_b { [outer, inner] } else { [inner, outer] };
        let other = self.leaf(Shape::new(dims));
        self.add(Op::from(Matmul { transpose_a, transpose_b }), &[x, other]);
    }

    fn softmax(&mut self, x: ValueId) {
        let x = self.at_least(x, 1);
        let axis = self.rng.below(self.model.shape(x).rank());
        self.add(Op::from(Softmax { axis }), &[x]);
    }

    fn layer_norm(&mut self, x: ValueId) {
        let x = self.at_least(x, 1);
        let dims = self.dims(x);
        let axes = 1 + self.rng.below(dims.len());
        let mut operands = vec![x];
        // No weight, gamma, or gamma and beta.
        for _ in 0..self.rng.below(3) {
            operands.push(self.leaf(Shape::new(&dims[dims.len() - axes..])));
        }
        self.add(Op::from(LayerNorm { axes, eps: 1e-5 }), &operands);
    }

    fn rms_norm(&mut self, x: ValueId) {
        let x = self.at_least(x, 1);
        let gamma = self.leaf(Shape::from([self.model.shape(x).last()]));
        self.add(Op::from(RmsNorm { eps: 1e-6 }), &[x, gamma]);
    }

    fn rotary(&mut self, x: ValueId) {
        let mut x = self.four(x);
        if self.model.shape(x).last() % 2 == 1 {
            x = self.add(Op::from(Concat { axis: 3, blocks: 1 }), &[x, x]);
        }
        let base = self.rng.choose(&[10000.0, 100.0]);
        let mut operands = vec![x];
        if self.rng.once_in(3) {
            operands.push(self.indices(Shape::new(&self.dims(x)[..2])));
        }
        self.add(Op::from(Rotary::new(base)), &operands);
    }

    fn attention(&mut self, x: ValueId) {
        let query = self.four(x);
        let dims = self.dims(query);
        let divisors: Vec<_> = (1..=dims[2]).filter(|heads| dims[2].is_multiple_of(*heads)).collect();
        let time = if self.rng.once_in(2) { dims[1] } else { self.extent() };
        let shape = Shape::from([dims[0], time, self.rng.choose(&divisors), dims[3]]);
        let (key, value) = (self.leaf(shape.clone()), self.leaf(shape));
        let (causal, scale) = (self.rng.once_in(2) && time == dims[1], self.rng.choose(&[0.5, 1.0]));
        self.add(Op::from(Attention::new(causal, scale)), &[query, key, value]);
    }

    /// Attention with everything that its own kernel lacks: a bias or a mask, a window, bounded scores, another width.
    fn masked_attention(&mut self, x: ValueId) {
        let query = self.four(x);
        let dims = self.dims(query);
        let divisors: Vec<_> = (1..=dims[2]).filter(|heads| dims[2].is_multiple_of(*heads)).collect();
        let (time, heads) = (self.extent(), self.rng.choose(&divisors));
        let key = self.leaf(Shape::from([dims[0], time, heads, dims[3]]));
        let width = self.extent();
        let mut operands = vec![query, key, self.leaf(Shape::from([dims[0], time, heads, width]))];
        let mut scores = [dims[0], dims[2], dims[1], time];
        for extent in &mut scores[..3] {
            if self.rng.once_in(2) {
                *extent = 1;
            }
        }
        let mask = self.rng.once_in(3);
        match mask {
            true => operands.push(self.truths(Shape::from(scores))),
            false if self.rng.once_in(2) => operands.push(self.leaf(Shape::from(scores))),
            false => {}
        }
        let attention = Attention {
            causal: self.rng.once_in(2),
            scale: self.rng.choose(&[0.5, 1.0]),
            window: self.rng.choose(&[0, 0, 1, 2, 3]),
            softcap: self.rng.choose(&[0.0, 0.75]),
            rate: 0.0,
            mask,
        };
        self.add(Op::from(attention), &operands);
    }

    fn reshape(&mut self, x: ValueId) {
        let mut dims = self.dims(x);
        let at = self.rng.below(dims.len() + 1);
        if at + 1 < dims.len() {
            let inner = dims.remove(at + 1);
            dims[at] *= inner;
        } else if dims.len() < MAX_RANK {
            dims.insert(at, 1);
        }
        self.add(Op::from(Reshape { shape: Shape::new(dims) }), &[x]);
    }

    fn broadcast(&mut self, x: ValueId) {
        let mut dims = self.dims(x);
        let room = ELEMENTS / self.model.shape(x).elements().max(1);
        let extent = self.extent().min(room.max(1));
        match dims.iter().position(|&extent| extent == 1) {
            Some(axis) => dims[axis] = extent,
            None if dims.len() < MAX_RANK => dims.insert(0, extent),
            None => {}
        }
        self.add(Op::from(Broadcast { shape: Shape::new(dims) }), &[x]);
    }

    fn transpose(&mut self, x: ValueId) {
        let mut perm: Vec<_> = (0..self.model.shape(x).rank()).collect();
        self.rng.shuffle(&mut perm);
        self.add(Op::from(Transpose { perm }), &[x]);
    }

    fn reverse(&mut self, x: ValueId) {
        let axes = (0..self.model.shape(x).rank()).filter(|_| self.rng.once_in(2)).collect();
        self.add(Op::from(Reverse { axes }), &[x]);
    }

    fn split(&mut self, x: ValueId) {
        let x = self.at_least(x, 1);
        let axis = self.rng.below(self.model.shape(x).rank());
        let mut rest = self.model.shape(x).dims()[axis];
        let mut sizes = Vec::new();
        while rest > 0 {
            sizes.push(1 + self.rng.below(rest));
            rest -= sizes[sizes.len() - 1];
        }
        self.add(Op::from(Split { axis, sizes, blocks: 1 }), &[x]);
    }

    fn concat(&mut self, x: ValueId) {
        let x = self.at_least(x, 1);
        let axis = self.rng.below(self.model.shape(x).rank());
        let extent = self.extent();
        let shape = self.model.shape(x).with(axis, extent);
        let mut operands = vec![x, self.leaf(shape)];
        if self.rng.once_in(3) {
            operands.push(x);
        }
        self.rng.shuffle(&mut operands);
        self.add(Op::from(Concat { axis, blocks: 1 }), &operands);
    }

    fn reduce(&mut self, x: ValueId) {
        let axes = (0..self.model.shape(x).rank()).filter(|_| self.rng.once_in(2)).collect();
        let (kind, keep) = (self.rng.choose(Reduce::ALL), self.rng.once_in(2));
        self.add(Op::from(ReduceOp { kind, axes, keep }), &[x]);
    }

    fn dropout(&mut self, x: ValueId) {
        self.add(Op::from(Dropout { rate: 0.0 }), &[x]);
    }

    fn cast(&mut self, x: ValueId) {
        self.add(Op::from(Cast { to: DType::F32 }), &[x]);
    }

    fn embedding(&mut self, _: ValueId) {
        let (shape, bag) = (self.shape(), self.rng.once_in(2));
        let ids = self.indices(shape);
        let shape = Shape::from([self.extent(), self.extent()]);
        // Without a bag the padding id is looked up and its row gets no gradient, which no difference of values shows.
        let padding = (bag && self.rng.once_in(2)).then(|| self.rng.below(shape.dims()[0]) as i64);
        let table = self.leaf(shape);
        self.add(Op::from(Embedding { bag, padding }), &[ids, table]);
    }

    /// Integers, rearranged and then cast, that scale a value.
    fn integers(&mut self, x: ValueId) {
        let indices = self.indices(self.model.shape(x).clone());
        let perm: Vec<_> = (0..self.model.shape(x).rank()).collect();
        let moved = self.add(Op::from(Transpose { perm }), &[indices]);
        let cast = self.add(Op::from(Cast { to: DType::F32 }), &[moved]);
        let shifted = self.add(Op::from(UnaryOp(Unary::AddScalar(0.5))), &[cast]);
        self.add(Op::from(BinaryOp(Binary::Mul)), &[x, shifted]);
    }
}
