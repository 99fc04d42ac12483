//! Activations that are computed again have the same bits, and need less memory than kept ones.

use phalanx::internals::layout::Layout;
use phalanx::internals::lower::HYPER;
use phalanx::ir::graph::Graph;
use phalanx::models::{Gpt2Config, LlamaConfig, MlpConfig, MlpLoss, ModelConfig};
use phalanx::pipeline::{Settings, freeze, lay_out, schedule_tasks};
use phalanx::{Feed, Flavor, Goal, Leaves, Optimizer, PlanChoice, Recompute, Session};
use phalanx_ir::{Activation, Op};
use phalanx_schedule::recompute::{Peak, RecomputeChoice, apply, auto, candidates, full};
use phalanx_testkit::Rng;

const BATCH: usize = 8;
const TIME: usize = 16;
const VOCAB: usize = 32;
const STEPS: usize = 2;

/// Plans with their devices and microbatches.
const PLANS: &[(&str, usize, usize)] = &[
    ("one", 1, 1),
    ("one", 1, 2),
    ("dp", 2, 1),
    ("dp", 2, 2),
    ("fsdp", 2, 1),
    ("fsdp", 2, 2),
    ("tp", 2, 1),
    ("tp", 2, 2),
    ("sp", 2, 1),
    ("pp", 2, 1),
    ("pp", 2, 2),
    ("fsdp2-tp2", 4, 1),
    ("dp2-pp2", 4, 2),
];

fn gpt2() -> Graph {
    let config = Gpt2Config {
        layers: 4,
        heads: 4,
        width: 32,
        hidden: 128,
        vocab: VOCAB,
        context: TIME,
        dropout: 0.1,
        tied: true,
        eps: 1e-5,
        activation: Activation::GeluTanh,
    };
    ModelConfig::Gpt2(config).training_graph(BATCH, TIME).expect("the sizes are legal")
}

fn llama() -> Graph {
    let config = LlamaConfig {
        layers: 4,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        width: 32,
        hidden: 96,
        vocab: VOCAB,
        context: TIME,
        dropout: 0.1,
        tied: false,
        eps: 1e-5,
        rope_base: 10_000.0,
        activation: Activation::Silu,
        attention_bias: true,
        mlp_bias: false,
    };
    ModelConfig::Llama(config).training_graph(BATCH, TIME).expect("the sizes are legal")
}

fn mlp() -> Graph {
    let (hidden, loss) = (vec![48; 6], MlpLoss::CrossEntropy);
    let config = MlpConfig { inputs: 24, hidden, outputs: 8, activation: Activation::GeluTanh, loss };
    ModelConfig::Mlp(config).training_graph(32 * BATCH, 1).expect("the sizes are legal")
}

fn settings(model: &Graph, (plan, devices, microbatches): (&str, usize, usize)) -> Settings {
    let (plan, devices) = (Some(plan.to_string()), Some(devices));
    let plan = PlanChoice { plan, devices, microbatches: Some(microbatches) }.resolve(model);
    let goal = Goal::Train(Optimizer { clip: Some(0.5), ..Optimizer::adamw(0.1) });
    Settings {
        plan: plan.expect("the plan suits the model"),
        leaves: Leaves { batch: 8, feature: 8, sequence: 8 },
        cores: 1,
        seed: 5,
        recompute: Recompute::None,
        ..Settings::new(goal)
    }
}

/// The model laid out anew, with a choice computed again.
fn recomputed(layout: &Layout, choice: &RecomputeChoice, settings: &Settings) -> Layout {
    let tasks = apply(&layout.tasks, choice);
    tasks.verify().unwrap_or_else(|errors| panic!("{errors:?}"));
    schedule_tasks(layout.parallel.clone(), tasks, settings).expect("the schedule is sound")
}

/// The loss of every step and the hash of the weights after the last.
fn run(model: &Graph, layout: &Layout, settings: &Settings) -> (Vec<u32>, u128) {
    let program = freeze(layout, settings).expect("every task has a kernel");
    let mut session =
        Session::of_program(model, program, settings, Flavor::Fast).expect("the program fits this machine");
    let mut losses = Vec::new();
    for step in 0..STEPS {
        feed(&mut session, model, step);
        session.run().expect("the step runs");
        losses.push(session.read("loss").expect("the loss is an output")[0].to_bits());
    }
    (losses, session.weights_hash().expect("the weights can be read"))
}

/// Random data and the scalars of a step.
fn feed(session: &mut Session, model: &Graph, step: usize) {
    let mut rng = Rng::new(step as u64);
    for input in model.leaves(|op| matches!(op, Op::Input)) {
        let (name, ty) = (&model.values()[input].name, model.ty(input));
        let n = ty.shape.elements();
        let fed = match ty.dtype.is_float() {
            true => {
                let values: Vec<f32> = (0..n).map(|_| rng.uniform(-1.0, 1.0) as f32).collect();
                session.feed(name, Feed::F32(&values))
            }
            false => session.feed(name, &(0..n).map(|_| rng.below(8) as i64).collect::<Vec<_>>()),
        };
        fed.expect("the batch can be fed");
    }
    let hyper = [3e-3, 0.1, 0.05, step as f32, 0.0, 0.0, 0.0, 0.0];
    session.feed(HYPER, &hyper).expect("the scalars can be fed");
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
    for case in [("one", 1, 1), ("one", 1, 4), ("dp", 2, 2)] {
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
                let settings = Settings { recompute, ..settings.clone() };
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
    for case in [("dp", 2, 2), ("fsdp", 2, 1), ("tp", 2, 1)] {
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
    for case in [("one", 1, 2), ("fsdp", 2, 1), ("pp", 2, 2)] {
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
