//! The same elements in another shape.

use std::ops::Range;

use phalanx_ir::sharded::Operand;
use phalanx_ir::{
    Cuts, LayerTasks, MAX_RANK, Op, OpError, Operands, Operator, Shape, Tensor, TensorType, attributes,
};

/// See the head of the file.
pub struct Reshape {
    /// The new extents.
    pub shape: Shape,
}

impl Operator for Reshape {
    attributes!("reshape": shape);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let shape = &self.shape;
        let (from, to) = (operands.shape(0).elements(), shape.elements());
        if shape.rank() > MAX_RANK {
            let wanted = format!("shape={shape} has more than {MAX_RANK} dimensions");
            return operands.wrong(0, wanted, "merge some");
        }
        if from != to {
            let wanted = format!("shape={shape} has {to} elements, not {from}");
            return operands.wrong(0, wanted, format!("choose extents whose product is {from}"));
        }
        Ok(vec![TensorType::new(operands.ty(0).dtype, shape.clone())])
    }

    /// Of dimensions that are merged or cut apart only the outermost is cut.
    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let (from, to) = (operands[0].dims(), self.shape.dims());
        let (mut old, mut new) = (vec![None; from.len()], vec![None; to.len()]);
        let mut axis = 0;
        for (from_dims, to_dims) in groups(from, to) {
            let outermost = |mut dims: Range<usize>, extents: &[usize]| dims.find(|&dim| extents[dim] > 1);
            if let (Some(from), Some(to)) = (outermost(from_dims, from), outermost(to_dims, to)) {
                (old[from], new[to]) = (Some(axis), Some(axis));
                axis += 1;
            }
        }
        Cuts { linear: true, exact: true, ..Cuts::new(vec![old], vec![new]) }
    }

    fn resized(&self, result: &Shape) -> Option<Op> {
        Some(Reshape { shape: result.clone() }.into())
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        tasks.alias();
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        dy[0].iter().for_each(|dy| tasks.give(0, dy.buffer));
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        vec![Tensor::new(results[0].clone(), operands[0].data.clone())]
    }
}

/// Runs of dimensions of both shapes with equal products, as short as possible.
fn groups(from: &[usize], to: &[usize]) -> Vec<(Range<usize>, Range<usize>)> {
    let (mut a, mut b, mut groups) = (0, 0, Vec::new());
    while a < from.len() && b < to.len() {
        let (first_a, first_b) = (a, b);
        let (mut left, mut right) = (from[a], to[b]);
        (a, b) = (a + 1, b + 1);
        // A shape without elements, which another error is about, ends early.
        while left != right && (a < from.len() || left > right) && (b < to.len() || left < right) {
            if left < right {
                left *= from[a];
                a += 1;
            } else {
                right *= to[b];
                b += 1;
            }
        }
        groups.push((first_a..a, first_b..b));
    }
    groups
}
