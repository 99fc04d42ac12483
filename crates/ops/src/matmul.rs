//! Matrix product of the two innermost dimensions, batched over the others; either operand may be stored transposed.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::{
    Cuts, LayerTasks, OpError, Operands, Operator, Shape, Tensor, TensorType, attributes, each,
};

/// See the head of the file.
pub struct Matmul {
    /// The first operand is stored transposed.
    pub transpose_a: bool,
    /// The second operand is stored transposed.
    pub transpose_b: bool,
}

impl Operator for Matmul {
    attributes!("matmul" (a, b): transpose_a = false, transpose_b = false);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let (a, b) = (operands.float(0)?, operands.float(1)?);
        if a.rank() < 2 {
            return operands.wrong(0, "a matrix has two dimensions or more", "reshape it");
        }
        if a.rank() != b.rank() || a.dims()[..a.rank() - 2] != b.dims()[..a.rank() - 2] {
            let wanted = format!("all but the last two dimensions must equal those of a {a}");
            return operands.wrong(1, wanted, "broadcast it");
        }
        let matrix = |shape: &Shape, transpose: bool| {
            let (rows, cols) = (shape.dims()[shape.rank() - 2], shape.last());
            if transpose { (cols, rows) } else { (rows, cols) }
        };
        let ((m, inner), (other, n)) = (matrix(a, self.transpose_a), matrix(b, self.transpose_b));
        if inner != other {
            let wanted = format!("it is summed over {other} while a {a} is summed over {inner}");
            return operands.wrong(1, wanted, "flip transpose_a or transpose_b, or change the operand");
        }
        Ok(vec![TensorType::f32(a.with(a.rank() - 2, m).with(a.rank() - 1, n))])
    }

    /// The summed dimension is cut only if both operands have it cut alike.
    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let lead = operands[0].rank() - 2;
        let (k, batch, m, n) = (0, each(1..lead + 1), lead + 1, lead + 2);
        let matrix = |transposed: bool, [first, second]: [usize; 2]| {
            let last = if transposed { [second, first] } else { [first, second] };
            [batch.clone(), last.map(Some).to_vec()].concat()
        };
        let slots = vec![matrix(self.transpose_a, [m, k]), matrix(self.transpose_b, [k, n])];
        let mut cuts = Cuts::new(slots, vec![matrix(false, [m, n])]).contracting();
        let place = |transposed: bool| if transposed { lead } else { lead + 1 };
        cuts.agreed = Some((k, [(0, place(self.transpose_a)), (1, place(!self.transpose_b))]));
        cuts.claims.retain(|&(axis, ..)| axis != k);
        cuts.wants_copies = Some("an operand b cut into {} columns wants {} copies");
        cuts
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        let Matmul { transpose_a, transpose_b } = *self;
        let dims = tasks.operand(0).1.dims();
        let inner = dims[dims.len() - if transpose_a { 2 } else { 1 }];
        let leaves = tasks.feature_leaves(inner);
        let precision = tasks.precision();
        tasks.plain(TaskOp::Matmul { transpose_a, transpose_b, leaves, accumulate: false, precision });
    }

    /// For y = op(a)·op(b): da is dy·op(b)ᵀ and db is op(a)ᵀ·dy, transposed if the operand is stored so.
    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let Some(dy) = dy[0].clone() else { return };
        let Matmul { transpose_a, transpose_b } = *self;
        let precision = tasks.precision();
        let [a, b] = [tasks.read_again(0), tasks.read_again(1)];
        let ty = tasks.output(0).1.clone();
        let batch = tasks.result_batch();
        // A batch that is summed over has its own leaves, whether it is cut into microbatches or not.
        let leaves_over = |tasks: &mut dyn LayerTasks, dim: usize| match batch == Some(dim) {
            true => tasks.leaves_along(&ty, &[dim], batch),
            false => tasks.feature_leaves(ty.dims()[dim]),
        };
        let [m, n] = [2, 1].map(|back| ty.dims().len() - back);
        let matmul = |transpose_a, transpose_b, leaves| TaskOp::Matmul {
            transpose_a,
            transpose_b,
            leaves,
            accumulate: false,
            precision,
        };
        let over_n = leaves_over(tasks, n);
        match transpose_a {
            false => tasks.single(0, matmul(false, !transpose_b, over_n), vec![dy.clone(), b]),
            true => tasks.single(0, matmul(transpose_b, true, over_n), vec![b, dy.clone()]),
        }
        let over_m = leaves_over(tasks, m);
        match transpose_b {
            false => tasks.single(1, matmul(!transpose_a, false, over_m), vec![a, dy]),
            true => tasks.single(1, matmul(true, transpose_a, over_m), vec![dy, a]),
        }
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        let (a, b) = (operands[0], operands[1]);
        let stored = |batch: &[usize], row: usize, col: usize, transposed: bool| {
            let matrix = if transposed { [col, row] } else { [row, col] };
            [batch, &matrix].concat()
        };
        let dims = a.shape.dims();
        let inner = dims[dims.len() - if self.transpose_a { 2 } else { 1 }];
        vec![Tensor::from_fn(&results[0], |index| {
            let (batch, matrix) = index.split_at(index.len() - 2);
            let product = |k: usize| {
                a.at(&stored(batch, matrix[0], k, self.transpose_a))
                    * b.at(&stored(batch, k, matrix[1], self.transpose_b))
            };
            (0..inner).map(product).sum()
        })]
    }
}
