//! The largest element or the mean of windows of channels-last tensors: `[batch, space…, channels]`, one to three dimensions of
//! space.
//!
//! Of equal largest elements the first takes the gradient; an element that is no number is larger than all. Each element of the
//! gradient adds what comes from its windows in ascending order.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::{
    ConvAxis, Cuts, LayerTasks, OpError, Operands, Operator, PoolAxis, Pooling, Shape, Tensor, TensorType,
    attributes, space,
};

use crate::conv::{check_list, halves, space_dims};

/// See the head of the file. A list may be empty, which leaves it at its default.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// What becomes of a window.
    pub kind: Pooling,
    /// Extents of a window; none if windows are adaptive.
    pub kernel: Vec<usize>,
    /// Between windows; those of the kernel by default.
    pub stride: Vec<usize>,
    /// Positions in front of and behind each dimension: `[before, after, before, after, …]`; none by default.
    pub padding: Vec<usize>,
    /// Also a last window that ends behind the padding, if it begins in front of that.
    pub ceil: bool,
    /// A mean divides by all positions of a window, those of padding too.
    pub count_padding: bool,
    /// How many windows there are: window `t` goes from ⌊t·from/to⌋ to ⌈(t+1)·from/to⌉. Empty if the kernel says where.
    pub adaptive: Vec<usize>,
}

impl Default for Pool {
    fn default() -> Self {
        Pool {
            kind: Pooling::Max,
            kernel: Vec::new(),
            stride: Vec::new(),
            padding: Vec::new(),
            ceil: false,
            count_padding: true,
            adaptive: Vec::new(),
        }
    }
}

impl Pool {
    /// The windows along each dimension of an input; none along one where they do not fit.
    fn axes(&self, input: &Shape) -> Vec<Option<PoolAxis>> {
        let dims = input.rank() - 2;
        let kernel = space(&self.kernel, 1);
        let stride = if self.stride.is_empty() { kernel } else { space(&self.stride, 1) };
        let [before, after] = halves(&self.padding).map(|half| space(&half, 0));
        let axis = |dim: usize| {
            let (from, at) = (input.dims()[1 + dim], 3 - dims + dim);
            if let Some(&to) = self.adaptive.get(dim) {
                return (to > 0).then_some(PoolAxis { from, to, kernel: 0, stride: 1, before: 0, after: 0 });
            }
            let (kernel, stride, before, after) = (kernel[at], stride[at], before[at], after[at]);
            let conv = ConvAxis { kernel, stride, dilation: 1, before, after };
            let to = PoolAxis::windows(from, &conv, self.ceil)?;
            Some(PoolAxis { from, to, kernel, stride, before, after })
        };
        (0..dims).map(axis).collect()
    }

    fn check_numbers(&self, operands: &Operands<'_>, dims: usize) -> Result<(), OpError> {
        check_list(operands, "kernel", &self.kernel, dims)?;
        check_list(operands, "stride", &self.stride, dims)?;
        check_list(operands, "adaptive", &self.adaptive, dims)?;
        check_list(operands, "padding", &self.padding, 2 * dims)?;
        if self.kernel.is_empty() == self.adaptive.is_empty() {
            return operands.wrong(
                0,
                "a pool has a kernel or is adaptive",
                "give either `kernel` or `adaptive`",
            );
        }
        let alone = self.stride.is_empty() && self.padding.is_empty() && !self.ceil;
        if !self.adaptive.is_empty() && !alone {
            let wanted = "adaptive windows have no stride, no padding and no ceil";
            return operands.wrong(0, wanted, "leave these out");
        }
        if self.kernel.contains(&0) || self.stride.contains(&0) {
            return operands.wrong(0, "kernel and stride are positive", "make them at least 1");
        }
        let padding = self.padding.chunks(2).zip(&self.kernel);
        if let Some((_, kernel)) = padding.clone().find(|(pair, kernel)| pair.iter().any(|pad| pad >= kernel))
        {
            let wanted = format!("padding {:?} must be below the kernel, here {kernel}", self.padding);
            return operands.wrong(
                0,
                wanted,
                "make the padding smaller: a window has an element of the input",
            );
        }
        Ok(())
    }
}

impl Operator for Pool {
    attributes!("pool": kind, kernel = Vec::<usize>::new(), stride = Vec::<usize>::new(),
        padding = Vec::<usize>::new(), ceil = false, count_padding = true, adaptive = Vec::<usize>::new());

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let dims = space_dims(operands, "the input of a pool")?;
        self.check_numbers(operands, dims)?;
        let input = operands.shape(0);
        let mut result = input.clone();
        for (dim, axis) in self.axes(input).into_iter().enumerate() {
            let Some(axis) = axis else {
                let wanted = format!("no window fits dimension {} with its padding", 1 + dim);
                return operands.wrong(
                    0,
                    wanted,
                    "make the kernel smaller, or adaptive windows at least one",
                );
            };
            result = result.with(1 + dim, axis.to);
        }
        Ok(vec![TensorType::f32(result)])
    }

    /// Batch and channels may be cut; space is whole.
    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let whole: Vec<usize> = (1..operands[0].rank() - 1).collect();
        Cuts::pointwise(operands[0], &whole)
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        tasks.plain(TaskOp::call("pool", self.attrs()));
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let x = (self.kind == Pooling::Max).then(|| tasks.read_again(0));
        let reads = x.into_iter().chain(dy[0].clone()).collect();
        tasks.single(0, TaskOp::call("pool_grad", self.attrs()), reads);
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        let x = operands[0];
        let axes: Vec<PoolAxis> = self.axes(&x.shape).into_iter().flatten().collect();
        vec![Tensor::from_fn(&results[0], |index| {
            let (&channel, place) = index.split_last().expect("an image has channels");
            let mut places = vec![place[..1].to_vec()];
            let mut count = 1;
            for (axis, &at) in axes.iter().zip(&place[1..]) {
                count *= if self.count_padding { axis.size(at) } else { axis.window(at).len() };
                let extended =
                    |place: Vec<usize>| axis.window(at).map(move |at| [&place[..], &[at]].concat());
                places = places.into_iter().flat_map(extended).collect();
            }
            let values = places.iter().map(|place| x.at(&[&place[..], &[channel]].concat()));
            match self.kind {
                Pooling::Avg => values.sum::<f64>() / count as f64,
                Pooling::Max => {
                    values.fold(f64::NEG_INFINITY, |most, x| if x > most || x.is_nan() { x } else { most })
                }
            }
        })]
    }
}
