//! Computing activations again changes no meaning, saves memory, and is done no more than needed.

use crate::generate::{SEEDS, device, workspace};
use crate::meaning::meaning;
use crate::training::random_training;
use phalanx_ir::tasks::{BufferId, Role, TaskGraph, TaskId, TaskOp};
use phalanx_ir::{Id, Unary};
use phalanx_schedule::recompute::{Peak, RecomputeChoice, StepDoesNotFit, apply, auto, candidates, full};
use phalanx_schedule::schedule;
use phalanx_testkit::Rng;

fn choice(numbers: &[usize]) -> RecomputeChoice {
    numbers.iter().map(|&number| BufferId::from_index(number)).collect()
}

fn parse(text: &str) -> TaskGraph {
    let graph: TaskGraph = text.parse().expect("the text is a task graph");
    graph.verify().unwrap_or_else(|errors| panic!("{errors:?}"));
    graph
}

/// The lines of the tasks, without the devices.
fn lines(graph: &TaskGraph) -> Vec<String> {
    let text = graph.to_string();
    let tasks = text.lines().filter(|line| line.contains("->"));
    tasks.map(|line| line.split(" on ").next().unwrap_or_default().trim().to_string()).collect()
}

/// Applies and checks: the new graph is sound, can be scheduled and means the same.
fn apply_checked(graph: &TaskGraph, choice: &RecomputeChoice) -> TaskGraph {
    let again = apply(graph, choice);
    again.verify().unwrap_or_else(|errors| panic!("{errors:?}\n{graph}\n{again}"));
    let count = graph.buffers.len();
    assert_eq!(meaning(graph, count), meaning(&again, count), "{choice:?}\n{graph}\n{again}");
    let made = schedule(&again, workspace);
    made.verify(&again).unwrap_or_else(|errors| panic!("{errors:?}\n{again}\n{made}"));
    again
}

#[test]
fn random_choices_keep_the_meaning() {
    let mut repeated = [0; 3];
    for seed in 0..SEEDS {
        let devices = 1 + seed as usize % 3;
        let graph = random_training(seed, devices);
        let mut rng = Rng::new(seed);
        let all: RecomputeChoice = graph.buffers.ids().collect();
        let some: RecomputeChoice = graph.buffers.ids().filter(|_| rng.once_in(2)).collect();
        for choice in [all, some, full(&graph)] {
            let again = apply_checked(&graph, &choice);
            repeated[devices - 1] += again.tasks.len() - graph.tasks.len();
            assert_eq!(again, apply(&graph, &choice), "the same choice gives the same graph");
        }
    }
    assert!(repeated.iter().all(|&tasks| tasks > 200), "{repeated:?} tasks ran again");
}

#[test]
fn candidates_are_what_is_repeated_if_chosen() {
    for seed in 0..SEEDS {
        let graph = random_training(seed, 2);
        let all: RecomputeChoice = graph.buffers.ids().collect();
        let known: RecomputeChoice =
            candidates(&graph).into_iter().flat_map(|candidate| candidate.buffers).collect();
        assert_eq!(apply(&graph, &all), apply(&graph, &known));
    }
}

/// Three layers; `d` and `e` come from one task, and gradients read `b`, a view of `c`, and `e`.
const LAYERS: &str = "tasks @layers {
  b0 : f32[100] on dev0 input \"x\"
  b1 : f32[100] on dev0 param \"w\"
  b2 : f32[100] on dev0 temp \"b.mb0\"
  b3 : f32[100] on dev0 temp \"c\"
  b4 : f32[50, 2] on dev0 temp view b3 \"c\"
  b5 : f32[100] on dev0 temp \"d\"
  b6 : f32[100] on dev0 temp \"e\"
  b7 : f32[100] on dev0 temp \"f\"
  b8 : f32[100] on dev0 temp \"g\"
  b9 : f32[100] on dev0 temp \"h\"
  b10 : f32[100] on dev0 output \"i\"
  t0 = binary kind=mul b0, b1 -> b2 on dev0 of \"b\"
  t1 = unary kind=exp b2 -> b3 on dev0 of \"c\"
  t2 = split axis=0 b4 -> b5, b6 on dev0 of \"d\"
  t3 = unary kind=exp b5 -> b7 on dev0 of \"f\"
  t4 = unary_grad kind=exp b6, b7 -> b8 on dev0 of \"d\"
  t5 = unary_grad kind=exp b4, b8 -> b9 on dev0 of \"c\"
  t6 = unary_grad kind=exp b2, b9 -> b10 on dev0 of \"b\"
  output b10 \"i\"
}";

