//! Residual networks for images: ResNet and, with groups, ResNeXt. Parameter names are those of torchvision.

use phalanx_nn::{ConvLayer, Net, Tensor};
use serde::{Deserialize, Serialize};

use super::images::{USUAL_NORM, classify, conv_norm};
use super::{SampleData, Samples, ZooConfig};
use crate::ModelError;
use crate::check::Check;

/// The sizes of a residual network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResnetConfig {
    /// Blocks of each stage.
    pub blocks: Vec<usize>,
    /// Whether a block has three convolutions that narrow and widen again, instead of two.
    pub bottleneck: bool,
    /// Groups of the convolutions in the middle of a bottleneck.
    pub groups: usize,
    /// Channels of a group for every 64 of the stage.
    pub group_width: usize,
    /// Channels of the first stage; each stage has twice those of the one before.
    pub width: usize,
    /// Height and width of an image with three channels, the innermost dimension.
    pub image: usize,
    /// Kinds of images.
    pub classes: usize,
}

impl ResnetConfig {
    /// A residual network whose bottlenecks have groups: `medium` is ResNeXt-50 32x4d.
    pub(super) fn grouped(size: &str) -> Option<Self> {
        let (blocks, groups, group_width) = match size {
            "nano" => (vec![1, 1], 4, 8),
            "small" => (vec![2, 2, 2, 2], 32, 4),
            "medium" => (vec![3, 4, 6, 3], 32, 4),
            "large" => (vec![3, 4, 23, 3], 32, 8),
            _ => return None,
        };
        let (width, image, classes) = if size == "nano" { (8, 32, 4) } else { (64, 224, 1000) };
        Some(ResnetConfig { blocks, bottleneck: true, groups, group_width, width, image, classes })
    }

    /// Channels behind the blocks of a stage, for each of its own.
    fn expansion(&self) -> usize {
        if self.bottleneck { 4 } else { 1 }
    }

    /// A block of a stage with `channels` of its own.
    fn block(&self, net: &Net, x: &Tensor, channels: usize, stride: usize) -> Tensor {
        let conv = |number: usize, x: &Tensor, layer: ConvLayer| {
            conv_norm([net.at(format!("conv{number}")), net.at(format!("bn{number}"))], x, layer, USUAL_NORM)
        };
        let wide = channels * self.expansion();
        let h = match self.bottleneck {
            true => {
                let inner = channels * self.group_width / 64 * self.groups;
                let h = conv(1, x, ConvLayer::out(inner)).relu();
                let spread = ConvLayer::out(inner).kernel(3).padding(1).stride(stride).groups(self.groups);
                conv(3, &conv(2, &h, spread).relu(), ConvLayer::out(wide))
            }
            false => {
                let h = conv(1, x, ConvLayer::out(channels).kernel(3).padding(1).stride(stride)).relu();
                conv(2, &h, ConvLayer::out(channels).kernel(3).padding(1))
            }
        };
        (h + net.at("downsample").project_like(x, wide, stride)).relu()
    }

    /// The logits of images.
    fn logits(&self, net: &Net, images: &Tensor) -> Tensor {
        let stem = ConvLayer::out(self.width).kernel(7).stride(2).padding(3);
        let x = conv_norm([net.at("conv1"), net.at("bn1")], images, stem, USUAL_NORM).relu();
        let mut x = x.max_pool(3, 2, 1);
        for (stage, &blocks) in self.blocks.iter().enumerate() {
            for block in 0..blocks {
                let net = net.at(format!("layer{}", stage + 1)).at(block);
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                x = self.block(&net, &x, self.width << stage, stride);
            }
        }
        net.at("fc").linear(&x.mean([1, 2]), self.classes)
    }
}

impl ZooConfig for ResnetConfig {
    fn preset(size: &str) -> Option<Self> {
        let (blocks, bottleneck, width) = match size {
            "nano" => (vec![1, 1], false, 16),
            "small" => (vec![2, 2, 2, 2], false, 64),
            "medium" => (vec![3, 4, 6, 3], true, 64),
            "large" => (vec![3, 4, 23, 3], true, 64),
            _ => return None,
        };
        let (image, classes) = if size == "nano" { (32, 4) } else { (224, 1000) };
        Some(ResnetConfig { blocks, bottleneck, groups: 1, group_width: 64, width, image, classes })
    }

    fn check(&self) -> Result<(), ModelError> {
        let check = Check("resnet");
        check.positive(&[("stages", self.blocks.len()), ("groups", self.groups), ("width", self.width)])?;
        check.positive(&[("group_width", self.group_width), ("image", self.image)])?;
        check.at_least(("classes", self.classes), 2)?;
        check
            .layers(self.blocks.iter().fold(self.blocks.len(), |sum, &blocks| sum.saturating_add(blocks)))?;
        self.blocks.iter().try_for_each(|&blocks| check.positive(&[("blocks", blocks)]))?;
        let widest = self.width.saturating_mul(1 << self.blocks.len().min(40));
        check.bounded(&[("width", widest), ("width", widest), ("group_width", self.group_width)])?;
        check.bounded(&[("width", self.width), ("image", self.image), ("image", self.image)])?;
        check.bounded(&[("width", widest), ("classes", self.classes)])
    }

    fn loss(&self, net: &Net) -> Tensor {
        classify(net, self.image, |images| self.logits(net, images))
    }

    fn samples(&self, samples: &mut Samples) -> Vec<(String, SampleData)> {
        samples.stripes(self.image, self.classes)
    }
}
