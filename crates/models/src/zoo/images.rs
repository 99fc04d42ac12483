//! What models of images share: inputs, the loss, and a convolution with its norm.

use phalanx_nn::{ConvLayer, F32, I64, Net, Tensor};

/// The cross-entropy of what `logits` makes of square images with three channels, and how often it is right.
pub(super) fn classify(net: &Net, side: usize, logits: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
    let images = net.input("images", F32, [net.batch(), side, side, 3]);
    let labels = net.input("labels", I64, [net.batch()]);
    let logits = logits(&images);
    net.metric("accuracy", &logits.is_top(&labels).mean_all());
    logits.cross_entropy(&labels)
}

/// How a batch norm differs from the usual one.
#[derive(Clone, Copy)]
pub(super) struct ImageNorm {
    /// Added to variances.
    pub eps: f32,
    /// The share of a step in running statistics.
    pub momentum: f32,
}

/// PyTorch's own.
pub(super) const USUAL_NORM: ImageNorm = ImageNorm { eps: 1e-5, momentum: 0.1 };

/// A convolution without bias at `conv` and a batch norm at `norm`.
pub(super) fn conv_norm(
    [conv, norm]: [Net; 2],
    x: &Tensor,
    layer: ConvLayer,
    ImageNorm { eps, momentum }: ImageNorm,
) -> Tensor {
    norm.batch_norm_with(&conv.conv2d(x, layer.bias(false)), eps, momentum)
}

/// `[batch, height, width, channels]` as rows of the order in which PyTorch flattens images.
pub(super) fn flatten_channels_first(x: &Tensor) -> Tensor {
    x.transpose([0, 3, 1, 2]).flatten()
}