#[test]
fn a_task_runs_again_before_the_first_backward_reader_of_a_result() {
    let again = apply_checked(&parse(LAYERS), &choice(&[6]));
    let expected = [
        "t3 = unary kind=exp b5 -> b7",
        "t4 = split axis=0 b4 -> b11, b12",
        "t5 = unary_grad kind=exp b12, b7 -> b8",
        "t6 = unary_grad kind=exp b4, b8 -> b9",
    ];
    assert_eq!(lines(&again)[3..7], expected);
}

#[test]
fn chosen_operands_run_again_first_and_views_show_them() {
    let again = apply_checked(&parse(LAYERS), &choice(&[3, 5]));
    let expected = [
        "t4 = unary kind=exp b2 -> b11",
        "t5 = split axis=0 b12 -> b13, b14",
        "t6 = unary_grad kind=exp b14, b7 -> b8",
        "t7 = unary_grad kind=exp b12, b8 -> b9",
        "t8 = unary_grad kind=exp b2, b9 -> b10",
    ];
    assert_eq!(lines(&again)[4..], expected);
    assert_eq!(again.buffers[BufferId::from_index(12)].view_of, Some(BufferId::from_index(11)));
}

#[test]
fn candidates_have_names_without_microbatch_and_the_bytes_they_keep() {
    let found = candidates(&parse(LAYERS));
    let names: Vec<_> = found.iter().map(|candidate| (&candidate.name[..], candidate.bytes)).collect();
    // Of d and e only e is kept; f is read by a gradient at once, which still counts.
    assert_eq!(names, [("b", 448), ("c", 448), ("d", 448), ("f", 448)]);
    assert_eq!(found[2].buffers, [5, 6].map(BufferId::from_index));
    assert_eq!(found[2].tasks, [TaskId::from_index(2)]);
}

#[test]
fn what_has_changed_since_is_not_used_again() {
    let updated = LAYERS.replace(
        "  t6 = ",
        "  t6 = sgd momentum=0 decay=0 b9, b0 -> b1 on dev0 of \"w\"
  t7 = ",
    );
    let graph = parse(&updated);
    assert_eq!(apply_checked(&graph, &choice(&[2])), graph, "the weight of b is not what it was");
    let again = apply_checked(&graph, &choice(&[2, 3]));
    assert_eq!(again.tasks.len(), graph.tasks.len() + 2, "c needs b before the update");
}

/// A weight in two halves is gathered for each pass; `y` is needed in both.
const GATHERED: &str = "tasks @gathered {
  b0 : f32[100] on dev0 input \"x\"
  b1 : f32[50] at [0] in [100] part 0 of x1 on dev0 param \"w\"
  b2 : f32[50] at [50] in [100] part 0 of x1 on dev1 param \"w\"
  b3 : f32[100] at [0] in [100] part 0 of x1 on dev0 temp \"w\"
  b4 : f32[100] on dev0 temp \"y\"
  b5 : f32[100] on dev0 temp \"z\"
  b6 : f32[100] at [0] in [100] part 0 of x1 on dev0 temp \"w\"
  b7 : f32[100] on dev0 output \"dx\"
  t0 = send movement=0 b2 -> on dev1 of \"w\"
  t1 = receive movement=0 b1, b2 -> b3 on dev0 of \"w\"
  t2 = binary kind=mul b0, b3 -> b4 on dev0 of \"y\"
  t3 = unary_grad kind=exp b4, b0 -> b5 on dev0 of \"y\"
  t4 = send movement=1 b2 -> on dev1 of \"w\"
  t5 = receive movement=1 b1, b2 -> b6 on dev0 of \"w\"
  t6 = binary kind=mul b5, b6 -> b7 on dev0 of \"y\"
  output b7 \"dx\"
}";

#[test]
fn weights_gathered_for_the_backward_pass_are_used_and_come_earlier() {
    let again = apply_checked(&parse(GATHERED), &choice(&[4]));
    let expected = [
        "t3 = send movement=1 b2 ->",
        "t4 = receive movement=1 b1, b2 -> b6",
        "t5 = binary kind=mul b0, b6 -> b8",
        "t6 = unary_grad kind=exp b8, b0 -> b5",
        "t7 = binary kind=mul b5, b6 -> b7",
    ];
    assert_eq!(lines(&again)[3..], expected);
}

