//! Convolutions whose groups have one channel of the wide tensor: lanes are channels, and no product is packed.
//!
//! The weight is first copied such that lanes lie beside each other; then every row of the result is computed by itself.

use std::ops::Range;

use phalanx_ir::{Activation, MAX_SPACE, Precision};

use super::phase::Phase;
use super::{ConvGradWeight, ConvParams};
use crate::dispatch;
use crate::matmul::{Operands, Outputs};
use crate::spmd::{Launch, Parts, Workspace};
use crate::unary::{activate_in_place, slope_in_place};

/// Channels that are computed together.
const LANES: usize = 16;
/// The deepest tree over leaves.
const LEVELS: usize = 16;

/// Whether these kernels compute the convolution.
pub(super) fn is_depthwise(params: &ConvParams) -> bool {
    params.shape.wide == 1
        && params.shape.groups > 1
        && params.precision == Precision::F32
        && params.leaves < 1 << LEVELS
}

/// Whether these kernels compute the gradient.
pub(super) fn is_depthwise_weight(params: &ConvGradWeight) -> bool {
    params.shape.wide == 1 && params.shape.groups > 1 && params.precision == Precision::F32
}

/// What [`depthwise`] works in: the weight, lanes beside each other, and one row of the result.
pub(super) fn depthwise_workspace(params: &ConvParams) -> Workspace {
    let lanes = params.shape.groups * params.outer();
    Workspace::of::<f32>(lanes * params.inner() * params.shape.positions(), lanes)
}

/// The fast convolution.
pub(super) fn depthwise(
    outputs: Outputs<'_>,
    operands: Operands<'_>,
    params: &ConvParams,
    launch: &mut Launch<'_>,
) {
    let (inner, positions) = (params.inner(), params.shape.positions());
    let lanes = params.shape.groups * params.outer();
    let weight: &mut [f32] = launch.common();
    let weight = &mut weight[..inner * positions * lanes];
    launch.for_each_part(weight, lanes, |first, part| {
        for (row, part) in part.chunks_exact_mut(lanes).enumerate() {
            let row = first / lanes + row;
            let (channel, position) = (row / positions, row % positions);
            for (lane, element) in part.iter_mut().enumerate() {
                *element = operands.b[(lane * inner + channel) * positions + position];
            }
        }
    });
    let weight = &*weight;
    let (out, pre) = (Parts::new(outputs.out), outputs.pre.map(Parts::new));
    for phase in params.phases() {
        let direct = Direct { x: operands.a, weight, params, phase, lanes };
        launch.run(|mut block| {
            let sums = &mut block.own()[..lanes];
            for row in block.share(phase.rows()) {
                direct.row(sums, row);
                let at = phase.result_row(row, params.result()) * lanes;
                // SAFETY: a row belongs to one block, and phases have different rows.
                let out = unsafe { out.part(at..at + lanes) };
                // SAFETY: as above.
                let pre = pre.as_ref().map(|pre| unsafe { pre.part(at..at + lanes) });
                finish(out, pre, sums, &operands, params, at);
            }
        });
    }
}

/// Does to the sums of a row what follows, and writes them.
fn finish(
    out: &mut [f32],
    pre: Option<&mut [f32]>,
    sums: &mut [f32],
    operands: &Operands<'_>,
    params: &ConvParams,
    at: usize,
) {
    let own = at..at + sums.len();
    if let Some(bias) = operands.bias {
        add(sums, bias);
    }
    if let Some(pre) = pre {
        pre.copy_from_slice(sums);
    }
    if params.activation != Activation::None {
        activate_in_place(params.activation, sums);
    }
    if let Some(points) = operands.points {
        slope_in_place(params.slope, sums, &points[own.clone()]);
    }
    if let Some(residual) = operands.residual {
        add(sums, &residual[own]);
    }
    if params.accumulate {
        add(sums, out);
    }
    out.copy_from_slice(sums);
}

fn add(sums: &mut [f32], addend: &[f32]) {
    sums.iter_mut().zip(addend).for_each(|(sum, addend)| *sum += addend);
}

/// One phase of a convolution.
struct Direct<'a> {
    x: &'a [f32],
    /// `[summed channel, position, lane]`.
    weight: &'a [f32],
    params: &'a ConvParams,
    phase: Phase,
    lanes: usize,
}

impl Direct<'_> {
    /// The sums of one row.
    fn row(&self, sums: &mut [f32], row: usize) {
        let (image, place) = self.phase.place(row);
        for first in (0..self.lanes).step_by(LANES) {
            let lanes = first..self.lanes.min(first + LANES);
            let sums = &mut sums[lanes.clone()];
            chunk(sums, self, (image, place), lanes.start);
        }
    }

    /// The first element of the tensor's row that a result meets at `tap`, unless it lies outside.
    #[inline(always)]
    fn met(&self, (image, place): (usize, [usize; MAX_SPACE]), tap: usize) -> Option<usize> {
        let axes = &self.phase.axes;
        let taps =
            [tap / (axes[1].taps * axes[2].taps), tap / axes[2].taps % axes[1].taps, tap % axes[2].taps];
        let mut row = image;
        for dim in 0..MAX_SPACE {
            let axis = &axes[dim];
            let at = axis.first + place[dim] as isize * axis.row_step + taps[dim] as isize * axis.tap_step;
            row = row * axis.extent + usize::try_from(at).ok().filter(|&at| at < axis.extent)?;
        }
        Some(row * self.params.shape.groups * self.params.inner())
    }
}

