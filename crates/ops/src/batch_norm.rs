//! Batch norm of channels-last tensors, as a composition: statistics of the whole batch, whatever a plan cuts it into. The
//! sums over the batch are layers of their own, so plans add them over devices and microbatches, and gradients flow through
//! them; all else that touches every element is one pass: the sum, the squared deviations ([`SquaredDeviations`]), and the
//! normalized elements ([`Normalize`]).
//!
//! In training, every channel is normalized by mean and biased variance over batch and space, and two states follow them:
//! `name.running_mean` and `name.running_var`, the latter with the variance of the population, n / (n - 1) times the biased
//! one. They become `(1 - m) · old + m · new`; without a momentum `m` they are the means of all steps so far, which a third
//! state, `name.num_batches_tracked`, counts. Evaluation normalizes by the states and leaves them as they are.

use phalanx_ir::graph::{BuildError, Builder, ValueId};
use phalanx_ir::{Binary, Init, OpError, Reduce, Shape, Unary};

use crate::{Layers, Normalize, ReduceOp, SquaredDeviations};

/// How a batch norm normalizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormOptions {
    /// Added to variances.
    pub eps: f32,
    /// The share of a step in the running statistics; none: they are means of all steps.
    pub momentum: Option<f32>,
    /// Into how many ghost batches the batch is cut, each normalized by its own statistics; the running statistics follow
    /// the mean of them. A microbatch holds some of them, or a part of one.
    pub groups: usize,
    /// Whether the batch's statistics are used, and kept; else the kept ones are.
    pub training: bool,
}

impl Default for BatchNormOptions {
    fn default() -> Self {
        BatchNormOptions { eps: 1e-5, momentum: Some(0.1), groups: 1, training: true }
    }
}

/// Adds the layers; see [`Layers::batch_norm`].
pub(crate) fn batch_norm(
    model: &mut Builder,
    name: &str,
    x: ValueId,
    states: Option<[ValueId; 2]>,
    weights: Option<[ValueId; 2]>,
    options: BatchNormOptions,
) -> Result<ValueId, BuildError> {
    Norm { model, name, options }.build(x, states, weights)
}

fn inverse(count: usize) -> f32 {
    (1.0 / count as f64) as f32
}

struct Norm<'a> {
    model: &'a mut Builder,
    name: &'a str,
    options: BatchNormOptions,
}

