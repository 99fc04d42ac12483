//! Scaled-dot-product attention on `[batch, time, heads, dim]`; keys and values may have fewer heads, values another dim.
//!
//! The score of query i and key j is `scale q·k`; with `softcap` c it becomes `c tanh(score / c)`. A bias
//! `[batch or 1, heads or 1, queries or 1, keys]` follows: floats are added, and -∞ hides; truth values, which `mask` says it
//! has, hide keys where they are false. Causal attention hides keys j > i, also where there are not as many keys as queries; a window w those with
//! |i - j| ≥ w. A query that sees no key gives zeros. `rate` drops probabilities by their index in the whole
//! `[batch, heads, queries, keys]`.
//!
//! Plain attention has a kernel of its own, in every precision; what is added to it here is computed in single precision.

use phalanx_ir::parallel::TileMap;
use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::{Mask, TaskOp};
use phalanx_ir::text::Attrs;
use phalanx_ir::{
    Cuts, DType, LayerTasks, OpError, Operands, Operator, Precision, Shape, Slots, Tensor, TensorType,
    attributes,
};

/// See the head of the file.
pub struct Attention {
    /// A query sees no later key.
    pub causal: bool,
    /// Factor on the scores.
    pub scale: f32,
    /// A query sees keys that are nearer than this; 0 if there is no window.
    pub window: usize,
    /// What scores are bounded by; 0 if they are not.
    pub softcap: f32,
    /// The share of probabilities that become zero.
    pub rate: f32,
    /// The bias holds truth values.
    pub mask: bool,
}

/// The operand of the bias.
const BIAS: usize = 3;

impl Attention {
    /// Attention with this factor on the scores and nothing else.
    pub fn new(causal: bool, scale: f32) -> Self {
        Attention { causal, scale, window: 0, softcap: 0.0, rate: 0.0, mask: false }
    }

    /// Whether the kernel of plain attention computes it.
    fn is_plain(&self, tasks: &dyn LayerTasks) -> bool {
        let [query, key, value] = [0, 1, 2].map(|slot| tasks.operand(slot).1.global().shape);
        let square = !self.causal || query.dims()[1] == key.dims()[1];
        let bare = self.window == 0 && self.softcap == 0.0 && self.rate == 0.0;
        bare && square && value.last() == key.last() && tasks.rule().operands.len() == 3
    }

    fn task_attrs(&self, tasks: &mut dyn LayerTasks, is_plain: bool) -> Attrs {
        let attrs = Attrs::new().with_unless(false, "causal", self.causal).with("scale", self.scale);
        if is_plain {
            return attrs.with_unless(Precision::F32, "precision", tasks.precision());
        }
        let attrs = attrs.with_unless(0, "window", self.window).with_unless(0.0, "softcap", self.softcap);
        let mask = if self.rate > 0.0 { tasks.mask(self.rate) } else { Mask::NONE };
        if self.rate > 0.0 { attrs.with("dropout", mask) } else { attrs }
    }

    /// What is read behind the other operands: the bias and the scalars of the step.
    fn extras(&self, tasks: &mut dyn LayerTasks, bias: Option<Operand>) -> Vec<Operand> {
        bias.into_iter().chain((self.rate > 0.0).then(|| tasks.hyper())).collect()
    }

    /// Whether key j is hidden from query i by their places.
    fn hides(&self, i: usize, j: usize) -> bool {
        (self.causal && j > i) || (self.window > 0 && i.abs_diff(j) >= self.window)
    }

    /// What the bias adds to a score.
    fn bias(&self, bias: &Tensor, at: &[usize]) -> f64 {
        match (self.mask, bias.at_stretched(at)) {
            (false, bias) => bias,
            (true, 0.0) => f64::NEG_INFINITY,
            (true, _) => 0.0,
        }
    }

