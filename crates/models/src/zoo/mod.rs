//! Models beside the language models: each is one file, a configuration that builds its loss and makes data to learn from,
//! and one row of [`ZOO`].

mod alexnet;
mod bert;
mod candle_uno;
mod choice;
mod convnext;
mod dlrm;
mod encoder;
mod images;
mod inception;
mod lstm;
mod mobilenet;
mod resnet;
mod roberta;
mod sample;
mod t5;
mod transformers;
mod unet;
mod vit;
mod xdl;

use std::fmt;

use phalanx_ir::graph::Graph;
use phalanx_nn::{Net, Tensor, build_training};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::ModelError;
pub use alexnet::AlexnetConfig;
pub use bert::BertConfig;
pub use candle_uno::CandleUnoConfig;
pub use choice::ZooChoice;
pub use convnext::ConvnextConfig;
pub use dlrm::DlrmConfig;
pub use inception::InceptionConfig;
pub use lstm::LstmConfig;
pub use mobilenet::{MobileBlock, MobilenetConfig};
pub use resnet::ResnetConfig;
pub use roberta::RobertaConfig;
pub use sample::{SampleData, Samples};
pub use t5::T5Config;
pub use transformers::{FormProblem, TransformersForm};
pub use unet::UnetConfig;
pub use vit::VitConfig;
pub use xdl::XdlConfig;

/// All models of the zoo.
pub static ZOO: &[ZooEntry] = &[
    ZooEntry::of::<AlexnetConfig>("alexnet", "classifies images by five convolutions"),
    ZooEntry::of::<BertConfig>("bert", "fills in masked tokens"),
    ZooEntry::of::<CandleUnoConfig>("candle-uno", "predicts how tumor cells respond to drugs"),
    ZooEntry::of::<ConvnextConfig>("convnext", "classifies images by depthwise convolutions"),
    ZooEntry::of::<DlrmConfig>("dlrm", "predicts clicks from numbers and categories"),
    ZooEntry::of::<InceptionConfig>("inception", "classifies images by convolutions side by side"),
    ZooEntry::of::<LstmConfig>("lstm", "continues sequences, step by step"),
    ZooEntry::of::<MobilenetConfig>("mobilenet", "classifies images with few operations"),
    ZooEntry::of::<ResnetConfig>("resnet", "classifies images by convolutions"),
    ZooEntry {
        preset: |size| Some(Box::new(ResnetConfig::grouped(size)?)),
        ..ZooEntry::of::<ResnetConfig>("resnext", "classifies images by convolutions in groups")
    },
    ZooEntry::of::<RobertaConfig>("roberta", "fills in masked tokens"),
    ZooEntry::of::<T5Config>("t5", "answers texts"),
    ZooEntry::of::<UnetConfig>("unet", "tells what each position of an image is part of"),
    ZooEntry::of::<VitConfig>("vit", "classifies images cut into patches"),
    ZooEntry::of::<XdlConfig>("xdl", "predicts clicks from categories"),
];

/// The configuration of a model of the zoo.
pub trait ZooConfig: fmt::Debug + Serialize + DeserializeOwned + 'static {
    /// How transformers describes it, if it does.
    const TRANSFORMERS: Option<TransformersForm> = None;

    /// The model of a size, if there is one: `nano` learns its data in a minute.
    fn preset(size: &str) -> Option<Self>;

    /// Checks the sizes.
    fn check(&self) -> Result<(), ModelError>;

    /// Builds the model and its inputs; the loss.
    fn loss(&self, net: &Net) -> Tensor;

    /// Values for all inputs, which depend on the seed and the step alone.
    fn samples(&self, samples: &mut Samples) -> Vec<(String, SampleData)>;
}

/// A model of the zoo, of whatever kind.
pub trait ZooModel: fmt::Debug {
    /// Builds the model and its inputs for training or evaluation; the loss.
    fn loss(&self, net: &Net) -> Tensor;

    /// Checks the sizes.
    fn check(&self) -> Result<(), ModelError>;

    /// Values for all inputs of a step.
    fn samples(&self, seed: u64, step: u64, batch: usize) -> Vec<(String, SampleData)>;

    /// Its sizes by name.
    fn sizes(&self) -> Value;
}

impl<C: ZooConfig> ZooModel for C {
    fn loss(&self, net: &Net) -> Tensor {
        ZooConfig::loss(self, net)
    }

    fn check(&self) -> Result<(), ModelError> {
        ZooConfig::check(self)
    }

    fn samples(&self, seed: u64, step: u64, batch: usize) -> Vec<(String, SampleData)> {
        ZooConfig::samples(self, &mut Samples::new(seed, step, batch))
    }

    fn sizes(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// A row of the zoo.
pub struct ZooEntry {
    /// What it is called.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// How transformers describes it, if it does.
    pub transformers: Option<TransformersForm>,
    preset: fn(&str) -> Option<Box<dyn ZooModel>>,
    read: fn(Value) -> Result<Box<dyn ZooModel>, serde_json::Error>,
}

impl ZooEntry {
    const fn of<C: ZooConfig>(name: &'static str, about: &'static str) -> ZooEntry {
        ZooEntry {
            name,
            about,
            transformers: C::TRANSFORMERS,
            preset: |size| Some(Box::new(C::preset(size)?)),
            read: |sizes| Ok(Box::new(serde_json::from_value::<C>(sizes)?)),
        }
    }

    /// The entry of this name.
    pub fn find(name: &str) -> Option<&'static ZooEntry> {
        ZOO.iter().find(|entry| entry.name == name)
    }

    /// The model of a size, if there is one.
    pub fn preset(&self, size: &str) -> Option<Box<dyn ZooModel>> {
        (self.preset)(size)
    }

    /// The model with sizes by name, as [`ZooModel::sizes`] has them.
    pub fn read(&self, sizes: Value) -> Result<Box<dyn ZooModel>, serde_json::Error> {
        (self.read)(sizes)
    }
}

impl fmt::Debug for ZooEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The training graph of a model of the zoo.
pub fn training_graph(name: &str, model: &dyn ZooModel, batch: usize) -> Result<Graph, ModelError> {
    model.check()?;
    Ok(build_training(name, batch, |net| model.loss(net))?.graph)
}

/// A stack of linear layers with ReLU between them, and behind the last one if `closed`; layer i is at `net.i`.
fn stack(net: &Net, x: &Tensor, widths: &[usize], closed: bool) -> Tensor {
    let mut x = x.clone();
    for (index, &width) in widths.iter().enumerate() {
        x = net.at(index).linear(&x, width);
        if closed || index + 1 < widths.len() {
            x = x.relu();
        }
    }
    x
}

#[cfg(test)]
mod tests;
