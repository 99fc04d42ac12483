//! Rows times the matrix that an index chooses for each: the layers of experts.
//!
//! `y[.., k, o] = Σ x[.., k, i] · weight[ids[.., k], o, i]`, for an input `[rows…, k, in]`, ids `[rows…, k]` and a weight
//! `[experts, out, in]`. All shapes are static, and no row is dropped. Devices that share the experts each compute the rows of
//! theirs, the others give zeros. The gradient of a matrix is a chain over its rows inside each reduction block of the batch, a
//! tree over the blocks.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::text::Attrs;
use phalanx_ir::{
    Cuts, IndexBound, LayerTasks, OpError, Operands, Operator, Precision, Shape, Tensor, TensorType,
    attributes, each,
};

use crate::integer;

/// See the head of the file.
pub struct GroupedLinear;

impl Operator for GroupedLinear {
    attributes!("grouped_linear" (input, ids, weight):);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let (input, ids, weight) = (operands.float(0)?, operands.index(1)?, operands.float(2)?);
        let [_, out, inner] = *weight.dims() else {
            return operands.wrong(2, "matrices of experts are [experts, out, in]", "reshape it");
        };
        let Some((&features, rows)) = input.dims().split_last() else {
            return operands.wrong(0, "rows have features", "reshape it");
        };
        if features != inner {
            let wanted =
                format!("its innermost extent must equal the {inner} input features of weight {weight}");
            return operands.wrong(0, wanted, format!("make it have {inner} features"));
        }
        if ids.dims() != rows {
            let (wanted, rows) = (format!("input {input} needs one expert a row"), Shape::new(rows));
            return operands.wrong(1, wanted, format!("make it {rows}"));
        }
        Ok(vec![TensorType::f32(input.with(input.rank() - 1, out))])
    }

    /// A cut of `in` or of the experts gives partial sums, of the latter all but one zero; a cut of `out` or of the experts wants
    /// copies of the rows, a cut of rows copies of the weight.
    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let (inner, experts, rank) = (0, 1, operands[1].rank());
        let (rows, out) = (each(2..2 + rank), 2 + rank);
        let input = [&rows[..], &[Some(inner)]].concat();
        let weight = vec![Some(experts), Some(out), Some(inner)];
        let result = [&rows[..], &[Some(out)]].concat();
        let cuts = Cuts::new(vec![input, rows, weight], vec![result]).contracting().claimed_by([2, 0]);
        let wants_copies = Some("a weight cut into {} along experts and outputs wants {} copies");
        // Experts are outermost: all but one of them give zeros, and the others' sums stay together, however many there are.
        Cuts { sum: vec![experts, inner], shared: vec![1], wants_copies, ..cuts }
    }

    fn index_bound(&self, operands: &[&Shape]) -> Option<IndexBound> {
        Some(IndexBound { slot: 1, below: operands[2].dims()[0], ignore: None })
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        let inner = *tasks.operand(0).1.dims().last().expect("rows have features");
        let leaves = tasks.feature_leaves(inner);
        let op = TaskOp::call("grouped_linear", attrs(tasks, leaves));
        tasks.plain(op);
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let Some(dy) = dy[0].clone() else { return };
        if tasks.wants(0) {
            let out = *tasks.output(0).1.dims().last().expect("rows have features");
            let leaves = tasks.feature_leaves(out);
            let (ids, weight) = (tasks.read(1), tasks.read_again(2));
            let op = TaskOp::call("grouped_linear_grad", attrs(tasks, leaves));
            tasks.single(0, op, vec![dy.clone(), ids, weight]);
        }
        if tasks.wants(2) {
            let ty = tasks.output(0).1.clone();
            let leaves = tasks.row_leaves(&ty);
            let (x, ids) = (tasks.read_again(0), tasks.read(1));
            let op = TaskOp::call("grouped_linear_weight_grad", attrs(tasks, leaves));
            tasks.single(2, op, vec![dy, ids, x]);
        }
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        let (x, ids, weight) = (operands[0], operands[1], operands[2]);
        vec![Tensor::from_fn(&results[0], |at| {
            let (&out, row) = at.split_last().expect("rows have features");
            let expert = integer(ids.at(row));
            let product = |i: usize| x.at(&[row, &[i]].concat()) * weight.at(&[expert, out, i]);
            (0..x.shape.last()).map(product).sum()
        })]
    }
}

fn attrs(tasks: &dyn LayerTasks, leaves: usize) -> Attrs {
    Attrs::new().with("leaves", leaves).with_unless(Precision::F32, "precision", tasks.precision())
}
