//! Where the graphs of a training come from: a function that builds them, or graphs from elsewhere.

use phalanx_import::{ImportedModel, WeightKind};
use phalanx_ir::Op;
use phalanx_ir::graph::Graph;
use phalanx_nn::{BuiltModel, Net, Tensor, build_evaluation, build_training};

use super::TrainingError;
use crate::Error;

/// A model that exists as graphs.
#[derive(Clone, Debug)]
pub struct ModelGraphs {
    /// A step; the first output is the loss.
    pub training: BuiltModel,
    /// The same model as it is without training, if it is known; the first output is the loss.
    pub evaluation: Option<BuiltModel>,
    /// The values of parameters and states before the first step, by name. Those that are absent have the values that the
    /// graph and the seed give them.
    pub initial: Vec<(String, Vec<f32>)>,
}

impl ModelGraphs {
    /// A model without an evaluation, and with weights from the seed.
    pub fn new(training: Graph) -> ModelGraphs {
        ModelGraphs { training: BuiltModel::of_graph(training), evaluation: None, initial: Vec::new() }
    }

    /// The samples of a step: the first extent of all inputs that have one, or of the first one if they differ.
    pub(super) fn batch(&self) -> Result<usize, TrainingError> {
        let graph = &self.training.graph;
        let inputs = graph.leaves(|op| *op == Op::Input).map(|input| graph.ty(input));
        let extent = inputs.filter_map(|ty| ty.shape.dims().first().copied()).next();
        extent.filter(|&batch| batch > 0).ok_or_else(|| TrainingError::NoBatch { model: graph.name().into() })
    }
}

impl From<&ImportedModel> for ModelGraphs {
    /// A graph file's model, with the weights it had when it was exported.
    fn from(model: &ImportedModel) -> Self {
        let built = |graph: &Graph| {
            let outputs = model.outputs.iter().filter(|name| graph.find(name).is_some());
            let outputs = outputs.map(|name| (name.clone(), name.clone())).collect();
            BuiltModel { outputs, ..BuiltModel::of_graph(graph.clone()) }
        };
        let kept = |kind| matches!(kind, WeightKind::Trained | WeightKind::State);
        let weights = model.weights.iter().filter(|weight| kept(weight.kind));
        let initial = weights.map(|weight| (weight.name.clone(), weight.floats().unwrap_or_default()));
        ModelGraphs {
            training: built(&model.train),
            evaluation: model.eval.as_ref().map(built),
            initial: initial.collect(),
        }
    }
}

/// What builds the graphs of a training.
pub(super) enum ModelSource<'a> {
    Function(Box<dyn Fn(&Net) -> Tensor + 'a>),
    Graphs(Box<ModelGraphs>),
}

impl ModelSource<'_> {
    /// The graph of a step.
    pub fn training(&self, name: &str, batch: usize) -> Result<BuiltModel, Error> {
        let graphs = match self {
            ModelSource::Function(model) => return Ok(build_training(name, batch, model)?),
            ModelSource::Graphs(graphs) => graphs,
        };
        let found = graphs.batch()?;
        match found == batch {
            true => Ok(graphs.training.clone()),
            false => Err(TrainingError::OtherBatch { found, wanted: batch }.into()),
        }
    }

    /// The graph for evaluation, which must have the parameters of training.
    pub fn evaluation(&self, name: &str, batch: usize, training: &Graph) -> Result<BuiltModel, Error> {
        let built = match self {
            ModelSource::Function(model) => build_evaluation(name, batch, model)?,
            ModelSource::Graphs(graphs) => {
                graphs.evaluation.clone().ok_or(TrainingError::NoEvaluation { name: name.into() })?
            }
        };
        check_parameters(&built.graph, training)?;
        Ok(built)
    }

    /// The values of parameters and states before the first step, where they do not come from the seed.
    pub fn take_initial(&mut self) -> Vec<(String, Vec<f32>)> {
        match self {
            ModelSource::Function(_) => Vec::new(),
            ModelSource::Graphs(graphs) => std::mem::take(&mut graphs.initial),
        }
    }
}

/// Checks that every parameter and state of an evaluation is one of the training.
fn check_parameters(evaluation: &Graph, training: &Graph) -> Result<(), TrainingError> {
    for param in evaluation.leaves(Op::is_weight) {
        let name = &evaluation.values()[param].name;
        let describe = |graph: &Graph| {
            graph.find(name).map_or_else(|| "absent".to_string(), |value| graph.ty(value).to_string())
        };
        let (training, evaluation) = (describe(training), describe(evaluation));
        if training != evaluation {
            return Err(TrainingError::OtherParameter { name: name.clone(), training, evaluation });
        }
    }
    Ok(())
}
