//! Shapes, pieces, sums and products of whole tensors.

use std::array;
use std::ops::Range;

use phalanx_ir::{Reduce, Shape};
use phalanx_ops::{
    Broadcast, Concat, GatherElements, Matmul, ReduceOp, Reshape, Reverse, Softmax, Split, TopK, Transpose,
};

use crate::Tensor;

/// Shapes and pieces.
impl Tensor {
    /// The same elements in another shape.
    #[track_caller]
    pub fn reshape(&self, shape: impl Into<Shape>) -> Tensor {
        Tensor::op("reshape", Reshape { shape: shape.into() }, &[self])
    }

    /// All dimensions but the first one as one.
    #[track_caller]
    pub fn flatten(&self) -> Tensor {
        let dims = self.dims();
        self.reshape([dims.first().copied().unwrap_or(1), dims.iter().skip(1).product()])
    }

    /// Dimension i of the result is dimension `order[i]`.
    #[track_caller]
    pub fn transpose(&self, order: impl Into<Vec<usize>>) -> Tensor {
        Tensor::op("transpose", Transpose { perm: order.into() }, &[self])
    }

    /// Stretched to a larger shape: extents of 1 grow.
    #[track_caller]
    pub fn broadcast(&self, shape: impl Into<Shape>) -> Tensor {
        Tensor::op("broadcast", Broadcast { shape: shape.into() }, &[self])
    }

    /// Pieces of these extents along an axis.
    #[track_caller]
    pub fn split(&self, axis: usize, sizes: impl Into<Vec<usize>>) -> Vec<Tensor> {
        let sizes = sizes.into();
        let count = sizes.len();
        if count == 1 && self.dims().get(axis) == sizes.first() {
            return vec![self.clone()];
        }
        Tensor::ops("split", Split { axis, sizes, blocks: 1 }, &[self], count)
    }

    /// Equal pieces along an axis: `let [q, k, v] = x.chunks(2);`.
    #[track_caller]
    pub fn chunks<const N: usize>(&self, axis: usize) -> [Tensor; N] {
        let extent = self.dims().get(axis).copied().unwrap_or(0);
        if self.id.is_some() && (N == 0 || !extent.is_multiple_of(N.max(1)) || extent == 0) {
            let ty = self.describe();
            let wrong = self.wrong(format!(
                "{ty} has {extent} elements along axis {axis}, which are not {N} equal pieces: choose a divisor of {extent}"
            ));
            return array::from_fn(|_| wrong.clone());
        }
        let pieces = self.split(axis, vec![extent / N.max(1); N]);
        array::from_fn(|piece| pieces[piece].clone())
    }

    /// The elements of a range along an axis.
    #[track_caller]
    pub fn slice(&self, axis: usize, range: Range<usize>) -> Tensor {
        let extent = self.dims().get(axis).copied().unwrap_or(0);
        if self.id.is_none() {
            return self.clone();
        }
        if range.start >= range.end || range.end > extent {
            let ty = self.describe();
            return self.wrong(format!(
                "{}..{} is no part of axis {axis} of {ty}: choose a range within 0..{extent}",
                range.start, range.end
            ));
        }
        let sizes = [range.start, range.end - range.start, extent - range.end];
        let before = usize::from(range.start > 0);
        self.split(axis, sizes.into_iter().filter(|&size| size > 0).collect::<Vec<_>>()).swap_remove(before)
    }

