//! U-Net: tells for each position of an image what it is part of. Parameter names are those of the widely used
//! `milesial/Pytorch-UNet` with transposed convolutions.

use phalanx_nn::{ConvLayer, F32, I64, Net, Tensor};
use serde::{Deserialize, Serialize};

use super::images::{USUAL_NORM, conv_norm};
use super::{SampleData, Samples, ZooConfig};
use crate::ModelError;
use crate::check::Check;

/// The sizes of a U-Net.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnetConfig {
    /// How often the image is halved.
    pub layers: usize,
    /// Channels before it is halved; each half has twice as many.
    pub width: usize,
    /// Height and width of an image with three channels, the innermost dimension; halved `layers` times without rest.
    pub image: usize,
    /// Kinds of positions.
    pub classes: usize,
}

/// Two convolutions, each with a norm and ReLU.
fn twice(net: &Net, x: &Tensor, channels: usize) -> Tensor {
    let net = net.at("double_conv");
    let layer = ConvLayer::out(channels).kernel(3).padding(1);
    [0, 3].iter().fold(x.clone(), |x, &place| {
        conv_norm([net.at(place), net.at(place + 1)], &x, layer, USUAL_NORM).relu()
    })
}

impl UnetConfig {
    fn logits(&self, net: &Net, images: &Tensor) -> Tensor {
        let mut x = twice(&net.at("inc"), images, self.width);
        let mut passed = Vec::new();
        for level in 1..=self.layers {
            passed.push(x.clone());
            let down = net.at(format!("down{level}")).at("maxpool_conv.1");
            x = twice(&down, &x.max_pool(2, 2, 0), self.width << level);
        }
        for (level, other) in passed.iter().rev().enumerate() {
            let (up, channels) = (net.at(format!("up{}", level + 1)), x.last() / 2);
            x = up.at("up").conv2d_transposed(&x, ConvLayer::out(channels).kernel(2).stride(2));
            x = twice(&up.at("conv"), &Tensor::concat([other, &x], 3), channels);
        }
        net.at("outc.conv").conv2d(&x, ConvLayer::out(self.classes))
    }
}

impl ZooConfig for UnetConfig {
    fn preset(size: &str) -> Option<Self> {
        Some(match size {
            "nano" => UnetConfig { layers: 2, width: 8, image: 16, classes: 3 },
            "small" => UnetConfig { layers: 4, width: 64, image: 256, classes: 2 },
            _ => return None,
        })
    }

    fn check(&self) -> Result<(), ModelError> {
        let check = Check("unet");
        check.positive(&[("layers", self.layers), ("width", self.width), ("image", self.image)])?;
        check.at_least(("classes", self.classes), 2)?;
        check.at_most(("layers", self.layers), 40)?;
        check.divides(("2 to the power of layers", 1 << self.layers), ("image", self.image))?;
        let widest = self.width.saturating_mul(1 << self.layers);
        check.bounded(&[("width", widest), ("width", widest), ("kernel", 9)])?;
        check.bounded(&[("width", self.width), ("image", self.image), ("image", self.image)])?;
        check.bounded(&[("classes", self.classes), ("image", self.image), ("image", self.image)])?;
        check.bounded(&[("classes", self.classes), ("width", self.width)])
    }

    fn loss(&self, net: &Net) -> Tensor {
        let (batch, side) = (net.batch(), self.image);
        let images = net.input("images", F32, [batch, side, side, 3]);
        let labels = net.input("labels", I64, [batch, side, side]);
        let logits = self.logits(net, &images);
        net.metric("accuracy", &logits.is_top(&labels).mean_all());
        logits.cross_entropy(&labels)
    }

    /// A rectangle with stripes of a class before a background of noise, which is class 0.
    fn samples(&self, samples: &mut Samples) -> Vec<(String, SampleData)> {
        let (side, half) = (self.image, self.image.div_ceil(2));
        let (mut images, mut labels) = (Vec::new(), Vec::new());
        for _ in 0..samples.batch {
            let class = 1 + samples.below(self.classes - 1);
            let [top, left, height, width] = [half; 4].map(|most| samples.below(most));
            for place in 0..side * side {
                let (row, column) = (place / side, place % side);
                let inside = (top..=top + height).contains(&row) && (left..=left + width).contains(&column);
                let stripe = [row, column, row + column][class % 3] / (1 + class / 3) % 2;
                let light = if inside { stripe as f32 - 0.5 } else { 0.0 };
                labels.push(if inside { class as i64 } else { 0 });
                images.extend([light, -light, 0.2 * samples.signed()]);
            }
        }
        vec![("images".into(), SampleData::F32(images)), ("labels".into(), SampleData::I64(labels))]
    }
}
