//! A node's arguments, as rules ask for them.

use phalanx_ir::DType;
use serde_json::Value;

use crate::emit::{Emitter, Made, Problem};
use crate::format::{Node, Reference};
use crate::layout::Logical;
use crate::mapper::Held;
use crate::tensors::{Constant, dtype};

/// A tensor or a number.
pub(crate) enum Factor {
    Number(f64),
    Tensor(Logical),
}

/// A node with what its references stand for.
pub(crate) struct Call<'a> {
    pub(crate) node: &'a Node,
    pub(crate) emit: &'a mut Emitter,
    pub(crate) held: &'a dyn Fn(&Reference) -> Option<Held>,
    /// Where slices of this node's operand cut it, along the dimension at hand.
    pub(crate) cuts: &'a dyn Fn(&Reference, usize) -> Vec<usize>,
}

fn broken<T>(problem: impl Into<String>) -> Made<T> {
    Err(Problem::Broken(problem.into()))
}

/// The reference that an argument is.
pub(crate) fn reference(value: &Value) -> Option<Reference> {
    value.as_object().filter(|object| object.contains_key("v"))?;
    serde_json::from_value(value.clone()).ok()
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(truth) => Some(f64::from(u8::from(*truth))),
        Value::Object(object) => object.get("f")?.as_str()?.parse().ok(),
        value => value.as_f64(),
    }
}

