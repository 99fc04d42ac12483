//! How an operator can be cut: an index signature like an einsum's.
//!
//! The iteration space of an operator has axes, numbered from 0. Every dimension of an operand or result runs along one of
//! them, or must be whole. From that follow the legal degrees of its operands and those of its results
//! (`parallel::rules`), the legal choice that is nearest to given layouts (the crate `plan`), and what becomes of it when
//! the batch is cut into microbatches (there, too).
//!
//! An operand that carries a gradient has a copy for every cut of an axis it does not run along, so that each copy gives one
//! additive part of its gradient. An operand without gradient is shared by the tasks instead.

use crate::Shape;
use crate::parallel::Axis;

/// For every dimension the axis it runs along; none if it must be whole.
pub type Dims = Vec<Option<Axis>>;

/// The index signature of an operator on operands of known shapes.
#[derive(Clone, Debug, Default)]
pub struct Cuts {
    /// The axes of every operand.
    pub operands: Vec<Dims>,
    /// The axes of every result. An axis that is neither here nor summed: tasks along it compute the same.
    pub results: Vec<Dims>,
    /// Axes along which results are partial sums.
    pub sum: Vec<Axis>,
    /// How many of the first axes are contracted: a sum whose terms are products of operands' elements.
    pub contracted: usize,
    /// Operands without gradient.
    pub shared: Vec<usize>,
    /// Which dimension of which operand proposes the cut of an axis; earlier ones win.
    pub claims: Vec<(Axis, usize, usize)>,
    /// An axis that is cut only if these two dimensions, of these operands, are cut alike.
    pub agreed: Option<(Axis, [(usize, usize); 2])>,
    /// An axis may be cut into a divisor of this number only.
    pub blocks: Vec<(Axis, usize)>,
    /// Axes along which elements are counted: tiles know where they begin, but parts of a batch would count anew.
    pub counted: Vec<Axis>,
    /// The operator of partial sums is the partial sums of the operator.
    pub linear: bool,
    /// It copies or negates elements, so that nothing is rounded.
    pub exact: bool,
    /// It cannot have copies of its result.
    pub single: bool,
    /// A cut of this axis adds in another order than one device does.
    pub unordered: Option<Axis>,
    /// An axis that cannot be cut as things are: what is wanted, and what to do.
    pub refused: Option<(Axis, [&'static str; 2])>,
    /// What is wanted if there are too few copies of the first operand with a gradient; `{}` is their number.
    pub wants_copies: Option<&'static str>,
}

/// Axes for a run of dimensions.
pub fn each(axes: std::ops::Range<usize>) -> Dims {
    axes.map(Some).collect()
}

impl Cuts {
    /// Operands and results along these axes; all dimensions propose cuts, one operand after the other.
    pub fn new(operands: Vec<Dims>, results: Vec<Dims>) -> Cuts {
        let slots = 0..operands.len();
        Cuts { operands, results, ..Cuts::default() }.claimed_by(slots)
    }

    /// The dimension of result `slot` that goes along with one of an operand, if each has at most one such dimension: the
    /// first operand that shares it with the results decides.
    pub fn carried(&self, dims: &[Option<usize>], slot: usize) -> Option<usize> {
        let axis_of = |(own, dim): (&Dims, &Option<usize>)| own.get((*dim)?).copied().flatten();
        let axis = self.operands.iter().zip(dims).find_map(axis_of)?;
        self.results.get(slot)?.iter().position(|own| *own == Some(axis))
    }

    /// One axis for every dimension but those that must be `whole`, one operand and result alike.
    pub fn pointwise(shape: &Shape, whole: &[usize]) -> Cuts {
        let mut next = 0..;
        let dim = |dim: usize| if whole.contains(&dim) { None } else { next.next() };
        let dims: Dims = (0..shape.rank()).map(dim).collect();
        Cuts::new(vec![dims.clone()], vec![dims])
    }

    /// Element by element along the dimensions outside the innermost `axes`; the other operands are weights of those.
    pub fn rows(shape: &Shape, axes: usize, operands: usize) -> Cuts {
        let rows = [each(0..shape.rank() - axes), vec![None; axes]].concat();
        let weights = vec![vec![None; axes]; operands - 1];
        Cuts::new([vec![rows.clone()], weights].concat(), vec![rows])
    }

    /// Element by element; where an operand is stretched to the result it has no axis.
    pub fn stretched(operands: &[&Shape], result: &Shape) -> Cuts {
        let rank = result.rank();
        let own = |shape: &&Shape| -> Dims {
            let first = rank - shape.rank();
            let dim = |dim: usize| (shape.dims()[dim - first] == result.dims()[dim]).then_some(dim);
            (first..rank).map(dim).collect()
        };
        Cuts::new(operands.iter().map(own).collect(), vec![each(0..rank)])
    }

    /// The first axis is contracted.
    pub fn contracting(self) -> Cuts {
        Cuts { contracted: 1, sum: vec![0], ..self }
    }

    /// Only these operands propose cuts, earlier ones first.
    pub fn claimed_by(mut self, slots: impl IntoIterator<Item = usize>) -> Cuts {
        self.claims.clear();
        for slot in slots {
            let dims = self.operands[slot].iter().enumerate();
            self.claims.extend(dims.filter_map(|(dim, axis)| axis.map(|axis| (axis, slot, dim))));
        }
        self
    }

    /// How many axes there are.
    pub fn axes(&self) -> usize {
        let all = self.operands.iter().chain(&self.results).flatten().flatten();
        all.max().map_or(0, |&axis| axis + 1)
    }

    /// Axis by axis the numbers that its degree must divide: extents of operands and results, and blocks.
    pub fn limits(&self, operands: &[&Shape], results: &[&Shape]) -> Vec<Vec<usize>> {
        let mut limits = vec![Vec::new(); self.axes()];
        self.blocks.iter().for_each(|&(axis, blocks)| limits[axis].push(blocks));
        let slots = self.operands.iter().zip(operands).chain(self.results.iter().zip(results));
        for (dims, shape) in slots {
            for (axis, &extent) in dims.iter().zip(shape.dims()) {
                axis.iter().for_each(|&axis| limits[axis].push(extent));
            }
        }
        limits
    }
}
