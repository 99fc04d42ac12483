//! Operators as grids of tasks: which dimensions of operands and results each task axis cuts, and who decides about it.
//!
//! This restates the operators' parallel rules (`phalanx_ir::parallel`) in the direction a plan needs: not "are these
//! degrees legal" but "which legal ones are nearest to what is there". Axes come in the order of the rules' task axes, and
//! an operand is copied along the axes it does not have, in that order. `ParallelGraph::verify` holds both together.

use std::ops::Range;

use phalanx_ir::{Op, Reduce, Shape, TensorType};

use super::layout::{Layout, Machine, MeshAxis};

/// A task axis, by position.
type Axis = usize;

/// For every dimension the task axis that cuts it; none if it must be whole.
type Dims = Vec<Option<Axis>>;

/// The frame of an operator's tasks.
#[derive(Default)]
pub(super) struct Signature {
    /// For every task axis the numbers that its extent must divide.
    limits: Vec<Vec<usize>>,
    operands: Vec<Dims>,
    results: Vec<Dims>,
    /// Axes along which results are partial sums.
    sum: Vec<Axis>,
    /// Operands without gradient: all tasks may share them, so they are never copied.
    shared: Vec<usize>,
    /// Which dimension of which operand proposes the cut of an axis; earlier ones win.
    claims: Vec<(Axis, usize, usize)>,
    /// An axis that is cut only if these two dimensions are cut alike.
    both: Option<(Axis, [(usize, usize); 2])>,
}

/// A signature with mesh axes for its task axes.
pub(super) struct Tasks {
    /// The mesh axes of every task axis.
    pub(super) axes: Vec<Vec<MeshAxis>>,
    /// What every operand must be.
    pub(super) operands: Vec<Layout>,
    /// What every result is.
    pub(super) results: Vec<Layout>,
}

impl Signature {
    /// The frame of `op`; leaves and parallel operators have none.
    pub(super) fn new(op: &Op, operands: &[&TensorType], results: &[&TensorType]) -> Signature {
        let shape = |slot: usize| &operands[slot].shape;
        let mut signature = match op {
            Op::Linear { transposed, .. } => linear(shape(0).rank() - 1, *transposed, operands.len()),
            Op::Matmul { transpose_a, transpose_b } => {
                matmul(shape(0).rank() - 2, *transpose_a, *transpose_b)
            }
            Op::Embedding { bag } => embedding(shape(0).rank() - usize::from(*bag), *bag),
            Op::Binary(_) => binary([shape(0), shape(1)], &results[0].shape),
            Op::Softmax { axis } => pointwise(shape(0).rank(), |dim| dim != *axis),
            Op::Rotary { .. } => pointwise(4, |dim| dim != 3),
            Op::LayerNorm { axes, .. } => norm(shape(0).rank(), *axes, operands.len()),
            Op::RmsNorm { .. } => norm(shape(0).rank(), 1, operands.len()),
            Op::Attention { .. } => attention(),
            Op::Reshape(to) => reshape(shape(0), to),
            Op::Broadcast(to) => stretch(shape(0).rank(), to.rank()),
            Op::Transpose(perm) => transpose(perm),
            Op::Split { axis, blocks, .. } => cut(shape(0).rank(), [1, results.len()], *axis, *blocks),
            Op::Concat { axis, blocks } => cut(shape(0).rank(), [operands.len(), 1], *axis, *blocks),
            Op::Reduce { kind, axes, keep } => reduce(shape(0).rank(), *kind, axes, *keep),
            Op::CrossEntropy { .. } => cross_entropy(shape(0).rank() - 1),
            Op::CountLabels { .. } => summed(shape(0).rank()),
            _ => pointwise(shape(0).rank(), |_| true),
        };
        signature.limit(operands, results);
        signature
    }

    /// Every axis must divide the extents that it cuts.
    fn limit(&mut self, operands: &[&TensorType], results: &[&TensorType]) {
        let slots = self.operands.iter().zip(operands).chain(self.results.iter().zip(results));
        for (dims, ty) in slots {
            for (axis, &extent) in dims.iter().zip(ty.shape.dims()) {
                if let Some(axis) = *axis {
                    if self.limits.len() <= axis {
                        self.limits.resize(axis + 1, Vec::new());
                    }
                    self.limits[axis].push(extent);
                }
            }
        }
    }