#[test]
fn what_was_sent_in_the_forward_pass_is_what_arrives() {
    let text = "tasks @between {
  b0 : f32[100] on dev0 input \"x\"
  b1 : f32[100] at [0] in [100] part 0 of x1 on dev0 temp \"y\"
  b2 : f32[100] on dev0 temp \"z\"
  b3 : f32[100] at [0] in [100] part 0 of x1 on dev1 output \"y\"
  b4 : f32[100] on dev0 output \"dx\"
  t0 = unary kind=exp b0 -> b1 on dev0 of \"y\"
  t1 = send movement=0 b1 -> on dev0 of \"y\"
  t2 = unary_grad kind=exp b0, b0 -> b2 on dev0 of \"y\"
  t3 = unary_grad kind=exp b1, b2 -> b4 on dev0 of \"y\"
  t4 = receive movement=0 b1 -> b3 on dev1 of \"y\"
}";
    let again = apply_checked(&parse(text), &choice(&[1]));
    assert_eq!(
        lines(&again)[4..],
        ["t4 = unary_grad kind=exp b5, b2 -> b4", "t5 = receive movement=0 b1 -> b3"]
    );
}

#[test]
fn graphs_without_gradients_stay_as_they_are() {
    let graph = crate::generate::random_tasks(7, 2);
    let all: RecomputeChoice = graph.buffers.ids().collect();
    assert_eq!(
        (apply(&graph, &all), full(&graph), candidates(&graph)),
        (graph, RecomputeChoice::default(), Vec::new())
    );
}

/// Blocks of two tensors that gradients read on each of two stages; the gradient goes the other way.
fn pipeline(blocks: usize) -> TaskGraph {
    let mut maker = crate::generate::Maker::new("pipeline");
    let plain = crate::generate::plain;
    let gradient = || TaskOp::UnaryGrad { kind: Unary::Exp, accumulate: false, rounded: false };
    let mut stages: Vec<Vec<[BufferId; 3]>> = Vec::new();
    let weights = [0, 1].map(|on| maker.buffer(on, Role::Param, 64));
    let mut stream = maker.buffer(0, Role::Input, 64);
    for (on, &weight) in weights.iter().enumerate() {
        let mut stage = Vec::new();
        for _ in 0..blocks {
            let wide = maker.compute(on, plain(), &[stream, weight], 640);
            let wider = maker.compute(on, plain(), &[wide], 1280);
            stage.push([stream, wide, wider]);
            stream = maker.compute(on, plain(), &[stream, wider], 64);
        }
        if on == 0 {
            stream = maker.movement(&[stream], &[1], Role::Temp)[0];
        }
        stages.push(stage);
    }
    let mut dy = maker.compute(1, gradient(), &[stream], 64);
    for (on, stage) in stages.iter().enumerate().rev() {
        for &[stream, wide, wider] in stage.iter().rev() {
            let dwider = maker.compute(on, gradient(), &[wider, dy], 1280);
            let dwide = maker.compute(on, gradient(), &[wide, dwider], 640);
            dy = maker.compute(on, gradient(), &[stream, dwide], 64);
        }
        if on == 1 {
            dy = maker.movement(&[dy], &[0], Role::Temp)[0];
        }
    }
    let result = maker.buffer(0, Role::Output, 64);
    maker.task(0, plain(), vec![dy], vec![result]);
    maker.graph.outputs.push(("dx".into(), result));
    named(maker.graph)
}

/// The graph, every buffer with a name of its own.
fn named(mut graph: TaskGraph) -> TaskGraph {
    graph.buffers.iter_mut().for_each(|(id, buffer)| buffer.name = id.to_string().into());
    graph.verify().unwrap_or_else(|errors| panic!("{errors:?}\n{graph}"));
    graph
}

fn peaks(graph: &TaskGraph) -> Vec<u64> {
    schedule(graph, |_| 0).lanes.iter().map(|lane| lane.peak).collect()
}

#[test]
fn full_keeps_what_enters_the_blocks() {
    let graph = pipeline(8);
    let again = apply_checked(&graph, &full(&graph));
    let (before, after) = (peaks(&graph), peaks(&again));
    // A block has 7680 bytes that gradients read, besides the 256 that enter it.
    assert!(before.iter().all(|&peak| peak > 8 * 7680), "{before:?}");
    assert!(after.iter().all(|&peak| peak < 4 * 7680), "{before:?} became {after:?}");
}

