//! One answer: the bits of a trained model depend on no plan, number of devices or cores.

use phalanx::ir::graph::Graph;
use phalanx::models::{Gpt2Config, LlamaConfig, ModelConfig};
use phalanx::pipeline::{self, Settings};
use phalanx::{ExecutionMode, Feed, Goal, Leaves, Optimizer, PlanChoice, Trainer};
use phalanx_ir::Activation;
use phalanx_ir::tasks::{Role, TaskOp};
use phalanx_testkit::Rng;

const BATCH: usize = 16;
const TIME: usize = 64;
const VOCAB: usize = 256;
const STEPS: usize = 10;

/// All plans whose bits must be those of one device, with their devices.
const PLANS: &[(&str, usize)] = &[
    ("dp", 2),
    ("dp", 4),
    ("dp", 8),
    ("fsdp", 2),
    ("fsdp", 4),
    ("fsdp", 8),
    ("zero1", 4),
    ("tp", 2),
    ("tp", 4),
    ("tp", 8),
    ("sp", 4),
    ("pp", 2),
    ("pp", 4),
    ("dp2-tp2", 4),
    ("fsdp2-tp2", 4),
    ("dp2-pp2", 4),
    ("tp2-pp2", 4),
    ("fsdp2-tp2-pp2", 8),
    ("dp2-sp2-pp2", 8),
];

fn gpt2() -> Graph {
    let config = Gpt2Config {
        layers: 4,
        heads: 8,
        width: 128,
        hidden: 512,
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
        heads: 8,
        kv_heads: 8,
        head_dim: 16,
        width: 128,
        hidden: 256,
        vocab: VOCAB,
        context: TIME,
        dropout: 0.1,
        tied: false,
        eps: 1e-5,
        rope_base: 10_000.0,
        activation: Activation::Silu,
        attention_bias: false,
        mlp_bias: false,
    };
    ModelConfig::Llama(config).training_graph(BATCH, TIME).expect("the sizes are legal")
}

fn settings(model: &Graph, plan: &str, devices: usize, cores: usize) -> Settings {
    let choice = PlanChoice::default().plan(Some(plan.into())).devices(Some(devices));
    let plan = choice.resolve(model).expect("the plan suits the model");
    let leaves = Leaves { batch: 8, feature: 8, sequence: 8 };
    let optimizer = Optimizer::adamw(0.1).clip(Some(0.5));
    Settings::new(Goal::Train(optimizer)).plan(plan).leaves(leaves).cores(cores).seed(5)
}

/// The loss of every step and the hash of the weights after the last.
fn run(model: &Graph, settings: &Settings) -> (Vec<u32>, u128) {
    let mut trainer = Trainer::with_settings(model, settings).expect("the model compiles");
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let mut rng = Rng::new(step as u64);
        let mut draw = || (0..BATCH * TIME).map(|_| rng.below(VOCAB) as i64).collect::<Vec<_>>();
        let (tokens, targets) = (draw(), draw());
        let feeds = [("tokens", Feed::I64(&tokens)), ("targets", Feed::I64(&targets))];
        losses.push(trainer.step(&feeds, 3e-3).expect("the step runs").loss.to_bits());
    }
    (losses, trainer.session().weights_hash().expect("the weights can be read"))
}

fn assert_one_answer(model: &Graph) {
    let one = run(model, &settings(model, "one", 1, 1));
    assert!(one.0.iter().any(|&loss| loss != one.0[0]), "something is trained");
    for &(plan, devices) in PLANS {
        assert_eq!(run(model, &settings(model, plan, devices, 1)), one, "{plan} on {devices} devices");
    }
    for (plan, devices) in [("one", 1), ("dp2-tp2", 4)] {
        assert_eq!(run(model, &settings(model, plan, devices, 2)), one, "{plan} on devices of 2 cores");
    }
}

#[test]
fn every_plan_gives_gpt2_the_same_bits() {
    assert_one_answer(&gpt2());
}

#[test]
fn every_plan_gives_llama_the_same_bits() {
    assert_one_answer(&llama());
}