impl Norm<'_> {
    fn build(
        mut self,
        x: ValueId,
        states: Option<[ValueId; 2]>,
        weights: Option<[ValueId; 2]>,
    ) -> Result<ValueId, BuildError> {
        self.check(x, weights)?;
        let channels = self.model.shape(x).last();
        let [means, variances] = match states {
            Some(states) => states,
            None => [
                self.model.state(&self.within("running_mean"), [channels], Init::Zeros)?,
                self.model.state(&self.within("running_var"), [channels], Init::Ones)?,
            ],
        };
        if !self.options.training {
            return self.normalized(x, [means, variances], weights);
        }
        let shape = self.model.shape(x).clone();
        let groups = self.options.groups;
        let rows = Shape::new([&[groups, shape.dims()[0] / groups], &shape.dims()[1..]].concat());
        let grouped = if groups > 1 { self.model.reshape(&self.within("groups"), x, rows)? } else { x };
        let count = shape.elements() / channels / groups;
        let [mean, variance] = self.statistics(grouped, count)?;
        self.keep([means, variances], [mean, variance], count)?;
        let y = self.normalized(grouped, [mean, variance], weights)?;
        if groups > 1 { self.model.reshape(self.name, y, shape) } else { Ok(y) }
    }

    fn within(&self, word: &str) -> String {
        format!("{}.{word}", self.name)
    }

    fn unary(&mut self, word: &str, unary: Unary, x: ValueId) -> Result<ValueId, BuildError> {
        self.model.unary(&self.within(word), unary, x)
    }

    fn binary(&mut self, word: &str, binary: Binary, a: ValueId, b: ValueId) -> Result<ValueId, BuildError> {
        self.model.binary(&self.within(word), binary, a, b)
    }

    /// The sum over `axes`, scaled.
    fn mean(
        &mut self,
        word: &str,
        x: ValueId,
        axes: Vec<usize>,
        count: usize,
    ) -> Result<ValueId, BuildError> {
        let sum = ReduceOp { kind: Reduce::Sum, axes, keep: self.options.groups > 1 };
        let sum = self.model.add_one(&self.within(&format!("{word}.sum")), sum, &[x])?;
        self.unary(word, Unary::MulScalar(inverse(count)), sum)
    }

    /// Mean and biased variance of every channel, of groups each.
    fn statistics(&mut self, x: ValueId, count: usize) -> Result<[ValueId; 2], BuildError> {
        let first = usize::from(self.options.groups > 1);
        let axes: Vec<usize> = (first..self.model.shape(x).rank() - 1).collect();
        let mean = self.mean("mean", x, axes.clone(), count)?;
        if self.options.groups == 1 {
            let name = self.within("variance.sum");
            let sum = self.model.add_one(&name, SquaredDeviations, &[x, mean])?;
            return Ok([mean, self.unary("variance", Unary::MulScalar(inverse(count)), sum)?]);
        }
        let deviation = self.binary("deviation", Binary::Sub, x, mean)?;
        let square = self.unary("square", Unary::Square, deviation)?;
        Ok([mean, self.mean("variance", square, axes, count)?])
    }

    /// (x - mean) / √(variance + eps) · γ + β.
    fn normalized(
        &mut self,
        x: ValueId,
        [mean, variance]: [ValueId; 2],
        weights: Option<[ValueId; 2]>,
    ) -> Result<ValueId, BuildError> {
        if !(self.options.groups > 1 && self.options.training) {
            let operands: Vec<_> =
                [x, mean, variance].into_iter().chain(weights.into_iter().flatten()).collect();
            return self.model.add_one(self.name, Normalize { eps: self.options.eps }, &operands);
        }
        let own = self.within("joined");
        let shifted = self.unary("shifted", Unary::AddScalar(self.options.eps), variance)?;
        let scale = self.unary("scale", Unary::Rsqrt, shifted)?;
        let deviation = self.binary("centered", Binary::Sub, x, mean)?;
        let Some([gamma, beta]) = weights else {
            return self.model.binary(&own, Binary::Mul, deviation, scale);
        };
        let normalized = self.binary("normalized", Binary::Mul, deviation, scale)?;
        let scaled = self.binary("scaled", Binary::Mul, normalized, gamma)?;
        self.model.binary(&own, Binary::Add, scaled, beta)
    }

    /// Lets the running statistics follow those of a batch.
    fn keep(&mut self, kept: [ValueId; 2], new: [ValueId; 2], count: usize) -> Result<(), BuildError> {
        let unbiased = count as f64 / (count as f64 - 1.0);
        let tracked = match self.options.momentum {
            None => Some(self.count_steps()?),
            Some(_) => None,
        };
        for (index, word) in ["running_mean", "running_var"].into_iter().enumerate() {
            let (old, mut new) = (kept[index], new[index]);
            if self.options.groups > 1 {
                let channels = self.model.shape(old).last();
                new = self.model.reshape(
                    &self.within(&format!("{word}.groups")),
                    new,
                    [self.options.groups, channels],
                )?;
                let mean = ReduceOp { kind: Reduce::Mean, axes: vec![0], keep: false };
                new = self.model.add_one(&self.within(&format!("{word}.batch")), mean, &[new])?;
            }
            let factor = if index == 1 { unbiased } else { 1.0 };
            let next = match (self.options.momentum, tracked) {
                (Some(momentum), _) => {
                    let share = (f64::from(momentum) * factor) as f32;
                    let new = self.unary(&format!("{word}.share"), Unary::MulScalar(share), new)?;
                    let old = self.unary(&format!("{word}.rest"), Unary::MulScalar(1.0 - momentum), old)?;
                    self.binary(&format!("{word}.next"), Binary::Add, old, new)?
                }
                (None, tracked) => {
                    let new = self.unary(&format!("{word}.new"), Unary::MulScalar(factor as f32), new)?;
                    let change = self.binary(&format!("{word}.change"), Binary::Sub, new, old)?;
                    let steps = tracked.unwrap_or(change);
                    let share = self.binary(&format!("{word}.share"), Binary::Div, change, steps)?;
                    self.binary(&format!("{word}.next"), Binary::Add, old, share)?
                }
            };
            self.model.update(old, next)?;
        }
        Ok(())
    }

    /// The number of steps with this one.
    fn count_steps(&mut self) -> Result<ValueId, BuildError> {
        let before = self.model.state(&self.within("num_batches_tracked"), [], Init::Zeros)?;
        let now = self.unary("num_batches_tracked.next", Unary::AddScalar(1.0), before)?;
        self.model.update(before, now)?;
        Ok(now)
    }

    fn check(&self, x: ValueId, weights: Option<[ValueId; 2]>) -> Result<(), BuildError> {
        let (shape, groups) = (self.model.shape(x), self.options.groups);
        let wrong = |slot: &str, value: ValueId, wanted: String, fix: String| {
            let (slot, found) = (slot.to_string(), self.model.ty(value).to_string());
            let source = Box::new(OpError { slot, found, wanted, fix });
            Err(BuildError::Op { layer: self.name.to_string(), op: "batch_norm".into(), source })
        };
        if shape.rank() < 2 {
            let wanted = "a batch norm takes [batch, space…, channels]".to_string();
            return wrong("input", x, wanted, "reshape it".into());
        }
        let (channels, batch) = (shape.last(), shape.dims()[0]);
        if groups == 0 || !batch.is_multiple_of(groups) {
            let wanted = format!("its batch of {batch} is cut into {groups} groups");
            return wrong("input", x, wanted, "use a divisor of the batch".into());
        }
        if self.options.training && shape.elements() / channels / groups < 2 {
            let wanted = "a variance needs at least two values of a channel".to_string();
            return wrong("input", x, wanted, "use a larger batch or fewer groups".into());
        }
        for (slot, value) in ["gamma", "beta"].into_iter().zip(weights.into_iter().flatten()) {
            if self.model.shape(value).dims() != [channels] {
                let wanted = format!("input {shape} has {channels} channels");
                return wrong(slot, value, wanted, format!("make it [{channels}]"));
            }
        }
        Ok(())
    }
}
