//! AlexNet: five convolutions and three large linear layers. Parameter names are those of torchvision.

use phalanx_nn::{ConvLayer, Net, Tensor};
use serde::{Deserialize, Serialize};

use super::images::{classify, flatten_channels_first};
use super::{SampleData, Samples, ZooConfig};
use crate::ModelError;
use crate::check::Check;

/// The sizes of an AlexNet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlexnetConfig {
    /// Channels of the first convolution; the others have 3, 6, 4 and 4 times as many.
    pub width: usize,
    /// Features of the two hidden linear layers.
    pub hidden: usize,
    /// Height and width of an image with three channels, the innermost dimension; 63 at least.
    pub image: usize,
    /// Kinds of images.
    pub classes: usize,
    /// Probability of zeroing an input of the hidden linear layers, in training.
    pub dropout: f32,
}

/// Images below it leave nothing behind the last pool.
const SMALLEST: usize = 63;

impl AlexnetConfig {
    fn features(&self, net: &Net, images: &Tensor) -> Tensor {
        let conv = |place: usize, x: &Tensor, wide: usize, layer: fn(ConvLayer) -> ConvLayer| {
            net.at(place).conv2d(x, layer(ConvLayer::out(wide * self.width))).relu()
        };
        let x = conv(0, images, 1, |layer| layer.kernel(11).stride(4).padding(2)).max_pool(3, 2, 0);
        let x = conv(3, &x, 3, |layer| layer.kernel(5).padding(2)).max_pool(3, 2, 0);
        let x = [(6, 6), (8, 4), (10, 4)]
            .iter()
            .fold(x, |x, &(place, wide)| conv(place, &x, wide, |layer| layer.kernel(3).padding(1)));
        x.max_pool(3, 2, 0)
    }

    fn logits(&self, net: &Net, images: &Tensor) -> Tensor {
        let classifier = net.at("classifier");
        let mut x = flatten_channels_first(&self.features(&net.at("features"), images));
        for place in [0, 3] {
            x = classifier.at(place).dropout(self.dropout, x);
            x = classifier.at(place + 1).linear(&x, self.hidden).relu();
        }
        classifier.at(6).linear(&x, self.classes)
    }
}

impl ZooConfig for AlexnetConfig {
    fn preset(size: &str) -> Option<Self> {
        Some(match size {
            "nano" => AlexnetConfig { width: 8, hidden: 64, image: 64, classes: 4, dropout: 0.0 },
            "small" => AlexnetConfig { width: 64, hidden: 4096, image: 224, classes: 1000, dropout: 0.5 },
            _ => return None,
        })
    }

    fn check(&self) -> Result<(), ModelError> {
        let check = Check("alexnet");
        check.positive(&[("width", self.width), ("hidden", self.hidden)])?;
        check.at_least(("image", self.image), SMALLEST)?;
        check.at_least(("classes", self.classes), 2)?;
        check.bounded(&[("width", self.width), ("width", self.width), ("kernel", 216)])?;
        check.bounded(&[("width", self.width), ("image", self.image), ("image", self.image)])?;
        check.bounded(&[
            ("width", self.width),
            ("image", self.image),
            ("image", self.image),
            ("hidden", self.hidden),
        ])?;
        check.bounded(&[("hidden", self.hidden), ("hidden", self.hidden)])?;
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
