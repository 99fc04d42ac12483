//! Joined along one axis: the inverse of a split.

use phalanx_ir::sharded::Operand;
use phalanx_ir::{
    Cuts, LayerTasks, OpError, Operands, Operator, Shape, Slots, Tensor, TensorType, attributes,
};

use crate::split::{cut_between_blocks, emit_pieces, in_whole};

/// See the head of the file.
pub struct Concat {
    /// The axis.
    pub axis: usize,
    /// How many equal blocks the result has; each is joined from a part of every operand.
    pub blocks: usize,
}

impl Operator for Concat {
    attributes!("concat": axis, blocks = 1);

    fn slots(&self) -> Slots {
        Slots { needed: &["input"], optional: &[], variadic: true }
    }

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let Concat { axis, blocks } = *self;
        operands.axis(0, axis)?;
        let first = operands.ty(0);
        let mut extent = 0;
        for slot in 0..operands.len() {
            let operand = operands.ty(slot);
            let same = operand.dtype == first.dtype
                && operand.shape.rank() == first.shape.rank()
                && operand.shape.with(axis, 0) == first.shape.with(axis, 0);
            if !same {
                let wanted = format!("it must equal input_0 {first} outside axis {axis}");
                return operands.wrong(slot, wanted, "reshape or cast it");
            }
            if blocks == 0 || !operand.shape.dims()[axis].is_multiple_of(blocks) {
                let wanted = format!("its extent along axis {axis} must be a multiple of blocks={blocks}");
                return operands.wrong(slot, wanted, "use another number of blocks");
            }
            extent += operand.shape.dims()[axis];
        }
        Ok(vec![TensorType::new(first.dtype, first.shape.with(axis, extent))])
    }

    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        cut_between_blocks(operands[0], [operands.len(), 1], self.axis, self.blocks)
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        let (pieces, y) = (tasks.reads(), tasks.result(0));
        emit_pieces(tasks, false, [self.axis, self.blocks], y, pieces);
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let Some(dy) = dy[0].clone() else { return };
        let parts: Vec<_> = (0..tasks.rule().operands.len()).map(|slot| tasks.grad(slot)).collect();
        emit_pieces(tasks, true, [self.axis, self.blocks], dy, parts.clone());
        parts.iter().enumerate().for_each(|(slot, part)| tasks.give(slot, part.buffer));
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        let axis = self.axis;
        let whole = results[0].dims()[axis];
        vec![Tensor::from_fn(&results[0], |index| {
            let mut start = 0;
            for piece in operands {
                let extent = piece.shape.dims()[axis];
                let is_it = |&at: &usize| in_whole(at, [start, extent, whole], self.blocks) == index[axis];
                if let Some(at) = (0..extent).find(is_it) {
                    let mut from = index.to_vec();
                    from[axis] = at;
                    return piece.at(&from);
                }
                start += extent;
            }
            panic!("{} is no longer than its pieces together", results[0]);
        })]
    }
}
