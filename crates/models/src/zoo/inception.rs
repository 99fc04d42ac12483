//! Inception-v3: blocks of several convolutions side by side. Parameter names are those of torchvision.
//!
//! The channels of all convolutions are those of the published model times `width` / 32.

use phalanx_nn::{ConvLayer, F32, I64, Net, Tensor};
use serde::{Deserialize, Serialize};

use super::images::{ImageNorm, conv_norm};
use super::{SampleData, Samples, ZooConfig};
use crate::ModelError;
use crate::check::Check;

/// The sizes of an Inception-v3.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InceptionConfig {
    /// Channels of the first convolution, an even number.
    pub width: usize,
    /// Blocks of each of the three stages: 3, 4 and 2 in the published model, at most that many.
    pub blocks: [usize; 3],
    /// The share of the loss of a second classifier behind the middle stage; it needs images of 299 positions. Without it
    /// there is none.
    pub auxiliary: Option<f32>,
    /// Height and width of an image with three channels, the innermost dimension; 75 at least.
    pub image: usize,
    /// Kinds of images.
    pub classes: usize,
    /// Probability of zeroing an input of the last layer, in training.
    pub dropout: f32,
}

/// torchvision's.
const NORM: ImageNorm = ImageNorm { eps: 1e-3, momentum: 0.1 };
/// Images below it leave nothing for the last stage.
const SMALLEST: usize = 75;
/// Images below it leave nothing for the second classifier.
const SMALLEST_WITH_AUXILIARY: usize = 299;

/// Channels of the published model, as those of a narrower one.
#[derive(Clone, Copy)]
struct Narrow(usize);

impl Narrow {
    fn of(self, channels: usize) -> usize {
        (channels * self.0).div_ceil(32)
    }

    /// A convolution of `height` x `width` that keeps the extents, with a norm and ReLU.
    fn conv(self, net: Net, x: &Tensor, channels: usize, [height, width]: [usize; 2]) -> Tensor {
        let layer = ConvLayer::out(channels).kernel_sides([height, width]);
        self.conv_with(net, x, layer.padding_sides([height / 2, width / 2]))
    }

    /// The same with any window; its channels are those of the published model.
    fn conv_with(self, net: Net, x: &Tensor, layer: ConvLayer) -> Tensor {
        let layer = layer.with_channels(|channels| self.of(channels));
        conv_norm([net.at("conv"), net.at("bn")], x, layer, NORM).relu()
    }

    /// Convolutions one behind the other; each has a name, channels and a kernel.
    fn chain(self, net: &Net, x: &Tensor, convs: &[(&str, usize, [usize; 2])]) -> Tensor {
        convs
            .iter()
            .fold(x.clone(), |x, &(name, channels, kernel)| self.conv(net.at(name), &x, channels, kernel))
    }

    fn first_stage(self, net: &Net, x: &Tensor, pooled: usize) -> Tensor {
        let one = self.chain(net, x, &[("branch1x1", 64, [1, 1])]);
        let five = self.chain(net, x, &[("branch5x5_1", 48, [1, 1]), ("branch5x5_2", 64, [5, 5])]);
        let threes =
            [("branch3x3dbl_1", 64, [1, 1]), ("branch3x3dbl_2", 96, [3, 3]), ("branch3x3dbl_3", 96, [3, 3])];
        let three = self.chain(net, x, &threes);
        let pool = self.chain(net, &x.avg_pool(3, 1, 1), &[("branch_pool", pooled, [1, 1])]);
        Tensor::concat([&one, &five, &three, &pool], 3)
    }

    fn first_narrowing(self, net: &Net, x: &Tensor) -> Tensor {
        let strided = |channels: usize| ConvLayer::out(channels).kernel(3).stride(2);
        let three = self.conv_with(net.at("branch3x3"), x, strided(384));
        let twice = self.chain(net, x, &[("branch3x3dbl_1", 64, [1, 1]), ("branch3x3dbl_2", 96, [3, 3])]);
        let twice = self.conv_with(net.at("branch3x3dbl_3"), &twice, strided(96));
        Tensor::concat([&three, &twice, &x.max_pool(3, 2, 0)], 3)
    }

