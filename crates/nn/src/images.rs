//! Layers on images, `[batch, height, width, channels]`: channels are innermost. Weights are stored as in PyTorch.

use std::panic::Location;

use phalanx_ir::{Init, Pooling};
use phalanx_ops::{BatchNormOptions, Conv, Layers, Pool};

use crate::{Net, Tensor};

/// A convolution in two dimensions of space: its channels, and what is not as usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvLayer {
    channels: usize,
    kernel: [usize; 2],
    stride: usize,
    padding: [usize; 2],
    dilation: usize,
    groups: usize,
    bias: bool,
}

impl ConvLayer {
    /// This many channels of the result: a kernel of one position, stride 1, no padding, a bias.
    pub fn out(channels: usize) -> Self {
        ConvLayer { channels, kernel: [1; 2], stride: 1, padding: [0; 2], dilation: 1, groups: 1, bias: true }
    }

    /// The same with another number of channels.
    #[must_use]
    pub fn with_channels(self, change: impl FnOnce(usize) -> usize) -> Self {
        ConvLayer { channels: change(self.channels), ..self }
    }

    /// Height and width of the kernel.
    #[must_use]
    pub fn kernel(self, kernel: usize) -> Self {
        self.kernel_sides([kernel; 2])
    }

    /// Height and width of a kernel that is not square.
    #[must_use]
    pub fn kernel_sides(self, kernel: [usize; 2]) -> Self {
        ConvLayer { kernel, ..self }
    }

    /// Positions from one window to the next.
    #[must_use]
    pub fn stride(self, stride: usize) -> Self {
        ConvLayer { stride, ..self }
    }

    /// Zeros on each side.
    #[must_use]
    pub fn padding(self, padding: usize) -> Self {
        self.padding_sides([padding; 2])
    }

    /// Zeros above and below, and zeros left and right.
    #[must_use]
    pub fn padding_sides(self, padding: [usize; 2]) -> Self {
        ConvLayer { padding, ..self }
    }

    /// Positions from one element of the kernel to the next.
    #[must_use]
    pub fn dilation(self, dilation: usize) -> Self {
        ConvLayer { dilation, ..self }
    }

    /// Groups of channels that do not meet.
    #[must_use]
    pub fn groups(self, groups: usize) -> Self {
        ConvLayer { groups, ..self }
    }

    /// Whether there is a bias.
    #[must_use]
    pub fn bias(self, bias: bool) -> Self {
        ConvLayer { bias, ..self }
    }
}

/// Layers on images.
impl Net {
    /// A convolution over height and width. Weight and bias start uniform within 1/√(inputs of a result), as in PyTorch.
    #[track_caller]
    pub fn conv2d(&self, x: &Tensor, layer: ConvLayer) -> Tensor {
        let [height, width] = layer.kernel;
        let weight = [layer.channels, x.last() / layer.groups.max(1), height, width];
        self.convolve(x, layer, weight, false)
    }

    /// The adjoint of a convolution, which widens images by its stride: PyTorch's `ConvTranspose2d`.
    #[track_caller]
    pub fn conv2d_transposed(&self, x: &Tensor, layer: ConvLayer) -> Tensor {
        let [height, width] = layer.kernel;
        let weight = [x.last(), layer.channels / layer.groups.max(1), height, width];
        self.convolve(x, layer, weight, true)
    }

    #[track_caller]
    fn convolve(&self, x: &Tensor, layer: ConvLayer, weight: [usize; 4], adjoint: bool) -> Tensor {
        let ConvLayer { channels, stride, padding: [rows, columns], dilation, groups, bias, .. } = layer;
        let inputs: usize = weight[1..].iter().product();
        let usual = Init::Uniform(1.0 / (inputs.max(1) as f32).sqrt());
        let weight = self.param("weight", weight, self.weight_init(usual));
        let bias = match bias {
            true => Some(self.param("bias", [channels], self.bias_init(usual))),
            false => None,
        };
        let operands: Vec<&Tensor> = [x, &weight].into_iter().chain(&bias).collect();
        let op = Conv {
            stride: vec![stride; 2],
            dilation: vec![dilation; 2],
            padding: vec![rows, rows, columns, columns],
            groups,
            adjoint,
            ..Conv::default()
        };
        self.apply(op, &operands)
    }

    /// Normalizes every channel over the whole batch, with scale and shift; evaluation uses the running statistics that
    /// training keeps. `eps` is 1e-5, the share of a step in the running statistics 0.1.
    #[track_caller]
    pub fn batch_norm(&self, x: &Tensor) -> Tensor {
        self.batch_norm_with(x, 1e-5, 0.1)
    }

    /// The same with another `eps` and another share.
    #[track_caller]
    pub fn batch_norm_with(&self, x: &Tensor, eps: f32, momentum: f32) -> Tensor {
        let channels = [x.last()];
        let weights = [self.param("weight", channels, Init::Ones), self.param("bias", channels, Init::Zeros)];
        let options =
            BatchNormOptions { eps, momentum: Some(momentum), groups: 1, training: self.training() };
        let (line, name) = (Location::caller(), self.path().to_string());
        let mut shared = self.shared.borrow_mut();
        shared.choose(line, &name);
        let ids: Option<Vec<_>> = [x, &weights[0], &weights[1]].iter().map(|tensor| tensor.id).collect();
        let made = shared.add(line, |builder| match ids.as_deref() {
            Some(&[x, scale, shift]) => {
                let normed = builder.batch_norm(&name, x, Some([scale, shift]), options);
                normed.map(|value| vec![value]).map_err(|error| error.to_string())
            }
            _ => Err(format!("layer `{name}`: an operand was made after the model was complete")),
        });
        drop(shared);
        Tensor::new(&self.shared, &self.path().into(), made.first().copied())
    }

    /// `x` as it is if it has `channels` channels and `stride` is 1, else a convolution without kernel and a batch norm
    /// that make it so: the other branch of a residual block.
    #[track_caller]
    pub fn project_like(&self, x: &Tensor, channels: usize, stride: usize) -> Tensor {
        if stride == 1 && x.last() == channels {
            return x.clone();
        }
        let layer = ConvLayer::out(channels).stride(stride).bias(false);
        self.at(1).batch_norm(&self.at(0).conv2d(x, layer))
    }
}

/// Windows of images.
impl Tensor {
    /// The largest element of every window of `kernel` positions each way, `stride` apart, with `padding` on each side.
    #[track_caller]
    pub fn max_pool(&self, kernel: usize, stride: usize, padding: usize) -> Tensor {
        self.pool("max_pool", Pooling::Max, [kernel, stride, padding])
    }

    /// The mean of every window; positions of the padding count as zeros.
    #[track_caller]
    pub fn avg_pool(&self, kernel: usize, stride: usize, padding: usize) -> Tensor {
        self.pool("avg_pool", Pooling::Avg, [kernel, stride, padding])
    }

    #[track_caller]
    fn pool(&self, word: &str, kind: Pooling, [kernel, stride, padding]: [usize; 3]) -> Tensor {
        let (kernel, stride, padding) = (vec![kernel; 2], vec![stride; 2], vec![padding; 4]);
        Tensor::op(word, Pool { kind, kernel, stride, padding, ..Pool::default() }, &[self])
    }
}
