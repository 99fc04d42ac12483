//! ConvNeXt: depthwise convolutions between linear layers, normalized like a transformer. Parameter names are those of
//! torchvision. Blocks are not dropped at random.

use phalanx_nn::{ConvLayer, Init, Net, Tensor};
use serde::{Deserialize, Serialize};

use super::images::classify;
use super::{SampleData, Samples, ZooConfig};
use crate::ModelError;
use crate::check::Check;

/// The sizes of a ConvNeXt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvnextConfig {
    /// Blocks of each stage.
    pub blocks: Vec<usize>,
    /// Channels of the first stage; each stage has twice those of the one before.
    pub width: usize,
    /// Height and width of a patch, the first convolution's kernel.
    pub patch: usize,
    /// Height and width of an image with three channels, the innermost dimension.
    pub image: usize,
    /// Kinds of images.
    pub classes: usize,
    /// What the scale of each block starts at.
    pub layer_scale: f32,
}

/// torchvision's.
const EPS: f32 = 1e-6;

impl ConvnextConfig {
    fn block(&self, net: &Net, x: &Tensor) -> Tensor {
        let (width, block) = (x.last(), net.at("block"));
        let depthwise = ConvLayer::out(width).kernel(7).padding(3).groups(width);
        let h = block.at(2).layer_norm_with(&block.at(0).conv2d(x, depthwise), EPS);
        let h = block.at(5).linear(&block.at(3).linear(&h, 4 * width).gelu(), width);
        // One number for each channel, shaped as PyTorch stores it.
        let scale = net.param("layer_scale", [width, 1, 1], Init::Constant(self.layer_scale));
        x + h * scale.reshape([width])
    }

    fn logits(&self, net: &Net, images: &Tensor) -> Tensor {
        let (features, classifier) = (net.at("features"), net.at("classifier"));
        let patches = ConvLayer::out(self.width).kernel(self.patch).stride(self.patch);
        let mut x = features.at("0.1").layer_norm_with(&features.at("0.0").conv2d(images, patches), EPS);
        for (stage, &blocks) in self.blocks.iter().enumerate() {
            if stage > 0 {
                let narrow = features.at(2 * stage);
                let halves = ConvLayer::out(self.width << stage).kernel(2).stride(2);
                x = narrow.at(1).conv2d(&narrow.at(0).layer_norm_with(&x, EPS), halves);
            }
            for block in 0..blocks {
                x = self.block(&features.at(2 * stage + 1).at(block), &x);
            }
        }
        let x = classifier.at(0).layer_norm_with(&x.mean([1, 2]), EPS);
        classifier.at(2).linear(&x, self.classes)
    }
}

impl ZooConfig for ConvnextConfig {
    fn preset(size: &str) -> Option<Self> {
        let (blocks, width) = match size {
            "nano" => (vec![1, 1], 16),
            "small" => (vec![3, 3, 9, 3], 96),
            "medium" => (vec![3, 3, 27, 3], 96),
            "large" => (vec![3, 3, 27, 3], 192),
            _ => return None,
        };
        let (image, classes, layer_scale) = if size == "nano" { (16, 4, 1.0) } else { (224, 1000, 1e-6) };
        Some(ConvnextConfig { blocks, width, patch: 4, image, classes, layer_scale })
    }

    fn check(&self) -> Result<(), ModelError> {
        let check = Check("convnext");
        check.positive(&[("stages", self.blocks.len()), ("width", self.width), ("patch", self.patch)])?;
        check.at_least(("classes", self.classes), 2)?;
        let all = self.blocks.iter().fold(self.blocks.len(), |sum, &blocks| sum.saturating_add(blocks));
        check.layers(all)?;
        self.blocks.iter().try_for_each(|&blocks| check.positive(&[("blocks", blocks)]))?;
        let halvings = self.blocks.len().min(40) - 1;
        check.at_least(("image", self.image), self.patch.saturating_mul(1 << halvings))?;
        let widest = self.width.saturating_mul(1 << halvings);
        check.bounded(&[("width", widest), ("width", widest), ("hidden", 4)])?;
        check.bounded(&[("width", self.width), ("patch", self.patch), ("patch", self.patch)])?;
        check.bounded(&[("width", self.width), ("image", self.image), ("image", self.image)])?;
        check.bounded(&[("width", widest), ("classes", self.classes)])?;
        check.above_zero("layer_scale", self.layer_scale)
    }

    fn loss(&self, net: &Net) -> Tensor {
        let net = &net.init(Init::Normal(0.02));
        classify(net, self.image, |images| self.logits(net, images))
    }

    fn samples(&self, samples: &mut Samples) -> Vec<(String, SampleData)> {
        samples.stripes(self.image, self.classes)
    }
}
