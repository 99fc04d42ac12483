//! A vision transformer: patches of an image as a sequence. Parameter names are those of published files for transformers'
//! `ViTForImageClassification`.

use phalanx_nn::{Activation, Init, Net, Tensor};
use phalanx_ops::Linear;
use serde::{Deserialize, Serialize};

use super::encoder::encoder_attention;
use super::images::classify;
use super::{SampleData, Samples, TransformersForm, ZooConfig};
use crate::ModelError;
use crate::check::Check;

/// The sizes of a vision transformer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VitConfig {
    /// Transformer blocks.
    pub layers: usize,
    /// Attention heads; they divide `width`.
    pub heads: usize,
    /// Features of the residual stream.
    pub width: usize,
    /// Features inside the feed-forward part.
    pub hidden: usize,
    /// Height and width of an image with three channels, the innermost dimension.
    pub image: usize,
    /// Height and width of a patch; it divides `image`.
    pub patch: usize,
    /// Kinds of images.
    pub classes: usize,
    /// Probability of zeroing an element, in training.
    pub dropout: f32,
}

impl VitConfig {
    /// The patches of images `[batch, height, width, 3]` as rows `[batch, patches, patch · patch · 3]`.
    fn patches(&self, images: &Tensor) -> Tensor {
        let (batch, side, patch) = (images.dims()[0], self.image / self.patch, self.patch);
        let cut = images.reshape([batch, side, patch, side, patch, 3]);
        cut.transpose([0, 1, 3, 2, 4, 5]).reshape([batch, side * side, patch * patch * 3])
    }

    /// The convolution of files, whose stride is its kernel, as one product of patches.
    fn embed(&self, net: &Net, images: &Tensor) -> Tensor {
        let (width, patch) = (self.width, self.patch);
        let weight = net.param("weight", [width, 3, patch, patch], Init::Normal(0.02));
        let bias = net.param("bias", [width], Init::Zeros);
        let matrix = weight.transpose([0, 2, 3, 1]).reshape([width, patch * patch * 3]);
        let linear = Linear { transposed: false, activation: Activation::None };
        net.apply(linear, &[&self.patches(images), &matrix, &bias])
    }

    fn block(&self, net: &Net, x: &Tensor) -> Tensor {
        let attention = net.at("attention");
        let normed = net.at("layernorm_before").layer_norm_with(x, 1e-12);
        let h = encoder_attention(&attention.at("attention"), &normed, self.heads);
        let h = attention.at("output.dense").linear(&h, self.width);
        let x = x + attention.at("output.dropout").dropout(self.dropout, h);
        let normed = net.at("layernorm_after").layer_norm_with(&x, 1e-12);
        let h = net.at("intermediate.dense").linear(&normed, self.hidden).gelu();
        let h = net.at("output.dense").linear(&h, self.width);
        x + net.at("output.dropout").dropout(self.dropout, h)
    }

    /// The logits of images.
    fn logits(&self, net: &Net, images: &Tensor) -> Tensor {
        let (vit, embeddings) = (net.at("vit"), net.at("vit.embeddings"));
        let x = self.embed(&embeddings.at("patch_embeddings.projection"), images);
        let class = embeddings.param("cls_token", [1, 1, self.width], Init::Normal(0.02));
        // A copy for each sample, cut like them.
        let class = x.slice(1, 0..1) * 0.0 + class;
        let x = Tensor::concat([&class, &x], 1);
        let places =
            embeddings.param("position_embeddings", [1, x.dims()[1], self.width], Init::Normal(0.02));
        let mut x = embeddings.at("dropout").dropout(self.dropout, x + places);
        for layer in 0..self.layers {
            x = self.block(&vit.at("encoder.layer").at(layer), &x);
        }
        let x = vit.at("layernorm").layer_norm_with(&x, 1e-12);
        let first = x.slice(1, 0..1).reshape([net.batch(), self.width]);
        net.at("classifier").linear(&first, self.classes)
    }
}

impl ZooConfig for VitConfig {
    const TRANSFORMERS: Option<TransformersForm> = Some(TransformersForm {
        model_type: "vit",
        architecture: "ViTForImageClassification",
        usual: "medium",
        labels: Some("classes"),
        sizes: &[
            ("layers", "num_hidden_layers", 0),
            ("heads", "num_attention_heads", 0),
            ("width", "hidden_size", 0),
            ("hidden", "intermediate_size", 0),
            ("image", "image_size", 0),
            ("patch", "patch_size", 0),
        ],
        fixed: &[
            ("hidden_act", "\"gelu\""),
            ("layer_norm_eps", "1e-12"),
            ("num_channels", "3"),
            ("qkv_bias", "true"),
        ],
    });

    fn preset(size: &str) -> Option<Self> {
        let (layers, heads, width, [image, patch], classes) = match size {
            "nano" => (2, 4, 64, [16, 4], 4),
            "small" => (12, 6, 384, [224, 16], 1000),
            "medium" => (12, 12, 768, [224, 16], 1000),
            "large" => (24, 16, 1024, [224, 16], 1000),
            _ => return None,
        };
        Some(VitConfig { layers, heads, width, hidden: 4 * width, image, patch, classes, dropout: 0.0 })
    }

    fn check(&self) -> Result<(), ModelError> {
        let check = Check("vit");
        check.positive(&[("layers", self.layers), ("heads", self.heads), ("width", self.width)])?;
        check.positive(&[("hidden", self.hidden), ("image", self.image), ("patch", self.patch)])?;
        check.at_least(("classes", self.classes), 2)?;
        check.layers(self.layers)?;
        check.bounded(&[("width", self.width), ("hidden", self.hidden), ("layers", self.layers)])?;
        check.bounded(&[("width", self.width), ("image", self.image), ("image", self.image)])?;
        check.bounded(&[("width", self.width), ("classes", self.classes)])?;
        check.divides(("heads", self.heads), ("width", self.width))?;
        check.divides(("patch", self.patch), ("image", self.image))?;
        check.rate("dropout", self.dropout)
    }

    fn loss(&self, net: &Net) -> Tensor {
        let net = &net.init(Init::Normal(0.02));
        classify(net, self.image, |images| self.logits(net, images))
    }

    fn samples(&self, samples: &mut Samples) -> Vec<(String, SampleData)> {
        samples.stripes(self.image, self.classes)
    }
}
