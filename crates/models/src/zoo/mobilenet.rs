//! MobileNet-v3: narrow blocks that widen, look at each channel by itself, weigh the channels and narrow again. Parameter
//! names are those of torchvision.

use phalanx_nn::{ConvLayer, Net, Tensor};
use serde::{Deserialize, Serialize};

use super::images::{ImageNorm, classify, conv_norm};
use super::{SampleData, Samples, ZooConfig};
use crate::ModelError;
use crate::check::Check;

/// The sizes of a MobileNet-v3.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MobilenetConfig {
    /// Channels of the first convolution.
    pub width: usize,
    /// The blocks.
    pub blocks: Vec<MobileBlock>,
    /// Features of the hidden linear layer.
    pub hidden: usize,
    /// Height and width of an image with three channels, the innermost dimension.
    pub image: usize,
    /// Kinds of images.
    pub classes: usize,
    /// Probability of zeroing an input of the last layer, in training.
    pub dropout: f32,
}

/// The sizes of a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MobileBlock {
    /// Height and width of the kernel, an odd number.
    pub kernel: usize,
    /// Channels inside.
    pub wide: usize,
    /// Channels of the result.
    pub out: usize,
    /// Whether channels are weighed.
    pub weighed: bool,
    /// Whether activations are hard swish instead of ReLU.
    pub swish: bool,
    /// Positions from one window to the next.
    pub stride: usize,
}

/// torchvision's.
const NORM: ImageNorm = ImageNorm { eps: 1e-3, momentum: 0.01 };

/// Channels near a share of others: a multiple of 8, never less than nine tenths of it.
fn near(channels: usize, share: usize) -> usize {
    let near = ((channels / share + 4) / 8 * 8).max(8);
    if near * 10 * share < 9 * channels { near + 8 } else { near }
}

/// A convolution that keeps the extents up to its stride, with a norm.
fn conv(net: &Net, x: &Tensor, layer: ConvLayer, kernel: usize) -> Tensor {
    conv_norm([net.at(0), net.at(1)], x, layer.kernel(kernel).padding(kernel / 2), NORM)
}

impl MobileBlock {
    /// `"3 16 16 se re 2"`: kernel, channels inside and of the result, what weighs, activation, stride.
    fn parse(words: &str) -> Option<MobileBlock> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let [kernel, wide, out, weighed, activation, stride] = words[..] else { return None };
        let number = |word: &str| word.parse::<usize>().ok();
        let (kernel, wide, out, stride) = (number(kernel)?, number(wide)?, number(out)?, number(stride)?);
        Some(MobileBlock { kernel, wide, out, weighed: weighed == "se", swish: activation == "hs", stride })
    }

    fn activate(&self, x: &Tensor) -> Tensor {
        if self.swish { x.hard_swish() } else { x.relu() }
    }

    fn apply(&self, net: &Net, x: &Tensor) -> Tensor {
        let (block, inputs) = (net.at("block"), x.last());
        let (mut h, mut place) = (x.clone(), 0);
        if self.wide != inputs {
            h = self.activate(&conv(&block.at(place), &h, ConvLayer::out(self.wide), 1));
            place += 1;
        }
        let depthwise = ConvLayer::out(self.wide).groups(self.wide).stride(self.stride);
        h = self.activate(&conv(&block.at(place), &h, depthwise, self.kernel));
        place += 1;
        if self.weighed {
            let net = block.at(place);
            let few = net.at("fc1").conv2d(&h.mean_keep([1, 2]), ConvLayer::out(near(self.wide, 4))).relu();
            h = h * net.at("fc2").conv2d(&few, ConvLayer::out(self.wide)).hard_sigmoid();
            place += 1;
        }
        h = conv(&block.at(place), &h, ConvLayer::out(self.out), 1);
        if self.stride == 1 && inputs == self.out { x + h } else { h }
    }
}

