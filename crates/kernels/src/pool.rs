//! The largest element or the mean of windows of images `[batch, space…, channels]`, and its gradient.
//!
//! `pool` reads x and writes y. A mean adds a window's elements in ascending order and divides by their number, or by that of
//! the window's positions if padding counts. Of equal largest elements the first counts; one that is no number is larger than
//! all, and the last of those counts. `pool_grad` reads x for the largest element, and dy; it writes dx (accumulates on
//! request): each element adds what comes from its windows in ascending order, starting from zero.

use std::ops::Range;

use phalanx_ir::tasks::TaskView;
use phalanx_ir::{MAX_SPACE, Names, PoolAxis, Pooling, Shape, Space, names, space};

use crate::images::{Images, LANES};
use crate::spmd::{Launch, Workspace, by_work};
use crate::{Call, Kernel, Sizes, Words, Work, dispatch, params, signature};

impl Words for PoolAxis {
    fn put(&self, words: &mut Vec<u64>) {
        let &PoolAxis { from, to, kernel, stride, before, after } = self;
        [from, to, kernel, stride, before, after].put(words);
    }
    fn take(words: &mut &[u64]) -> Self {
        let [from, to, kernel, stride, before, after] = <[usize; 6]>::take(words);
        PoolAxis { from, to, kernel, stride, before, after }
    }
}

params! {
    /// The settings of `pool`.
    pub struct PoolParams {
        /// How many images.
        pub batch: usize,
        /// The windows.
        pub axes: [PoolAxis; MAX_SPACE],
        /// Channels of each image.
        pub channels: usize,
        /// Whether the mean is wanted, not the largest element.
        pub mean: bool,
        /// Whether a mean counts padding.
        pub count_padding: bool,
    }
}

params! {
    /// The settings of `pool_grad`.
    pub struct PoolGradParams {
        /// Those of the forward.
        pub forward: PoolParams,
        /// Whether dx is added to.
        pub accumulate: bool,
    }
}

impl PoolParams {
    fn of_task(task: &TaskView<'_>, x: &Shape, y: &Shape) -> Result<Self, String> {
        let rank = x.rank();
        if !(3..=5).contains(&rank) || y.rank() != rank {
            return Err(format!("{x} and {y} are no images"));
        }
        let list = |key: &str| task.attr_or::<Vec<usize>>(key, Vec::new());
        let inner = |shape: &Shape| space(&shape.dims()[1..rank - 1], 1);
        let (from, to) = (inner(x), inner(y));
        let adapts = !list("adaptive")?.is_empty();
        let kernel = space(&list("kernel")?, 1);
        let stride = if list("stride")?.is_empty() { kernel } else { space(&list("stride")?, 1) };
        let padding = list("padding")?;
        let half = |first: usize| padding.iter().skip(first).step_by(2).copied().collect::<Vec<_>>();
        let (before, after) = (space(&half(0), 0), space(&half(1), 0));
        let axis = |dim: usize| PoolAxis {
            from: from[dim],
            to: to[dim],
            kernel: if adapts { 0 } else { kernel[dim] },
            stride: stride[dim],
            before: before[dim],
            after: after[dim],
        };
        let mean = task.attr::<Pooling>("kind")? == Pooling::Avg;
        let count_padding = task.attr_or("count_padding", true)?;
        let axes = [0, 1, 2].map(axis);
        Ok(PoolParams { batch: x.dims()[0], axes, channels: x.last(), mean, count_padding })
    }

    /// Positions of a window, each of which is an operation; adaptive ones have as many as the first.
    fn positions(&self) -> f64 {
        let along = |axis: &PoolAxis| match axis.kernel {
            0 => axis.from.div_ceil(axis.to.max(1)) as f64,
            kernel => kernel as f64,
        };
        self.axes.iter().map(along).product()
    }

    fn windows(&self) -> usize {
        self.axes.iter().map(|axis| axis.to).product()
    }

    fn images(&self) -> Images {
        let elements = self.axes.iter().map(|axis| axis.from).product();
        Images { batch: self.batch, elements, channels: self.channels }
    }

