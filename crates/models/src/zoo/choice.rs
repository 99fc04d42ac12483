//! A model of the zoo among other models: its name and its sizes.

use phalanx_ir::Op;
use phalanx_ir::graph::Graph;
use phalanx_nn::build_evaluation;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ZooEntry, ZooModel, training_graph};
use crate::ModelError;

/// A model of the zoo by its name, with sizes that it has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ZooText")]
pub struct ZooChoice {
    name: String,
    sizes: Value,
}

/// What is read before it is known to be a model.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ZooText {
    name: String,
    sizes: Value,
}

impl TryFrom<ZooText> for ZooChoice {
    type Error = String;

    fn try_from(ZooText { name, sizes }: ZooText) -> Result<Self, String> {
        let Some(entry) = ZooEntry::find(&name) else {
            return Err(format!("`{name}` is no model of the zoo"));
        };
        let model = entry.read(sizes).map_err(|error| format!("{name}: {error}"))?;
        Ok(ZooChoice::new(entry, &*model))
    }
}

impl ZooChoice {
    /// A model of an entry.
    pub fn new(entry: &ZooEntry, model: &dyn ZooModel) -> ZooChoice {
        ZooChoice { name: entry.name.to_string(), sizes: model.sizes() }
    }

    /// What it is called.
    pub fn name(&self) -> &'static str {
        ZooEntry::find(&self.name).map_or("", |entry| entry.name)
    }

    /// Its sizes by name.
    pub fn sizes(&self) -> &Value {
        &self.sizes
    }

    /// The model.
    ///
    /// # Panics
    /// Never: sizes were read before, or are those of a model.
    pub fn model(&self) -> Box<dyn ZooModel> {
        let entry = ZooEntry::find(&self.name).expect("a choice has the name of an entry");
        entry.read(self.sizes.clone()).expect("a choice has sizes of its entry")
    }

    /// The training graph for a batch.
    pub fn training_graph(&self, batch: usize) -> Result<Graph, ModelError> {
        training_graph(&self.name, &*self.model(), batch)
    }

    /// The graph for a batch without training: its outputs are the loss and the metrics.
    pub fn evaluation_graph(&self, batch: usize) -> Result<Graph, ModelError> {
        let model = self.model();
        model.check()?;
        Ok(build_evaluation(&self.name, batch, |net| model.loss(net))?.graph)
    }

    /// How many numbers are trained.
    pub fn parameters(&self) -> u64 {
        let Ok(graph) = self.training_graph(2) else { return 0 };
        let params = graph.leaves(|op| matches!(op, Op::Param(_)));
        params.map(|param| graph.ty(param).shape.elements() as u64).sum()
    }
}
