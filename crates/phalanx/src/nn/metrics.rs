//! Numbers of a step or an evaluation, by name.

use std::fmt;
use std::ops::Index;

/// Numbers by name: `loss` and what the model calls metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics(Vec<(String, f32)>);

impl Metrics {
    pub(super) fn push(&mut self, name: &str, value: f32) {
        self.0.push((name.to_string(), value));
    }

    /// The number called `name`, if there is one.
    pub fn get(&self, name: &str) -> Option<f32> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    /// All names and numbers, `loss` first.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f32)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }
}

impl Index<&str> for Metrics {
    type Output = f32;

    /// # Panics
    /// If nothing is called `name`; [`Metrics::get`] does not.
    fn index(&self, name: &str) -> &f32 {
        match self.0.iter().find(|(known, _)| known == name) {
            Some((_, value)) => value,
            None => {
                let names: Vec<&str> = self.iter().map(|(name, _)| name).collect();
                panic!("no metric is called `{name}`; there are {}", names.join(", "))
            }
        }
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{name} {value:.4}")?;
        }
        Ok(())
    }
}

/// What became of a step. Prints as `step 100: loss 1.2345`.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutcome {
    /// Which step it was, from 1, also counting those before the run was resumed.
    pub number: u64,
    /// The loss before the update.
    pub loss: f32,
    /// The learning rate.
    pub lr: f32,
    /// The gradient norm before clipping, if gradients are clipped.
    pub gradient_norm: Option<f32>,
    /// The loss and the metrics of the model.
    pub metrics: Metrics,
}

impl fmt::Display for StepOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}", self.number, self.metrics)
    }
}
