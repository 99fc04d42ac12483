//! Chains: several element-wise functions that one task applies to every element, one after the other.
//!
//! A chain is a straight line of steps. A step reads operands of the task and results of earlier steps; some steps are
//! the task's results, the others never reach memory. All operands and results have the same number of elements, and
//! none is stretched, so a chain is cut over devices exactly as one of its steps would be. If a step is random, the task
//! has one operand more, the last: the scalars of the training step, which no step names.
//!
//! In text step i is the attribute `s<i>`: a function, then what it reads, joined by `/`. Operand i of the task is
//! `x<i>`; `.grad` marks gradients, `.rounded_grad` those with slopes at rounded points, with the side for functions of two
//! elements: `chain s0=silu/x0 s1=mul/s0/x1
//! results=[1]`. A dropout has its mask in parentheses.

use std::fmt;
use std::str::FromStr;

use super::TaskOp;
use super::mask::Mask;
use super::op::Field;
use crate::text::Attrs;
use crate::{Binary, DType, TensorType, Unary};

/// The most operands, results and steps of a chain: what a kernel can be given.
pub const MAX_CHAIN: usize = 16;

/// A function of elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Function {
    /// x -> y.
    Unary(Unary),
    /// x, dy -> dx.
    UnaryGrad(Unary),
    /// The same with the slope at x rounded to `bf16`.
    RoundedGrad(Unary),
    /// a, b -> y.
    Binary(Binary),
    /// a, b, dy -> the gradient of a for side 0, of b for side 1.
    BinaryGrad(Binary, usize),
    /// x -> y, or dy -> dx.
    Dropout(Mask),
}

/// What a step reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// An operand of the task.
    Read(usize),
    /// The result of an earlier step.
    Step(usize),
}

/// One function of a chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What is computed.
    pub function: Function,
    /// From what.
    pub sources: Vec<Source>,
}

/// The steps of a chain, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Steps(pub Vec<Step>);

impl Function {
    /// The function that a task operator applies to every element; none if it adds to its result or is not element-wise.
    pub fn of(op: &TaskOp) -> Option<Function> {
        match *op {
            TaskOp::Unary { kind } => Some(Function::Unary(kind)),
            TaskOp::UnaryGrad { kind, accumulate: false, rounded: false } => Some(Function::UnaryGrad(kind)),
            TaskOp::UnaryGrad { kind, accumulate: false, rounded: true } => Some(Function::RoundedGrad(kind)),
            TaskOp::Binary { kind } => Some(Function::Binary(kind)),
            TaskOp::BinaryGrad { kind, side } => Some(Function::BinaryGrad(kind, side)),
            TaskOp::Dropout { mask, accumulate: false } => Some(Function::Dropout(mask)),
            _ => None,
        }
    }

    /// How many elements it takes.
    pub fn arity(self) -> usize {
        match self {
            Function::Unary(_) | Function::Dropout(_) => 1,
            Function::UnaryGrad(_) | Function::RoundedGrad(_) | Function::Binary(_) => 2,
            Function::BinaryGrad(..) => 3,
        }
    }

    /// Whether it belongs to the backward pass.
    pub fn is_gradient(self) -> bool {
        matches!(self, Function::UnaryGrad(_) | Function::RoundedGrad(_) | Function::BinaryGrad(..))
    }

    /// Whether it draws random numbers, for which its task reads the scalars of the training step last.
    pub fn is_random(self) -> bool {
        matches!(self, Function::Dropout(_))
    }
}

impl Steps {
    /// Whether one of them is random.
    pub fn is_random(&self) -> bool {
        self.0.iter().any(|step| step.function.is_random())
    }

