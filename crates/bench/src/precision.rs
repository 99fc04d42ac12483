//! How far training in a precision is from PyTorch in f32, beside how far PyTorch's own autocast to bf16 is.
//!
//! The losses of PyTorch are recorded (`golden/precision.txt.gz`, made by `benches/peers/torch_precision.py`), and so is the
//! text. Batches and first weights are functions of whole numbers ([`model`]), so that they need not be.

mod model;

use std::io::Read;

use phalanx::ir::Precision;
use phalanx::ir::graph::Graph;
use phalanx::{Decays, Error, Feed, Goal, Optimizer, PortKind, Session, Settings, Trainer, UpdateRule};
use serde::Serialize;

use model::Text;

/// The steps of the recorded run, which the learning rate follows.
pub const STEPS: usize = 500;

/// Steps at whose end the mean losses are compared.
const LAST: usize = 50;

/// Steps before which loss and gradients are computed in both precisions from the same weights.
const EQUAL_WEIGHTS: [usize; 5] = [0, 20, 100, 300, 499];

/// PyTorch's losses, a line for each step: f32, autocast.
const RECORDED: &[u8] = include_bytes!("../golden/precision.txt.gz");

/// What to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PrecisionBench {
    /// What products are computed in.
    pub precision: Precision,
    /// Steps, at most 500: so many losses are recorded.
    pub steps: usize,
    /// Cores to use.
    pub cores: usize,
}

/// How far a curve of losses is from PyTorch's in f32.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Distance {
    /// The largest difference of a step.
    pub largest: f64,
    /// The mean over all steps.
    pub mean: f64,
    /// Between the means of the last 50 steps.
    pub last: f64,
}

/// What differs when weights and batch are the same.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EqualWeights {
    /// Before which step of the run in f32, from 0.
    pub step: usize,
    /// Difference of the losses.
    pub loss: f64,
    /// Cosine of the angle between the gradients of all parameters.
    pub cosine: f64,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PrecisionResult {
    /// What was asked for.
    #[serde(flatten)]
    pub bench: PrecisionBench,
    /// Of the trained model.
    pub distance: Distance,
    /// Of PyTorch's autocast, over the same steps.
    pub autocast: Distance,
    /// Against our own f32.
    pub equal_weights: Vec<EqualWeights>,
    /// The loss of every step.
    pub losses: Vec<f32>,
    /// Which bars are missed.
    pub missed: Vec<String>,
}

/// The most by which a loss may differ at a step.
const MOST_AT_A_STEP: f64 = 3e-3;
/// The most by which the mean of the last losses may differ.
const MOST_AT_THE_END: f64 = 1e-3;
/// The most by which a loss may differ at equal weights.
const MOST_AT_EQUAL_WEIGHTS: f64 = 5e-4;
/// The least cosine between gradients at equal weights.
const LEAST_COSINE: f64 = 0.9999;
/// How many times the distance of autocast is let through.
const MOST_TIMES_AUTOCAST: f64 = 2.0;

/// Trains in the precision, and in f32 for comparisons at equal weights.
pub fn precision(bench: &PrecisionBench) -> Result<PrecisionResult, Error> {
    let steps = bench.steps.min(STEPS);
    let (model, text) = (model::graph()?, Text::new());
    let losses = train(&model, &text, bench, bench.precision, |_, _| Ok(()))?;
    let mut equal_weights = Vec::new();
    let mut sessions =
        [gradients_of(&model, bench, Precision::F32)?, gradients_of(&model, bench, bench.precision)?];
    train(&model, &text, bench, Precision::F32, |step, trainer| {
        if EQUAL_WEIGHTS.contains(&step) {
            equal_weights.push(compare(&mut sessions, trainer, &text, step)?);
        }
        Ok(())
    })?;
    let recorded = recorded();
    let of = |at: usize| recorded[..steps].iter().map(move |pair| pair[at]);
    let distance = distance(losses.iter().map(|&loss| f64::from(loss)), of(0));
    let mut result = PrecisionResult {
        bench: PrecisionBench { steps, ..*bench },
        distance,
        autocast: self::distance(of(1), of(0)),
        equal_weights,
        losses,
        missed: Vec::new(),
    };
    result.missed = missed(&result);
    Ok(result)
}

/// The losses of a run; `before` sees the trainer before each step.
fn train(
    model: &Graph,
    text: &Text,
    bench: &PrecisionBench,
    precision: Precision,
    mut before: impl FnMut(usize, &Trainer) -> Result<(), Error>,
) -> Result<Vec<f32>, Error> {
    let rule = UpdateRule::Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8, decoupled: true };
    let optimizer = Optimizer::new(rule).decay(0.1).decays(Decays::All).clip(Some(1.0));
    let settings = Settings::new(Goal::Train(optimizer)).cores(bench.cores).precision(precision);
    let mut trainer = Trainer::with_settings(model, &settings)?;
    for (name, values) in model::weights(model) {
        trainer.session_mut().feed(&name, &values)?;
    }
    let mut losses = Vec::new();
    for step in 0..bench.steps.min(STEPS) {
        before(step, &trainer)?;
        let [tokens, targets] = text.batch(step);
        let feeds = [("tokens", Feed::I64(&tokens)), ("targets", Feed::I64(&targets))];
        losses.push(trainer.step(&feeds, model::learning_rate(step))?.loss);
    }
    Ok(losses)
}