impl Call<'_> {
    pub(crate) fn unsupported<T>(&self, hint: impl Into<String>) -> Made<T> {
        self.emit.unsupported(hint)
    }

    fn value(&self, name: &str) -> Option<&Value> {
        self.node.args.get(name).filter(|value| !value.is_null())
    }

    fn needed(&self, name: &str) -> Made<&Value> {
        self.value(name).ok_or_else(|| Problem::Broken(format!("argument `{name}` is missing")))
    }

    /// Whether an argument is given.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    fn look_up(&self, value: &Value) -> Made<Held> {
        match reference(value) {
            None => broken(format!("{value} is not a tensor")),
            Some(reference) => (self.held)(&reference).ok_or(Problem::Missing),
        }
    }

    /// A held tensor as one of the graph.
    pub(crate) fn logical(&mut self, held: Held) -> Made<Logical> {
        match held {
            Held::Tensor(logical) => Ok(logical),
            Held::Constant(constant) => {
                let name = self.emit.named("constant");
                self.emit.table(&name, &constant)
            }
        }
    }

    /// A tensor.
    pub(crate) fn tensor(&mut self, name: &str) -> Made<Logical> {
        let held = self.look_up(self.needed(name)?)?;
        self.logical(held)
    }

    /// A tensor that may be left out.
    pub(crate) fn optional(&mut self, name: &str) -> Made<Option<Logical>> {
        if self.has(name) { self.tensor(name).map(Some) } else { Ok(None) }
    }

    /// The reference that an argument is.
    pub(crate) fn reference(&self, name: &str) -> Option<Reference> {
        reference(self.value(name)?)
    }

    /// A tensor that is the same in every step, if it is one.
    pub(crate) fn constant(&self, name: &str) -> Made<Option<std::rc::Rc<Constant>>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        match self.look_up(value)? {
            Held::Constant(constant) => Ok(Some(constant)),
            Held::Tensor(_) => Ok(None),
        }
    }

    /// A list of tensors, some of which may be left out.
    pub(crate) fn held_list(&self, name: &str) -> Made<Vec<Option<Held>>> {
        let Value::Array(list) = self.needed(name)? else { return broken(format!("`{name}` is not a list")) };
        let look = |value: &Value| if value.is_null() { Ok(None) } else { self.look_up(value).map(Some) };
        list.iter().map(look).collect()
    }

    /// A list of tensors.
    pub(crate) fn tensors(&mut self, name: &str) -> Made<Vec<Logical>> {
        let list = self.held_list(name)?;
        let given = |held: Option<Held>| match held {
            None => broken(format!("`{name}` has a gap")),
            Some(held) => self.logical(held),
        };
        list.into_iter().map(given).collect()
    }

    /// A tensor or a number; a constant scalar counts as a number.
    pub(crate) fn factor(&mut self, name: &str) -> Made<Factor> {
        let value = self.needed(name)?.clone();
        if let Some(number) = number(&value) {
            return Ok(Factor::Number(number));
        }
        match self.look_up(&value)? {
            Held::Tensor(tensor) => Ok(Factor::Tensor(tensor)),
            Held::Constant(constant) if constant.shape.is_empty() && constant.uniform().is_some() => {
                Ok(Factor::Number(constant.uniform().unwrap_or_default()))
            }
            // Its shape may be what stretches the other operand.
            held @ Held::Constant(_) => self.logical(held).map(Factor::Tensor),
        }
    }

    pub(crate) fn float(&self, name: &str) -> Made<f64> {
        let value = self.needed(name)?;
        number(value).ok_or_else(|| Problem::Broken(format!("`{name}` is {value}, not a number")))
    }

    pub(crate) fn float_or(&self, name: &str, default: f64) -> Made<f64> {
        if self.has(name) { self.float(name) } else { Ok(default) }
    }

    pub(crate) fn int(&self, name: &str) -> Made<i64> {
        let value = self.needed(name)?;
        value.as_i64().ok_or_else(|| Problem::Broken(format!("`{name}` is {value}, not an integer")))
    }

    pub(crate) fn int_or(&self, name: &str, default: i64) -> Made<i64> {
        if self.has(name) { self.int(name) } else { Ok(default) }
    }

    pub(crate) fn flag(&self, name: &str) -> Made<bool> {
        match self.value(name) {
            None => Ok(false),
            Some(value) => number(value)
                .map(|number| number != 0.0)
                .ok_or_else(|| Problem::Broken(format!("`{name}` is {value}, not a truth value"))),
        }
    }

    pub(crate) fn text(&self, name: &str) -> Made<&str> {
        match self.value(name) {
            None => Ok(""),
            Some(value) => {
                value.as_str().ok_or_else(|| Problem::Broken(format!("`{name}` is {value}, not a word")))
            }
        }
    }

    /// An element type, if one is given.
    pub(crate) fn dtype(&self, name: &str) -> Made<Option<DType>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let word = value.get("dtype").and_then(Value::as_str).unwrap_or_default();
        match dtype(word) {
            Some(dtype) => Ok(Some(dtype)),
            None => self.unsupported(format!("elements of type {word} are not supported: use float32")),
        }
    }

    /// A list of integers; one stands for a list of it alone, none for an empty list.
    pub(crate) fn ints(&self, name: &str) -> Made<Vec<i64>> {
        let int = |value: &Value| {
            value.as_i64().ok_or_else(|| Problem::Broken(format!("`{name}` holds {value}, not an integer")))
        };
        match self.value(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(int).collect(),
            Some(value) => int(value).map(|number| vec![number]),
        }
    }

    /// A list of integers that are not negative, repeated up to `count` if it is one.
    pub(crate) fn extents(&self, name: &str, count: usize) -> Made<Vec<usize>> {
        let list = self.ints(name)?;
        let convert = |&number: &i64| {
            usize::try_from(number)
                .ok()
                .filter(|&number| number < 1 << 32)
                .ok_or_else(|| Problem::Broken(format!("`{name}` holds {number}")))
        };
        let list: Vec<usize> = list.iter().map(convert).collect::<Made<_>>()?;
        Ok(if list.len() == 1 && count > 1 { vec![list[0]; count] } else { list })
    }

    /// A list of numbers; none stands for an empty list.
    pub(crate) fn floats(&self, name: &str) -> Made<Vec<f64>> {
        match self.value(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => list
                .iter()
                .map(|value| number(value).ok_or_else(|| Problem::Broken(format!("`{name}` holds {value}"))))
                .collect(),
            Some(value) => broken(format!("`{name}` is {value}, not a list")),
        }
    }

    /// A dimension of a tensor of `rank` dimensions; negative ones count from the end.
    pub(crate) fn dim(&self, name: &str, rank: usize) -> Made<usize> {
        wrap(self.int(name)?, rank)
    }

    pub(crate) fn dim_or(&self, name: &str, default: i64, rank: usize) -> Made<usize> {
        wrap(self.int_or(name, default)?, rank)
    }

    /// Dimensions; all if none are given.
    pub(crate) fn dims(&self, name: &str, rank: usize) -> Made<Vec<usize>> {
        let list = self.ints(name)?;
        if list.is_empty() {
            return Ok((0..rank).collect());
        }
        let mut dims: Vec<usize> = list.into_iter().map(|dim| wrap(dim, rank)).collect::<Made<_>>()?;
        dims.sort_unstable();
        dims.dedup();
        Ok(dims)
    }

    /// The shape of a result.
    pub(crate) fn shape(&self, index: usize) -> Made<&[usize]> {
        let result = self.node.results.get(index);
        result
            .map(|typed| &typed.shape[..])
            .ok_or_else(|| Problem::Broken(format!("it has no result {index}")))
    }
}

/// A dimension of a tensor of `rank` dimensions; negative ones count from the end.
pub(crate) fn wrap(dim: i64, rank: usize) -> Made<usize> {
    let wrapped = if dim < 0 { dim + rank as i64 } else { dim };
    match usize::try_from(wrapped) {
        Ok(wrapped) if wrapped < rank => Ok(wrapped),
        _ => broken(format!("there is no dimension {dim} among {rank}")),
    }
}