/// A residual stream to which two devices add a function of the sum of what each computes.
#[test]
fn full_does_not_keep_one_tensor_to_compute_another_like_it() {
    let mut maker = crate::generate::Maker::new("sums");
    let weights = [0, 1].map(|on| maker.buffer(on, Role::Param, 64));
    let mut streams = [0, 1].map(|on| maker.buffer(on, Role::Input, 64));
    let mut blocks = Vec::new();
    for _ in 0..8 {
        let wide =
            [0, 1].map(|on| maker.compute(on, crate::generate::plain(), &[streams[on], weights[on]], 640));
        let sums = maker.all_reduce(&[(0, vec![wide[0]]), (1, vec![wide[1]])], 64);
        let added = [0, 1].map(|on| maker.compute(on, crate::generate::plain(), &[sums[on]], 64));
        blocks.push([streams, wide, added]);
        streams = [0, 1].map(|on| maker.compute(on, crate::generate::plain(), &[streams[on], added[on]], 64));
    }
    let mut gradients = streams;
    for block in blocks.into_iter().rev() {
        for (on, gradient) in gradients.iter_mut().enumerate() {
            let op = TaskOp::UnaryGrad { kind: Unary::Exp, accumulate: false, rounded: false };
            let reads = [block[0][on], block[1][on], block[2][on], *gradient];
            *gradient = maker.compute(on, op, &reads, 64);
        }
    }
    let graph = named(maker.graph);
    let again = apply_checked(&graph, &full(&graph));
    assert!(peaks(&again)[0] < peaks(&graph)[0] / 2);
    let received = |graph: &TaskGraph, read: &BufferId| {
        graph
            .tasks
            .iter()
            .any(|(_, task)| matches!(task.op, TaskOp::Receive { .. }) && task.writes.contains(read))
    };
    let readers = |graph: &TaskGraph| {
        let reads = graph.tasks.iter().flat_map(|(_, task)| &task.reads);
        reads.filter(|read| received(graph, read)).count()
    };
    assert_eq!(readers(&again), readers(&graph), "received sums are read as often as before");
}

#[test]
fn a_device_that_waits_for_gradients_does_not_compute_again_yet() {
    let graph = pipeline(3);
    let again = apply(&graph, &full(&graph));
    let made = schedule(&again, |_| 0);
    let lane = &made.lanes[0];
    let is_receive = |&task: &TaskId| matches!(again.tasks[task].op, TaskOp::Receive { .. });
    let arrival = lane.order.iter().position(is_receive).expect("a gradient arrives");
    let before =
        lane.order[..arrival].iter().filter(|&&task| again.tasks[task].op == crate::generate::plain());
    assert_eq!(before.count(), 9, "three tasks a block, once");
    assert!(again.tasks.len() > graph.tasks.len());
}

/// What each device needs, against its budget.
fn against(graph: &TaskGraph, budgets: [u64; 2]) -> Vec<Peak> {
    let needs = peaks(graph).into_iter().zip(budgets).enumerate();
    needs.map(|(on, (bytes, budget))| Peak { device: device(on), bytes, budget }).collect()
}

#[test]
fn auto_computes_no_more_again_than_fits_needs() {
    let graph = pipeline(8);
    let (none, all) = (peaks(&graph), peaks(&apply(&graph, &full(&graph))));
    let mut last = 0;
    for eighths in 0..=8 {
        let budgets = [0, 1].map(|on| all[on] + (none[on] - all[on]) * (8 - eighths) / 8);
        let mut asked = 0;
        let mut fits = |graph: &TaskGraph| {
            asked += 1;
            against(graph, budgets)
        };
        let fitted = auto(&graph, &|_| 1, &mut fits).expect("everything computed again fits");
        assert!(asked <= 7, "{asked} questions about {} candidates", candidates(&graph).len());
        assert_eq!(fitted.peaks, against(&apply_checked(&graph, &fitted.choice), budgets));
        assert!(fitted.peaks.iter().all(|peak| peak.bytes <= peak.budget), "{:?}", fitted.peaks);
        let repeated = fitted.graph.tasks.len() - graph.tasks.len();
        assert!(repeated >= last, "{repeated} tasks run again in less memory than {last}");
        assert_eq!(repeated == 0, eighths == 0);
        last = repeated;
    }
}

#[test]
fn auto_leaves_devices_alone_that_have_enough() {
    let graph = pipeline(4);
    let mut fits = |graph: &TaskGraph| against(graph, [u64::MAX, 20_000]);
    let fitted = auto(&graph, &|_| 1, &mut fits).expect("the second stage can be made to fit");
    let on_first =
        |graph: &TaskGraph| graph.tasks.iter().filter(|(_, task)| task.device == device(0)).count();
    assert_eq!(on_first(&fitted.graph), on_first(&graph));
    assert!(fitted.graph.tasks.len() > graph.tasks.len());
}

#[test]
fn auto_says_what_is_needed_at_best() {
    let graph = pipeline(4);
    let mut fits = |graph: &TaskGraph| against(graph, [u64::MAX, 4096]);
    let error: StepDoesNotFit = auto(&graph, &|_| 1, &mut fits).expect_err("no choice needs so little");
    let need = peaks(&apply(&graph, &full(&graph)))[1];
    assert_eq!(
        error.to_string(),
        format!(
            "dev1 has 4.00 KiB, but a step needs {} there even if activations are computed again: use more devices, \
             more microbatches or a smaller batch",
            phalanx_ir::bytes_text(need, 2)
        )
    );
}
