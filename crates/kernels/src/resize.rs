//! Images `[batch, space…, channels]` in another size, and its gradient.
//!
//! `resize` reads x and writes y: up to eight elements around a position, each times its weight, added by fused multiply-adds in
//! ascending order from zero. A weight is the product of those of the dimensions, outermost first. `resize_grad` reads dy and
//! writes dx (accumulates on request): each element adds what it gave, in ascending order of the results, from zero.

use std::ops::Range;

use phalanx_ir::tasks::TaskView;
use phalanx_ir::{MAX_SPACE, Resampling, ResizeAxis, ScaleFactors, Shape};

use crate::images::{Images, LANES};
use crate::spmd::{Launch, Workspace, by_work};
use crate::{Kernel, Sizes, Words, Work, dispatch, params, signature};

impl Words for ResizeAxis {
    fn put(&self, words: &mut Vec<u64>) {
        let kind = Resampling::ALL.iter().position(|&kind| kind == self.kind).unwrap_or(0);
        [self.from, self.to, kind].put(words);
        self.ratio.put(words);
        self.align.put(words);
    }
    fn take(words: &mut &[u64]) -> Self {
        let [from, to, kind] = <[usize; 3]>::take(words);
        let kind = Resampling::ALL.get(kind).copied().unwrap_or(Resampling::Nearest);
        ResizeAxis { from, to, ratio: f32::take(words), kind, align: bool::take(words) }
    }
}

params! {
    /// The settings of `resize`.
    pub struct ResizeParams {
        /// How many images.
        pub batch: usize,
        /// The dimensions of space.
        pub axes: [ResizeAxis; MAX_SPACE],
        /// Channels of each image.
        pub channels: usize,
    }
}

params! {
    /// The settings of `resize_grad`.
    pub struct ResizeGradParams {
        /// Those of the forward.
        pub forward: ResizeParams,
        /// Whether dx is added to.
        pub accumulate: bool,
    }
}

/// The elements that one of the result is made of, with their weights, and how many there are.
type Corners = ([(usize, f32); 1 << MAX_SPACE], usize);

impl ResizeParams {
    fn of_task(task: &TaskView<'_>, x: &Shape, y: &Shape) -> Result<Self, String> {
        let rank = x.rank();
        if !(3..=5).contains(&rank) || y.rank() != rank {
            return Err(format!("{x} and {y} are no images"));
        }
        let (kind, align) = (task.attr("kind")?, task.attr_or("align", false)?);
        let ScaleFactors(factors) = task.attr_or("scale", ScaleFactors::default())?;
        let missing = MAX_SPACE - (rank - 2);
        let axis = |dim: usize| match dim.checked_sub(missing) {
            None => ResizeAxis::new(1, 1, None, Resampling::Nearest, false),
            Some(own) => {
                let (from, to) = (x.dims()[1 + own], y.dims()[1 + own]);
                ResizeAxis::new(from, to, factors.get(own).copied(), kind, align)
            }
        };
        Ok(ResizeParams { batch: x.dims()[0], axes: [0, 1, 2].map(axis), channels: x.last() })
    }

    fn results(&self) -> usize {
        self.axes.iter().map(|axis| axis.to).product()
    }

    fn images(&self) -> Images {
        let elements = self.axes.iter().map(|axis| axis.from).product();
        Images { batch: self.batch, elements, channels: self.channels }
    }

    /// How many elements of each dimension a result is made of.
    #[inline(always)]
    fn both(&self) -> [usize; MAX_SPACE] {
        self.axes.map(|axis| 1 + usize::from(axis.kind == Resampling::Linear))
    }

    /// How many elements a result is made of.
    fn parts(&self) -> f64 {
        self.both().iter().product::<usize>() as f64
    }

    /// The elements of result `index` in ascending order.
    #[inline(always)]
    fn corners(&self, index: usize) -> Corners {
        let [_, b, c] = self.axes.map(|axis| axis.to);
        let at = [index / (b * c), index / c % b, index % c];
        let taps = [0, 1, 2].map(|dim| self.axes[dim].taps(at[dim]));
        let both = self.both();
        let mut corners = [(0, 0.0); 1 << MAX_SPACE];
        let mut count = 0;
        for first in &taps[0][..both[0]] {
            for second in &taps[1][..both[1]] {
                for third in &taps[2][..both[2]] {
                    let element = (first.0 * self.axes[1].from + second.0) * self.axes[2].from + third.0;
                    corners[count] = (element, first.1 * second.1 * third.1);
                    count += 1;
                }
            }
        }
        (corners, count)
    }
}

/// Element by element.
pub fn resize_reference(y: &mut [f32], x: &[f32], params: ResizeParams) {
    let (elements, channels) = (params.images().elements, params.channels);
    for (at, y) in y.iter_mut().enumerate() {
        let (row, channel) = (at / channels, at % channels);
        let (image, (corners, count)) = (row / params.results(), params.corners(row % params.results()));
        *y = corners[..count].iter().fold(0.0, |sum, &(element, weight)| {
            x[(image * elements + element) * channels + channel].mul_add(weight, sum)
        });
    }
}

