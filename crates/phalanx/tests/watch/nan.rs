//! The first number that is not finite: never one in a sound step, and the one that a naive evaluation expects.

use std::collections::BTreeMap;

use phalanx::ir::Op;
use phalanx::models::ModelConfig;
use phalanx::train::nan::find;
use phalanx::train::{Debug, Origin, Run, TrainConfig};
use phalanx::{Error, Session};
use phalanx_testkit::Tensor;
use phalanx_testkit::eval::evaluate;

use super::{on, small};

const WEIGHT: &str = "transformer.h.1.attn.q.weight";

/// A session of the small model with a step's inputs, and what it was compiled from.
struct Step {
    config: TrainConfig,
    model: ModelConfig,
    session: Session,
    tokens: Vec<i64>,
    targets: Vec<i64>,
}

impl Step {
    fn new(config: TrainConfig) -> Step {
        let model = config.build_model(256).unwrap();
        let graph = model.training_graph(config.batch, 16).unwrap();
        let mut session = Session::new(&graph, &config.settings(&graph).unwrap()).unwrap();
        let tokens: Vec<i64> = (0..config.batch * 16).map(|index| (index * 7 % 50) as i64).collect();
        let targets: Vec<i64> = tokens.iter().map(|token| token + 1).collect();
        session.feed("tokens", &tokens).unwrap();
        session.feed("targets", &targets).unwrap();
        session.feed(phalanx::internals::lower::HYPER, &[1e-3, 0.1, 0.05, 0.0, 0.0, 0.0, 0.0, 0.0]).unwrap();
        Step { config, model, session, tokens, targets }
    }

    /// Sets an element of the weight.
    fn plant(&mut self, element: [usize; 2], value: f32) {
        let mut weight = self.session.read(WEIGHT).unwrap().into_owned();
        weight[element[0] * 16 + element[1]] = value;
        self.session.feed(WEIGHT, &weight).unwrap();
    }

    fn find(&mut self) -> Option<Origin> {
        let graph = self.model.training_graph(self.config.batch, 16).unwrap();
        find(&graph, &self.config.settings(&graph).unwrap(), &mut self.session).unwrap()
    }

    /// The first value of the model, and its first element, that 32-bit floats cannot hold.
    fn expected(&self) -> (String, Vec<usize>) {
        let graph = self.model.training_graph(self.config.batch, 16).unwrap();
        let mut inputs = BTreeMap::new();
        for leaf in graph.leaves(|op| matches!(op, Op::Input | Op::Param(_))) {
            let (name, shape) = (&graph.values()[leaf].name, graph.ty(leaf).shape.clone());
            let data: Vec<f64> = match name.as_str() {
                "tokens" => self.tokens.iter().map(|&token| token as f64).collect(),
                "targets" => self.targets.iter().map(|&token| token as f64).collect(),
                _ => self.session.read(name).unwrap().iter().map(|&it| f64::from(it)).collect(),
            };
            inputs.insert(name.clone(), Tensor::new(shape, data));
        }
        let values = evaluate(&graph, &inputs);
        let bad = |value: &f64| value.is_nan() || value.abs() > f64::from(f32::MAX);
        let results = graph.layers().iter().flat_map(|(_, layer)| layer.results.iter());
        let (value, index) =
            results.filter_map(|it| Some((*it, values[it].data.iter().position(bad)?))).next().unwrap();
        let (mut element, mut rest) = (Vec::new(), index);
        for extent in graph.ty(value).shape.dims().iter().rev() {
            element.insert(0, rest % extent);
            rest /= extent;
        }
        (graph.values()[value].name.clone(), element)
    }
}

#[test]
fn nothing_is_found_in_a_sound_step() {
    let plans =
        [("dp", 1), ("dp", 2), ("fsdp", 2), ("zero1", 2), ("tp", 2), ("sp", 2), ("pp", 2), ("dp2-tp2", 4)];
    for (plan, devices) in plans {
        let dropout = small().dropout(0.1).accumulate(2);
        let llama = small().model("llama".into()).recompute(phalanx::Recompute::Full);
        for config in [dropout, llama] {
            assert_eq!(Step::new(on(plan, devices, config)).find(), None, "{plan} on {devices}");
        }
    }
}

#[test]
fn the_operation_that_overflows_is_named_with_element_and_value() {
    for (plan, devices) in [("dp", 1), ("dp", 2), ("tp", 2), ("pp", 2)] {
        let mut step = Step::new(on(plan, devices, small()));
        step.plant([5, 7], 3e38);
        let (layer, at) = step.expected();
        let Some(Origin::Operation { operation, layer: found, device, tensor, element, value }) = step.find()
        else {
            panic!("{plan}: nothing is made");
        };
        // A microbatch has its number in its names.
        assert!(found.starts_with(&layer) && tensor.starts_with(&layer), "{plan}: {tensor} of {found}");
        assert_eq!((operation, layer.as_str()), ("linear", "transformer.h.1.attn.q"), "{plan}");
        assert!(value.is_infinite(), "{plan}: {value}");
        match plan {
            // Where the batch is cut, another part of it may come first.
            "dp" if devices == 2 => assert_eq!(element[2], at[2], "{plan}"),
            "pp" => assert_eq!((device, element[2]), (1, at[2]), "the second half of the layers is there"),
            _ => assert_eq!((device, element), (0, at), "{plan}"),
        }
    }
}

#[test]
fn a_weight_that_is_not_finite_is_named_as_such() {
    let mut step = Step::new(on("tp", 2, small()));
    step.plant([3, 9], f32::NAN);
    let Some(Origin::Input { kind, tensor, element, value }) = step.find() else { panic!("it is given") };
    assert_eq!((kind, tensor.as_str(), &element[..]), ("weight", WEIGHT, &[3, 9][..]));
    assert!(value.is_nan());
}

#[test]
fn a_run_that_diverges_tells_the_step_and_saves_nothing() {
    let dir = std::env::temp_dir().join(format!("phalanx-diverged-{}", std::process::id()));
    let wild = small().lr(1e30).warmup(0).clip(0.0).optimizer(phalanx::train::OptimizerKind::Sgd);
    for debug in [None, Some(Debug::Nan)] {
        let mut run = Run::new(wild.clone().debug(debug)).unwrap();
        let error = std::iter::repeat_with(|| run.step()).find_map(Result::err).unwrap();
        let done = run.losses().len() as u64;
        match (&error, debug) {
            (Error::Diverged { loss, step }, None) => {
                assert!(!loss.is_finite());
                assert_eq!(*step, done + 1);
            }
            (Error::NotFinite { step, origin, .. }, Some(_)) => {
                assert_eq!(*step, done + 1);
                assert!(matches!(**origin, Origin::Operation { .. }), "{origin}");
                let weights = run.trainer().session().weights().unwrap();
                assert!(
                    weights.values().flatten().all(|it| it.is_finite()),
                    "those before the step are back"
                );
            }
            _ => panic!("{error}"),
        }
        assert!(error.to_string().contains(&format!("step {done} was the last good one")), "{error}");
        assert!(matches!(run.save(&dir), Err(Error::Diverged { .. })));
        assert!(!dir.exists(), "nothing is written");
        assert!(matches!(run.step(), Err(Error::Diverged { .. })), "it stays so");
    }
}