    fn middle_stage(self, net: &Net, x: &Tensor, inner: usize) -> Tensor {
        let (row, column) = ([1, 7], [7, 1]);
        let one = self.chain(net, x, &[("branch1x1", 192, [1, 1])]);
        let sevens =
            [("branch7x7_1", inner, [1, 1]), ("branch7x7_2", inner, row), ("branch7x7_3", 192, column)];
        let seven = self.chain(net, x, &sevens);
        let doubled = [
            ("branch7x7dbl_1", inner, [1, 1]),
            ("branch7x7dbl_2", inner, column),
            ("branch7x7dbl_3", inner, row),
            ("branch7x7dbl_4", inner, column),
            ("branch7x7dbl_5", 192, row),
        ];
        let double = self.chain(net, x, &doubled);
        let pool = self.chain(net, &x.avg_pool(3, 1, 1), &[("branch_pool", 192, [1, 1])]);
        Tensor::concat([&one, &seven, &double, &pool], 3)
    }

    fn second_narrowing(self, net: &Net, x: &Tensor) -> Tensor {
        let strided = |channels: usize| ConvLayer::out(channels).kernel(3).stride(2);
        let three = self.chain(net, x, &[("branch3x3_1", 192, [1, 1])]);
        let three = self.conv_with(net.at("branch3x3_2"), &three, strided(320));
        let sevens =
            [("branch7x7x3_1", 192, [1, 1]), ("branch7x7x3_2", 192, [1, 7]), ("branch7x7x3_3", 192, [7, 1])];
        let seven = self.chain(net, x, &sevens);
        let seven = self.conv_with(net.at("branch7x7x3_4"), &seven, strided(192));
        Tensor::concat([&three, &seven, &x.max_pool(3, 2, 0)], 3)
    }

    fn last_stage(self, net: &Net, x: &Tensor) -> Tensor {
        let fork = |name: &str, x: &Tensor| {
            let [a, b] = [("a", [1, 3]), ("b", [3, 1])]
                .map(|(end, kernel)| self.conv(net.at(format!("{name}{end}")), x, 384, kernel));
            Tensor::concat([&a, &b], 3)
        };
        let one = self.chain(net, x, &[("branch1x1", 320, [1, 1])]);
        let three = fork("branch3x3_2", &self.chain(net, x, &[("branch3x3_1", 384, [1, 1])]));
        let twice = self.chain(net, x, &[("branch3x3dbl_1", 448, [1, 1]), ("branch3x3dbl_2", 384, [3, 3])]);
        let twice = fork("branch3x3dbl_3", &twice);
        let pool = self.chain(net, &x.avg_pool(3, 1, 1), &[("branch_pool", 192, [1, 1])]);
        Tensor::concat([&one, &three, &twice, &pool], 3)
    }
}

impl InceptionConfig {
    fn stem(&self, narrow: Narrow, net: &Net, images: &Tensor) -> Tensor {
        let plain = |name: &str, x: &Tensor, channels: usize, stride: usize| {
            narrow.conv_with(net.at(name), x, ConvLayer::out(channels).kernel(3).stride(stride))
        };
        let x = plain("Conv2d_1a_3x3", images, 32, 2);
        let x = plain("Conv2d_2a_3x3", &x, 32, 1);
        let x = narrow.conv(net.at("Conv2d_2b_3x3"), &x, 64, [3, 3]).max_pool(3, 2, 0);
        let x = narrow.conv(net.at("Conv2d_3b_1x1"), &x, 80, [1, 1]);
        plain("Conv2d_4a_3x3", &x, 192, 1).max_pool(3, 2, 0)
    }

