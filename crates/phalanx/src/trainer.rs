//! Training a model step by step.

use std::sync::Arc;

use phalanx_ir::graph::Graph;
use phalanx_lower::{Goal, HYPER, Optimizer, UpdateRule};

use phalanx_net::Network;
use phalanx_program::Program;
use serde::{Deserialize, Serialize};

use crate::pipeline::Settings;
use crate::session::{Feed, Session};
use crate::{Error, Flavor};

/// What a step reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The loss before the update.
    pub loss: f32,
    /// The gradient norm before clipping, if gradients are clipped.
    pub gradient_norm: Option<f32>,
}

/// A model being trained.
pub struct Trainer {
    session: Session,
    rule: UpdateRule,
    clips: bool,
    loss: String,
    /// Steps launched so far.
    launched: u64,
}

impl Trainer {
    /// Compiles `model`, whose first output is the loss, for training on all cores of this machine.
    pub fn new(model: &Graph, optimizer: Optimizer) -> Result<Self, Error> {
        Trainer::with_settings(model, &Settings::new(Goal::Train(optimizer)))
    }

    /// The same with all settings; another goal than training is an error.
    pub fn with_settings(model: &Graph, settings: &Settings) -> Result<Self, Error> {
        Trainer::of_session(model, settings, || Session::new(model, settings))
    }

    /// The same for a program that is compiled from `model` already.
    pub fn of_program(model: &Graph, program: Program, settings: &Settings) -> Result<Self, Error> {
        let session = || Session::of_program(model, program, settings, Flavor::Fast);
        Trainer::of_session(model, settings, session)
    }

    /// One rank of a job: `program` is compiled from `model`, the same on all ranks. All ranks make the same calls.
    pub fn on_network(
        model: &Graph,
        program: Program,
        settings: &Settings,
        network: Arc<dyn Network>,
    ) -> Result<Self, Error> {
        Trainer::of_session(model, settings, || Session::on_network(model, program, settings, network))
    }

    fn of_session(
        model: &Graph,
        settings: &Settings,
        session: impl FnOnce() -> Result<Session, Error>,
    ) -> Result<Self, Error> {
        let Goal::Train(optimizer) = &settings.goal else {
            return Err(Error::NotTraining { goal: format!("{:?}", settings.goal) });
        };
        let session = session()?;
        let loss = model.values()[model.outputs()[0]].name.clone();
        Ok(Trainer { session, rule: optimizer.rule, clips: optimizer.clip.is_some(), loss, launched: 0 })
    }

    /// The compiled model.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The compiled model, to feed it or set its weights.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Steps launched so far.
    pub fn steps(&self) -> u64 {
        self.launched
    }

    /// Goes on as if `steps` steps had been launched, whose weights and optimizer state the session has.
    pub fn continue_after(&mut self, steps: u64) {
        self.launched = steps;
    }

    /// Feeds the inputs, runs one step with this learning rate and reports the loss. Inputs that are left out keep their
    /// values of the step before.
    pub fn step(&mut self, feeds: &[(&str, Feed<'_>)], learning_rate: f32) -> Result<Step, Error> {
        for &(name, feed) in feeds {
            self.session.feed(name, feed)?;
        }
        self.run(learning_rate)
    }

    /// Runs one step on what was fed last.
    pub fn run(&mut self, learning_rate: f32) -> Result<Step, Error> {
        let run = self.launch(learning_rate)?;
        self.wait(run)
    }

    /// Starts a step on what was fed last, and goes on: the next one can be fed and started before this one has ended. The
    /// number to wait for it with; see [`Session::launch`].
    pub fn launch(&mut self, learning_rate: f32) -> Result<u64, Error> {
        let hyper = self.hyper(learning_rate);
        self.session.feed(HYPER, &hyper)?;
        self.session.check_fed()?;
        self.launched += 1;
        Ok(self.session.launch())
    }

    /// Waits for a step and reports its loss.
    pub fn wait(&mut self, run: u64) -> Result<Step, Error> {
        self.session.wait(run)?;
        let loss = self.session.read(&self.loss)?[0];
        let gradient_norm = match self.clips {
            true => Some(self.session.read("gradient_norm")?[0]),
            false => None,
        };
        Ok(Step { loss, gradient_norm })
    }

    /// The scalars of the coming step: learning rate, bias corrections, step number.
    fn hyper(&self, learning_rate: f32) -> [f32; 8] {
        let step = self.launched + 1;
        let correction = |beta: f32| (1.0 - f64::from(beta).powf(step as f64)) as f32;
        let (first, second) = match self.rule {
            UpdateRule::Adam { beta1, beta2, .. } => (correction(beta1), correction(beta2)),
            UpdateRule::Sgd { .. } => (1.0, 1.0),
        };
        let [low, high] = [self.launched & 0xff_ffff, self.launched >> 24].map(|half| half as f32);
        [learning_rate, first, second, low, high, 0.0, 0.0, 0.0]
    }
}

/// How a learning rate falls after its warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LrSchedule {
    /// Along half a cosine.
    #[default]
    Cosine,
    /// Along a line.
    Linear,
    /// Not at all.
    Constant,
    /// Not at all until the last steps, then along a line: warm-up, stable, decay.
    Wsd,
}

/// A learning rate that warms up linearly and then falls to a floor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LearningRate {
    /// The highest rate, reached after the warm-up.
    pub peak: f32,
    /// The rate of the last step, unless the rate is constant.
    pub floor: f32,
    /// Steps of the warm-up.
    pub warmup: u64,
    /// Steps in all.
    pub steps: u64,
    /// How it falls.
    #[serde(default)]
    pub schedule: LrSchedule,
    /// The share of all steps, the last ones, in which it falls with [`LrSchedule::Wsd`].
    #[serde(default)]
    pub decay: f32,
}

