//! The plain meaning of convolutions, one element at a time.

use phalanx_ir::{Activation, Space};

use super::{ConvGradWeight, ConvParams, ConvShape};
use crate::bf16;
use crate::matmul::{Operands, Outputs, tree_sum};
use crate::unary::{activate_in_place, slope_in_place};

/// Splits a position in row-major order.
fn split(mut at: usize, extents: Space) -> Space {
    let mut place = [0; 3];
    for dim in (0..3).rev() {
        place[dim] = at % extents[dim];
        at /= extents[dim];
    }
    place
}

/// The row-major position of a place, unless it lies outside.
fn join(place: [Option<usize>; 3], extents: Space) -> Option<usize> {
    let inside = |dim: usize| place[dim].filter(|&at| at < extents[dim]);
    Some((inside(0)? * extents[1] + inside(1)?) * extents[2] + inside(2)?)
}

impl ConvShape {
    /// The element of the wide tensor that a window meets at a position of the kernel, unless it lies outside.
    fn element(&self, window: Space, position: Space) -> Option<usize> {
        let at = |dim: usize| {
            let padded = window[dim] * self.stride[dim] + position[dim] * self.dilation[dim];
            padded.checked_sub(self.before[dim])
        };
        join([0, 1, 2].map(at), self.from)
    }

    /// Along one dimension, the positions of the kernel at which some whole window would meet `element`.
    fn taps(&self, dim: usize, element: usize) -> impl Iterator<Item = usize> {
        let (stride, dilation) = (self.stride[dim] as isize, self.dilation[dim] as isize);
        let padded = (element + self.before[dim]) as isize;
        (0..self.kernel[dim]).filter(move |&k| (padded - k as isize * dilation) % stride == 0)
    }

    /// The window that meets `element` at a position that [`ConvShape::taps`] names, unless it lies outside.
    fn window(&self, element: Space, position: Space) -> Option<usize> {
        let at = |dim: usize| {
            let padded = element[dim] + self.before[dim];
            Some(padded.checked_sub(position[dim] * self.dilation[dim])? / self.stride[dim])
        };
        join([0, 1, 2].map(at), self.to)
    }

    fn weight_at(&self, narrow: usize, wide: usize, position: Space) -> usize {
        let flat = (position[0] * self.kernel[1] + position[1]) * self.kernel[2] + position[2];
        (narrow * self.wide + wide) * self.positions() + flat
    }
}

/// The plain meaning of `conv`: `operands.a` is x, `operands.b` the weight.
pub fn conv_reference(outputs: Outputs<'_>, operands: Operands<'_>, params: &ConvParams) {
    params.check(&outputs, &operands);
    let Outputs { out, mut pre } = outputs;
    let channels = params.shape.groups * params.outer();
    for at in 0..out.len() {
        let mut value = sum(&operands, params, at);
        if let Some(bias) = operands.bias {
            value += bias[at % channels];
        }
        if let Some(pre) = &mut pre {
            pre[at] = value;
        }
        if params.activation != Activation::None {
            activate_in_place(params.activation, std::slice::from_mut(&mut value));
        }
        if let Some(points) = operands.points {
            let point = if params.precision.rounds() { bf16::rounded(points[at]) } else { points[at] };
            slope_in_place(params.slope, std::slice::from_mut(&mut value), &[point]);
        }
        if let Some(residual) = operands.residual {
            value += residual[at];
        }
        out[at] = if params.accumulate { out[at] + value } else { value };
    }
}

/// The sum of element `at` of the result.
fn sum(operands: &Operands<'_>, params: &ConvParams, at: usize) -> f32 {
    let (shape, inner, outer) = (&params.shape, params.inner(), params.outer());
    let result = params.result();
    let (group, channel) = (at / outer % shape.groups, at % outer);
    let row = at / (shape.groups * outer);
    let (image, place) = (row / result.iter().product::<usize>(), split(row, result));
    let read = if params.adjoint { shape.to } else { shape.from };
    let taps = [0, 1, 2].map(|dim| match params.adjoint {
        true => shape.taps(dim, place[dim]).count(),
        false => shape.kernel[dim],
    });
    let length = inner / params.leaves;
    let steps = taps.iter().product::<usize>() * length;
    let factors = |leaf: usize, step: usize| {
        let (tap, own) = (split(step / length, taps), leaf * length + step % length);
        let position = [0, 1, 2].map(|dim| match params.adjoint {
            true => shape.taps(dim, place[dim]).nth(tap[dim]).unwrap_or(0),
            false => tap[dim],
        });
        let (met, weight) = match params.adjoint {
            true => (shape.window(place, position), shape.weight_at(group * inner + own, channel, position)),
            false => {
                (shape.element(place, position), shape.weight_at(group * outer + channel, own, position))
            }
        };
        let at = |met: usize| {
            let row = image * read.iter().product::<usize>() + met;
            operands.a[(row * shape.groups + group) * inner + own]
        };
        (met.map_or(0.0, at), operands.b[weight])
    };
    tree_sum(0, params.leaves, &|leaf| bf16::leaf(params.precision, steps, |step| factors(leaf, step)))
}

/// The plain meaning of `conv_grad_weight`.
pub fn conv_grad_weight_reference(dw: &mut [f32], windows: &[f32], wide: &[f32], params: ConvGradWeight) {
    let shape = &params.shape;
    let (places, elements): (usize, usize) = (shape.to.iter().product(), shape.from.iter().product());
    let steps = shape.windows() / params.leaves;
    for (at, dw) in dw.iter_mut().enumerate() {
        let position = split(at, shape.kernel);
        let (own, channel) = (at / shape.positions() / shape.wide, at / shape.positions() % shape.wide);
        let group = own / shape.narrow;
        let factors = |row: usize| {
            let element = shape.element(split(row, shape.to), position);
            let x = element.map_or(0.0, |element| {
                let row = row / places * elements + element;
                wide[(row * shape.groups + group) * shape.wide + channel]
            });
            (windows[row * shape.groups * shape.narrow + own], x)
        };
        let leaf = |leaf: usize| bf16::leaf(params.precision, steps, |step| factors(leaf * steps + step));
        let value = tree_sum(0, params.leaves, &leaf);
        *dw = if params.accumulate { *dw + value } else { value };
    }
}
