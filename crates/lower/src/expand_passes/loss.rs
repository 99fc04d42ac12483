//! Cross entropy. Devices that share the classes of a row first agree on the row's largest logit, then add their sums of
//! exponentials and their pick of the label's logit; each then knows the row's loss, with the bits of one device.

use phalanx_ir::parallel::{ParallelType, TileMap};
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::wide::Operand;
use phalanx_ir::{Reduce, Shape, TensorType};

use super::Expander;

impl Expander<'_> {
    pub(super) fn cross_entropy(&mut self, ignore: i64) {
        let logits = self.graph.ty(self.operands()[0]).clone();
        let classes = *logits.dims().last().expect("logits have classes");
        let leaves = self.feature_leaves(classes);
        let rows = TensorType::f32(Shape::new(&logits.global().shape.dims()[..logits.dims().len() - 1]));
        let map = self.rule.operands[1].clone();
        let name = self.graph.layer_name(self.layer).to_string();
        let lse = self.save("lse", &rows, map.clone());
        let losses = self.temp(&format!("{name}.rows"), &rows, map.clone());
        if classes.degree == 1 {
            let (op, reads) = (TaskOp::CrossEntropy { ignore, leaves }, self.reads());
            self.emit(op, reads, vec![losses.clone(), lse]);
        } else {
            self.class_shards(ignore, leaves, &rows, [losses.clone(), lse]);
        }
        self.sum_losses(losses);
    }

    fn class_shards(&mut self, ignore: i64, leaves: usize, rows: &TensorType, [losses, lse]: [Operand; 2]) {
        let [logits, labels] = [self.read(0), self.read(1)];
        let name = self.graph.layer_name(self.layer).to_string();
        let (by_row, by_class) =
            (labels.map.clone(), logits.map.dims.last().expect("logits have classes").clone());
        let shards = self.rule.extents[by_class[0]];

        // One column for every shard of the classes.
        let dims = [rows.shape.dims(), &[shards]].concat();
        let columns = TileMap { dims: logits.map.dims.clone(), ..TileMap::default() };
        let largest = self.temp(&format!("{name}.max"), &TensorType::f32(Shape::new(dims)), columns.clone());
        self.emit(TaskOp::ClassMax {}, vec![logits.clone()], vec![largest.clone()]);
        let joined = TileMap { dims: [&by_row.dims[..], &[Vec::new()]].concat(), ..TileMap::default() };
        let all = self.moved(largest.buffer, joined);
        let largest = self.temp(&format!("{name}.max"), rows, by_row.clone());
        let op = TaskOp::Reduce { kind: Reduce::Max, axes: vec![rows.shape.rank()], leaves: 1 };
        self.emit(op, vec![all], vec![largest.clone()]);

        let partial = TileMap { sum: by_class, ..by_row.clone() };
        let sum = self.temp(&format!("{name}.sum"), rows, partial.clone());
        self.emit(TaskOp::ClassSum { leaves }, vec![logits.clone(), largest.clone()], vec![sum.clone()]);
        let pick = self.temp(&format!("{name}.pick"), rows, partial);
        self.emit(TaskOp::ClassPick {}, vec![logits, labels.clone()], vec![pick.clone()]);
        let sum = self.moved(sum.buffer, by_row.clone());
        let pick = self.moved(pick.buffer, by_row);
        self.emit(TaskOp::ClassJoin { ignore }, vec![largest, sum, pick, labels], vec![losses, lse]);
    }

    /// The sum over all rows, as one list of them where only the batch is cut.
    fn sum_losses(&mut self, losses: Operand) {
        let ty = self.wide.buffers[losses.buffer].ty.clone();
        let leaves = self.flat_leaves(ty.dims());
        let flat = ty.dims().iter().skip(1).all(|dim| dim.degree == 1) && !ty.dims().is_empty();
        let (rows, axes) = match flat {
            false => (losses, (0..ty.dims().len()).collect()),
            true => {
                let global = TensorType::f32([ty.global().shape.elements()]);
                let view =
                    ParallelType::tiled(&global, &[ty.degree(0)], 1, 1).expect("rows divide like the batch");
                let map = TileMap { dims: vec![losses.map.dims[0].clone()], ..TileMap::default() };
                (Operand { buffer: self.view(losses.buffer, view), map }, vec![0])
            }
        };
        let total = self.result(0);
        self.emit(TaskOp::Reduce { kind: Reduce::Sum, axes, leaves }, vec![rows], vec![total]);
    }
}
