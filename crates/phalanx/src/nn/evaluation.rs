//! The model without training: evaluations during a run, with the weights of now.

use super::predict::{feed_inputs, read_metrics};
use super::{Feeds, Metrics, TrainingError, TrainingRun};
use crate::Error;
use crate::train::eval::check_memory;

impl TrainingRun<'_> {
    /// The means of loss and metrics over batches, with the model as it is without training. The weights stay as they are.
    pub fn evaluate<B: Feeds>(&mut self, batches: impl IntoIterator<Item = B>) -> Result<Metrics, Error> {
        self.begin_evaluation()?;
        let mut means = MeanMetrics::default();
        for batch in batches {
            means.add(&self.evaluate_batch(batch)?);
        }
        means.finish().ok_or_else(|| TrainingError::NoBatches.into())
    }

    /// Gives the weights of now to [`TrainingRun::evaluate_batch`]; compiles the evaluation first, if need be.
    pub fn begin_evaluation(&mut self) -> Result<(), Error> {
        self.guarded(|run| {
            run.settle()?;
            run.prepare_evaluation()
        })
    }

    /// Loss and metrics of a batch, with the model as it is without training and the weights of
    /// [`TrainingRun::begin_evaluation`].
    pub fn evaluate_batch(&mut self, feeds: impl Feeds) -> Result<Metrics, Error> {
        self.guarded(|run| {
            if run.evaluation.is_none() {
                run.prepare_evaluation()?;
            }
            let Some((built, session)) = &mut run.evaluation else {
                return Err(TrainingError::NoBatches.into());
            };
            feed_inputs(session, &built.graph, &feeds)?;
            session.check_fed()?;
            session.run()?;
            read_metrics(session, built)
        })
    }

    fn prepare_evaluation(&mut self) -> Result<(), Error> {
        if self.evaluation.is_none() {
            let built = self.model.evaluation(&self.name, self.config.batch, &self.built.graph)?;
            let session = self.compile(&built.graph)?;
            check_memory(session.program(), self.trainer.session().program(), self.settings.memory)?;
            self.evaluation = Some((built, session));
        }
        let Some((_, session)) = &mut self.evaluation else { return Ok(()) };
        session.copy_weights(self.trainer.session_mut())
    }
}

/// Means of metrics over batches.
#[derive(Debug, Default)]
pub struct MeanMetrics {
    sums: Vec<(String, f64)>,
    count: u32,
}

impl MeanMetrics {
    /// Adds those of a batch.
    pub fn add(&mut self, metrics: &Metrics) {
        if self.count == 0 {
            self.sums.extend(metrics.iter().map(|(name, _)| (name.to_string(), 0.0)));
        }
        self.sums.iter_mut().zip(metrics.iter()).for_each(|(sum, (_, value))| sum.1 += f64::from(value));
        self.count += 1;
    }

    /// The means, if there was a batch.
    pub fn finish(&self) -> Option<Metrics> {
        let mut means = Metrics::default();
        let count = f64::from(self.count);
        self.sums.iter().for_each(|(name, sum)| means.push(name, (sum / count) as f32));
        (self.count > 0).then_some(means)
    }
}