fn gradients_of(model: &Graph, bench: &PrecisionBench, precision: Precision) -> Result<Session, Error> {
    Session::new(model, &Settings::new(Goal::Gradients).cores(bench.cores).precision(precision))
}

/// Loss and gradients in two precisions, with the weights of `trainer` and the batch of `step`.
fn compare(
    sessions: &mut [Session; 2],
    trainer: &Trainer,
    text: &Text,
    step: usize,
) -> Result<EqualWeights, Error> {
    let (weights, [tokens, targets]) = (trainer.session().weights()?, text.batch(step));
    let mut found = Vec::new();
    for session in sessions {
        for (name, values) in &weights {
            session.feed(name, values)?;
        }
        session.feed("tokens", &tokens)?;
        session.feed("targets", &targets)?;
        session.run()?;
        let names = session.names(PortKind::Output).filter(|name| name.ends_with(".grad"));
        let gradients: Result<Vec<_>, Error> =
            names.map(|name| Ok(session.read(name)?.into_owned())).collect();
        found.push((session.read("loss")?[0], gradients?.concat()));
    }
    let [(loss, gradients), (other_loss, other)] = &found[..] else { unreachable!("two sessions were run") };
    Ok(EqualWeights {
        step,
        loss: (f64::from(*loss) - f64::from(*other_loss)).abs(),
        cosine: dot(gradients, other) / (dot(gradients, gradients) * dot(other, other)).sqrt(),
    })
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// The recorded losses of every step: f32, autocast.
fn recorded() -> Vec<[f64; 2]> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(RECORDED).read_to_string(&mut text).expect("the embedded losses decompress");
    let pair = |line: &str| {
        let mut losses = line.split(' ').map(|loss| loss.parse().expect("the embedded losses are numbers"));
        [(); 2].map(|()| losses.next().expect("a line has two losses"))
    };
    text.lines().map(pair).collect()
}

fn distance(
    ours: impl ExactSizeIterator<Item = f64> + Clone,
    reference: impl ExactSizeIterator<Item = f64> + Clone,
) -> Distance {
    let differences: Vec<f64> = ours.clone().zip(reference.clone()).map(|(a, b)| (a - b).abs()).collect();
    let count = differences.len().max(1) as f64;
    let before_last = differences.len().saturating_sub(LAST);
    let end: f64 = ours.skip(before_last).sum::<f64>() - reference.skip(before_last).sum::<f64>();
    Distance {
        largest: differences.iter().copied().fold(0.0, f64::max),
        mean: differences.iter().sum::<f64>() / count,
        last: (end / count.min(LAST as f64)).abs(),
    }
}

/// The bars that are not kept, with both values.
fn missed(result: &PrecisionResult) -> Vec<String> {
    let PrecisionResult { distance, autocast, equal_weights, .. } = result;
    let worst = equal_weights.iter().map(|found| found.loss).fold(0.0, f64::max);
    let cosine = equal_weights.iter().map(|found| found.cosine).fold(1.0, f64::min);
    let upper = [
        ("a loss differs by", distance.largest, MOST_AT_A_STEP),
        ("the mean of the last losses differs by", distance.last, MOST_AT_THE_END),
        ("a loss differs by", distance.largest, MOST_TIMES_AUTOCAST * autocast.largest),
        ("losses differ in the mean by", distance.mean, MOST_TIMES_AUTOCAST * autocast.mean),
        ("at equal weights a loss differs by", worst, MOST_AT_EQUAL_WEIGHTS),
    ];
    let above = upper.iter().filter(|(_, found, most)| found > most);
    let above =
        above.map(|(what, found, most)| format!("{what} {found:.2e}, at most {most:.2e} is let through"));
    let turned = (cosine < LEAST_COSINE)
        .then(|| format!("the cosine of gradients is {cosine:.6}, at least {LEAST_COSINE} is needed"));
    above.chain(turned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_counted_by_hand() {
        let reference = [1.0, 2.0, 3.0, 4.0];
        let found = distance([1.5, 2.0, 2.75, 4.0].into_iter(), reference.into_iter());
        assert_eq!(found, Distance { largest: 0.5, mean: 0.1875, last: 0.0625 });
    }

    #[test]
    fn every_step_has_recorded_losses_that_fall() {
        let recorded = recorded();
        assert_eq!(recorded.len(), STEPS);
        let end = |at: usize| recorded[STEPS - LAST..].iter().map(|pair| pair[at]).sum::<f64>() / LAST as f64;
        assert!(recorded[0].iter().all(|loss| (loss - 256f64.ln()).abs() < 0.05), "{:?}", recorded[0]);
        assert!((0..2).all(|at| end(at) < 3.1), "{} and {}", end(0), end(1));
    }
}
