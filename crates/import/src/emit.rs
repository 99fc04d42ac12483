//! Adding layers to the graph under construction.

use std::collections::HashMap;

use phalanx_ir::graph::{BuildError, Builder, ValueId};
use phalanx_ir::{Binary, DType, Op, Operator, Table, TensorType, Unary};
use phalanx_ops::{BinaryOp, Reshape, Split, UnaryOp};

use crate::RandomLayer;
use crate::layout::{Atom, Logical};
use crate::tensors::{Constant, stored_dtype};

/// Why a node is not mapped.
#[derive(Debug)]
pub(crate) enum Problem {
    /// An operand is not there, because its node was not mapped.
    Missing,
    /// It has no counterpart; what is in the way, and a way around it.
    Unsupported(String),
    /// It contradicts itself.
    Broken(String),
}

pub(crate) type Made<T> = Result<T, Problem>;

impl From<BuildError> for Problem {
    fn from(error: BuildError) -> Self {
        Problem::Broken(error.to_string())
    }
}

/// Adds layers, named after the node at hand.
pub(crate) struct Emitter {
    pub(crate) builder: Builder,
    /// What layers of the node at hand are called after.
    pub(crate) path: String,
    /// The node at hand.
    pub(crate) node: String,
    /// Layers that only move elements, by what they do.
    moves: HashMap<(ValueId, String), Vec<ValueId>>,
    /// What a reshaped value was before.
    before: HashMap<ValueId, ValueId>,
    pub(crate) random: Vec<RandomLayer>,
    /// States whose updates are added already.
    pub(crate) updated: Vec<ValueId>,
}

impl Emitter {
    pub(crate) fn new(name: &str) -> Self {
        let (builder, path, node) = (Builder::new(name), String::new(), String::new());
        Emitter {
            builder,
            path,
            node,
            moves: HashMap::new(),
            before: HashMap::new(),
            random: Vec::new(),
            updated: Vec::new(),
        }
    }

    pub(crate) fn unsupported<T>(&self, hint: impl Into<String>) -> Made<T> {
        Err(Problem::Unsupported(hint.into()))
    }

    /// The name of a layer of the node at hand.
    pub(crate) fn named(&self, word: &str) -> String {
        match (self.path.is_empty(), word.is_empty()) {
            (true, true) => "result".into(),
            (true, false) => word.into(),
            (false, true) => self.path.clone(),
            (false, false) => format!("{}.{word}", self.path),
        }
    }

    /// What a value is called.
    pub(crate) fn builder_name(&self, id: ValueId) -> String {
        self.builder.name_of(id).to_string()
    }

    /// Adds a layer called `word` at the module's path.
    pub(crate) fn add(&mut self, word: &str, op: impl Into<Op>, operands: &[ValueId]) -> Made<ValueId> {
        let name = self.named(word);
        Ok(self.builder.add_one(&name, op, operands)?)
    }

    /// Adds a layer that moves elements, unless there is one that does the same.
    pub(crate) fn moved<O: Operator>(&mut self, x: ValueId, op: O) -> Made<ValueId> {
        let mut op: Op = op.into();
        let mut x = x;
        // What is reshaped twice is reshaped once.
        if let Some(shape) = op.get::<Reshape>().map(|reshape| reshape.shape.clone()) {
            x = self.before.get(&x).copied().unwrap_or(x);
            if *self.builder.shape(x) == shape {
                return Ok(x);
            }
            op = Reshape { shape }.into();
        }
        let is_reshape = op.get::<Reshape>().is_some();
        let (word, attrs) = op.to_text();
        let (word, key) = (word.to_string(), (x, format!("{word} {attrs}")));
        if let Some(made) = self.moves.get(&key) {
            return Ok(made[0]);
        }
        let made = self.add(&word, op, &[x])?;
        self.moves.insert(key, vec![made]);
        if is_reshape {
            self.before.insert(made, x);
        }
        Ok(made)
    }

    /// The pieces of a value along an axis.
    pub(crate) fn split(&mut self, x: ValueId, axis: usize, sizes: &[usize]) -> Made<Vec<ValueId>> {
        if sizes.len() == 1 {
            return Ok(vec![x]);
        }
        let key = (x, format!("split {axis} {sizes:?}"));
        if let Some(made) = self.moves.get(&key) {
            return Ok(made.clone());
        }
        let name = self.named("split");
        let op = Split { axis, sizes: sizes.to_vec(), blocks: 1 };
        let made = self.builder.add(&name, op, &[x])?;
        self.moves.insert(key, made.clone());
        Ok(made)
    }

    /// A tensor with one value everywhere.
    pub(crate) fn constant(&mut self, value: f32, shape: &[usize]) -> Made<ValueId> {
        let name = self.named("constant");
        Ok(self.builder.leaf(&name, Op::Constant(value), TensorType::f32(shape.to_vec()))?)
    }

