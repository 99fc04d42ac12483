//! One device of each class against all of them: the same tasks. Sums in two levels: the same bits, fewer bytes far away.

use phalanx::ir::Id;
use phalanx::ir::graph::Graph;
use phalanx::ir::tasks::{BufferId, TaskGraph, TaskOp};
use phalanx::models::{Gpt2Config, LlamaConfig};
use phalanx::pipeline::{self, Overlap, Settings};
use phalanx::{Goal, NetworkLevel, Optimizer, PlanChoice, Recompute, Simulation, Topology};
use phalanx_testkit::{Rng, cases, zoo};

use crate::training::{ONE, in_flight, settings};

/// A plan, and where it is to run.
struct Case {
    model: Graph,
    settings: Settings,
    text: String,
}

/// The name of a preset for at most 16 devices, and their number.
fn preset(rng: &mut Rng) -> (String, usize) {
    let mut parts: Vec<String> = Vec::new();
    let mut devices = 1;
    for names in [["pp", "pp"], ["dp", "dp"], ["fsdp", "zero1"], ["tp", "sp"]] {
        let size = rng.choose(&[1, 2, 2, 4, 8]);
        // Two blocks can be dealt.
        let most = if names[0] == "pp" { 2 } else { 8 };
        if size > 1 && size <= most && devices * size <= 16 {
            devices *= size;
            parts.push(format!("{}{size}", rng.choose(&names)));
        }
    }
    match parts.is_empty() {
        true => preset(rng),
        false => (parts.join("-"), devices),
    }
}

fn case(seed: u64) -> Case {
    let rng = &mut Rng::new(seed);
    let (plan, devices) = preset(rng);
    let name = rng.choose(&["gpt2", "llama"]);
    let model = match name {
        "gpt2" => zoo::gpt2(64, Gpt2Config { layers: 2, heads: 8, width: 128, hidden: 512, ..zoo::GPT2 }),
        _ => zoo::llama(
            64,
            LlamaConfig {
                layers: 2,
                heads: 8,
                kv_heads: 8,
                head_dim: 16,
                width: 128,
                hidden: 384,
                ..zoo::LLAMA
            },
        ),
    };
    let microbatches = rng.choose(&[None, None, Some(2), Some(4)]);
    let choice =
        PlanChoice::default().plan(Some(plan.clone())).devices(Some(devices)).microbatches(microbatches);
    let plan_of = choice.resolve(&model).expect("the preset suits the model");
    let optimizer = Optimizer::adamw(0.1).clip(rng.once_in(2).then_some(1.0));
    let (recompute, overlap) = match rng.below(4) {
        0 => (Recompute::Full, Overlap::Auto),
        1 => (Recompute::None, Overlap::Off),
        _ => (Recompute::None, Overlap::Auto),
    };
    let text = format!("seed {seed}: {name} {plan} in {microbatches:?}, {recompute:?}, {overlap:?}");
    let settings = Settings::new(Goal::Train(optimizer))
        .plan(plan_of)
        .cores(1)
        .free_bits(true)
        .recompute(recompute)
        .overlap(overlap)
        .runs(Some(0));
    Case { model, settings, text }
}

/// What a device computes and receives, in order: operator, layer, bytes written and read.
fn work(tasks: &TaskGraph, device: usize) -> Vec<(String, String, usize, usize)> {
    let bytes = |buffers: &[BufferId]| buffers.iter().map(|&buffer| tasks.buffers[buffer].ty.bytes()).sum();
    let own = tasks.tasks.iter().map(|(_, task)| task).filter(|task| task.device.index() == device);
    let own = own.filter(|task| !matches!(task.op, TaskOp::Send { .. }));
    own.map(|task| {
        (task.op.name().to_string(), task.layer.to_string(), bytes(&task.writes), bytes(&task.reads))
    })
    .collect()
}

#[test]
fn one_device_of_each_class_does_what_it_does_among_all() {
    for seed in 0..cases(40) {
        let Case { model, settings, text } = case(seed);
        let whole = pipeline::lay_out(&model, &settings, |_, _| ()).expect("the plan compiles");
        let one = pipeline::lay_out_classes(&model, &settings).expect("the plan compiles");
        let members = one.classes.as_ref().expect("classes were looked for").members();
        let lanes = one.schedule.devices();
        assert_eq!(lanes.len() * members, whole.schedule.devices().len(), "{text}");
        for lane in lanes {
            let device = lane.device.index();
            assert_eq!(work(&one.tasks, device), work(&whole.tasks, device), "{text}: device {device}");
        }
        let simulation = Simulation::new(&model, &settings).expect("the plan compiles");
        assert_eq!(simulation.classes.len(), lanes.len(), "{text}");
    }
}

/// Nodes of so many devices, fast inside.
fn nodes(size: usize) -> Topology {
    let level = |size, text: &str| NetworkLevel {
        size,
        link: text.parse().expect("a link"),
        uplink: None,
        per_message: std::time::Duration::ZERO,
    };
    Topology::new(vec![level(size, "2us,40GB"), level(1, "20us,100MB")]).expect("the levels nest")
}

/// Without levels a sum over eight devices moves as many bytes between any two of them.
#[test]
fn sums_in_two_levels_move_an_nth_of_the_bytes_between_nodes_and_keep_the_bits() {
    let wide = Gpt2Config { layers: 1, width: 128, hidden: 512, vocab: 256, ..zoo::GPT2 };
    let model = zoo::gpt2(8, wide);
    let one = in_flight(&model, &settings(&model, ONE));
    for (plan, devices, node) in [("dp", 2, 2), ("dp", 4, 2), ("dp", 8, 2), ("dp", 8, 4), ("fsdp", 8, 4)] {
        let flat = settings(&model, (plan, devices, None)).runs(Some(0));
        let levels = flat.clone().topology(Some(nodes(node)));
        assert_eq!(in_flight(&model, &levels), one, "{plan}{devices} on nodes of {node}");
        let far = |settings: &Settings| -> u64 {
            let layout = pipeline::lay_out(&model, settings, |_, _| ()).expect("the plan compiles");
            between_nodes(&layout.tasks, node)
        };
        let (before, after) = (far(&flat), far(&levels));
        assert_eq!(before, node as u64 * after, "{plan}{devices} on nodes of {node}");
        assert_eq!(before > 0, devices > node, "{plan}{devices} on nodes of {node}");
    }
}

/// Bytes of large tensors that go from one node to another.
fn between_nodes(tasks: &TaskGraph, node: usize) -> u64 {
    let place = |buffer: BufferId| tasks.buffers[buffer].device.index() / node;
    let mut bytes = 0;
    for (_, task) in tasks.tasks.iter().filter(|(_, task)| matches!(task.op, TaskOp::Receive { .. })) {
        let sources = tasks.sources(&task.reads);
        let is_large = |write: &&BufferId| {
            let tile = tasks.buffers[**write].tile.as_ref();
            tile.is_some_and(|tile| tile.global.elements() * 4 >= 64 << 10)
        };
        for &write in task.writes.iter().filter(is_large) {
            for piece in sources.pieces(write).into_iter().flatten() {
                let far = piece.sources.iter().filter(|&&source| place(source) != place(write)).count();
                bytes += (far * piece.rect.volume() * 4) as u64;
            }
        }
    }
    bytes
}
