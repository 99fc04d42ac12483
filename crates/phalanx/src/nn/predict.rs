//! Inputs and outputs of runs, and other functions of trained parameters.

use phalanx_ir::Op;
use phalanx_ir::graph::Graph;
use phalanx_nn::{BuiltModel, Net, Tensor, build_evaluation};

use super::{Feeds, Metrics, TrainingError, TrainingRun};
use crate::{Error, Session};

impl TrainingRun<'_> {
    /// Another function of the trained parameters, such as the model without its loss, for `batch` samples: `model` makes
    /// parameters of the same names and returns what is to be computed.
    pub fn predictor(&mut self, batch: usize, model: impl Fn(&Net) -> Tensor) -> Result<Predictor, Error> {
        self.guarded(|run| {
            run.settle()?;
            let built = build_evaluation(&run.name, batch, model)?;
            let mut session = run.compile(&built.graph)?;
            session.copy_weights(run.trainer.session_mut())?;
            let output = built.graph.values()[built.graph.outputs()[0]].name.clone();
            Ok(Predictor { built, session, output })
        })
    }
}

/// Computes another function of trained parameters.
pub struct Predictor {
    built: BuiltModel,
    session: Session,
    output: String,
}

impl Predictor {
    /// What the function returns for these inputs. In a job all ranks call it together.
    pub fn run(&mut self, feeds: impl Feeds) -> Result<Vec<f32>, Error> {
        feed_inputs(&mut self.session, &self.built.graph, &feeds)?;
        self.session.check_fed()?;
        self.session.run()?;
        Ok(self.session.read(&self.output)?.into_owned())
    }
}

/// Feeds inputs; a name that no input has is an error that names those there are.
pub(super) fn feed_inputs(session: &mut Session, graph: &Graph, feeds: &dyn Feeds) -> Result<(), Error> {
    feeds.each(&mut |name, values| {
        let is_input = |name: &str| graph.find(name).is_some_and(|value| *graph.op_of(value) == Op::Input);
        if is_input(name) {
            return session.feed(name, values);
        }
        let inputs = graph.leaves(|op| *op == Op::Input);
        let inputs = inputs.map(|input| format!("`{}`, {}", graph.values()[input].name, graph.ty(input)));
        let inputs = format!("it has {}", inputs.collect::<Vec<_>>().join(" and "));
        Err(TrainingError::NoInput { name: name.into(), inputs }.into())
    })
}

/// The loss and the metrics of the last run.
pub(super) fn read_metrics(session: &Session, built: &BuiltModel) -> Result<Metrics, Error> {
    let loss = &built.graph.values()[built.graph.outputs()[0]].name;
    let mut metrics = Metrics::default();
    metrics.push("loss", session.read(loss)?[0]);
    for (name, value) in &built.metrics {
        metrics.push(name, session.read(value)?[0]);
    }
    Ok(metrics)
}
