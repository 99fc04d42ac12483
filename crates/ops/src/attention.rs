//! Scaled-dot-product attention on `[batch, time, heads, dim]`; keys and values may have fewer heads.

use phalanx_ir::parallel::TileMap;
use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::text::Attrs;
use phalanx_ir::{
    Cuts, LayerTasks, OpError, Operands, Operator, Precision, Shape, Tensor, TensorType, attributes,
};

/// See the head of the file.
pub struct Attention {
    /// A query sees no later key.
    pub causal: bool,
    /// Factor on the scores.
    pub scale: f32,
}

impl Attention {
    fn task_attrs(&self, precision: Precision) -> Attrs {
        let attrs = Attrs::new().with_unless(false, "causal", self.causal).with("scale", self.scale);
        attrs.with_unless(Precision::F32, "precision", precision)
    }
}

impl Operator for Attention {
    attributes!("attention" (query, key, value): causal, scale);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let query = operands.float(0)?;
        let [batch, time, heads, dim] = *query.dims() else {
            return operands.wrong(0, "attention takes [batch, time, heads, dim]", "reshape or transpose it");
        };
        let key = operands.float(1)?;
        let [key_batch, key_time, key_heads, key_dim] = *key.dims() else {
            return operands.wrong(1, "attention takes [batch, time, heads, dim]", "reshape or transpose it");
        };
        if key_batch != batch || key_dim != dim {
            return operands.wrong(
                1,
                format!("batch and dim must equal those of query {query}"),
                "reshape it",
            );
        }
        if key_heads == 0 || !heads.is_multiple_of(key_heads) {
            let wanted = format!("its {key_heads} heads must divide the {heads} heads of query {query}");
            return operands.wrong(1, wanted, format!("use a divisor of {heads} key heads"));
        }
        if self.causal && key_time != time {
            let wanted = format!("causal attention needs as many keys as the {time} queries of {query}");
            return operands.wrong(1, wanted, "give both the same time, or causal=false");
        }
        if operands.float(2)? != key {
            return operands.wrong(
                2,
                format!("it must have the shape of key {key}"),
                format!("make it {key}"),
            );
        }
        Ok(vec![TensorType::f32(query.clone())])
    }

    /// Batch and heads may be cut, all operands alike.
    fn cuts(&self, _operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let dims = vec![Some(0), None, Some(1), None];
        Cuts::new(vec![dims.clone(); 3], vec![dims])
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        let shape = tasks.output(0).1.global().shape;
        let [batch, time, heads, _] = *shape.dims() else {
            unreachable!("attention is checked to have rank 4")
        };
        let (reads, y, map) = (tasks.reads(), tasks.result(0), scores_map(tasks));
        let lse = tasks.save("lse", &TensorType::f32([batch, heads, time]), map);
        let op = TaskOp::call("attention", self.task_attrs(tasks.precision()));
        tasks.emit(op, reads, vec![y, lse]);
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let mut reads: Vec<_> = (0..3).map(|slot| tasks.read_again(slot)).collect();
        reads.extend([tasks.read_result(0), tasks.kept(0, scores_map(tasks))]);
        reads.extend(dy[0].clone());
        let op = TaskOp::call("attention_grad", self.task_attrs(tasks.precision()));
        tasks.joint(op, reads);
    }

    /// In causal attention the query at time t sees the keys at times 0 to t, also if there are more keys than queries.
    fn evaluate(&self, operands: &[&Tensor], _results: &[Shape]) -> Vec<Tensor> {
        let [query, key, value] = *operands else { panic!("attention has three operands") };
        let [batch, time, heads, dim] = *query.shape.dims() else { panic!("a query has four dimensions") };
        let [_, keys, key_heads, _] = *key.shape.dims() else { panic!("a key has four dimensions") };
        let mut data = Vec::new();
        for b in 0..batch {
            for t in 0..time {
                for h in 0..heads {
                    let from = h / (heads / key_heads);
                    let seen = if self.causal { keys.min(t + 1) } else { keys };
                    let score = |s: usize| f64::from(self.scale) * dot(query, [b, t, h], key, [b, s, from]);
                    let weights = exponential_weights(&(0..seen).map(score).collect::<Vec<_>>());
                    let value = |s: usize, d: usize| value.at(&[b, s, from, d]);
                    let sum = |d| weights.iter().enumerate().map(|(s, w)| w * value(s, d)).sum::<f64>();
                    data.extend((0..dim).map(sum));
                }
            }
        }
        vec![Tensor::new(query.shape.clone(), data)]
    }
}

/// The map of `[batch, heads, time]`.
fn scores_map(tasks: &dyn LayerTasks) -> TileMap {
    let TileMap { sum, copy, dims } = tasks.rule().results[0].clone();
    TileMap { sum, copy, dims: [0, 2, 1].map(|dim| dims[dim].clone()).to_vec() }
}

/// e^x of each element over the sum of all.
pub(crate) fn exponential_weights(row: &[f64]) -> Vec<f64> {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = row.iter().map(|x| (x - largest).exp()).collect();
    let total: f64 = exps.iter().sum();
    exps.iter().map(|x| x / total).collect()
}

/// The sum of products of two innermost rows.
fn dot(a: &Tensor, [i, j, k]: [usize; 3], b: &Tensor, [l, m, n]: [usize; 3]) -> f64 {
    (0..a.shape.last()).map(|d| a.at(&[i, j, k, d]) * b.at(&[l, m, n, d])).sum()
}