impl MobilenetConfig {
    fn logits(&self, net: &Net, images: &Tensor) -> Tensor {
        let (features, classifier) = (net.at("features"), net.at("classifier"));
        let mut x = conv(&features.at(0), images, ConvLayer::out(self.width).stride(2), 3).hard_swish();
        for (index, block) in self.blocks.iter().enumerate() {
            x = block.apply(&features.at(index + 1), &x);
        }
        let last = features.at(self.blocks.len() + 1);
        let x = conv(&last, &x, ConvLayer::out(6 * x.last()), 1).hard_swish();
        let x = classifier.at(0).linear(&x.mean([1, 2]), self.hidden).hard_swish();
        classifier.at(3).linear(&classifier.at(2).dropout(self.dropout, x), self.classes)
    }
}

/// The blocks of torchvision's `mobilenet_v3_small` and `mobilenet_v3_large`.
const SMALL: &str = "3 16 16 se re 2, 3 72 24 - re 2, 3 88 24 - re 1, 5 96 40 se hs 2, 5 240 40 se hs 1, 5 240 40 se hs 1, \
                     5 120 48 se hs 1, 5 144 48 se hs 1, 5 288 96 se hs 2, 5 576 96 se hs 1, 5 576 96 se hs 1";
const LARGE: &str = "3 16 16 - re 1, 3 64 24 - re 2, 3 72 24 - re 1, 5 72 40 se re 2, 5 120 40 se re 1, 5 120 40 se re 1, \
                     3 240 80 - hs 2, 3 200 80 - hs 1, 3 184 80 - hs 1, 3 184 80 - hs 1, 3 480 112 se hs 1, \
                     3 672 112 se hs 1, 5 672 160 se hs 2, 5 960 160 se hs 1, 5 960 160 se hs 1";
const NANO: &str = "3 8 8 se re 2, 3 24 8 - re 1, 5 32 16 se hs 1";

impl ZooConfig for MobilenetConfig {
    fn preset(size: &str) -> Option<Self> {
        let (blocks, width, hidden) = match size {
            "nano" => (NANO, 8, 32),
            "small" => (SMALL, 16, 1024),
            "medium" => (LARGE, 16, 1280),
            _ => return None,
        };
        let blocks = blocks.split(',').map(MobileBlock::parse).collect::<Option<_>>()?;
        let (image, classes, dropout) = if size == "nano" { (16, 4, 0.0) } else { (224, 1000, 0.2) };
        Some(MobilenetConfig { width, blocks, hidden, image, classes, dropout })
    }

    fn check(&self) -> Result<(), ModelError> {
        let check = Check("mobilenet");
        check.positive(&[("width", self.width), ("hidden", self.hidden), ("image", self.image)])?;
        check.positive(&[("blocks", self.blocks.len())])?;
        check.at_least(("classes", self.classes), 2)?;
        check.layers(self.blocks.len())?;
        let mut inputs = self.width;
        for block in &self.blocks {
            check.positive(&[("wide", block.wide), ("out", block.out), ("stride", block.stride)])?;
            check.parity(("kernel", block.kernel), false)?;
            check.bounded(&[("inputs", inputs), ("wide", block.wide)])?;
            check.bounded(&[("wide", block.wide), ("wide", block.wide), ("out", block.out)])?;
            check.bounded(&[("wide", block.wide), ("kernel", block.kernel), ("kernel", block.kernel)])?;
            check.bounded(&[("wide", block.wide), ("image", self.image), ("image", self.image)])?;
            inputs = block.out;
        }
        check.bounded(&[("out", inputs), ("out", inputs), ("hidden", self.hidden.max(6))])?;
        check.bounded(&[("hidden", self.hidden), ("classes", self.classes)])?;
        check.rate("dropout", self.dropout)
    }

    fn loss(&self, net: &Net) -> Tensor {
        classify(net, self.image, |images| self.logits(net, images))
    }

    fn samples(&self, samples: &mut Samples) -> Vec<(String, SampleData)> {
        samples.stripes(self.image, self.classes)
    }
}