dispatch! {
    /// The sums of some lanes of one result.
    fn chunk(sums: &mut [f32], direct: &Direct<'_>, place: (usize, [usize; 3]), first: usize) {
        let params = direct.params;
        let (inner, outer, positions) = (params.inner(), params.outer(), params.shape.positions());
        let (length, taps) = (inner / params.leaves, direct.phase.taps());
        let mut older = [[0.0f32; LANES]; LEVELS];
        let mut total = [0.0f32; LANES];
        for leaf in 0..params.leaves {
            let mut sum = [0.0f32; LANES];
            for tap in 0..taps {
                let position = direct.phase.position(tap, params.shape.kernel);
                let met = direct.met(place, tap);
                for own in leaf * length..(leaf + 1) * length {
                    let weight = &direct.weight[(own * positions + position) * direct.lanes + first..];
                    let x = met.map_or([0.0; LANES], |row| load(direct.x, row, first, sums.len(), [inner, outer, own]));
                    let weight = line(weight, sums.len());
                    for lane in 0..LANES {
                        sum[lane] = x[lane].mul_add(weight[lane], sum[lane]);
                    }
                }
            }
            let level = leaf.trailing_ones() as usize;
            for older in &older[..level] {
                for lane in 0..LANES {
                    sum[lane] += older[lane];
                }
            }
            older[level] = sum;
            total = sum;
        }
        sums.copy_from_slice(&total[..sums.len()]);
    }
}

/// What lanes from `first` on read of summed channel `own` in the tensor's row at `row`.
#[inline(always)]
fn load(x: &[f32], row: usize, first: usize, count: usize, [inner, outer, own]: [usize; 3]) -> [f32; LANES] {
    if inner == 1 && outer == 1 {
        return line(&x[row + first..], count);
    }
    let mut lanes = [0.0; LANES];
    for (lane, element) in lanes.iter_mut().enumerate().take(count) {
        *element = x[row + (first + lane) / outer * inner + own];
    }
    lanes
}

/// The first `count` elements; a whole line where there is one.
#[inline(always)]
fn line(from: &[f32], count: usize) -> [f32; LANES] {
    match from.first_chunk::<LANES>() {
        Some(whole) => *whole,
        None => {
            let mut lanes = [0.0; LANES];
            lanes[..count].copy_from_slice(&from[..count]);
            lanes
        }
    }
}

/// Positions of the kernel whose sums are computed together.
const TOGETHER: usize = 8;

/// The gradient of the weight: lanes are its first dimension.
pub(super) fn depthwise_grad_weight(
    dw: &mut [f32],
    windows: &[f32],
    wide: &[f32],
    params: ConvGradWeight,
    launch: &mut Launch<'_>,
) {
    let positions = params.shape.positions();
    let phase = Phase::windows(&params.shape);
    launch.for_each_part(dw, positions * LANES, |first, part| {
        for (number, part) in part.chunks_mut(positions * LANES).enumerate() {
            let lane = first / positions + number * LANES;
            for position in (0..positions).step_by(TOGETHER) {
                let range = position..positions.min(position + TOGETHER);
                weight_chunk(part, (windows, wide), &params, &phase, (lane, range));
            }
        }
    });
}

dispatch! {
    /// The gradient of a few positions of some lanes.
    fn weight_chunk(
        dw: &mut [f32],
        tensors: (&[f32], &[f32]),
        params: &ConvGradWeight,
        phase: &Phase,
        which: (usize, Range<usize>),
    ) {
        let ((windows, wide), (first, positions)) = (tensors, which);
        let shape = &params.shape;
        let count = dw.len() / shape.positions();
        let steps = shape.windows() / params.leaves;
        let [_, b, c] = shape.kernel;
        let mut tree = [[[0.0f32; LANES]; TOGETHER]; LEVELS];
        let mut total = [[0.0f32; LANES]; TOGETHER];
        for leaf in 0..params.leaves {
            let mut sums = [[0.0f32; LANES]; TOGETHER];
            for row in leaf * steps..(leaf + 1) * steps {
                let (image, window) = phase.place(row);
                let dy = line(&windows[row * shape.groups * shape.narrow + first..], count);
                for (sum, position) in sums.iter_mut().zip(positions.clone()) {
                    let taps = [position / (b * c), position / c % b, position % c];
                    let x = element(phase, image, window, taps).map_or([0.0; LANES], |row| {
                        load(wide, row * shape.groups, first, count, [1, shape.narrow, 0])
                    });
                    for lane in 0..LANES {
                        sum[lane] = dy[lane].mul_add(x[lane], sum[lane]);
                    }
                }
            }
            let level = leaf.trailing_ones() as usize;
            for older in &tree[..level] {
                for (sum, older) in sums.iter_mut().zip(older) {
                    sum.iter_mut().zip(older).for_each(|(sum, older)| *sum += older);
                }
            }
            tree[level] = sums;
            total = sums;
        }
        for (sum, position) in total.iter().zip(positions) {
            for (lane, sum) in sum.iter().enumerate().take(count) {
                let dw = &mut dw[lane * shape.positions() + position];
                *dw = if params.accumulate { *dw + sum } else { *sum };
            }
        }
    }
}

/// The row of the wide tensor that a window meets, unless it lies outside.
#[inline(always)]
fn element(phase: &Phase, image: usize, window: [usize; 3], taps: [usize; 3]) -> Option<usize> {
    let mut row = image;
    for dim in 0..MAX_SPACE {
        let axis = &phase.axes[dim];
        let at = axis.first + window[dim] as isize * axis.row_step + taps[dim] as isize * axis.tap_step;
        row = row * axis.extent + usize::try_from(at).ok().filter(|&at| at < axis.extent)?;
    }
    Some(row)
}
