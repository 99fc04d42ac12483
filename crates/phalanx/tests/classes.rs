//! One device of each class against all of them: the same step, the same memory.

use phalanx::ir::Id;
use phalanx::ir::graph::Graph;
use phalanx::models::{Gpt2Config, LlamaConfig};
use phalanx::pipeline::{self, Overlap, Settings};
use phalanx::{Goal, NetworkLevel, Optimizer, PlanChoice, Recompute, Simulation, Topology};
use phalanx_testkit::{Rng, cases, zoo};

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
        // Eight heads can be cut, four blocks dealt.
        let most = if names[0] == "pp" { 4 } else { 8 };
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

fn topology(rng: &mut Rng) -> Topology {
    let link = |text: &str| text.parse().expect("a link");
    let inner = |size| NetworkLevel {
        size,
        link: link("2us,40GB"),
        uplink: None,
        per_message: std::time::Duration::ZERO,
    };
    let outer = NetworkLevel { link: link("20us,2GB"), ..inner(1) };
    match rng.below(4) {
        0 => link_topology("5us,10GB"),
        1 => link_topology("1ms,1Gbit"),
        _ => Topology::new(vec![inner(rng.choose(&[2, 4])), outer]).expect("the levels nest"),
    }
}

fn link_topology(text: &str) -> Topology {
    text.parse().expect("a link")
}

fn case(seed: u64) -> Case {
    let rng = &mut Rng::new(seed);
    let (plan, devices) = preset(rng);
    let name = rng.choose(&["gpt2", "llama"]);
    let model = match name {
        "gpt2" => zoo::gpt2(64, Gpt2Config { layers: 4, heads: 8, width: 128, hidden: 512, ..zoo::GPT2 }),
        _ => zoo::llama(
            64,
            LlamaConfig {
                layers: 4,
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
    let topology = topology(rng);
    let text =
        format!("seed {seed}: {name} {plan} in {microbatches:?} on {topology}, {recompute:?}, {overlap:?}");
    let settings = Settings::new(Goal::Train(optimizer))
        .plan(plan_of)
        .cores(1)
        .free_bits(true)
        .topology(Some(topology))
        .recompute(recompute)
        .overlap(overlap)
        .runs(Some(0));
    Case { model, settings, text }
}

#[test]
fn one_device_of_each_class_tells_what_all_do() {
    let wrong: Vec<String> = (0..cases(100)).filter_map(|seed| difference(&case(seed))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// In what a step of one device of each class differs from that of all, if it does.
fn difference(Case { model, settings, text }: &Case) -> Option<String> {
    let whole = pipeline::lay_out(model, settings, |_, _| ()).expect("the plan compiles");
    let choice = whole
        .choice
        .as_ref()
        .map_or_else(|| pipeline::choose(&whole.tasks, settings), |choice| (**choice).clone());
    let chosen = if whole.choice.is_some() { choice.chosen() } else { &choice.plain };
    let classes = Simulation::new(model, settings).expect("the plan compiles");
    let (all, one) = (chosen.totals.step as f64, classes.step_ns as f64);
    if (one / all - 1.0).abs() > 0.01 {
        return Some(format!("{text}: {one} ns of one, {all} of all"));
    }
    for class in &classes.classes {
        let lane = chosen.schedule.devices().iter().find(|lane| lane.device.index() == class.device);
        let peak = lane.expect("the device is one of all").peak;
        if peak != class.peak_bytes {
            return Some(format!(
                "{text}: device {} needs {}, of all {peak} bytes",
                class.device, class.peak_bytes
            ));
        }
    }
    let (one, all) = (classes.peak_bytes(), chosen.schedule.peak());
    (one != all).then(|| format!("{text}: {one} bytes of one, {all} of all"))
}
