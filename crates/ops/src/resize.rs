//! Channels-last tensors `[batch, space…, channels]` in another size of space, by nearest elements or linear interpolation.
//!
//! Sizes or scale factors are given; of factors the given ones count where positions are computed, not the quotients of the
//! extents. Positions are those of PyTorch's `interpolate`: centers of elements lie between their edges, unless `align` says
//! that the centers of first and last elements stay in place.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::{
    Cuts, LayerTasks, OpError, Operands, Operator, Resampling, ResizeAxis, ScaleFactors, Shape, Tensor,
    TensorType, attributes,
};

use crate::conv::{check_list, space_dims};

/// See the head of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Resize {
    /// How elements in between are made up.
    pub kind: Resampling,
    /// The centers of the first and last elements stay in place; for linear interpolation only.
    pub align: bool,
    /// The extents of the result; empty if factors are given.
    pub size: Vec<usize>,
    /// By how much each dimension of space grows; empty if extents are given.
    pub scale: ScaleFactors,
}

impl Resize {
    fn axis(&self, dim: usize, from: usize, to: usize) -> ResizeAxis {
        ResizeAxis::new(from, to, self.scale.0.get(dim).copied(), self.kind, self.align)
    }
}

impl Operator for Resize {
    attributes!("resize": kind, align = false, size = Vec::<usize>::new(), scale = ScaleFactors::default());

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let dims = space_dims(operands, "what is resized")?;
        check_list(operands, "size", &self.size, dims)?;
        let ScaleFactors(factors) = &self.scale;
        if self.size.is_empty() == factors.is_empty() || (factors.len() != dims && !factors.is_empty()) {
            let wanted = format!("either {dims} extents or {dims} factors say how large it becomes");
            return operands.wrong(
                0,
                wanted,
                "give `size` or `scale`, one number for each dimension of space",
            );
        }
        if self.align && self.kind != Resampling::Linear {
            return operands.wrong(0, "only linear interpolation aligns centers", "leave `align` out");
        }
        let mut result = operands.shape(0).clone();
        for dim in 0..dims {
            let from = result.dims()[1 + dim];
            let to = match factors.get(dim) {
                Some(factor) => (from as f64 * factor).floor().clamp(0.0, 1e15) as usize,
                None => self.size[dim],
            };
            if to == 0 || factors.get(dim).is_some_and(|factor| !factor.is_finite()) {
                let wanted = format!("dimension {} would have no element", 1 + dim);
                return operands.wrong(0, wanted, "make `size` or `scale` larger");
            }
            result = result.with(1 + dim, to);
        }
        Ok(vec![TensorType::f32(result)])
    }

    /// Batch and channels may be cut; space is whole.
    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let whole: Vec<usize> = (1..operands[0].rank() - 1).collect();
        Cuts::pointwise(operands[0], &whole)
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        tasks.plain(TaskOp::call("resize", self.attrs()));
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let op = TaskOp::call("resize_grad", self.attrs());
        tasks.single(0, op, dy[0].clone().into_iter().collect());
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        let x = operands[0];
        vec![Tensor::from_fn(&results[0], |index| {
            let (&channel, place) = index.split_last().expect("an image has channels");
            let mut parts = vec![(place[..1].to_vec(), 1.0)];
            for (dim, &at) in place[1..].iter().enumerate() {
                let taps = self.axis(dim, x.shape.dims()[1 + dim], results[0].dims()[1 + dim]).taps(at);
                let extended = |(place, weight): (Vec<usize>, f64)| {
                    taps.map(|(at, own)| ([&place[..], &[at]].concat(), weight * f64::from(own)))
                };
                parts = parts.into_iter().flat_map(extended).collect();
            }
            parts.iter().map(|(place, weight)| weight * x.at(&[&place[..], &[channel]].concat())).sum()
        })]
    }
}