    /// Window `index` of an image.
    #[inline(always)]
    fn window(&self, index: usize) -> Window {
        let [_, b, c] = self.axes.map(|axis| axis.to);
        let at = [index / (b * c), index / c % b, index % c];
        let ranges = [0, 1, 2].map(|dim| self.axes[dim].window(at[dim]));
        let size = |dim: usize| match self.count_padding {
            true => self.axes[dim].size(at[dim]),
            false => ranges[dim].len(),
        };
        Window {
            count: (size(0) * size(1) * size(2)) as f32,
            ranges,
            extents: self.axes.map(|axis| axis.from),
        }
    }
}

/// The elements of a window.
struct Window {
    ranges: [Range<usize>; MAX_SPACE],
    extents: Space,
    /// By what a sum is divided for the mean.
    count: f32,
}

impl Window {
    /// Its elements in ascending order.
    #[inline(always)]
    fn elements(&self) -> impl Iterator<Item = usize> {
        let [_, rows, columns] = self.extents;
        let [planes, lines, last] = self.ranges.clone();
        planes.flat_map(move |plane| {
            let last = last.clone();
            lines.clone().flat_map(move |line| {
                let start = (plane * rows + line) * columns;
                start + last.start..start + last.end
            })
        })
    }
}

/// Whether a largest element so far gives way to `x`.
#[inline(always)]
fn gives_way(largest: f32, x: f32) -> bool {
    x > largest || x.is_nan()
}

/// Element by element.
pub fn pool_reference(y: &mut [f32], x: &[f32], params: PoolParams) {
    let (elements, channels) = (params.images().elements, params.channels);
    for (at, y) in y.iter_mut().enumerate() {
        let (row, channel) = (at / channels, at % channels);
        let (image, window) = (row / params.windows(), params.window(row % params.windows()));
        let values = window.elements().map(|element| x[(image * elements + element) * channels + channel]);
        *y = match params.mean {
            true => values.fold(0.0, |sum, x| sum + x) / window.count,
            false => values.fold(f32::NEG_INFINITY, |most, x| if gives_way(most, x) { x } else { most }),
        };
    }
}

/// The fast version of [`pool_reference`].
pub fn pool(y: &mut [f32], x: &[f32], params: PoolParams, launch: &mut Launch<'_>) {
    let channels = params.channels;
    let elements = params.images().elements;
    launch.for_each_part(y, channels.max(1), |first, part| {
        for (row, y) in part.chunks_exact_mut(channels).enumerate() {
            let row = first / channels + row;
            let image = row / params.windows();
            let window = params.window(row % params.windows());
            pool_window(y, &x[image * elements * channels..], &window, params.mean);
        }
    });
}

dispatch! {
    /// One window, all channels.
    fn pool_window(y: &mut [f32], x: &[f32], window: &Window, mean: bool) {
        let channels = y.len();
        y.fill(if mean { 0.0 } else { f32::NEG_INFINITY });
        for element in window.elements() {
            let x = &x[element * channels..][..channels];
            match mean {
                true => y.iter_mut().zip(x).for_each(|(y, x)| *y += x),
                false => y.iter_mut().zip(x).for_each(|(y, &x)| *y = if gives_way(*y, x) { x } else { *y }),
            }
        }
        if mean {
            y.iter_mut().for_each(|y| *y /= window.count);
        }
    }
}

/// Element by element; `x` is empty for a mean.
pub fn pool_grad_reference(dx: &mut [f32], x: &[f32], dy: &[f32], params: PoolGradParams) {
    let forward = params.forward;
    let (elements, channels) = (forward.images().elements, forward.channels);
    for (at, dx) in dx.iter_mut().enumerate() {
        let (row, channel) = (at / channels, at % channels);
        let (image, own) = (row / elements, row % elements);
        let value = |element: usize| x[(image * elements + element) * channels + channel];
        let mut sum = 0.0;
        for index in 0..forward.windows() {
            let window = forward.window(index);
            let dy = dy[(image * forward.windows() + index) * channels + channel];
            if forward.mean {
                sum = if window.elements().any(|element| element == own) {
                    sum + dy / window.count
                } else {
                    sum
                };
                continue;
            }
            let mut most = (f32::NEG_INFINITY, window.elements().next());
            for element in window.elements() {
                if gives_way(most.0, value(element)) {
                    most = (value(element), Some(element));
                }
            }
            sum = if most.1 == Some(own) { sum + dy } else { sum };
        }
        *dx = if params.accumulate { *dx + sum } else { sum };
    }
}