    /// Whether the steps are well formed for a task with these operands and results, and what is wrong if not.
    pub fn check(
        &self,
        results: &[usize],
        reads: &[TensorType],
        writes: &[TensorType],
    ) -> Result<(), &'static str> {
        let most = self.0.len().max(reads.len()).max(writes.len());
        if self.0.is_empty() || most > MAX_CHAIN {
            return Err("it has no steps, or more than 16 of one kind");
        }
        let (reads, scalars) = reads.split_at(reads.len().saturating_sub(usize::from(self.is_random())));
        if self.is_random() && scalars != [TensorType::f32([8])] {
            return Err("it is random, but its last operand is not f32[8]");
        }
        let known = |at: usize, source: &Source| match *source {
            Source::Read(slot) => slot < reads.len(),
            Source::Step(step) => step < at,
        };
        let is_sound = |(at, step): (usize, &Step)| {
            step.sources.len() == step.function.arity() && step.sources.iter().all(|source| known(at, source))
        };
        if !self.0.iter().enumerate().all(is_sound) {
            return Err("a step reads what is not there yet, or too much or too little");
        }
        let is_new = |(slot, step): (usize, &usize)| *step < self.0.len() && !results[..slot].contains(step);
        if results.len() != writes.len() || !results.iter().enumerate().all(is_new) {
            return Err("its results are not as many different steps as it writes tensors");
        }
        let mut types = reads.iter().chain(writes);
        let elements = writes.first().map(|ty| ty.shape.elements());
        match types.all(|ty| ty.dtype == DType::F32 && Some(ty.shape.elements()) == elements) {
            true => Ok(()),
            false => Err("its tensors are not all f32 with the same number of elements"),
        }
    }
}

impl Field for Steps {
    fn put(&self, _key: &str, attrs: Attrs) -> Attrs {
        self.0.iter().enumerate().fold(attrs, |attrs, (at, step)| attrs.with(&format!("s{at}"), step))
    }

    fn take(_key: &str, attrs: &mut Attrs) -> Result<Self, String> {
        let mut steps = Vec::new();
        while let Some(step) = attrs.take_if(&format!("s{}", steps.len()))? {
            steps.push(step);
        }
        Ok(Steps(steps))
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Function::Unary(kind) => write!(f, "{kind}"),
            Function::UnaryGrad(kind) => write!(f, "{kind}.grad"),
            Function::RoundedGrad(kind) => write!(f, "{kind}.rounded_grad"),
            Function::Binary(kind) => write!(f, "{kind}"),
            Function::BinaryGrad(kind, side) => write!(f, "{kind}.grad{side}"),
            Function::Dropout(mask) => write!(f, "dropout({mask})"),
        }
    }
}

impl FromStr for Function {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        if let Some(kind) = word.strip_suffix(".grad") {
            return Ok(Function::UnaryGrad(kind.parse()?));
        }
        if let Some(kind) = word.strip_suffix(".rounded_grad") {
            return Ok(Function::RoundedGrad(kind.parse()?));
        }
        if let Some(mask) = word.strip_prefix("dropout(").and_then(|word| word.strip_suffix(')')) {
            return Ok(Function::Dropout(mask.parse()?));
        }
        for side in 0..2 {
            if let Some(kind) = word.strip_suffix(&format!(".grad{side}")) {
                return Ok(Function::BinaryGrad(kind.parse()?, side));
            }
        }
        word.parse().map(Function::Binary).or_else(|()| word.parse().map(Function::Unary))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Read(slot) => write!(f, "x{slot}"),
            Source::Step(step) => write!(f, "s{step}"),
        }
    }
}

impl FromStr for Source {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        let number = |digits: &str| digits.parse().map_err(drop);
        match word.split_at_checked(1) {
            Some(("x", slot)) => number(slot).map(Source::Read),
            Some(("s", step)) => number(step).map(Source::Step),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.function)?;
        self.sources.iter().try_for_each(|source| write!(f, "/{source}"))
    }
}

impl FromStr for Step {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        let mut parts = word.split('/');
        let function = parts.next().ok_or(())?.parse()?;
        Ok(Step { function, sources: parts.map(str::parse).collect::<Result<_, _>>()? })
    }
}