    /// A constant tensor; dimensions along which nothing changes are stretched.
    pub(crate) fn table(&mut self, name: &str, constant: &Constant) -> Made<Logical> {
        let Some(dtype) = stored_dtype(constant.dtype) else {
            return self.unsupported(format!("constants of type {:?} are not: use float32", constant.dtype));
        };
        let (bytes, shape) = shrunk(constant, dtype.bytes());
        let stretched: Vec<Vec<Atom>> = constant
            .shape
            .iter()
            .zip(&shape)
            .enumerate()
            .map(|(dim, (&whole, &kept))| match (whole, kept) {
                (1, _) => Vec::new(),
                (extent, 1) => vec![Atom { dim: None, extent }],
                (extent, _) => vec![Atom { dim: Some(dim), extent }],
            })
            .collect();
        let table = Table::new(dtype, bytes);
        let scalar = (dtype == DType::F32 && table.bytes().is_some_and(|bytes| bytes.len() == 4))
            .then(|| table.elements().unwrap_or_default()[0]);
        let id = match scalar {
            Some(value) => self.builder.leaf(name, Op::Constant(value as f32), TensorType::f32(shape))?,
            None => self.builder.table(name, shape, table)?,
        };
        Ok(Logical { id, dims: stretched })
    }
}

/// The elements of a constant without the dimensions along which nothing changes, whose extents become 1.
pub(crate) fn shrunk(constant: &Constant, size: usize) -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut shape) = (constant.bytes.clone(), constant.shape.clone());
    for dim in 0..shape.len() {
        let row = shape[dim + 1..].iter().product::<usize>() * size;
        let (extent, block) = (shape[dim], row * shape[dim]);
        if extent < 2 || row == 0 {
            continue;
        }
        let is_same = bytes.chunks(block).all(|block| block.chunks(row).all(|part| *part == block[..row]));
        if is_same {
            bytes = bytes.chunks(block).flat_map(|block| block[..row].to_vec()).collect();
            shape[dim] = 1;
        }
    }
    (bytes, shape)
}

/// Element-wise layers.
impl Emitter {
    pub(crate) fn unary(&mut self, word: &str, unary: Unary, x: &Logical) -> Made<Logical> {
        let id = self.add(word, UnaryOp(unary), &[x.id])?;
        Ok(x.with_id(id))
    }

    pub(crate) fn binary(&mut self, word: &str, binary: Binary, a: &Logical, b: &Logical) -> Made<Logical> {
        self.stretched(word, BinaryOp(binary), &[a, b])
    }

    /// An operator whose operands are stretched to a common shape.
    pub(crate) fn stretched(
        &mut self,
        word: &str,
        op: impl Into<Op>,
        operands: &[&Logical],
    ) -> Made<Logical> {
        let mut operands: Vec<Logical> = operands.iter().map(|&operand| operand.clone()).collect();
        let (ids, dims) = self.align(&mut operands)?;
        let id = self.add(word, op, &ids)?;
        Ok(Logical { id, dims })
    }

    /// Values that an element-wise operator takes, and what its result is.
    fn align(&mut self, operands: &mut [Logical]) -> Made<(Vec<ValueId>, Vec<Vec<Atom>>)> {
        let groups = self.common_groups(operands, phalanx_ir::MAX_RANK)?;
        let mut ids = Vec::new();
        for operand in operands.iter() {
            let own: Vec<Vec<Atom>> = groups.iter().map(|group| group.of(operand)).collect();
            // Each group is stored by an operand, so one of them has all dimensions.
            let leading = own.iter().take_while(|atoms| atoms.iter().all(|atom| atom.dim.is_none())).count();
            ids.push(self.arrange(operand, &own[leading..], false)?);
        }
        Ok((ids, result_dims(operands, &groups)))
    }

    /// Which atoms of several tensors belong together, in the order of the largest one; those that none stores are left out.
    /// Neighbours are joined until there are at most `most`.
    pub(crate) fn common_groups(&mut self, operands: &mut [Logical], most: usize) -> Made<Vec<Common>> {
        let rank = operands.iter().map(Logical::rank).max().unwrap_or(0);
        operands.iter_mut().for_each(|operand| *operand = operand.padded(rank));
        for dim in 0..rank {
            self.refine(operands, dim)?;
        }
        let size = |x: &Logical| x.stored().iter().map(|atom| atom.extent).product::<usize>();
        let major = (0..operands.len()).rev().max_by_key(|&index| size(&operands[index])).unwrap_or(0);
        let places: Vec<(usize, usize)> = (0..rank)
            .flat_map(|dim| {
                let count = operands.iter().map(|operand| operand.dims[dim].len()).max().unwrap_or(0);
                (0..count).map(move |at| (dim, at))
            })
            .collect();
        let stored = |x: &Logical, &(dim, at): &(usize, usize)| x.dims[dim].get(at).and_then(|atom| atom.dim);
        let mut order: Vec<(usize, usize)> =
            places.iter().copied().filter(|place| stored(&operands[major], place).is_some()).collect();
        order.sort_by_key(|place| stored(&operands[major], place));
        for place in &places {
            if order.contains(place) || operands.iter().all(|operand| stored(operand, place).is_none()) {
                continue;
            }
            let next = order.iter().position(|other| other > place);
            order.insert(next.unwrap_or(order.len()), *place);
        }
        let mut groups: Vec<Common> = order.into_iter().map(|place| Common(vec![place])).collect();
        while groups.len() > most {
            let alike = |a: &(usize, usize), b: &(usize, usize)| {
                a.0 == b.0
                    && a.1 + 1 == b.1
                    && operands.iter().all(|x| stored(x, a).is_some() == stored(x, b).is_some())
            };
            let at = (1..groups.len()).rev().find(|&at| {
                matches!((groups[at - 1].0.last(), groups[at].0.first()), (Some(a), Some(b)) if alike(a, b))
            });
            let Some(at) = at else {
                return self.unsupported("it needs a tensor of more than 6 dimensions: reshape it first");
            };
            let second = groups.remove(at);
            groups[at - 1].0.extend(second.0);
        }
        Ok(groups)
    }

