//! Pipelines run one forward, one backward; other graphs run microbatch after microbatch.

use crate::generate::{Maker, device, plain};
use phalanx_ir::Unary;
use phalanx_ir::tasks::{BufferId, Role, TaskGraph, TaskOp};
use phalanx_schedule::{Schedule, schedule};

const ELEMENTS: usize = 1000;

fn gradient() -> TaskOp {
    TaskOp::UnaryGrad { kind: Unary::Exp, accumulate: false, rounded: false }
}

/// Stages of `width` devices each, listed as the compiler does: layer by layer, in each all microbatches, then the same
/// backward. With more than one device in a stage every layer ends with a sum over them.
fn pipeline(stages: usize, width: usize, microbatches: u32) -> TaskGraph {
    let mut maker = Maker::new("pipeline");
    let devices = |stage: usize| (0..width).map(move |lane| stage * width + lane);
    let inputs: Vec<BufferId> = devices(0).map(|on| maker.buffer(on, Role::Input, ELEMENTS)).collect();
    let mut values: Vec<Vec<BufferId>> = (0..microbatches).map(|_| inputs.clone()).collect();
    let mut kept: Vec<Vec<Vec<BufferId>>> = Vec::new();
    for stage in 0..stages {
        for (microbatch, value) in (0..).zip(&mut values) {
            maker.microbatch = microbatch;
            let here: Vec<usize> = devices(stage).collect();
            if stage > 0 {
                *value = hop(&mut maker, value, &here);
            }
            *value = layer(&mut maker, &here, plain(), value);
        }
        kept.push(values.clone());
    }
    for stage in (0..stages).rev() {
        for (microbatch, value) in values.iter_mut().enumerate().rev() {
            maker.microbatch = microbatch as u32;
            let here: Vec<usize> = devices(stage).collect();
            if stage + 1 < stages {
                *value = hop(&mut maker, value, &here);
            }
            *value = backward(&mut maker, &here, &kept[stage][microbatch], value);
        }
    }
    maker.graph.verify().unwrap_or_else(|errors| panic!("{errors:?}"));
    maker.graph
}

/// Device i of one stage sends to device i of the next.
fn hop(maker: &mut Maker, from: &[BufferId], to: &[usize]) -> Vec<BufferId> {
    from.iter().zip(to).map(|(&value, &on)| maker.movement(&[value], &[on], Role::Temp)[0]).collect()
}

fn layer(maker: &mut Maker, here: &[usize], op: TaskOp, values: &[BufferId]) -> Vec<BufferId> {
    let own: Vec<BufferId> =
        here.iter().zip(values).map(|(&on, &x)| maker.compute(on, op.clone(), &[x], ELEMENTS)).collect();
    if let [_] = here {
        return own;
    }
    let parts: Vec<_> = here.iter().zip(own).map(|(&on, value)| (on, vec![value])).collect();
    maker.all_reduce(&parts, ELEMENTS)
}

fn backward(maker: &mut Maker, here: &[usize], saved: &[BufferId], values: &[BufferId]) -> Vec<BufferId> {
    let both = here.iter().zip(saved).zip(values);
    both.map(|((&on, &saved), &value)| {
        let reads = if saved == value { vec![saved] } else { vec![saved, value] };
        maker.compute(on, gradient(), &reads, ELEMENTS)
    })
    .collect()
}

/// The forward and backward passes of a device in order, each once: `F0 F1 B0 …`.
fn passes(tasks: &TaskGraph, made: &Schedule, on: usize) -> String {
    let lane = made.lane_of(device(on)).expect("every device has a lane");
    let mut passes: Vec<String> = Vec::new();
    for &task in &lane.order {
        let task = &tasks.tasks[task];
        let pass = match task.op {
            TaskOp::Unary { .. } => format!("F{}", task.microbatch),
            TaskOp::UnaryGrad { .. } => format!("B{}", task.microbatch),
            _ => continue,
        };
        if passes.last() != Some(&pass) {
            passes.push(pass);
        }
    }
    passes.join(" ")
}

/// Warm-up, then a backward and a forward pass in turn, then what is left.
fn one_forward_one_backward(stage: usize, stages: usize, microbatches: usize) -> String {
    let warm_up = (stages - stage).min(microbatches);
    let mut passes: Vec<String> = (0..warm_up).map(|m| format!("F{m}")).collect();
    for m in 0..microbatches {
        passes.push(format!("B{m}"));
        if m + warm_up < microbatches {
            passes.push(format!("F{}", m + warm_up));
        }
    }
    passes.join(" ")
}

#[test]
fn every_stage_runs_one_forward_one_backward() {
    for (stages, microbatches) in [(4, 8), (2, 2), (4, 2), (3, 5), (8, 32), (4, 1)] {
        for width in [1, 2] {
            let tasks = pipeline(stages, width, microbatches as u32);
            let made = schedule(&tasks, |_| 0);
            made.verify(&tasks).unwrap_or_else(|errors| panic!("{errors:?}"));
            for stage in 0..stages {
                for lane in 0..width {
                    let found = passes(&tasks, &made, stage * width + lane);
                    let expected = one_forward_one_backward(stage, stages, microbatches);
                    assert_eq!(found, expected, "stage {stage} of {stages}, {width} wide");
                }
            }
        }
    }
}

#[test]
fn the_first_stage_holds_at_most_as_many_activations_as_there_are_stages() {
    let few = schedule(&pipeline(4, 1, 4), |_| 0);
    let many = schedule(&pipeline(4, 1, 32), |_| 0);
    for (few, many) in few.lanes.iter().zip(&many.lanes) {
        assert_eq!(few.live, many.live, "{}", few.device);
    }
}

#[test]
fn without_stages_microbatches_run_one_after_the_other() {
    let tasks = pipeline(1, 4, 6);
    let made = schedule(&tasks, |_| 0);
    made.verify(&tasks).unwrap_or_else(|errors| panic!("{errors:?}"));
    for on in 0..4 {
        assert_eq!(passes(&tasks, &made, on), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5");
    }
    let layouts: Vec<_> = made.lanes.iter().map(|lane| (lane.peak, lane.live, lane.order.len())).collect();
    assert!(
        layouts.iter().all(|layout| *layout == layouts[0]),
        "equal devices have equal arenas: {layouts:?}"
    );
}

#[test]
fn a_stage_that_needs_more_microbatches_than_its_share_still_runs() {
    // The loss of the first microbatch needs all of them, so no limit can be kept.
    let mut maker = Maker::new("barrier");
    let mut sent = Vec::new();
    let input = maker.buffer(0, Role::Input, ELEMENTS);
    for microbatch in 0..6 {
        maker.microbatch = microbatch;
        let value = maker.compute(0, plain(), &[input], ELEMENTS);
        sent.extend(maker.movement(&[value], &[1], Role::Temp));
    }
    maker.microbatch = 0;
    let loss = maker.compute(1, plain(), &sent, 1);
    for microbatch in 0..6 {
        maker.microbatch = microbatch;
        let back = maker.compute(1, gradient(), &[sent[microbatch as usize], loss], ELEMENTS);
        let back = maker.movement(&[back], &[0], Role::Temp)[0];
        maker.compute(0, gradient(), &[back], ELEMENTS);
    }
    let made = schedule(&maker.graph, |_| 0);
    made.verify(&maker.graph).unwrap_or_else(|errors| panic!("{errors:?}"));
    assert_eq!(passes(&maker.graph, &made, 0), "F0 F1 F2 F3 F4 F5 B0 B1 B2 B3 B4 B5");
}
