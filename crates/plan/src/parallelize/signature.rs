//! The legal choice of an operator's cuts that is nearest to the layouts of its operands, from its [`Cuts`].
//!
//! Axes come in the order of the tasks' axes, and an operand is copied along the axes it does not have, in that order.

use phalanx_ir::{Cuts, Dims, Op, Shape};

use super::layout::{Layout, Machine, MeshAxis};

/// The cuts of an operator with the numbers that the degree of each axis must divide.
pub(super) struct Signature {
    cuts: Cuts,
    limits: Vec<Vec<usize>>,
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
    pub(super) fn new(op: &Op, operands: &[&Shape], results: &[&Shape]) -> Signature {
        let cuts = op.operator().map_or_else(Cuts::default, |operator| operator.cuts(operands, results));
        let limits = cuts.limits(operands, results);
        Signature { cuts, limits }
    }

    /// The operator of partial sums is the partial sums of the operator.
    pub(super) fn is_linear(&self) -> bool {
        self.cuts.linear
    }

    /// Gives mesh axes to the task axes, as near to the operands' layouts as the frame allows. A mesh axis is given once.
    pub(super) fn assign(&self, machine: &Machine, operands: &[&Layout]) -> Tasks {
        let mut axes = vec![Vec::new(); self.limits.len()];
        let mut used: Vec<MeshAxis> = Vec::new();
        let mut give = |axis: usize, list: &[MeshAxis]| {
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
        if let Some((axis, [(a, a_dim), (b, b_dim)])) = self.cuts.agreed
            && operands[a].dims[a_dim] == operands[b].dims[b_dim]
        {
            give(axis, &operands[a].dims[a_dim]);
        }
        self.cuts.claims.iter().for_each(|&(axis, slot, dim)| give(axis, &operands[slot].dims[dim]));
        self.layouts(axes)
    }

    fn layouts(&self, axes: Vec<Vec<MeshAxis>>) -> Tasks {
        let dims = |dims: &Dims| {
            dims.iter().map(|axis| axis.map_or(Vec::new(), |axis| axes[axis].clone())).collect()
        };
        let operand = |(slot, own): (usize, &Dims)| {
            let missing = (0..axes.len()).filter(|axis| !own.contains(&Some(*axis)));
            let copy = match self.cuts.shared.contains(&slot) {
                true => Vec::new(),
                false => missing.flat_map(|axis| axes[axis].clone()).collect(),
            };
            Layout { sum: Vec::new(), copy, dims: dims(own) }
        };
        let operands = self.cuts.operands.iter().enumerate().map(operand).collect();
        let sum: Vec<MeshAxis> = self.cuts.sum.iter().flat_map(|&axis| axes[axis].clone()).collect();
        let results = self.cuts.results.iter().map(|own| Layout {
            sum: sum.clone(),
            copy: Vec::new(),
            dims: dims(own),
        });
        Tasks { operands, results: results.collect(), axes }
    }
}
