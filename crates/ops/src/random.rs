//! Random numbers as a tensor; each depends on the run's seed, the layer's name, the step and its index in the whole batch.

use std::fmt;
use std::str::FromStr;

use phalanx_ir::tasks::TaskOp;
use phalanx_ir::text::Attrs;
use phalanx_ir::{
    Attribute, Cuts, LayerTasks, Op, OpError, Operands, Operator, Shape, Tensor, TensorType, attributes, each,
};

/// How numbers are distributed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// One with this probability, else zero.
    Bernoulli(f32),
    /// Normal with mean 0 and variance 1.
    Normal,
    /// Uniform from 0 up to, and without, 1.
    Uniform,
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distribution::Bernoulli(p) => write!(f, "bernoulli({p})"),
            Distribution::Normal => write!(f, "normal"),
            Distribution::Uniform => write!(f, "uniform"),
        }
    }
}

impl FromStr for Distribution {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        let p = word.strip_prefix("bernoulli(").and_then(|word| word.strip_suffix(')'));
        match (word, p) {
            ("normal", _) => Ok(Distribution::Normal),
            ("uniform", _) => Ok(Distribution::Uniform),
            (_, Some(p)) => p.parse().map(Distribution::Bernoulli).map_err(drop),
            _ => Err(()),
        }
    }
}

impl Attribute for Distribution {
    fn put(&self, key: &str, attrs: Attrs) -> Attrs {
        attrs.with(key, self)
    }

    fn take(key: &str, attrs: &mut Attrs) -> Result<Self, String> {
        attrs.take(key)
    }
}

/// See the head of the file.
pub struct Random {
    /// How the numbers are distributed.
    pub kind: Distribution,
    /// The shape of the tensor.
    pub shape: Shape,
}

impl Operator for Random {
    attributes!("random" (): kind, shape);

    fn infer(&self, _operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let wrong = |found: String, wanted: &str, fix: &str| {
            Err(OpError { slot: "result".into(), found, wanted: wanted.into(), fix: fix.into() })
        };
        let ty = TensorType::f32(self.shape.clone());
        if self.shape.rank() > phalanx_ir::MAX_RANK || self.shape.dims().contains(&0) {
            return wrong(ty.to_string(), "up to 6 extents, all positive, are drawn", "change its shape");
        }
        match self.kind {
            Distribution::Bernoulli(p) if !(0.0..=1.0).contains(&p) => {
                wrong(self.kind.to_string(), "must be a probability", "use a number from 0 to 1")
            }
            _ => Ok(vec![ty]),
        }
    }

    fn cuts(&self, _operands: &[&Shape], results: &[&Shape]) -> Cuts {
        Cuts::new(Vec::new(), vec![each(0..results[0].rank())])
    }

    fn resized(&self, result: &Shape) -> Option<Op> {
        Some(Random { kind: self.kind, shape: result.clone() }.into())
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        let p = if let Distribution::Bernoulli(p) = self.kind { p } else { 0.0 };
        let mask = tasks.mask(p);
        let attrs = Attrs::new().with("rate", mask.rate).with("seed", mask.seed).with("salt", mask.salt);
        let attrs = attrs
            .with("part", mask.part)
            .with("parts", mask.parts)
            .with("blocks", mask.blocks)
            .with_unless(0, "batch", mask.axis);
        let attrs = attrs.with_unless(false, "normal", self.kind == Distribution::Normal);
        let bernoulli = matches!(self.kind, Distribution::Bernoulli(_));
        let op = TaskOp::call("draw", attrs.with_unless(false, "bernoulli", bernoulli));
        let (hyper, y) = (tasks.hyper(), tasks.result(0));
        tasks.emit(op, vec![hyper], vec![y]);
    }

    /// The expected value.
    fn evaluate(&self, _operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        let mean = match self.kind {
            Distribution::Bernoulli(p) => f64::from(p),
            Distribution::Normal => 0.0,
            Distribution::Uniform => 0.5,
        };
        vec![Tensor::from_fn(&results[0], |_| mean)]
    }
}