impl LearningRate {
    /// The rate of step `step`, from 0.
    pub fn at(&self, step: u64) -> f32 {
        if step < self.warmup {
            return self.peak * (step + 1) as f32 / self.warmup as f32;
        }
        let left = match self.schedule {
            LrSchedule::Constant => 1.0,
            LrSchedule::Cosine => {
                0.5 * (1.0 + (std::f64::consts::PI * self.progress(step, self.warmup)).cos())
            }
            LrSchedule::Linear => 1.0 - self.progress(step, self.warmup),
            LrSchedule::Wsd => {
                let falling = (f64::from(self.decay) * self.steps as f64).round() as u64;
                1.0 - self.progress(step, self.steps.saturating_sub(falling).max(self.warmup))
            }
        };
        self.floor + (self.peak - self.floor) * left as f32
    }

    /// The share of the way from step `first` to the last one.
    fn progress(&self, step: u64, first: u64) -> f64 {
        let span = self.steps.saturating_sub(first + 1).max(1);
        (step.saturating_sub(first) as f64 / span as f64).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_learning_rate_rises_linearly_and_falls_along_a_cosine() {
        let rate = falling(LrSchedule::Cosine);
        assert_eq!([0, 1, 3].map(|step| rate.at(step)), [0.25, 0.5, 1.0]);
        assert_eq!(rate.at(4), 1.0);
        assert!((rate.at(9) - 0.55).abs() < 1e-6, "half way between peak and floor, got {}", rate.at(9));
        assert_eq!([rate.at(14), rate.at(100)], [0.1, 0.1]);
    }

    fn falling(schedule: LrSchedule) -> LearningRate {
        LearningRate { peak: 1.0, floor: 0.1, warmup: 4, steps: 15, schedule, decay: 0.4 }
    }

    #[test]
    fn a_step_needs_every_input_once() {
        let model = crate::models::MlpConfig::regression([1, 4, 1]).training_graph(2).unwrap();
        let mut trainer = Trainer::new(&model, Optimizer::adam()).unwrap();
        let (x, y) = (("x", Feed::F32(&[1.0, 2.0])), ("y", Feed::F32(&[3.0, 4.0])));
        for (feeds, input) in [(&[][..], "x"), (&[x], "y")] {
            let error = trainer.step(feeds, 0.1).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("input `{input}`, f32[2, 1], has never been fed: give it to the first step")
            );
        }
        assert_eq!(trainer.steps(), 0);
        let first = trainer.step(&[y], 0.0).unwrap();
        assert_eq!(trainer.step(&[], 0.0).unwrap(), first, "what was fed stays");
    }

    #[test]
    fn other_schedules_fall_along_a_line_at_the_end_or_never() {
        let near = |rate: LearningRate, step, wanted: f32| {
            assert!((rate.at(step) - wanted).abs() < 1e-6, "{rate:?} at {step} is {}", rate.at(step));
        };
        for schedule in [LrSchedule::Linear, LrSchedule::Constant, LrSchedule::Wsd] {
            near(falling(schedule), 1, 0.5);
            near(falling(schedule), 4, 1.0);
        }
        near(falling(LrSchedule::Linear), 9, 0.55);
        near(falling(LrSchedule::Linear), 14, 0.1);
        near(falling(LrSchedule::Constant), 14, 1.0);
        // Six of fifteen steps fall: from step 9 with the peak to step 14 with the floor.
        for (step, wanted) in [(8, 1.0), (9, 1.0), (10, 0.82), (13, 0.28), (14, 0.1), (99, 0.1)] {
            near(falling(LrSchedule::Wsd), step, wanted);
        }
    }
}