    /// Gives mesh axes to the task axes, as near to the operands' layouts as the frame allows. A mesh axis is given once.
    pub(super) fn assign(&self, machine: &Machine, operands: &[&Layout]) -> Tasks {
        let mut axes = vec![Vec::new(); self.limits.len()];
        let mut used: Vec<MeshAxis> = Vec::new();
        let mut give = |axis: Axis, list: &[MeshAxis]| {
            if !axes[axis].is_empty() {
                return;
            }
            let mut degree = 1;
            for &mesh_axis in list {
                let more = degree * machine.size(mesh_axis);
                let fits = self.limits[axis].iter().all(|limit| limit.is_multiple_of(more));
                if fits && !used.contains(&mesh_axis) {
                    axes[axis].push(mesh_axis);
                    used.push(mesh_axis);
                    degree = more;
                }
            }
        };
        if let Some((axis, [(a, a_dim), (b, b_dim)])) = self.both
            && operands[a].dims[a_dim] == operands[b].dims[b_dim]
        {
            give(axis, &operands[a].dims[a_dim]);
        }
        self.claims.iter().for_each(|&(axis, slot, dim)| give(axis, &operands[slot].dims[dim]));
        self.layouts(axes)
    }

    fn layouts(&self, axes: Vec<Vec<MeshAxis>>) -> Tasks {
        let dims = |dims: &Dims| {
            dims.iter().map(|axis| axis.map_or(Vec::new(), |axis| axes[axis].clone())).collect()
        };
        let operand = |(slot, own): (usize, &Dims)| {
            let missing = (0..axes.len()).filter(|axis| !own.contains(&Some(*axis)));
            let copy = match self.shared.contains(&slot) {
                true => Vec::new(),
                false => missing.flat_map(|axis| axes[axis].clone()).collect(),
            };
            Layout { sum: Vec::new(), copy, dims: dims(own) }
        };
        let operands = self.operands.iter().enumerate().map(operand).collect();
        let sum: Vec<MeshAxis> = self.sum.iter().flat_map(|&axis| axes[axis].clone()).collect();
        let results =
            self.results.iter().map(|own| Layout { sum: sum.clone(), copy: Vec::new(), dims: dims(own) });
        Tasks { operands, results: results.collect(), axes }
    }

    /// All dimensions of these operands propose, one operand after the other.
    fn claimed_by(mut self, slots: impl IntoIterator<Item = usize>) -> Self {
        for slot in slots {
            let dims = self.operands[slot].iter().enumerate();
            self.claims.extend(dims.filter_map(|(dim, axis)| axis.map(|axis| (axis, slot, dim))));
        }
        self
    }
}

/// Axes for a run of dimensions.
fn each(axes: Range<usize>) -> Dims {
    axes.map(Some).collect()
}

/// One axis for every dimension that satisfies `free`, operand and result alike.
fn pointwise(rank: usize, free: impl Fn(usize) -> bool) -> Signature {
    let mut next = 0..;
    let dims: Dims = (0..rank).map(|dim| if free(dim) { next.next() } else { None }).collect();
    Signature { operands: vec![dims.clone()], results: vec![dims], ..Signature::default() }.claimed_by([0])
}

/// The weight decides about features, the input about the rest.
fn linear(lead: usize, transposed: bool, operands: usize) -> Signature {
    let (inner, rows, out) = (0, each(1..lead + 1), lead + 1);
    let weight = if transposed { vec![Some(inner), Some(out)] } else { vec![Some(out), Some(inner)] };
    let slots = [[rows.clone(), vec![Some(inner)]].concat(), weight, vec![Some(out)]];
    let mut signature = Signature {
        operands: slots.into_iter().take(operands).collect(),
        results: vec![[rows, vec![Some(out)]].concat()],
        sum: vec![inner],
        ..Signature::default()
    }
    .claimed_by([1, 0]);
    signature.claims.retain(|&(axis, slot, _)| slot == 1 || axis != inner);
    signature
}

/// The summed dimension is cut only if both operands have it cut alike.
fn matmul(lead: usize, transpose_a: bool, transpose_b: bool) -> Signature {
    let (k, batch, m, n) = (0, each(1..lead + 1), lead + 1, lead + 2);
    let pair = |transposed: bool, [first, second]: [Axis; 2]| {
        let last = if transposed { [second, first] } else { [first, second] };
        [batch.clone(), last.map(Some).to_vec()].concat()
    };
    let operands = vec![pair(transpose_a, [m, k]), pair(transpose_b, [k, n])];
    let place = |slot: usize| operands[slot].iter().position(|&axis| axis == Some(k)).unwrap_or(lead);
    let both = Some((k, [(0, place(0)), (1, place(1))]));
    let results = vec![pair(false, [m, n])];
    let mut signature =
        Signature { operands, results, sum: vec![k], both, ..Signature::default() }.claimed_by([0, 1]);
    signature.claims.retain(|&(axis, ..)| axis != k);
    signature
}

/// The table decides about vocabulary and width, the ids about the rest.
fn embedding(lead: usize, bag: bool) -> Signature {
    let (vocabulary, rows, width) = (0, each(1..lead + 1), lead + 1);
    let ids = rows.iter().copied().chain(bag.then_some(None)).collect();
    Signature {
        operands: vec![ids, vec![Some(vocabulary), Some(width)]],
        results: vec![[rows, vec![Some(width)]].concat()],
        sum: vec![vocabulary],
        shared: vec![0],
        ..Signature::default()
    }
    .claimed_by([1, 0])
}

