//! Models beside the language models: each is one file, a configuration that builds its loss and makes data to learn from,
//! and one row of [`ZOO`].

mod bert;
mod candle_uno;
mod dlrm;
mod lstm;
mod resnet;
mod sample;
mod vit;
mod xdl;

use std::fmt;

use phalanx_ir::graph::Graph;
use phalanx_nn::{Net, Tensor, build_training};
use phalanx_ops::Attention;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::ModelError;
pub use bert::BertConfig;
pub use candle_uno::CandleUnoConfig;
pub use dlrm::DlrmConfig;
pub use lstm::LstmConfig;
pub use resnet::ResnetConfig;
pub use sample::{SampleData, Samples};
pub use vit::VitConfig;
pub use xdl::XdlConfig;

/// All models of the zoo.
pub static ZOO: &[ZooEntry] = &[
    ZooEntry::of::<BertConfig>("bert", "fills in masked tokens"),
    ZooEntry::of::<CandleUnoConfig>("candle-uno", "predicts how tumor cells respond to drugs"),
    ZooEntry::of::<DlrmConfig>("dlrm", "predicts clicks from numbers and categories"),
    ZooEntry::of::<LstmConfig>("lstm", "continues sequences, step by step"),
    ZooEntry::of::<ResnetConfig>("resnet", "classifies images by convolutions"),
    ZooEntry::of::<VitConfig>("vit", "classifies images cut into patches"),
    ZooEntry::of::<XdlConfig>("xdl", "predicts clicks from categories"),
];

/// The configuration of a model of the zoo.
pub trait ZooConfig: fmt::Debug + Serialize + DeserializeOwned + 'static {
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
    preset: fn(&str) -> Option<Box<dyn ZooModel>>,
    read: fn(Value) -> Result<Box<dyn ZooModel>, serde_json::Error>,
}

impl ZooEntry {
    const fn of<C: ZooConfig>(name: &'static str, about: &'static str) -> ZooEntry {
        ZooEntry {
            name,
            about,
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

/// Attention of every position to every other one, with the projections of transformers' encoders; without the output's.
fn encoder_attention(net: &Net, x: &Tensor, heads: usize) -> Tensor {
    let (width, dim) = (x.last(), x.last() / heads);
    let [q, k, v] = ["query", "key", "value"].map(|name| net.at(name).linear(x, width).split_heads(dim));
    let attention = Attention::new(false, 1.0 / (dim as f32).sqrt());
    net.at("heads").apply(attention, &[&q, &k, &v]).merge_heads()
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
