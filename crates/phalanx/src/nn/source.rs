//! Where the graphs of a training come from.

use std::rc::Rc;

use phalanx_import::{ImportedModel, WeightKind};
use phalanx_nn::{BuiltModel, Net, Tensor, build_training};

use super::training::evaluation_of;
use crate::{Error, Session};

/// Where the graphs of a training come from.
pub(super) enum ModelSource<'a> {
    /// A function that builds them.
    Function(Box<dyn Fn(&Net) -> Tensor + 'a>),
    /// A graph file.
    Imported(Rc<ImportedModel>),
}

impl ModelSource<'_> {
    /// The graph of a training step.
    pub(super) fn training(&self, name: &str, batch: usize) -> Result<BuiltModel, Error> {
        match self {
            ModelSource::Function(model) => Ok(build_training(name, batch, model)?),
            ModelSource::Imported(model) => Ok(built(model, model.train.clone())),
        }
    }

    /// The graph of an evaluation; that of training if a graph file has no other.
    pub(super) fn evaluation(
        &self,
        name: &str,
        batch: usize,
        training: &BuiltModel,
    ) -> Result<BuiltModel, Error> {
        match self {
            ModelSource::Function(model) => evaluation_of(name, batch, model, &training.graph),
            ModelSource::Imported(model) => {
                Ok(built(model, model.eval.clone().unwrap_or_else(|| model.train.clone())))
            }
        }
    }

    /// Sets the weights that a graph file brings.
    pub(super) fn set_weights(&self, session: &mut Session) -> Result<(), Error> {
        let ModelSource::Imported(model) = self else { return Ok(()) };
        let kept = |kind| matches!(kind, WeightKind::Trained | WeightKind::State);
        for weight in model.weights.iter().filter(|weight| kept(weight.kind)) {
            session.feed(&weight.name, &weight.floats().unwrap_or_default())?;
        }
        Ok(())
    }
}

/// A graph of a file with its readable outputs.
fn built(model: &ImportedModel, graph: phalanx_ir::graph::Graph) -> BuiltModel {
    let outputs = model.outputs.iter().filter(|name| graph.find(name).is_some());
    let outputs = outputs.map(|name| (name.clone(), name.clone())).collect();
    BuiltModel { graph, metrics: Vec::new(), outputs, frozen: Vec::new() }
}
