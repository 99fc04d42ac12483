//! Cut along one axis. The axis may be several equal blocks, each cut in the same proportion; a piece is then its part of
//! every block.

use phalanx_ir::parallel::ParallelType;
use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::text::Attrs;
use phalanx_ir::{
    Cuts, LayerTasks, OpError, Operands, Operator, Shape, Tensor, TensorType, attributes, each, fill_task,
};

/// See the head of the file.
pub struct Split {
    /// The axis.
    pub axis: usize,
    /// The extents of the pieces.
    pub sizes: Vec<usize>,
    /// How many blocks the axis is.
    pub blocks: usize,
}

impl Operator for Split {
    attributes!("split": axis, sizes, blocks = 1);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let Split { axis, ref sizes, blocks } = *self;
        operands.axis(0, axis)?;
        let text = Shape::new(&sizes[..]);
        if sizes.iter().any(|size| blocks == 0 || !size.is_multiple_of(blocks)) {
            let wanted = format!("sizes={text} must be multiples of blocks={blocks}");
            return operands.wrong(0, wanted, "use another number of blocks");
        }
        let input = operands.ty(0);
        let extent = input.shape.dims()[axis];
        let total = sizes.iter().fold(0_usize, |total, &size| total.saturating_add(size));
        if extent != total || sizes.is_empty() || sizes.contains(&0) {
            let wanted = format!("sizes={text} add up to {total} along axis {axis} of extent {extent}");
            return operands.wrong(0, wanted, format!("use positive sizes that add up to {extent}"));
        }
        Ok(sizes.iter().map(|&size| TensorType::new(input.dtype, input.shape.with(axis, size))).collect())
    }

    fn cuts(&self, operands: &[&Shape], results: &[&Shape]) -> Cuts {
        cut_between_blocks(operands[0], [1, results.len()], self.axis, self.blocks)
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        let (x, count) = (tasks.read(0), tasks.rule().results.len());
        let pieces: Vec<_> = (0..count).map(|slot| tasks.result(slot)).collect();
        emit_pieces(tasks, true, [self.axis, self.blocks], x, pieces);
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        if !tasks.wants(0) {
            return;
        }
        let parts = dy.iter().enumerate().map(|(slot, dy)| match dy {
            Some(dy) => dy.clone(),
            None => zeros(tasks, slot),
        });
        let parts = parts.collect();
        let dx = tasks.grad(0);
        emit_pieces(tasks, false, [self.axis, self.blocks], dx.clone(), parts);
        tasks.give(0, dx.buffer);
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        let (x, axis) = (operands[0], self.axis);
        let whole = x.shape.dims()[axis];
        let mut start = 0;
        let mut pieces = Vec::new();
        for shape in results {
            let extent = shape.dims()[axis];
            pieces.push(Tensor::from_fn(shape, |index| {
                let mut from = index.to_vec();
                from[axis] = in_whole(index[axis], [start, extent, whole], self.blocks);
                x.at(&from)
            }));
            start += extent;
        }
        pieces
    }
}

/// The gradient of a result that has none.
fn zeros(tasks: &mut dyn LayerTasks, slot: usize) -> Operand {
    let (name, ty) = tasks.output(slot);
    let (name, global) = (format!("{name}.grad"), ty.dual().global());
    let zeros = tasks.temp(&name, &global, tasks.rule().results[slot].dual());
    tasks.emit(fill_task(0.0), Vec::new(), vec![zeros.clone()]);
    zeros
}

/// Where element `at` of a piece lies in the whole: the whole is blocks, each joined from a part of every piece.
pub(crate) fn in_whole(at: usize, [start, piece, whole]: [usize; 3], blocks: usize) -> usize {
    let (block, within) = (at / (piece / blocks), at % (piece / blocks));
    block * (whole / blocks) + start / blocks + within
}

/// The cuts of splits and joins, which have so many operands and results: the axis is cut only between its blocks.
pub(crate) fn cut_between_blocks(
    shape: &Shape,
    [operands, results]: [usize; 2],
    axis: usize,
    blocks: usize,
) -> Cuts {
    let dims = each(0..shape.rank());
    let cuts = Cuts::new(vec![dims.clone(); operands], vec![dims; results]);
    Cuts { blocks: vec![(axis, blocks)], linear: true, exact: true, ..cuts }
}

/// A split of `whole` into `pieces`, or their join. With several blocks in a tile the axis is seen as two: the blocks and
/// what is in one.
pub(crate) fn emit_pieces(
    tasks: &mut dyn LayerTasks,
    split: bool,
    [axis, blocks]: [usize; 2],
    whole: Operand,
    pieces: Vec<Operand>,
) {
    let blocks = blocks / tasks.buffer(whole.buffer).degree(axis);
    let (mut at, mut all) = (axis, vec![whole]);
    all.extend(pieces);
    if blocks > 1 {
        at += 1;
        all = all.into_iter().map(|operand| in_blocks(tasks, operand, axis, blocks)).collect();
    }
    let pieces = all.split_off(1);
    let attrs = Attrs::new().with("axis", at);
    match split {
        true => tasks.emit(TaskOp::call("split", attrs), all, pieces),
        false => tasks.emit(TaskOp::call("concat", attrs), pieces, all),
    }
}

/// A view in which `axis` is cut into blocks and the rest; the tiles' cut is between blocks.
fn in_blocks(tasks: &mut dyn LayerTasks, operand: Operand, axis: usize, blocks: usize) -> Operand {
    let ty = tasks.buffer(operand.buffer).clone();
    let mut cut: Vec<usize> = ty.dims().iter().map(|dim| dim.degree).collect();
    let mut sizes: Vec<usize> = ty.dims().iter().map(|dim| dim.size).collect();
    let whole = blocks * cut[axis];
    sizes.splice(axis..=axis, [whole, sizes[axis] / whole]);
    cut.insert(axis + 1, 1);
    let global = TensorType::new(ty.dtype(), Shape::new(sizes));
    let ty = ParallelType::tiled(&global, &cut, ty.sum_degree(), ty.copy_degree());
    let mut map = operand.map;
    map.dims.insert(axis + 1, Vec::new());
    Operand { buffer: tasks.view(operand.buffer, ty.expect("blocks lie between the cuts")), map }
}
