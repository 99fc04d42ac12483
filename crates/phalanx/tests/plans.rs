//! One answer: the bits of a trained model depend on no plan, number of devices or cores.

use phalanx::ir::graph::Graph;
use phalanx::models::ModelConfig;
use phalanx::pipeline::{self, Settings};
use phalanx::{ExecutionMode, Trainer};
use phalanx_ir::tasks::{Role, TaskOp};

use crate::training::{Answer, ONE, PLANS, VOCAB, gpt2, in_flight, llama, settings, train};

const STEPS: usize = 4;

fn run(model: &Graph, settings: &Settings) -> Answer {
    let trainer = Trainer::with_settings(model, settings).expect("the model compiles");
    train(trainer, model, VOCAB, STEPS)
}

fn assert_one_answer(model: &Graph) {
    let one = run(model, &settings(model, ONE));
    assert!(one.0.iter().any(|&loss| loss != one.0[0]), "something is trained");
    for &plan in PLANS {
        assert_eq!(run(model, &settings(model, plan)), one, "{plan:?}");
    }
    for plan in [ONE, ("dp2-tp2", 4, None)] {
        let settings = settings(model, plan).cores(2);
        assert_eq!(run(model, &settings), one, "{plan:?} on devices of 2 cores");
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
fn every_execution_mode_gives_the_same_bits() {
    let config = ModelConfig::preset("gpt2", "nano").expect("the preset exists").with_dropout(0.1);
    let model = config.training_graph(8, 16).expect("the sizes are legal");
    let one = in_flight(&model, &settings(&model, ONE));
    for plan in [ONE, ("dp2-tp2", 4, None), ("fsdp", 4, None), ("tp2-pp2", 4, None)] {
        for execution in [
            ExecutionMode::Replay,
            ExecutionMode::Immediate,
            ExecutionMode::Stepped(1),
            ExecutionMode::Stepped(2),
            ExecutionMode::Stepped(3),
        ] {
            let settings = settings(&model, plan).execution(execution);
            assert_eq!(in_flight(&model, &settings), one, "{plan:?} through {execution:?}");
        }
    }
}

/// The arenas of a run are what the schedule says, and the program is the same every time.
#[test]
fn arenas_are_as_large_as_the_plan_says() {
    let model = gpt2();
    for plan in [("fsdp", 4, None), ("tp2-pp2", 4, None)] {
        let settings = settings(&model, plan);
        let layout = pipeline::lay_out(&model, &settings, |_, _| ()).expect("the model compiles");
        let trainer = Trainer::with_settings(&model, &settings).expect("the model compiles");
        let predicted: Vec<usize> = layout.schedule.lanes.iter().map(|lane| lane.peak as usize).collect();
        assert_eq!(trainer.session().device_bytes(), predicted, "{plan:?}");
    }
}

/// Fully sharded over four devices, each holds a quarter of weights, gradients and optimizer state, and on top of that at
/// most what one block of the model is gathered to: its weights, and their gradients before they are scattered.
#[test]
fn fully_sharded_training_holds_a_quarter_and_one_gathered_layer() {
    let model = gpt2();
    let layout = pipeline::lay_out(&model, &settings(&model, ("fsdp", 4, None)), |_, _| ())
        .expect("the model compiles");
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