/// The fast version of [`resize_reference`].
pub fn resize(y: &mut [f32], x: &[f32], params: ResizeParams, launch: &mut Launch<'_>) {
    let (elements, channels) = (params.images().elements, params.channels);
    launch.for_each_part(y, channels.max(1), |first, part| {
        for (row, y) in part.chunks_exact_mut(channels).enumerate() {
            let row = first / channels + row;
            let image = row / params.results();
            resize_row(y, &x[image * elements * channels..], &params.corners(row % params.results()));
        }
    });
}

dispatch! {
    /// One element of space, all channels.
    fn resize_row(y: &mut [f32], x: &[f32], corners: &Corners) {
        let channels = y.len();
        y.fill(0.0);
        for &(element, weight) in &corners.0[..corners.1] {
            let x = &x[element * channels..][..channels];
            y.iter_mut().zip(x).for_each(|(y, x)| *y = x.mul_add(weight, *y));
        }
    }
}

/// Element by element.
pub fn resize_grad_reference(dx: &mut [f32], dy: &[f32], params: ResizeGradParams) {
    let forward = params.forward;
    let (elements, channels) = (forward.images().elements, forward.channels);
    for (at, dx) in dx.iter_mut().enumerate() {
        let (row, channel) = (at / channels, at % channels);
        let (image, own) = (row / elements, row % elements);
        let mut sum = 0.0f32;
        for index in 0..forward.results() {
            let (corners, count) = forward.corners(index);
            let dy = dy[(image * forward.results() + index) * channels + channel];
            for &(_, weight) in corners[..count].iter().filter(|(element, _)| *element == own) {
                sum = dy.mul_add(weight, sum);
            }
        }
        *dx = if params.accumulate { *dx + sum } else { sum };
    }
}

/// The fast version of [`resize_grad_reference`].
pub fn resize_grad(dx: &mut [f32], dy: &[f32], params: ResizeGradParams, launch: &mut Launch<'_>) {
    let images = params.forward.images();
    images.add(dx, params.accumulate, launch, |sums, image, lanes| {
        add_results(sums, dy, &params.forward, (image, lanes));
    });
}

dispatch! {
    /// Adds what comes from the results, for some channels of an image.
    fn add_results(sums: &mut [[f32; LANES]], dy: &[f32], params: &ResizeParams, which: (usize, Range<usize>)) {
        let (image, lanes) = which;
        for index in 0..params.results() {
            let at = (image * params.results() + index) * params.channels + lanes.start;
            let mut given = [0.0f32; LANES];
            given[..lanes.len()].copy_from_slice(&dy[at..at + lanes.len()]);
            let (corners, count) = params.corners(index);
            for &(element, weight) in &corners[..count] {
                let sums = &mut sums[element];
                sums.iter_mut().zip(&given).for_each(|(sum, given)| *sum = given.mul_add(weight, *sum));
            }
        }
    }
}

impl Kernel for ResizeParams {
    signature!("resize": x => y by resize_reference, resize);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        ResizeParams::of_task(task, task.read(0)?, task.write(0)?)
    }

    /// A product and an addition for each element that a result is made of.
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(2.0 * self.parts() * sizes.result(0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.batch * self.results() * self.channels, cores)
    }
}

impl Kernel for ResizeGradParams {
    signature!("resize_grad": dy => dx by resize_grad_reference, resize_grad);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let forward = ResizeParams::of_task(task, task.write(0)?, task.read(0)?)?;
        Ok(ResizeGradParams { forward, accumulate: task.is("accumulate") })
    }

    /// As forward.
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(2.0 * self.forward.parts() * sizes.operand(0), self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        self.forward.blocks(cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        self.forward.images().workspace()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Case, values};

    #[test]
    fn every_size_gives_the_bits_of_the_reference() {
        for &kind in Resampling::ALL {
            for align in [false, true] {
                for (sizes, channels) in [([(1, 1), (5, 8), (7, 3)], 5), ([(3, 4), (2, 2), (6, 9)], 16)] {
                    let axes = sizes.map(|(from, to)| ResizeAxis::new(from, to, None, kind, align));
                    let forward = ResizeParams { batch: 3, axes, channels };
                    let (x, y) = (3 * forward.images().elements * channels, 3 * forward.results() * channels);
                    let case = Case::new("resize", forward.to_words()).read(values(x, 1)).write(vec![0.0; y]);
                    case.check_reference_bits();
                    case.check_bits();
                    for accumulate in [false, true] {
                        let words = ResizeGradParams { forward, accumulate }.to_words();
                        let case = Case::new("resize_grad", words).read(values(y, 2)).write(values(x, 3));
                        case.check_reference_bits();
                        case.check_bits();
                    }
                }
            }
        }
    }
}
