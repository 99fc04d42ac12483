//! The trait of operators, and the table that finds one by its name.

use std::any::Any;
use std::collections::BTreeMap;

use super::{Cuts, LayerTasks, Op, Operands};
use crate::sharded::Operand;
use crate::text::Attrs;
use crate::{OpError, Shape, Tensor, TensorType};

/// An operator of a model: everything that the levels up to tasks know about it.
///
/// An operator is a value: two with the same name and attributes are equal. `operands` and `results` are in the order of
/// its slots.
pub trait Operator: Any + Send + Sync {
    /// The names under which texts know operators of this type.
    fn names() -> Vec<&'static str>
    where
        Self: Sized;

    /// The operator called `name` with attributes taken from `attrs`; see [`attributes!`](crate::attributes).
    fn parse(name: &str, attrs: &mut Attrs) -> Result<Self, String>
    where
        Self: Sized;

    /// Its name.
    fn name(&self) -> &'static str;

    /// Its attributes as text.
    fn attrs(&self) -> Attrs;

    /// The operands it takes.
    fn slots(&self) -> Slots {
        Slots::exactly(&["input"])
    }

    /// The types of its results, or what is wrong with an operand.
    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError>;

    /// How it can be cut into tasks.
    fn cuts(&self, operands: &[&Shape], results: &[&Shape]) -> Cuts;

    /// The same computation as a sum, then functions of the sum, if a cut of the summed dimension needs that.
    fn apart(&self, _operands: &[&Shape]) -> Option<Apart> {
        None
    }

    /// The operator that gives a result of this shape, if its attributes state a shape.
    fn resized(&self, _result: &Shape) -> Option<Op> {
        None
    }

    /// The range of the indices that it looks up.
    fn index_bound(&self, _operands: &[&Shape]) -> Option<IndexBound> {
        None
    }

    /// Its forward tasks.
    fn forward(&self, tasks: &mut dyn LayerTasks);

    /// Its backward tasks. `dy` has the gradient of every result that has one; at least one does.
    fn backward(&self, _tasks: &mut dyn LayerTasks, _dy: &[Option<Operand>]) {}

    /// What it computes, in double precision and as plain as possible; `results` are the shapes of the results.
    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor>;
}

/// How many operands an operator takes, and what they are called.
pub struct Slots {
    /// Names of the operands it must have.
    pub needed: &'static [&'static str],
    /// Names of operands that may follow; some of the first of them, all or none.
    pub optional: &'static [&'static str],
    /// Whether the last needed operand may repeat.
    pub variadic: bool,
}

impl Slots {
    /// These operands.
    pub fn exactly(needed: &'static [&'static str]) -> Slots {
        Slots { needed, optional: &[], variadic: false }
    }

    /// The name of operand `index`.
    pub fn name(&self, index: usize) -> String {
        if self.variadic {
            return format!("{}_{index}", self.needed[0]);
        }
        let name = self.needed.iter().chain(self.optional).nth(index);
        name.map_or_else(|| index.to_string(), |name| name.to_string())
    }
}

/// An operator as a sum followed by functions of the sum.
pub struct Apart {
    /// The sum, on the first of the operator's operands.
    pub sum: Op,
    /// How many operands that takes.
    pub operands: usize,
    /// What comes after it, one after the other.
    pub after: Vec<Part>,
}

/// A function of what came before.
pub struct Part {
    /// The function.
    pub op: Op,
    /// Which of the operator's operands is its second one.
    pub operand: Option<usize>,
    /// What the result is called.
    pub word: &'static str,
}

/// The range of an operand that holds indices: from 0 on.
pub struct IndexBound {
    /// The operand.
    pub slot: usize,
    /// The end of the range.
    pub below: usize,
    /// A value allowed besides the range.
    pub ignore: Option<i64>,
}

type Parse = fn(&str, &mut Attrs) -> Result<Op, String>;

/// The operators that texts may name.
#[derive(Clone, Default)]
pub struct Operators(BTreeMap<&'static str, Parse>);

impl Operators {
    /// These, and those of type `O`.
    pub fn with<O: Operator>(mut self) -> Self {
        self.0.extend(O::names().into_iter().map(|name| {
            let parse: Parse = |name, attrs| O::parse(name, attrs).map(Op::from);
            (name, parse)
        }));
        self
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }

    /// The operator called `name` with attributes taken from `attrs`.
    pub fn parse(&self, name: &str, attrs: &mut Attrs) -> Result<Op, String> {
        self.0.get(name).ok_or_else(|| format!("unknown operator `{name}`"))?(name, attrs)
    }
}