    /// Joined along an axis.
    ///
    /// # Panics
    /// If there is no tensor.
    #[track_caller]
    pub fn concat<'a>(tensors: impl IntoIterator<Item = &'a Tensor>, axis: usize) -> Tensor {
        let tensors: Vec<&Tensor> = tensors.into_iter().collect();
        assert!(!tensors.is_empty(), "`concat` joins at least one tensor");
        match tensors[..] {
            [one] => one.clone(),
            _ => Tensor::op("concat", Concat { axis, blocks: 1 }, &tensors),
        }
    }

    /// The elements in the opposite order along axes.
    #[track_caller]
    pub fn reverse(&self, axes: impl Into<Vec<usize>>) -> Tensor {
        Tensor::op("reverse", Reverse { axes: axes.into() }, &[self])
    }

    /// Elements chosen along an axis by an index of the same rank: `y[i, j] = x[i, index[i, j]]` for axis 1.
    #[track_caller]
    pub fn gather(&self, axis: usize, index: &Tensor) -> Tensor {
        Tensor::op("gather", GatherElements { axis }, &[self, index])
    }

    /// The `k` largest elements of each innermost row, and where they stand (i64).
    #[track_caller]
    pub fn top_k(&self, k: usize) -> (Tensor, Tensor) {
        let mut both = Tensor::ops("top_k", TopK { k }, &[self], 2);
        let indices = both.swap_remove(1);
        (both.swap_remove(0), indices)
    }
}

/// Sums and products.
impl Tensor {
    /// Matrix product of the two innermost dimensions; all others are equal.
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Tensor {
        Tensor::op("matmul", Matmul { transpose_a: false, transpose_b: false }, &[self, other])
    }

    /// The same with the matrices of `other` transposed: `[.., m, k]` and `[.., n, k]` give `[.., m, n]`.
    #[track_caller]
    pub fn matmul_transposed(&self, other: &Tensor) -> Tensor {
        Tensor::op("matmul", Matmul { transpose_a: false, transpose_b: true }, &[self, other])
    }

    /// Weights that sum to one along the innermost dimension.
    #[track_caller]
    pub fn softmax(&self) -> Tensor {
        self.softmax_along(self.rank().saturating_sub(1))
    }

    /// Weights that sum to one along an axis.
    #[track_caller]
    pub fn softmax_along(&self, axis: usize) -> Tensor {
        Tensor::op("softmax", Softmax { axis }, &[self])
    }

    /// Sums along axes, which disappear.
    #[track_caller]
    pub fn sum(&self, axes: impl Into<Vec<usize>>) -> Tensor {
        self.reduce("sum", Reduce::Sum, axes.into(), false)
    }

    /// Means along axes, which disappear.
    #[track_caller]
    pub fn mean(&self, axes: impl Into<Vec<usize>>) -> Tensor {
        self.reduce("mean", Reduce::Mean, axes.into(), false)
    }

    /// The largest elements along axes, which disappear.
    #[track_caller]
    pub fn max(&self, axes: impl Into<Vec<usize>>) -> Tensor {
        self.reduce("max", Reduce::Max, axes.into(), false)
    }

    /// Sums along axes, which stay with extent 1.
    #[track_caller]
    pub fn sum_keep(&self, axes: impl Into<Vec<usize>>) -> Tensor {
        self.reduce("sum", Reduce::Sum, axes.into(), true)
    }

    /// Means along axes, which stay with extent 1.
    #[track_caller]
    pub fn mean_keep(&self, axes: impl Into<Vec<usize>>) -> Tensor {
        self.reduce("mean", Reduce::Mean, axes.into(), true)
    }

    /// The largest elements along axes, which stay with extent 1.
    #[track_caller]
    pub fn max_keep(&self, axes: impl Into<Vec<usize>>) -> Tensor {
        self.reduce("max", Reduce::Max, axes.into(), true)
    }

    /// The sum of all elements.
    #[track_caller]
    pub fn sum_all(&self) -> Tensor {
        self.sum((0..self.rank()).collect::<Vec<_>>())
    }

    /// The mean of all elements.
    #[track_caller]
    pub fn mean_all(&self) -> Tensor {
        self.mean((0..self.rank()).collect::<Vec<_>>())
    }

    #[track_caller]
    fn reduce(&self, word: &str, kind: Reduce, axes: Vec<usize>, keep: bool) -> Tensor {
        Tensor::op(word, ReduceOp { kind, axes, keep }, &[self])
    }
}