/// Two steps in flight, in every execution mode of the runtime: replayed, task by task, and stepped through in random
/// orders.
#[test]
fn every_door_gives_the_same_bits() {
    let config = ModelConfig::preset("gpt2", "nano").expect("the preset exists").with_dropout(0.1);
    let model = config.training_graph(8, 16).expect("the sizes are legal");
    let tokens: Vec<i64> = (0..8 * 16).map(|i| i * 7 % 256).collect();
    let hash = |settings: Settings| {
        let mut trainer = Trainer::with_settings(&model, &settings).expect("the model compiles");
        let mut before = None;
        for step in 0..4 {
            let targets: Vec<i64> = (0..8 * 16).map(|i| (i * 11 + step) % 256).collect();
            trainer.session_mut().feed("tokens", &tokens).expect("the port is there");
            trainer.session_mut().feed("targets", &targets).expect("the port is there");
            let run = trainer.launch(3e-3).expect("the step is launched");
            if let Some(before) = before.replace(run) {
                trainer.wait(before).expect("the step runs");
            }
        }
        trainer.session().weights_hash().expect("the weights can be read")
    };
    let one = hash(settings(&model, "one", 1, 1));
    for (plan, devices) in [("one", 1), ("dp2-tp2", 4), ("fsdp", 4), ("tp2-pp2", 4)] {
        for execution in [
            ExecutionMode::Replay,
            ExecutionMode::Immediate,
            ExecutionMode::Stepped(1),
            ExecutionMode::Stepped(2),
            ExecutionMode::Stepped(3),
        ] {
            let settings = settings(&model, plan, devices, 1).execution(execution);
            assert_eq!(hash(settings), one, "{plan} on {devices} devices through {execution:?}");
        }
    }
}

/// The arenas of a run are what the schedule says, and the program is the same every time.
#[test]
fn arenas_are_as_large_as_the_plan_says() {
    let model = gpt2();
    for (plan, devices) in [("fsdp", 4), ("tp2-pp2", 4)] {
        let settings = settings(&model, plan, devices, 1);
        let layout = pipeline::lay_out(&model, &settings, |_, _| ()).expect("the model compiles");
        let trainer = Trainer::with_settings(&model, &settings).expect("the model compiles");
        let predicted: Vec<usize> = layout.schedule.lanes.iter().map(|lane| lane.peak as usize).collect();
        assert_eq!(trainer.session().device_bytes(), predicted, "{plan}");
    }
}

/// Fully sharded over four devices, each holds a quarter of weights, gradients and optimizer state, and on top of that at
/// most what one block of the model is gathered to: its weights, and their gradients before they are scattered.
#[test]
fn fully_sharded_training_holds_a_quarter_and_one_gathered_layer() {
    let model = gpt2();
    let layout =
        pipeline::lay_out(&model, &settings(&model, "fsdp", 4, 1), |_, _| ()).expect("the model compiles");
    let names: Vec<String> = model
        .leaves(|op| matches!(op, phalanx_ir::Op::Param(_)))
        .map(|param| model.values()[param].name.clone())
        .collect();
    let sizes =
        model.leaves(|op| matches!(op, phalanx_ir::Op::Param(_))).map(|param| model.ty(param).bytes());
    let total: usize = sizes.sum();
    let block: usize = model
        .leaves(|op| matches!(op, phalanx_ir::Op::Param(_)))
        .filter(|&param| model.values()[param].name.contains(".h.0."))
        .map(|param| model.ty(param).bytes())
        .sum();
    // Weights, gradients, two moments.
    let bound = 4 * total / 4 + 2 * block;
    let tasks = &layout.tasks;
    for lane in &layout.schedule.lanes {
        let own = |buffer: &phalanx_ir::tasks::Buffer| {
            let of_param = names.iter().any(|name| buffer.name.starts_with(name.as_str()));
            buffer.device == lane.device && buffer.view_of.is_none() && of_param
        };
        // Alive from the first task of any device that touches it to the last; positions in the task list order a step.
        let mut lives: std::collections::BTreeMap<_, (usize, usize)> = Default::default();
        for (position, (_, task)) in tasks.tasks.iter().enumerate() {
            if matches!(task.op, TaskOp::Send { .. }) {
                continue;
            }
            for &buffer in task.reads.iter().chain(&task.writes) {
                let root = tasks.root(buffer);
                if own(&tasks.buffers[root]) {
                    lives.entry(root).or_insert((position, position)).1 = position;
                }
            }
        }
        let end = tasks.tasks.len();
        let mut changes = vec![0i64; end + 2];
        for (buffer, (first, last)) in lives {
            let kept = matches!(tasks.buffers[buffer].role, Role::Param | Role::State);
            let (first, last) = if kept { (0, end) } else { (first, last) };
            let bytes = tasks.buffers[buffer].ty.bytes() as i64;
            changes[first] += bytes;
            changes[last + 1] -= bytes;
        }
        let most = changes.iter().scan(0, |live, change| {
            *live += change;
            Some(*live)
        });
        let most = most.max().expect("there are tasks") as usize;
        assert!(most <= bound, "{}: {most} bytes, {bound} allowed", lane.device);
        let stored: usize = tasks
            .buffers
            .iter()
            .filter(|(_, buffer)| {
                buffer.device == lane.device && matches!(buffer.role, Role::Param | Role::State)
            })
            .map(|(_, buffer)| buffer.ty.bytes())
            .sum();
        assert_eq!(stored, 3 * total / 4, "{}: weights and moments", lane.device);
    }
}