    /// Splits atoms of dimension `dim` until all tensors have the same ones there, or none.
    fn refine(&mut self, operands: &mut [Logical], dim: usize) -> Made<()> {
        let mut at = 0;
        loop {
            let here = |x: &Logical| x.dims[dim].get(at).map(|atom| atom.extent);
            let Some(least) = operands.iter().filter_map(here).min() else { return Ok(()) };
            for operand in operands.iter_mut() {
                let Some(extent) = here(operand).filter(|&extent| extent > least) else { continue };
                if extent.is_multiple_of(least) && self.divide(operand, dim, at, least)? {
                    continue;
                }
                return self.merge_dim(operands, dim);
            }
            at += 1;
        }
    }

    /// Splits an atom into `outer` times the rest; whether that was possible.
    fn divide(&mut self, x: &mut Logical, dim: usize, at: usize, outer: usize) -> Made<bool> {
        let atom = x.dims[dim][at];
        let inner = atom.extent / outer;
        let Some(own) = atom.dim else {
            x.dims[dim].splice(at..=at, [outer, inner].map(|extent| Atom { dim: None, extent }));
            return Ok(true);
        };
        let groups: Vec<Atom> = x.stored();
        if groups.len() == phalanx_ir::MAX_RANK {
            return Ok(false);
        }
        let place = |old: usize| groups.iter().position(|atom| atom.dim == Some(old)).unwrap_or(0);
        let mut shape: Vec<usize> = groups.iter().map(|atom| atom.extent).collect();
        shape.splice(place(own)..=place(own), [outer, inner]);
        x.id = self.reshaped(x.id, &shape)?;
        let moved = |old: usize| place(old) + usize::from(old > own);
        for other in x.dims.iter_mut().flatten() {
            other.dim = other.dim.map(moved);
        }
        let first = place(own);
        x.dims[dim].splice(
            at..=at,
            [(first, outer), (first + 1, inner)].map(|(dim, extent)| Atom { dim: Some(dim), extent }),
        );
        Ok(true)
    }

    /// Makes dimension `dim` one dimension of every tensor that has it.
    fn merge_dim(&mut self, operands: &mut [Logical], dim: usize) -> Made<()> {
        for operand in operands {
            if operand.dims[dim].len() > 1 {
                *operand = self.single(operand, dim)?.0;
            }
        }
        Ok(())
    }
}

/// Atoms of several tensors that belong together: dimension and place in it, of each.
#[derive(Clone, Debug)]
pub(crate) struct Common(pub(crate) Vec<(usize, usize)>);

impl Common {
    /// Those of one tensor.
    pub(crate) fn of(&self, x: &Logical) -> Vec<Atom> {
        self.0.iter().filter_map(|&(dim, at)| x.dims[dim].get(at).copied()).collect()
    }
}

/// The dimensions of a result that has one dimension for each group.
pub(crate) fn result_dims(operands: &[Logical], groups: &[Common]) -> Vec<Vec<Atom>> {
    let rank = operands.first().map_or(0, Logical::rank);
    let mut dims: Vec<Vec<Atom>> = Vec::new();
    for dim in 0..rank {
        let longest = operands.iter().map(|operand| &operand.dims[dim]).max_by_key(|atoms| atoms.len());
        let mut own: Vec<Atom> = Vec::new();
        for (at, atom) in longest.into_iter().flatten().enumerate() {
            match groups.iter().position(|group| group.0.contains(&(dim, at))) {
                None => own.push(Atom { dim: None, ..*atom }),
                Some(group) if own.last().is_some_and(|last| last.dim == Some(group)) => {
                    if let Some(last) = own.last_mut() {
                        last.extent *= atom.extent;
                    }
                }
                Some(group) => own.push(Atom { dim: Some(group), extent: atom.extent }),
            }
        }
        dims.push(own);
    }
    dims
}