    /// Checks a bias for scores of this shape.
    fn check_bias(&self, operands: &Operands<'_>, scores: [usize; 4]) -> Result<(), OpError> {
        let (shape, dtype) = (operands.shape(BIAS), operands.dtype(BIAS));
        let wanted = if self.mask { DType::Bool } else { DType::F32 };
        if dtype != wanted {
            let fix = format!("use mask={}, or insert `cast to={wanted}`", !self.mask);
            return operands.wrong(BIAS, format!("with mask={} it must be {wanted}", self.mask), fix);
        }
        let fits =
            |(dim, (found, whole)): (usize, (&usize, &usize))| found == whole || (dim < 3 && *found == 1);
        if shape.rank() == 4 && shape.dims().iter().zip(&scores).enumerate().all(fits) {
            return Ok(());
        }
        let scores = Shape::new(scores);
        let wanted = format!("scores are {scores}; it is stretched along the first three");
        operands.wrong(BIAS, wanted, format!("make it {scores}, with 1 where it is to be stretched"))
    }

    fn check_attributes(&self, operands: &Operands<'_>) -> Result<(), OpError> {
        if !(0.0..1.0).contains(&self.rate) {
            let wanted = format!("rate={} is a share of its probabilities", self.rate);
            return operands.wrong(0, wanted, "use a rate in 0..1");
        }
        if !(self.softcap >= 0.0 && self.softcap.is_finite()) {
            let wanted = format!("softcap={} bounds its scores", self.softcap);
            return operands.wrong(0, wanted, "use a positive softcap, or none");
        }
        Ok(())
    }
}

impl Operator for Attention {
    attributes!("attention": causal, scale, window = 0, softcap = 0.0, rate = 0.0, mask = false);

    fn slots(&self) -> Slots {
        Slots { needed: &["query", "key", "value"], optional: &["bias"], variadic: false }
    }

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        self.check_attributes(operands)?;
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
        let value = operands.float(2)?;
        if value.rank() != 4 || value.dims()[..3] != key.dims()[..3] {
            let wanted = format!("it must have the shape of key {key}");
            return operands.wrong(2, wanted, format!("make it {key}"));
        }
        if operands.len() == 4 {
            self.check_bias(operands, [batch, heads, time, key_time])?;
        } else if self.mask {
            return operands.wrong(0, "mask=true is about a fourth operand", "give a mask, or mask=false");
        }
        Ok(vec![TensorType::f32(query.with(3, value.last()))])
    }

    /// Batch and heads may be cut, all operands alike.
    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let dims = vec![Some(0), None, Some(1), None];
        let mut slots = vec![dims.clone(); 3];
        if let Some(bias) = operands.get(BIAS) {
            let whole = [operands[0].dims()[0], operands[0].dims()[2]];
            let axis = |dim: usize| (bias.dims()[dim] == whole[dim]).then_some(dim);
            slots.push(vec![axis(0), axis(1), None, None]);
        }
        let shared = if self.mask { vec![BIAS] } else { Vec::new() };
        Cuts { shared, ..Cuts::new(slots, vec![dims]).claimed_by([0, 1, 2]) }
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        let shape = tasks.output(0).1.global().shape;
        let [batch, time, heads, _] = *shape.dims() else {
            unreachable!("attention is checked to have rank 4")
        };
        let is_plain = self.is_plain(tasks);
        let bias = (tasks.rule().operands.len() > BIAS).then(|| tasks.read(BIAS));
        let mut reads: Vec<_> = (0..3).map(|slot| tasks.read(slot)).collect();
        reads.extend(self.extras(tasks, bias));
        let (y, map) = (tasks.result(0), scores_map(tasks));
        let lse = tasks.save("lse", &TensorType::f32([batch, heads, time]), map);
        let kernel = if is_plain { "attention" } else { "masked_attention" };
        let op = TaskOp::call(kernel, self.task_attrs(tasks, is_plain));
        tasks.emit(op, reads, vec![y, lse]);
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let Some(dy) = dy[0].clone() else { return };
        let mut reads: Vec<_> = (0..3).map(|slot| tasks.read_again(slot)).collect();
        reads.extend([tasks.read_result(0), tasks.kept(0, scores_map(tasks)), dy.clone()]);
        let is_plain = self.is_plain(tasks);
        let attrs = self.task_attrs(tasks, is_plain);
        if is_plain {
            return tasks.joint(TaskOp::call("attention_grad", attrs), reads);
        }
        let bias = (tasks.rule().operands.len() > BIAS).then(|| tasks.read_again(BIAS));
        let wants_bias = bias.is_some() && tasks.wants(BIAS);
        reads.extend(self.extras(tasks, bias));
        let mut writes: Vec<_> = (0..3).map(|slot| tasks.grad(slot)).collect();
        let scores = wants_bias.then(|| score_grads(tasks, &dy));
        writes.extend(scores.clone());
        tasks.emit(TaskOp::call("masked_attention_grad", attrs), reads, writes.clone());
        (0..3).for_each(|slot| tasks.give(slot, writes[slot].buffer));
        if let Some(scores) = scores {
            tasks.unstretch(BIAS, scores);
        }
    }

    /// With dropout: the expected value, in which nothing is dropped.
    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        let [query, key, value] = [0, 1, 2].map(|slot| operands[slot]);
        let [batch, time, heads, _] = *query.shape.dims() else { panic!("a query has four dimensions") };
        let [_, keys, key_heads, _] = *key.shape.dims() else { panic!("a key has four dimensions") };
        let mut data = Vec::new();
        for b in 0..batch {
            for t in 0..time {
                for h in 0..heads {
                    let from = h / (heads / key_heads);
                    let score = |s: usize| {
                        let score = f64::from(self.scale) * dot(query, [b, t, h], key, [b, s, from]);
                        let cap = f64::from(self.softcap);
                        let score = if cap == 0.0 { score } else { cap * (score / cap).tanh() };
                        let bias = operands.get(BIAS).map_or(0.0, |bias| self.bias(bias, &[b, h, t, s]));
                        if self.hides(t, s) { f64::NEG_INFINITY } else { score + bias }
                    };
                    let weights = exponential_weights(&(0..keys).map(score).collect::<Vec<_>>());
                    let value = |s: usize, d: usize| value.at(&[b, s, from, d]);
                    let sum = |d| weights.iter().enumerate().map(|(s, w)| w * value(s, d)).sum::<f64>();
                    data.extend((0..results[0].last()).map(sum));
                }
            }
        }
        vec![Tensor::new(results[0].clone(), data)]
    }
}