    /// The logits, and those of the second classifier.
    fn logits(&self, net: &Net, images: &Tensor) -> (Tensor, Option<Tensor>) {
        let narrow = Narrow(self.width);
        let [first, middle, last] = self.blocks;
        let mut x = self.stem(narrow, net, images);
        for (name, pooled) in [("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)].into_iter().take(first) {
            x = narrow.first_stage(&net.at(name), &x, pooled);
        }
        x = narrow.first_narrowing(&net.at("Mixed_6a"), &x);
        let inner = [("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)];
        for (name, inner) in inner.into_iter().take(middle) {
            x = narrow.middle_stage(&net.at(name), &x, inner);
        }
        let second = (self.auxiliary.is_some() && net.training())
            .then(|| self.second_logits(narrow, &net.at("AuxLogits"), &x));
        x = narrow.second_narrowing(&net.at("Mixed_7a"), &x);
        for name in ["Mixed_7b", "Mixed_7c"].into_iter().take(last) {
            x = narrow.last_stage(&net.at(name), &x);
        }
        let x = net.at("dropout").dropout(self.dropout, x.mean([1, 2]));
        (net.at("fc").linear(&x, self.classes), second)
    }

    fn second_logits(&self, narrow: Narrow, net: &Net, x: &Tensor) -> Tensor {
        let x = narrow.conv(net.at("conv0"), &x.avg_pool(5, 3, 0), 128, [1, 1]);
        let x = narrow.conv_with(net.at("conv1"), &x, ConvLayer::out(768).kernel(5));
        net.at("fc").linear(&x.mean([1, 2]), self.classes)
    }
}

impl ZooConfig for InceptionConfig {
    fn preset(size: &str) -> Option<Self> {
        Some(match size {
            "nano" => InceptionConfig {
                width: 4,
                blocks: [1, 1, 1],
                auxiliary: None,
                image: SMALLEST,
                classes: 4,
                dropout: 0.0,
            },
            "small" => InceptionConfig {
                width: 32,
                blocks: [3, 4, 2],
                auxiliary: Some(0.4),
                image: SMALLEST_WITH_AUXILIARY,
                classes: 1000,
                dropout: 0.5,
            },
            _ => return None,
        })
    }

    fn check(&self) -> Result<(), ModelError> {
        let check = Check("inception");
        check.positive(&[("width", self.width)])?;
        check.parity(("width", self.width), true)?;
        check.at_least(("classes", self.classes), 2)?;
        let most = ["first", "middle", "last"].into_iter().zip(self.blocks).zip([3, 4, 2]);
        for ((stage, blocks), most) in most {
            check.positive(&[(stage, blocks)])?;
            check.at_most((stage, blocks), most)?;
        }
        let least = if self.auxiliary.is_some() { SMALLEST_WITH_AUXILIARY } else { SMALLEST };
        check.at_least(("image", self.image), least)?;
        self.auxiliary.map_or(Ok(()), |share| check.above_zero("auxiliary", share))?;
        check.bounded(&[("width", self.width), ("width", self.width), ("channels", 64 * 64 * 9)])?;
        check.bounded(&[("width", self.width), ("image", self.image), ("image", self.image)])?;
        check.bounded(&[("width", self.width), ("channels", 64), ("classes", self.classes)])?;
        check.rate("dropout", self.dropout)
    }

    fn loss(&self, net: &Net) -> Tensor {
        let images = net.input("images", F32, [net.batch(), self.image, self.image, 3]);
        let labels = net.input("labels", I64, [net.batch()]);
        let (logits, second) = self.logits(net, &images);
        net.metric("accuracy", &logits.is_top(&labels).mean_all());
        let loss = logits.cross_entropy(&labels);
        match second.zip(self.auxiliary) {
            Some((second, share)) => loss + second.cross_entropy(&labels) * share,
            None => loss,
        }
    }

    fn samples(&self, samples: &mut Samples) -> Vec<(String, SampleData)> {
        samples.stripes(self.image, self.classes)
    }
}
