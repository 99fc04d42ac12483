//! Outputs of up to six dimensions whose inputs are strided views: their description and the walk over them.
//!
//! The output is row-major and contiguous; each input has one element stride per output dimension, 0 where it is
//! broadcast. Dimensions that all inputs step through as one are merged first, so equal shapes are one long row.

use std::ops::Range;

/// The most dimensions of a tensor here; shorter shapes are padded with leading ones.
pub const RANK: usize = 6;

/// One number per dimension, outermost first.
pub type Dims = [usize; RANK];

/// An output shape and the strides of `N` inputs, with dimensions merged where possible.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid<const N: usize> {
    dims: Dims,
    strides: [Dims; N],
}

impl<const N: usize> Grid<N> {
    /// The grid of an output of `dims` whose inputs have these strides.
    pub fn new(dims: Dims, strides: [Dims; N]) -> Self {
        let mut merged = Grid { dims: [1; RANK], strides: [[0; RANK]; N] };
        let mut slot = RANK;
        for i in (0..RANK).rev().filter(|&i| dims[i] != 1) {
            let step = strides.map(|strides| strides[i]);
            if slot < RANK && step == merged.strides.map(|strides| strides[slot] * merged.dims[slot]) {
                merged.dims[slot] *= dims[i];
                continue;
            }
            slot -= 1;
            merged.dims[slot] = dims[i];
            (0..N).for_each(|k| merged.strides[k][slot] = step[k]);
        }
        merged
    }

    /// One row of `len` elements in the output and in every input.
    pub fn row(len: usize) -> Self {
        let mut row = Grid { dims: [1; RANK], strides: [[0; RANK]; N] };
        row.dims[RANK - 1] = len;
        row.strides.iter_mut().for_each(|strides| strides[RANK - 1] = 1);
        row
    }

    /// The merged dimensions, padded with leading ones.
    #[inline(always)]
    pub fn dims(&self) -> Dims {
        self.dims
    }

    /// The strides of input `k` over the merged dimensions.
    #[inline(always)]
    pub fn strides(&self, k: usize) -> Dims {
        self.strides[k]
    }

    /// How many elements the output has.
    pub fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Whether the output has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The strides of the inputs along the innermost dimension.
    #[inline(always)]
    pub fn row_strides(&self) -> [usize; N] {
        self.strides.map(|strides| strides[RANK - 1])
    }

    /// Where output element `index` finds its inputs.
    #[inline(always)]
    pub fn offsets(&self, index: usize) -> [usize; N] {
        let (mut offsets, mut rest) = ([0; N], index);
        for i in (0..RANK).rev() {
            let place = rest % self.dims[i];
            rest /= self.dims[i];
            (0..N).for_each(|k| offsets[k] += place * self.strides[k][i]);
        }
        offsets
    }

    /// Calls `body(part, offsets)` for the row pieces of the output elements `first..first + len`.
    ///
    /// `part` is the piece relative to `first`, `offsets` where its first element finds its inputs.
    #[inline(always)]
    pub fn for_each_piece(&self, first: usize, len: usize, mut body: impl FnMut(Range<usize>, [usize; N])) {
        let row = self.dims[RANK - 1];
        let mut done = 0;
        while done < len {
            let within = (first + done) % row;
            let piece = (row - within).min(len - done);
            body(done..done + piece, self.offsets(first + done));
            done += piece;
        }
    }
}

/// The strides of a contiguous row-major tensor.
pub fn contiguous(dims: Dims) -> Dims {
    let mut strides = [1; RANK];
    for i in (0..RANK - 1).rev() {
        strides[i] = strides[i + 1] * dims[i + 1];
    }
    strides
}

/// A shape of up to six dimensions, padded with leading ones.
pub fn padded(shape: &[usize]) -> Dims {
    assert!(shape.len() <= RANK, "a shape of {} dimensions; kernels take {RANK}", shape.len());
    let mut dims = [1; RANK];
    dims[RANK - shape.len()..].copy_from_slice(shape);
    dims
}

/// The strides with which a contiguous tensor of `shape` is read as one of `dims`: 0 where it is broadcast.
pub fn broadcast_strides(shape: &[usize], dims: Dims) -> Dims {
    let own = padded(shape);
    let strides = contiguous(own);
    std::array::from_fn(|i| {
        assert!(own[i] == dims[i] || own[i] == 1, "dimension {i} of {own:?} does not broadcast to {dims:?}");
        if own[i] == 1 { 0 } else { strides[i] }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_merge_only_where_all_inputs_agree() {
        let dims = padded(&[4, 1, 3, 5]);
        let full = contiguous(dims);
        assert_eq!(Grid::new(dims, [full, full]).dims(), padded(&[60]));
        let row = broadcast_strides(&[5], dims);
        assert_eq!(Grid::new(dims, [full, row]).dims(), padded(&[12, 5]));
        assert_eq!(Grid::new(dims, [full, [0; RANK]]).dims(), padded(&[60]));
        assert_eq!(Grid::new(padded(&[]), [[0; RANK]]).len(), 1);
        assert!(Grid::new(padded(&[3, 0]), [[1; RANK]]).is_empty());
    }

    #[test]
    fn pieces_visit_every_element_with_its_offsets() {
        let dims = padded(&[2, 3, 4]);
        let strides = [[0, 0, 0, 100, 10, 1], [0, 0, 0, 0, 7, 0]];
        let grid = Grid::new(dims, strides);
        let steps = grid.row_strides();
        for first in 0..24 {
            let mut next = first;
            grid.for_each_piece(first, 24 - first, |part, [a, b]| {
                for i in 0..part.len() {
                    let (plane, row, column) = (next / 12, next / 4 % 3, next % 4);
                    assert_eq!(
                        [a + i * steps[0], b + i * steps[1]],
                        [plane * 100 + row * 10 + column, row * 7]
                    );
                    next += 1;
                }
            });
            assert_eq!(next, 24);
        }
    }
}
