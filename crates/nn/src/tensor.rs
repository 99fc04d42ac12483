//! Values of the graph under construction.

use std::cell::RefCell;
use std::panic::Location;
use std::rc::Rc;

use phalanx_ir::graph::ValueId;
use phalanx_ir::{DType, MAX_RANK, Op};

use crate::Net;
use crate::net::{Line, Shared};

/// A value of the graph under construction: a cheap handle.
///
/// `+ - * /` and unary `-` work on tensors and on tensors with numbers, with or without `&`; shapes are stretched to each
/// other as in NumPy. Layers made by methods are called after the place of the newest operand.
#[derive(Clone)]
pub struct Tensor {
    pub(crate) shared: Rc<RefCell<Shared>>,
    /// The place after which layers that use it are called.
    path: Rc<str>,
    /// Nothing after an error.
    pub(crate) id: Option<ValueId>,
    /// The call that made it.
    pub(crate) line: Option<Line>,
}

impl Tensor {
    #[track_caller]
    pub(crate) fn new(shared: &Rc<RefCell<Shared>>, path: &Rc<str>, id: Option<ValueId>) -> Tensor {
        let (shared, path) = (Rc::clone(shared), Rc::clone(path));
        Tensor { shared, path, id, line: Some(Location::caller()) }
    }

    /// Adds a layer; as many tensors as it has results, also after an error.
    #[track_caller]
    pub(crate) fn layer(
        shared: &Rc<RefCell<Shared>>,
        path: &Rc<str>,
        name: &str,
        op: Op,
        operands: &[&Tensor],
        results: usize,
    ) -> Vec<Tensor> {
        let line = Location::caller();
        if operands.iter().any(|operand| !Rc::ptr_eq(&operand.shared, shared)) {
            let problem =
                format!("layer `{name}`: an operand is of another model: make it with the same `net`");
            shared.borrow_mut().fail(line, &*problem);
            operands.iter().for_each(|operand| operand.shared.borrow_mut().fail(line, &*problem));
        }
        let ids: Option<Vec<ValueId>> = operands.iter().map(|operand| operand.id).collect();
        let made = shared.borrow_mut().add(line, |builder| match ids {
            _ if op.is_leaf() => Err(format!("layer `{name}`: use `input` or `param` for a leaf")),
            None => Err(format!("layer `{name}`: an operand was made after the model was complete")),
            Some(ids) => match builder.add(name, op, &ids) {
                Ok(made) if made.len() == results => Ok(made),
                Ok(made) => Err(format!("layer `{name}` has {} results, not {results}", made.len())),
                Err(error) => Err(error.to_string()),
            },
        });
        // Not in a closure, which would hide the line of the caller.
        let mut tensors = Vec::with_capacity(results);
        for index in 0..results {
            tensors.push(Tensor::new(shared, path, made.get(index).copied()));
        }
        tensors
    }

    /// Adds a layer called `word` at the place of the operand that was made last, of those that are not at the root.
    #[track_caller]
    pub(crate) fn op(word: &str, op: impl Into<Op>, operands: &[&Tensor]) -> Tensor {
        Tensor::ops(word, op, operands, 1).swap_remove(0)
    }

    /// The same with several results.
    #[track_caller]
    pub(crate) fn ops(word: &str, op: impl Into<Op>, operands: &[&Tensor], results: usize) -> Vec<Tensor> {
        let newest = operands.iter().max_by_key(|operand| (!operand.path.is_empty(), operand.id));
        let newest = newest.expect("layers have operands");
        let name = match &*newest.path {
            "" => word.to_string(),
            path => format!("{path}.{word}"),
        };
        Tensor::layer(&newest.shared, &newest.path, &name, op.into(), operands, results)
    }

    /// Another value at the same place.
    #[track_caller]
    pub(crate) fn with_id(&self, id: Option<ValueId>) -> Tensor {
        Tensor::new(&self.shared, &self.path, id)
    }

    /// Reports that a call makes no sense; a tensor of which nothing can be made.
    #[track_caller]
    pub(crate) fn wrong(&self, problem: impl Into<String>) -> Tensor {
        self.shared.borrow_mut().fail(Location::caller(), problem);
        Tensor::new(&self.shared, &self.path, None)
    }

    /// The same tensor; its layer is called by `place` instead of after an operand.
    #[track_caller]
    pub fn named(&self, place: &Net) -> Tensor {
        if self.is_leaf() {
            return self.wrong(format!(
                "an input or parameter keeps its name: `{}` is for results of layers",
                place.path()
            ));
        }
        let mut shared = self.shared.borrow_mut();
        shared.choose(Location::caller(), place.path());
        if let Some((builder, id)) = shared.builder.as_mut().zip(self.id) {
            builder.rename(id, place.path());
        }
        drop(shared);
        Tensor::new(&self.shared, &place.path().into(), self.id)
    }

    /// Its extents. After an error they are all 1.
    pub fn dims(&self) -> Vec<usize> {
        let shared = self.shared.borrow();
        match self.id.zip(shared.builder.as_ref()) {
            Some((id, builder)) => builder.shape(id).dims().to_vec(),
            None => vec![1; MAX_RANK],
        }
    }

    /// How many dimensions it has.
    pub fn rank(&self) -> usize {
        self.dims().len()
    }

    /// The innermost extent; 1 of a scalar.
    pub fn last(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    /// Its element type.
    pub fn dtype(&self) -> DType {
        let shared = self.shared.borrow();
        self.id.zip(shared.builder.as_ref()).map_or(DType::F32, |(id, builder)| builder.ty(id).dtype)
    }

    /// Its type as texts have it.
    pub(crate) fn describe(&self) -> String {
        let shared = self.shared.borrow();
        self.id
            .zip(shared.builder.as_ref())
            .map_or_else(String::new, |(id, builder)| builder.ty(id).to_string())
    }

    /// Whether it is an input, a parameter or a constant.
    pub(crate) fn is_leaf(&self) -> bool {
        let shared = self.shared.borrow();
        self.id.zip(shared.builder.as_ref()).is_some_and(|(id, builder)| builder.op_of(id).is_leaf())
    }
}