/// The fast version of [`pool_grad_reference`].
pub fn pool_grad(dx: &mut [f32], x: &[f32], dy: &[f32], params: PoolGradParams, launch: &mut Launch<'_>) {
    let images = params.forward.images();
    images.add(dx, params.accumulate, launch, |sums, image, lanes| {
        add_windows(sums, x, dy, &params.forward, (image, lanes));
    });
}

dispatch! {
    /// Adds what comes from the windows of some channels of an image.
    fn add_windows(
        sums: &mut [[f32; LANES]],
        x: &[f32],
        dy: &[f32],
        params: &PoolParams,
        which: (usize, Range<usize>),
    ) {
        let (image, lanes) = which;
        let (elements, channels, count) = (sums.len(), params.channels, lanes.len());
        for index in 0..params.windows() {
            let window = params.window(index);
            let at = (image * params.windows() + index) * channels + lanes.start;
            let mut given = [0.0; LANES];
            given[..count].copy_from_slice(&dy[at..at + count]);
            if params.mean {
                given.iter_mut().for_each(|given| *given /= window.count);
                for element in window.elements() {
                    let sums = &mut sums[element];
                    sums.iter_mut().zip(&given).for_each(|(sum, given)| *sum += given);
                }
                continue;
            }
            let (mut most, mut places) = ([f32::NEG_INFINITY; LANES], [u32::MAX; LANES]);
            for (number, element) in window.elements().enumerate() {
                let at = (image * elements + element) * channels + lanes.start;
                let x = &x[at..at + count];
                for (lane, &x) in x.iter().enumerate() {
                    let wins = gives_way(most[lane], x) || number == 0;
                    most[lane] = if gives_way(most[lane], x) { x } else { most[lane] };
                    places[lane] = if wins { element as u32 } else { places[lane] };
                }
            }
            for lane in 0..count {
                if let Some(sums) = sums.get_mut(places[lane] as usize) {
                    sums[lane] += given[lane];
                }
            }
        }
    }
}

impl Kernel for PoolParams {
    signature!("pool": x => y by pool_reference, pool);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        PoolParams::of_task(task, task.read(0)?, task.write(0)?)
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(self.positions() * sizes.result(0), false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.images().elements * self.batch * self.channels, cores)
    }
}

impl Kernel for PoolGradParams {
    const NAME: &'static str = "pool_grad";

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let dy = usize::from(task.attr::<Pooling>("kind")? == Pooling::Max);
        let forward = PoolParams::of_task(task, task.write(0)?, task.read(dy)?)?;
        Ok(PoolGradParams { forward, accumulate: task.is("accumulate") })
    }

    fn arguments(&self) -> Names {
        let largest = !self.forward.mean;
        names!(x if largest, dy => dx)
    }

    fn reference(&self, call: &mut Call<'_>) {
        let (x, dy) = self.reads(call);
        pool_grad_reference(call.write(0), x, dy, *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let (x, dy) = self.reads(call);
        pool_grad(call.write(0), x, dy, *self, &mut call.launch);
    }

    fn work(&self, sizes: &Sizes<'_>) -> Work {
        let dy = sizes.operand(usize::from(!self.forward.mean));
        sizes.work(self.forward.positions() * dy, self.accumulate)
    }

    fn blocks(&self, cores: usize) -> i64 {
        self.forward.blocks(cores)
    }

    fn workspace(&self, _blocks: usize) -> Workspace {
        self.forward.images().workspace()
    }
}

