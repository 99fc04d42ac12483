//! The results of a convolution that have the same positions of the kernel: all of them, or, for an adjoint with strides, those
//! at equal distances. Each such *phase* is a matrix product by itself.

use phalanx_ir::{MAX_SPACE, Space};

use super::{ConvParams, ConvShape};

/// One dimension of a phase: where its results lie, and what they meet.
#[derive(Clone, Copy, Debug)]
pub(super) struct TapAxis {
    /// How many results.
    pub rows: usize,
    /// The first result.
    pub out_first: usize,
    /// From a result to the next.
    pub out_step: usize,
    /// How many positions of the kernel they meet.
    pub taps: usize,
    /// The first of those.
    pub kernel_first: usize,
    /// From a position to the next.
    pub kernel_step: usize,
    /// Extent of the tensor that is read.
    pub extent: usize,
    /// The element that result 0 meets at the first position.
    pub first: isize,
    /// From the element of a result to that of the next.
    pub row_step: isize,
    /// From the element of a position to that of the next.
    pub tap_step: isize,
}

impl TapAxis {
    /// All windows of a convolution.
    pub fn whole(shape: &ConvShape, dim: usize) -> TapAxis {
        TapAxis {
            rows: shape.to[dim],
            out_first: 0,
            out_step: 1,
            taps: shape.kernel[dim],
            kernel_first: 0,
            kernel_step: 1,
            extent: shape.from[dim],
            first: -(shape.before[dim] as isize),
            row_step: shape.stride[dim] as isize,
            tap_step: shape.dilation[dim] as isize,
        }
    }

    /// The elements `rest`, `rest + stride` and so on of an adjoint's result.
    fn part(shape: &ConvShape, dim: usize, rest: usize) -> TapAxis {
        let (stride, dilation) = (shape.stride[dim].max(1), shape.dilation[dim]);
        let padded = (rest + shape.before[dim]) as isize;
        let meets = |&k: &usize| (padded - (k * dilation) as isize) % stride as isize == 0;
        let found = || (0..shape.kernel[dim]).filter(meets);
        let kernel_first = found().next().unwrap_or(0);
        let step = found().nth(1).map_or(1, |next| next - kernel_first);
        TapAxis {
            rows: shape.from[dim].saturating_sub(rest).div_ceil(stride),
            out_first: rest,
            out_step: stride,
            taps: found().count(),
            kernel_first,
            kernel_step: step,
            extent: shape.to[dim],
            first: (padded - (kernel_first * dilation) as isize).div_euclid(stride as isize),
            row_step: 1,
            tap_step: -((step * dilation / stride) as isize),
        }
    }
}

/// See the head of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Phase {
    /// How many images.
    pub batch: usize,
    /// The dimensions.
    pub axes: [TapAxis; MAX_SPACE],
}

impl Phase {
    /// The windows of a convolution as rows of a product.
    pub fn windows(shape: &ConvShape) -> Phase {
        Phase { batch: shape.batch, axes: [0, 1, 2].map(|dim| TapAxis::whole(shape, dim)) }
    }

    /// How many results.
    pub fn rows(&self) -> usize {
        self.batch * self.axes.iter().map(|axis| axis.rows).product::<usize>()
    }

    /// How many positions of the kernel they meet.
    pub fn taps(&self) -> usize {
        self.axes.iter().map(|axis| axis.taps).product()
    }

    /// The image and place of `row` in the phase.
    pub fn place(&self, row: usize) -> (usize, Space) {
        let [a, b, c] = self.axes.map(|axis| axis.rows);
        (row / (a * b * c), [row / (b * c) % a, row / c % b, row % c])
    }

    /// The position of `tap` in the kernel, whose extents are these.
    pub fn position(&self, tap: usize, kernel: Space) -> usize {
        let [_, b, c] = self.axes.map(|axis| axis.taps);
        let taps = [tap / (b * c), tap / c % b, tap % c];
        let at = |dim: usize| self.axes[dim].kernel_first + taps[dim] * self.axes[dim].kernel_step;
        (at(0) * kernel[1] + at(1)) * kernel[2] + at(2)
    }

    /// Where `row` lies among all rows of the result, whose extents are these.
    pub fn result_row(&self, row: usize, result: Space) -> usize {
        let (image, place) = self.place(row);
        let at = |dim: usize| self.axes[dim].out_first + place[dim] * self.axes[dim].out_step;
        ((image * result[0] + at(0)) * result[1] + at(1)) * result[2] + at(2)
    }

    /// Whether rows and results are the same.
    pub fn is_whole(&self) -> bool {
        self.axes.iter().all(|axis| axis.out_step == 1)
    }

    /// Whether the taps are all positions of the kernel, in order.
    pub fn has_all_taps(&self, kernel: Space) -> bool {
        (0..MAX_SPACE).all(|dim| self.axes[dim].taps == kernel[dim])
    }

    /// Whether row and element are the same: one tap, nothing in between, nothing outside.
    pub fn is_pointwise(&self) -> bool {
        let same = |axis: &TapAxis| {
            axis.taps == 1 && axis.first == 0 && axis.row_step == 1 && axis.rows == axis.extent
        };
        self.axes.iter().all(same)
    }
}

impl ConvParams {
    /// The phases of the result that are not empty.
    pub(super) fn phases(&self) -> impl Iterator<Item = Phase> {
        let shape = self.shape;
        let count = if self.adjoint { shape.stride.map(|stride| stride.max(1)) } else { [1; MAX_SPACE] };
        let adjoint = self.adjoint;
        (0..count.iter().product::<usize>())
            .map(move |index| {
                let rest = [index / (count[1] * count[2]), index / count[2] % count[1], index % count[2]];
                let part = |dim: usize| TapAxis::part(&shape, dim, rest[dim]);
                match adjoint {
                    true => Phase { batch: shape.batch, axes: [0, 1, 2].map(part) },
                    false => Phase::windows(&shape),
                }
            })
            .filter(|phase| phase.rows() > 0)
    }
}