/// The map of `[batch, heads, time]`.
fn scores_map(tasks: &dyn LayerTasks) -> TileMap {
    let TileMap { sum, copy, dims } = tasks.rule().results[0].clone();
    TileMap { sum, copy, dims: [0, 2, 1].map(|dim| dims[dim].clone()).to_vec() }
}

/// A buffer for the gradients of all scores, cut like `dy`.
fn score_grads(tasks: &mut dyn LayerTasks, dy: &Operand) -> Operand {
    let [query, key] = [0, 1].map(|slot| tasks.operand(slot).1.global().shape);
    let [batch, time, heads, _] = *query.dims() else { unreachable!("attention is checked to have rank 4") };
    let [by_batch, by_head] = [0, 2].map(|dim| dy.map.dims[dim].clone());
    let map = TileMap { dims: vec![by_batch, by_head, Vec::new(), Vec::new()], ..dy.map.clone() };
    let name = format!("{}.scores.grad", tasks.layer());
    tasks.temp(&name, &TensorType::f32([batch, heads, time, key.dims()[1]]), map)
}

/// e^x of each element over the sum of all; zeros if all are -∞.
pub(crate) fn exponential_weights(row: &[f64]) -> Vec<f64> {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::NEG_INFINITY {
        return vec![0.0; row.len()];
    }
    let exps: Vec<f64> = row.iter().map(|x| (x - largest).exp()).collect();
    let total: f64 = exps.iter().sum();
    exps.iter().map(|x| x / total).collect()
}

/// The sum of products of two innermost rows.
fn dot(a: &Tensor, [i, j, k]: [usize; 3], b: &Tensor, [l, m, n]: [usize; 3]) -> f64 {
    (0..a.shape.last()).map(|d| a.at(&[i, j, k, d]) * b.at(&[l, m, n, d])).sum()
}
