//! Layer normalization over the innermost dimensions, optionally scaled, or scaled and shifted.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::text::Attrs;
use phalanx_ir::{
    Cuts, LayerTasks, OpError, Operands, Operator, Shape, Slots, Tensor, TensorType, attributes,
};

/// See the head of the file.
pub struct LayerNorm {
    /// How many innermost dimensions are normalized together.
    pub axes: usize,
    /// Added to the variance.
    pub eps: f32,
}

impl Operator for LayerNorm {
    attributes!("layer_norm": axes = 1, eps);

    fn slots(&self) -> Slots {
        Slots { needed: &["input"], optional: &["gamma", "beta"], variadic: false }
    }

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let (axes, rank) = (self.axes, operands.shape(0).rank());
        if axes == 0 || axes > rank {
            let wanted = format!("{axes} innermost dimensions are normalized");
            return operands.wrong(0, wanted, format!("use axes in 1..={rank}"));
        }
        (1..operands.len()).try_for_each(|slot| operands.inner_weight(slot, axes))?;
        Ok(vec![TensorType::f32(operands.float(0)?.clone())])
    }

    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        Cuts::rows(operands[0], self.axes, operands.len())
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        let attrs = Attrs::new().with("axes", self.axes).with("eps", self.eps);
        let attrs = with_weights(attrs, tasks.rule().operands.len());
        tasks.norm(TaskOp::call("layer_norm", attrs), self.axes, &["mean", "rstd"]);
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let (axes, operands) = (self.axes, tasks.rule().operands.len());
        let Some(dy) = dy[0].clone() else { return };
        let (batch, rows) = (tasks.batch_row(axes), tasks.row_map(axes));
        let by_row = [tasks.read_again(0), tasks.kept(0, rows.clone()), tasks.kept(1, rows), dy];
        let [x, mean, rstd, dy] = by_row.map(|operand| tasks.batch_first(operand, batch));
        let gamma = (operands > 1).then(|| tasks.read_again(1));
        let reads: Vec<_> = [x].into_iter().chain(gamma).chain([mean, rstd, dy]).collect();
        let attrs = with_weights(Attrs::new().with("axes", axes), operands);
        tasks.norm_grad(axes, reads, |sum| TaskOp::call("layer_norm_grad", sum.put(attrs.clone())));
    }

    fn evaluate(&self, operands: &[&Tensor], _results: &[Shape]) -> Vec<Tensor> {
        let (x, eps) = (operands[0], f64::from(self.eps));
        let n: usize = x.shape.dims()[x.shape.rank() - self.axes..].iter().product();
        let mut data = Vec::new();
        for row in x.data.chunks(n) {
            let mean = row.iter().sum::<f64>() / n as f64;
            let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n as f64;
            for (i, x) in row.iter().enumerate() {
                let gamma = operands.get(1).map_or(1.0, |gamma| gamma.data[i]);
                let beta = operands.get(2).map_or(0.0, |beta| beta.data[i]);
                data.push((x - mean) / (variance + eps).sqrt() * gamma + beta);
            }
        }
        vec![Tensor::new(x.shape.clone(), data)]
    }
}

/// Adds whether gamma and beta, or gamma alone, are among so many operands.
fn with_weights(attrs: Attrs, operands: usize) -> Attrs {
    attrs.with_unless(false, "affine", operands == 3).with_unless(false, "scaled", operands == 2)
}
