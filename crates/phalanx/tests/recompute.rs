//! Activations that are computed again have the same bits, and need less memory than kept ones.

use phalanx::internals::layout::Layout;
use phalanx::ir::graph::Graph;
use phalanx::models::{Gpt2Config, LlamaConfig, MlpConfig, MlpLoss, ModelConfig};
use phalanx::pipeline::{Settings, freeze, lay_out, schedule_tasks};
use phalanx::{Flavor, Recompute, Session};
use phalanx_ir::Activation;
use phalanx_schedule::recompute::{Peak, RecomputeChoice, apply, auto, candidates, full};
use phalanx_testkit::{Rng, zoo};

use crate::training::{self, Answer, ONE, PlanCase};

const BATCH: usize = 8;
/// Labels of every model here.
const CLASSES: usize = 8;
const STEPS: usize = 2;

const PLANS: &[PlanCase] = &[
    ("one", 1, Some(1)),
    ("one", 1, Some(2)),
    ("dp", 2, Some(1)),
    ("dp", 2, Some(2)),
    ("fsdp", 2, Some(1)),
    ("fsdp", 2, Some(2)),
    ("tp", 2, Some(1)),
    ("tp", 2, Some(2)),
    ("sp", 2, Some(1)),
    ("pp", 2, Some(1)),
    ("pp", 2, Some(2)),
    ("fsdp2-tp2", 4, Some(1)),
    ("dp2-pp2", 4, Some(2)),
];

fn gpt2() -> Graph {
    zoo::gpt2(BATCH, Gpt2Config { layers: 4, ..zoo::GPT2 })
}

fn llama() -> Graph {
    zoo::llama(BATCH, LlamaConfig { layers: 4, attention_bias: true, ..zoo::LLAMA })
}

fn mlp() -> Graph {
    let (hidden, loss) = (vec![48; 6], MlpLoss::CrossEntropy);
    let config = MlpConfig { inputs: 24, hidden, outputs: 8, activation: Activation::GeluTanh, loss };
    ModelConfig::Mlp(config).training_graph(32 * BATCH, 1).expect("the sizes are legal")
}

fn settings(model: &Graph, plan: PlanCase) -> Settings {
    training::settings(model, plan).recompute(Recompute::None)
}

/// The model laid out anew, with a choice computed again.
fn recomputed(layout: &Layout, choice: &RecomputeChoice, settings: &Settings) -> Layout {
    let tasks = apply(&layout.tasks, choice);
    tasks.verify().unwrap_or_else(|errors| panic!("{errors:?}"));
    schedule_tasks(layout.parallel.clone(), tasks, settings).expect("the schedule is sound")
}

fn run(model: &Graph, layout: &Layout, settings: &Settings) -> Answer {
    let program = freeze(layout, settings).expect("every task has a kernel");
    let session =
        Session::of_program(model, program, settings, Flavor::Fast).expect("the program fits this machine");
    training::run(session, model, CLASSES, STEPS)
}

/// Trains with nothing, everything, and random tensors computed again.
fn assert_same_bits(model: &Graph, seed: u64) {
    let mut rng = Rng::new(seed);
    for &case in PLANS {
        let settings = settings(model, case);
        let layout = lay_out(model, &settings, |_, _| ()).expect("the model compiles");
        let kept = run(model, &layout, &settings);
        let all = candidates(&layout.tasks);
        let some = all.iter().filter(|_| rng.once_in(2)).flat_map(|candidate| candidate.buffers.clone());
        let choices = [
            ("full", full(&layout.tasks)),
            ("some tensors", some.collect()),
            ("some tiles", layout.tasks.buffers.ids().filter(|_| rng.once_in(3)).collect()),
            ("everything", layout.tasks.buffers.ids().collect()),
        ];
        for (what, choice) in choices {
            let again = recomputed(&layout, &choice, &settings);
            let repeated = again.tasks.tasks.len() - layout.tasks.tasks.len();
            assert!(repeated > 0, "{case:?}: nothing is computed again with {what}");
            assert_eq!(run(model, &again, &settings), kept, "{case:?}, {what}");
        }
    }
}

#[test]
fn gpt2_has_the_same_bits() {
    assert_same_bits(&gpt2(), 1);
}

#[test]
fn llama_has_the_same_bits() {
    assert_same_bits(&llama(), 2);
}

#[test]
fn an_mlp_has_the_same_bits() {
    let model = mlp();
    let mut rng = Rng::new(3);
    for case in [ONE, ("one", 1, Some(4)), ("dp", 2, Some(2))] {
        let settings = settings(&model, case);
        let layout = lay_out(&model, &settings, |_, _| ()).expect("the model compiles");
        let kept = run(&model, &layout, &settings);
        for _ in 0..4 {
            let some = layout.tasks.buffers.ids().filter(|_| rng.once_in(2)).collect();
            assert_eq!(run(&model, &recomputed(&layout, &some, &settings), &settings), kept, "{case:?}");
        }
    }
}

#[test]
fn less_memory_is_needed() {
    for model in [gpt2(), llama()] {
        for &case in PLANS {
            let settings = settings(&model, case);
            let peak = |recompute| {
                let settings = settings.clone().recompute(recompute);
                lay_out(&model, &settings, |_, _| ()).expect("the model compiles").schedule.peak()
            };
            let (kept, again) = (peak(Recompute::None), peak(Recompute::Full));
            assert!(again < kept, "{} {case:?}: {again} of {kept} bytes", model.name());
        }
    }
}

#[test]
fn devices_that_do_the_same_stay_alike() {
    let model = gpt2();
    for case in [("dp", 2, Some(2)), ("fsdp", 2, Some(1)), ("tp", 2, Some(1))] {
        let settings = settings(&model, case);
        let layout = lay_out(&model, &settings, |_, _| ()).expect("the model compiles");
        let again = recomputed(&layout, &full(&layout.tasks), &settings);
        let lanes = |lane: usize| [&layout, &again].map(|layout| layout.schedule.lanes[lane].order.len());
        let repeated = [0, 1].map(|lane| lanes(lane)[1] - lanes(lane)[0]);
        assert!(repeated[0] == repeated[1] && repeated[0] > 0, "{case:?}: {repeated:?} tasks run again");
    }
}

#[test]
fn auto_fits_a_budget_with_the_same_bits() {
    let model = gpt2();
    for case in [("one", 1, Some(2)), ("fsdp", 2, Some(1)), ("pp", 2, Some(2))] {
        let settings = settings(&model, case);
        let layout = lay_out(&model, &settings, |_, _| ()).expect("the model compiles");
        let least = recomputed(&layout, &full(&layout.tasks), &settings).schedule.peak();
        let budget = least.midpoint(layout.schedule.peak());
        let mut fits = |tasks: &_| {
            let made = schedule_tasks(layout.parallel.clone(), Clone::clone(tasks), &settings);
            let lanes = made.expect("the schedule is sound").schedule.lanes;
            lanes.iter().map(|lane| Peak { device: lane.device, bytes: lane.peak, budget }).collect()
        };
        let fitted = auto(&layout.tasks, &|_| 1, &mut fits).expect("half of the savings can be had");
        let again = recomputed(&layout, &fitted.choice, &settings);
        assert!(again.schedule.peak() <= budget && again.schedule.peak() > least, "{case:?}");
        assert_eq!(run(&model, &again, &settings), run(&model, &layout, &settings), "{case:?}");
    }
}