/// Where an operand is stretched it has no axis.
fn binary(operands: [&Shape; 2], result: &Shape) -> Signature {
    let rank = result.rank();
    let own = |shape: &Shape| -> Dims {
        let first = rank - shape.rank();
        let dim = |dim: usize| (shape.dims()[dim - first] == result.dims()[dim]).then_some(dim);
        (first..rank).map(dim).collect()
    };
    let operands = operands.map(own).to_vec();
    Signature { operands, results: vec![each(0..rank)], ..Signature::default() }.claimed_by([0, 1])
}

fn norm(rank: usize, axes: usize, operands: usize) -> Signature {
    let x = [each(0..rank - axes), vec![None; axes]].concat();
    let weights = vec![vec![None; axes]; operands - 1];
    let operands = [vec![x.clone()], weights].concat();
    Signature { operands, results: vec![x], ..Signature::default() }.claimed_by([0])
}

fn attention() -> Signature {
    let dims = vec![Some(0), None, Some(1), None];
    let (operands, results) = (vec![dims.clone(); 3], vec![dims]);
    Signature { operands, results, ..Signature::default() }.claimed_by([0, 1, 2])
}

/// Of dimensions that are merged or cut apart only the outermost is cut.
fn reshape(from: &Shape, to: &Shape) -> Signature {
    let mut signature = Signature {
        operands: vec![vec![None; from.rank()]],
        results: vec![vec![None; to.rank()]],
        ..Signature::default()
    };
    let mut axis = 0;
    for (old, new) in groups(from.dims(), to.dims()) {
        let outermost =
            |dims: Range<usize>, shape: &Shape| dims.into_iter().find(|&dim| shape.dims()[dim] > 1);
        if let (Some(old), Some(new)) = (outermost(old, from), outermost(new, to)) {
            signature.operands[0][old] = Some(axis);
            signature.results[0][new] = Some(axis);
            axis += 1;
        }
    }
    signature.claimed_by([0])
}

/// Runs of dimensions of both shapes with equal products, as short as possible.
fn groups(from: &[usize], to: &[usize]) -> Vec<(Range<usize>, Range<usize>)> {
    let (mut a, mut b, mut groups) = (0, 0, Vec::new());
    while a < from.len() && b < to.len() {
        let (first_a, first_b) = (a, b);
        let (mut left, mut right) = (from[a], to[b]);
        (a, b) = (a + 1, b + 1);
        while left != right {
            if left < right {
                left *= from[a];
                a += 1;
            } else {
                right *= to[b];
                b += 1;
            }
        }
        groups.push((first_a..a, first_b..b));
    }
    groups
}

fn stretch(from: usize, to: usize) -> Signature {
    let result = [vec![None; to - from], each(0..from)].concat();
    Signature { operands: vec![each(0..from)], results: vec![result], ..Signature::default() }.claimed_by([0])
}

fn transpose(perm: &[usize]) -> Signature {
    let mut input = vec![None; perm.len()];
    perm.iter().enumerate().for_each(|(axis, &dim)| input[dim] = Some(axis));
    Signature { operands: vec![input], results: vec![each(0..perm.len())], ..Signature::default() }
        .claimed_by([0])
}

/// Splits and joins: the axis may be cut only between its blocks.
fn cut(rank: usize, [operands, results]: [usize; 2], axis: usize, blocks: usize) -> Signature {
    let mut limits = vec![Vec::new(); rank];
    limits[axis].push(blocks);
    let (dims, slots) = (each(0..rank), 0..operands);
    let (operands, results) = (vec![dims.clone(); operands], vec![dims; results]);
    Signature { limits, operands, results, ..Signature::default() }.claimed_by(slots)
}

/// A mean or largest element needs its dimensions whole.
fn reduce(rank: usize, kind: Reduce, axes: &[usize], keep: bool) -> Signature {
    let mut signature = pointwise(rank, |dim| kind == Reduce::Sum || !axes.contains(&dim));
    let input = signature.operands[0].clone();
    signature.sum = axes.iter().filter_map(|&dim| input[dim]).collect();
    let kept = (0..rank).filter(|dim| keep || !axes.contains(dim));
    signature.results = vec![kept.map(|dim| if axes.contains(&dim) { None } else { input[dim] }).collect()];
    signature
}

fn cross_entropy(lead: usize) -> Signature {
    Signature {
        operands: vec![each(0..lead + 1), each(0..lead)],
        results: vec![Vec::new()],
        sum: (0..lead).collect(),
        shared: vec![1],
        ..Signature::default()
    }
    .claimed_by([0, 1])
}

fn summed(rank: usize) -> Signature {
    let mut signature = pointwise(rank, |_| true);
    signature.results = vec![Vec::new()];
    signature.sum = (0..rank).collect();
    signature
}