impl PoolGradParams {
    fn reads<'a>(&self, call: &mut Call<'a>) -> (&'a [f32], &'a [f32]) {
        match self.forward.mean {
            true => (&[], call.read(0)),
            false => (call.read(0), call.read(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Case, values};

    fn axis(from: usize, kernel: usize, stride: usize, [before, after]: [usize; 2], ceil: bool) -> PoolAxis {
        let conv = phalanx_ir::ConvAxis { kernel, stride, dilation: 1, before, after };
        let to = PoolAxis::windows(from, &conv, ceil).expect("there is a window");
        PoolAxis { from, to, kernel, stride, before, after }
    }

    fn adaptive(from: usize, to: usize) -> PoolAxis {
        PoolAxis { from, to, kernel: 0, stride: 1, before: 0, after: 0 }
    }

    fn pools() -> Vec<PoolParams> {
        let one = axis(1, 1, 1, [0, 0], false);
        let mut pools = Vec::new();
        for (axes, channels) in [
            ([one, axis(7, 3, 2, [1, 1], false), axis(9, 2, 3, [0, 1], true)], 5),
            ([axis(4, 2, 1, [1, 0], false), axis(5, 3, 2, [1, 1], true), axis(6, 2, 2, [0, 0], false)], 16),
            ([one, one, axis(11, 4, 1, [2, 2], true)], 33),
            ([one, adaptive(7, 3), adaptive(5, 5)], 18),
            ([one, adaptive(2, 4), adaptive(9, 1)], 3),
        ] {
            for mean in [false, true] {
                let count_padding = channels % 2 == 0;
                pools.push(PoolParams { batch: 3, axes, channels, mean, count_padding });
            }
        }
        pools
    }

    fn grad_case(forward: PoolParams, accumulate: bool) -> Case {
        let images = forward.images();
        let (x, y) = (images.batch * images.elements * images.channels, forward.windows() * images.batch);
        let mut case = Case::new("pool_grad", PoolGradParams { forward, accumulate }.to_words());
        if !forward.mean {
            // Few different values, so that there are ties.
            case = case.read(values(x, 1).iter().map(|x| (x * 3.0).round()).collect::<Vec<_>>());
        }
        case.read(values(y * images.channels, 2)).write(values(x, 3))
    }

    #[test]
    fn every_pool_gives_the_bits_of_the_reference() {
        for forward in pools() {
            let images = forward.images();
            let y = images.batch * forward.windows() * images.channels;
            let case = Case::new("pool", forward.to_words());
            let case =
                case.read(values(images.batch * images.elements * images.channels, 1)).write(vec![0.0; y]);
            case.check_reference_bits();
            case.check_bits();
            for accumulate in [false, true] {
                grad_case(forward, accumulate).check_reference_bits();
                grad_case(forward, accumulate).check_bits();
            }
        }
    }

    /// `torch.nn.functional.max_pool1d`, measured: the first of equal ones, no number before all, the last of those.
    #[test]
    fn ties_and_what_is_no_number() {
        let one = axis(1, 1, 1, [0, 0], false);
        let axes = [one, one, axis(6, 3, 3, [0, 0], false)];
        let forward = PoolParams { batch: 1, axes, channels: 1, mean: false, count_padding: true };
        let nan = f32::NAN;
        for (x, y, places) in [
            ([1.0, 2.0, 2.0, nan, 5.0, 1.0], [2.0, nan], [1, 3]),
            (
                [nan, 9.0, nan, f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY],
                [nan, f32::NEG_INFINITY],
                [2, 3],
            ),
        ] {
            let case = Case::new("pool", forward.to_words()).read(x.to_vec()).write(vec![0.0; 2]);
            let same = |found: &[f32]| found.iter().zip(y).all(|(&a, b)| a == b || a.is_nan() && b.is_nan());
            assert!(same(&case.reference()[0]) && same(&case.fast(&crate::Team::new(1))[0]));
            let case = Case::new("pool_grad", PoolGradParams { forward, accumulate: false }.to_words());
            let case = case.read(x.to_vec()).read(vec![3.0, 4.0]).write(vec![0.0; 6]);
            let mut dx = vec![0.0; 6];
            (dx[places[0]], dx[places[1]]) = (3.0, 4.0);
            assert_eq!((&case.reference()[0], &case.fast(&crate::Team::new(1))[0]), (&dx, &dx));
        }
    }
}
