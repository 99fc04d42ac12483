//! Worked examples of lowering, numbered as in the project's collection of scenarios: which tasks a graph becomes, on
//! which devices, in which order its sums are taken.
//!
//! Two things differ on purpose from where the scenarios come from: leaves are buffers and not tasks, and a level is a type,
//! so that a pass cannot be run twice. Long because an example stands beside its graph.

use std::collections::BTreeSet;

use phalanx_ir::parallel::ParallelGraph;
use phalanx_ir::sharded::{ShardedGraph, ShardedTask};
use phalanx_ir::tasks::{BufferId, MoveKind, Role, Task, TaskGraph, TaskId, TaskOp};
use phalanx_ir::{Id, Precision};
use phalanx_lower::{EXPAND_PASSES, Goal, Leaves, LowerOptions, Optimizer, PASSES, Stage};

fn options(goal: Goal) -> LowerOptions {
    let leaves = Leaves { batch: 4, feature: 2, sequence: 2 };
    LowerOptions {
        goal,
        leaves,
        precision: Precision::F32,
        seed: 9,
        free_bits: true,
        fuse: false,
        buckets: Default::default(),
        node: None,
    }
}

/// The graph after the pass `last`, which started before the pass `first`.
fn run(mut stage: Stage, goal: Goal, first: &str, last: &str) -> Stage {
    let options = options(goal);
    for pass in PASSES.iter().skip_while(|pass| pass.name != first) {
        stage = stage.run(pass, &options).expect("passes follow each other").expect("the pass succeeds");
        if pass.name == last {
            break;
        }
    }
    assert_eq!(stage.verify("scenario"), Ok(()));
    stage
}

fn sharded(stage: Stage) -> ShardedGraph {
    match stage {
        Stage::Sharded(sharded) => sharded,
        Stage::Tasks(_) => panic!("expand-shards has run"),
    }
}

fn tasks(stage: Stage) -> TaskGraph {
    match stage {
        Stage::Sharded(_) => panic!("expand-shards has not run"),
        Stage::Tasks(tasks) => tasks,
    }
}

fn start(text: &str, goal: Goal) -> Stage {
    let graph = ParallelGraph::parse(text, phalanx_ops::operators())
        .unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(graph.verify(), Ok(()));
    Stage::start(&graph, &options(goal)).unwrap_or_else(|error| panic!("{EXPAND_PASSES}: {error}"))
}

/// The tasks of `text` after the pass `last`.
fn tasks_after(text: &str, goal: Goal, last: &str) -> TaskGraph {
    tasks(run(start(text, goal.clone()), goal, "insert-loss", last))
}

fn expanded(text: &str) -> ShardedGraph {
    sharded(start(text, Goal::Gradients))
}

/// Operator and layer of every task.
fn names(sharded: &ShardedGraph) -> Vec<String> {
    sharded.tasks.iter().map(|(_, task)| format!("{} {}", task.op.to_text().0, task.layer)).collect()
}

fn is_move(op: &TaskOp) -> bool {
    matches!(op, TaskOp::Move { .. })
}

fn moves(graph: &TaskGraph) -> Vec<&Task> {
    graph.tasks.iter().map(|(_, task)| task).filter(|task| is_move(&task.op)).collect()
}

/// What moves from where to where: name of what is written, devices read, devices written.
fn routes(graph: &TaskGraph) -> Vec<(String, Vec<usize>, Vec<usize>)> {
    let devices = |buffers: &[BufferId]| {
        let all: BTreeSet<_> = buffers.iter().map(|&buffer| graph.buffers[buffer].device.index()).collect();
        all.into_iter().collect::<Vec<_>>()
    };
    let name = |task: &Task| graph.buffers[task.writes[0]].name.to_string();
    moves(graph).into_iter().map(|task| (name(task), devices(&task.reads), devices(&task.writes))).collect()
}

fn route(name: &str, from: &[usize], to: &[usize]) -> (String, Vec<usize>, Vec<usize>) {
    (name.into(), from.to_vec(), to.to_vec())
}

fn names_of(sharded: &ShardedGraph, buffers: impl Iterator<Item = BufferId>) -> Vec<String> {
    buffers.map(|buffer| sharded.buffers[buffer].name.clone()).collect()
}

const CHAIN: &str = "parallel @t {
  %w = param init=ones f32[4] on dev0
  %y = exp %w : f32[4] on dev0
  %l = reduce kind=sum axes=[0] %y : f32[] on dev0
  return %l
}";

#[test]
fn t24_a_chain_has_forward_and_backward_tasks() {
    let sharded = expanded(CHAIN);
    assert_eq!(names(&sharded), ["unary y", "reduce l", "reduce_grad l", "unary_grad y"]);
    let last = &sharded.tasks[TaskId::from_index(3)];
    assert_eq!(names_of(&sharded, last.read_buffers()), ["w", "y.grad"]);
    assert_eq!(names_of(&sharded, last.written_buffers()), ["w.grad"]);
    let infer = self::sharded(start(CHAIN, Goal::Infer));
    assert_eq!(names(&infer), ["unary y", "reduce l"]);
}

#[test]
fn t25_a_value_in_three_slots_has_three_gradients_and_their_sum() {
    let sharded = expanded(
        "parallel @t {
  %x = param init=ones f32[2, 3, 2, 4] on dev0
  %y = attention causal=true scale=1 %x, %x, %x : f32[2, 3, 2, 4] on dev0
  %l = reduce kind=sum axes=[0,1,2,3] %y : f32[] on dev0
  return %l
}",
    );
    let backward: Vec<&ShardedTask> = sharded.tasks.iter().map(|(_, task)| task).skip(3).collect();
    let [grad, first, second] = backward[..] else { panic!("{:?}", names(&sharded)) };
    let [q, k, v] = grad.written_buffers().collect::<Vec<_>>()[..] else { panic!("one gradient a slot") };
    assert_eq!(BTreeSet::from([q, k, v]).len(), 3);
    let reads = |task: &ShardedTask| task.read_buffers().collect::<Vec<_>>();
    let sum = first.written_buffers().collect::<Vec<_>>();
    assert_eq!((reads(first), reads(second)), (vec![q, k], vec![sum[0], v]), "in the order of the slots");
    assert!(second.written_buffers().eq([sharded.gradients[0].1]));
}

const ALL_FOUR: &str = "parallel @t {
  %x = input f32[6/2, 2] on dev0, dev1
  %w = param init=ones f32[4, 2] on dev0
  %p = repartition dim=0 degree=2 %w : f32[4/2, 2] on dev0, dev1
  %c = combine dim=0 degree=2 %p : f32[4, 2] on dev0
  %r = replicate degree=2 %c : f32[4, 2] copy 2 on dev0, dev1
  %y = linear %x, %r : f32[6/2, 4] on dev0, dev1
  %s = reduce kind=sum axes=[0,1] %y : f32[] sum 2 on dev0, dev1
  %l = reduction degree=2 %s : f32[] on dev0
  return %l
}";

#[test]
fn t26_movements_go_back_with_the_dual_tiling() {
    let sharded = expanded(ALL_FOUR);
    let moves: Vec<_> = sharded.tasks.iter().map(|(_, task)| task).filter(|task| is_move(&task.op)).collect();
    let tilings: Vec<_> = moves
        .iter()
        .map(|task| {
            assert_eq!((task.reads.len(), task.writes.len()), (1, 1), "grads only, no forward value");
            let [from, to] =
                [task.reads[0].buffer, task.writes[0].buffer].map(|buffer| &sharded.buffers[buffer]);
            (from.name.as_str(), from.ty.to_string(), to.ty.to_string())
        })
        .collect();
    let row = |name, from: &str, to: &str| (name, from.to_string(), to.to_string());
    let wanted = [
        row("w", "f32[4, 2]", "f32[4/2, 2]"),
        row("p", "f32[4/2, 2]", "f32[4, 2]"),
        row("c", "f32[4, 2]", "f32[4, 2] copy 2"),
        row("s", "f32[] sum 2", "f32[]"),
        row("l.grad", "f32[]", "f32[] copy 2"),
        row("r.grad", "f32[4, 2] sum 2", "f32[4, 2]"),
        row("c.grad", "f32[4, 2]", "f32[4/2, 2]"),
        row("p.grad", "f32[4/2, 2]", "f32[4, 2]"),
    ];
    assert_eq!(tilings, wanted);
}

#[test]
fn t27_the_loss_starts_the_backward_tasks() {
    let before = names(&expanded(CHAIN));
    let sharded = sharded(run(start(CHAIN, Goal::Gradients), Goal::Gradients, "insert-loss", "insert-loss"));
    assert_eq!(names(&sharded)[0], "fill l");
    assert_eq!(names(&sharded)[1..], before[..]);
    let seed = &sharded.tasks[TaskId::from_index(0)];
    assert_eq!(seed.op, phalanx_ir::fill_task(1.0));
    assert_eq!(names_of(&sharded, seed.written_buffers()), ["l.grad"]);
}

#[test]
fn t28_updates_write_the_parameter_and_its_state() {
    let cases: [(Optimizer, &[&str]); 3] = [
        (Optimizer::sgd(0.0), &["w"]),
        (Optimizer::sgd(0.9), &["w", "w.velocity"]),
        (Optimizer::adam(), &["w", "w.m", "w.v"]),
    ];
    for (optimizer, written) in cases {
        let goal = Goal::Train(optimizer);
        let sharded = sharded(run(start(ALL_FOUR, goal.clone()), goal, "insert-loss", "insert-updates"));
        let is_update = |task: &ShardedTask| ["sgd", "adamw"].contains(&task.op.name());
        let updates: Vec<_> =
            sharded.tasks.iter().map(|(_, task)| task).filter(|task| is_update(task)).collect();
        let [update] = updates[..] else { panic!("an input has no update: {:?}", names(&sharded)) };
        assert_eq!(names_of(&sharded, update.written_buffers()), written);
        let roles: Vec<_> = update.written_buffers().map(|buffer| sharded.buffers[buffer].role).collect();
        assert!(
            roles.iter().enumerate().all(|(slot, &role)| role == [Role::Param, Role::State][slot.min(1)])
        );
        assert_eq!(names_of(&sharded, update.read_buffers()), ["w.grad", "hyper"]);
        assert_eq!(update.reads[0].buffer, sharded.gradients[0].1);
    }
}

/// A task on two devices whose first operand lies on `groups`.
fn two_tiles(groups: &str) -> TaskGraph {
    let text = format!(
        "sharded @t {{
  b0 : f32[4/2] on {groups} input \"x\"
  b1 : f32[4/2] on dev0, dev1 input \"w\"
  b2 : f32[4/2] on dev0, dev1 output \"y\"
  t0 = binary kind=add b0{{- | - | 0}}, b1{{- | - | 0}} -> b2{{- | - | 0}} grid [2] on dev0, dev1 of \"y\"
  output b2 \"y\"
}}"
    );
    let stage = Stage::Sharded(text.parse().unwrap_or_else(|error| panic!("{error}")));
    tasks(run(stage, Goal::Infer, "insert-copies", "expand-shards"))
}

#[test]
fn t29_only_tiles_that_are_elsewhere_are_copied() {
    let there = two_tiles("dev0, dev1");
    assert_eq!((moves(&there).len(), there.tasks.len()), (0, 2));
    let one = two_tiles("dev0, dev2");
    assert_eq!(routes(&one), [route("x", &[2], &[1])]);
    let copied = &one.buffers[moves(&one)[0].writes[0]];
    assert_eq!(copied.tile.as_ref().map(|tile| tile.origin.clone()), Some(vec![2]), "the second tile");
    assert_eq!(one.tasks.len(), 3);
    let mirrored = two_tiles("dev[0-2], dev[1-3]");
    assert_eq!(moves(&mirrored).len(), 0, "a group that holds more than is needed");
}

/// Two layers on two devices; the second one's weight lies on `weight`.
fn two_stages(weight: &str) -> TaskGraph {
    let text = format!(
        "parallel @t {{
  %x = param init=ones f32[4] on dev0
  %h = exp %x : f32[4] on dev0
  %v = param init=ones f32[4] on {weight}
  %y = mul %h, %v : f32[4] on dev1
  %l = reduce kind=sum axes=[0] %y : f32[] on dev1
  return %l
}}"
    );
    tasks_after(&text, Goal::Gradients, "expand-shards")
}

#[test]
fn t30_a_copy_there_and_its_gradient_back() {
    // The gradient of h is the product's first one.
    let (there, back) = (route("h", &[0], &[1]), route("y.grad0", &[1], &[0]));
    assert_eq!(routes(&two_stages("dev1")), [there.clone(), back.clone()]);
    let mut far = routes(&two_stages("dev0"));
    far.sort();
    assert_eq!(far, [there, route("v", &[0], &[1]), route("v.grad", &[1], &[0]), back]);
}

#[test]
fn t31_every_place_of_a_grid_is_a_task_on_its_device() {
    let text = "sharded @t {
  b0 : f32[4/2, 3] on dev0, dev2 input \"x\"
  b1 : f32[2/2, 3] on dev0, dev2 output \"a\"
  b2 : f32[2/2, 3] on dev0, dev2 output \"b\"
  b3 : f32[2/2, 3] on dev1, dev3 output \"c\"
  t0 = split axis=0 b0{- | - | 0, -} -> b1{- | - | 0, -}, b2{- | - | 0, -} grid [2] on dev0, dev2 of \"y\"
  t1 = move kind=any b1 -> b3 of \"c\"
  output b1 \"a\"
  output b2 \"b\"
  output b3 \"c\"
}";
    let sharded: ShardedGraph = text.parse().unwrap_or_else(|error| panic!("{error}"));
    let graph = tasks(run(Stage::Sharded(sharded), Goal::Infer, "expand-shards", "expand-shards"));
    let compute: Vec<_> =
        graph.tasks.iter().map(|(_, task)| task).filter(|task| !is_move(&task.op)).collect();
    assert_eq!(compute.iter().map(|task| task.device.index()).collect::<Vec<_>>(), [0, 2]);
    for (place, task) in compute.iter().enumerate() {
        let starts =
            task.reads.iter().chain(&task.writes).map(|&buffer| graph.buffers[buffer].rect().origin[0]);
        assert_eq!(starts.collect::<Vec<_>>(), [2 * place, place, place]);
    }
    assert_eq!(routes(&graph), [route("c", &[0], &[1]), route("c", &[2], &[3])], "one movement a tile");
    let other: ShardedGraph =
        text.replace("b3 : f32[2/2, 3]", "b3 : f32[2/2, 5]").parse().expect("the text is a graph");
    assert_eq!(other.verify().map_err(|errors| errors.len()), Err(1), "not the same tensor");
}

#[test]
fn t33_a_value_in_two_slots_is_waited_for_once() {
    let text = "parallel @t {
  %x = constant value=1 f32[4] on dev0
  %y = add %x, %x : f32[4] on dev0
  %z = exp %x : f32[4] on dev0
  return %y
}";
    let graph = tasks_after(text, Goal::Infer, "split-movements");
    assert_eq!(graph.tasks.len(), 3);
    let waits = graph.predecessors();
    assert_eq!(waits[TaskId::from_index(1)], [TaskId::from_index(0)]);
}

/// All tasks that come before `task`.
fn ancestors(graph: &TaskGraph, task: TaskId) -> BTreeSet<TaskId> {
    let waits = graph.predecessors();
    let (mut all, mut open) = (BTreeSet::new(), vec![task]);
    while let Some(next) = open.pop() {
        open.extend(waits[next].iter().filter(|&&before| all.insert(before)));
    }
    all
}

#[test]
fn t34_a_reader_waits_for_all_that_was_gathered() {
    let text = "parallel @t {
  %x = input f32[8/4] on dev0, dev1, dev2, dev3
  %y = exp %x : f32[8/4] on dev0, dev1, dev2, dev3
  %c = combine dim=0 degree=4 %y : f32[8] on dev0
  %z = relu %c : f32[8] on dev0
  return %z
}";
    let graph = tasks_after(text, Goal::Infer, "split-movements");
    let of = |layer: &str| {
        let tasks = graph.tasks.iter().filter(|(_, task)| &*task.layer == layer);
        tasks.map(|(id, _)| id).collect::<Vec<_>>()
    };
    let [relu] = of("z")[..] else { panic!("{graph}") };
    let tiles = of("y");
    assert_eq!(tiles.len(), 4);
    assert!(tiles.iter().all(|tile| ancestors(&graph, relu).contains(tile)), "{graph}");
    assert_eq!(of("c").len(), 4, "three devices send, one receives");
}

/// The balanced tree over `parts`.
fn tree(parts: &[Vec<f64>]) -> Vec<f64> {
    match parts {
        [only] => only.clone(),
        _ => {
            let (left, right) = parts.split_at(parts.len().next_power_of_two() / 2);
            tree(left).iter().zip(tree(right)).map(|(a, b)| a + b).collect()
        }
    }
}

/// For every tile that the movement `layer` writes, the numbers of the partial sums it adds, in order.
fn added(graph: &TaskGraph, task: &Task) -> Vec<Vec<usize>> {
    let sources = graph.sources(&task.reads);
    let part = |&buffer: &BufferId| graph.buffers[buffer].tile.as_ref().map_or(0, |tile| tile.part as usize);
    let parts = |&write: &BufferId| {
        assert!(!task.reads.contains(&write), "what was there before is not read");
        let pieces = sources.pieces(write).unwrap_or_else(|| panic!("{write} is covered"));
        assert_eq!(pieces.len(), 1);
        pieces[0].sources.iter().map(part).collect()
    };
    task.writes.iter().map(parts).collect()
}

#[test]
fn t39_gradients_of_copies_are_added_in_order() {
    let text = "parallel @t {
  %w = param init=ones f32[2] on dev0
  %r = replicate degree=3 %w : f32[2] copy 3 on dev0, dev1, dev2
  %x = input f32[3/3, 2] on dev0, dev1, dev2
  %y = mul %x, %r : f32[3/3, 2] on dev0, dev1, dev2
  %s = reduce kind=sum axes=[0,1] %y : f32[] sum 3 on dev0, dev1, dev2
  %l = reduction degree=3 %s : f32[] on dev0
  return %l
}";
    let graph = tasks_after(text, Goal::Gradients, "expand-shards");
    let moves = moves(&graph);
    let copies = moves.iter().find(|task| &*graph.buffers[task.writes[0]].name == "r").expect("w is copied");
    assert_eq!(added(&graph, copies), [[0], [0]], "two copies of one tile; the first is there");
    let sum = moves.iter().find(|task| &*graph.buffers[task.writes[0]].name == "w.grad").expect("a sum");
    let order = added(&graph, sum);
    assert_eq!(order, [[0, 1, 2]]);
    let parts = [vec![1.0, 1.0], vec![2.0, 0.0], vec![-1.0, 5.0]];
    assert_eq!(tree(&order[0].iter().map(|&part| parts[part].clone()).collect::<Vec<_>>()), [2.0, 6.0]);
}

/// The movement that `degree` gives when `sums` partial sums are added onto `groups`.
fn reduction(sums: usize, degree: usize, groups: &str) -> (TaskGraph, Vec<Vec<usize>>) {
    let all: Vec<_> = (0..sums).map(|device| format!("dev{device}")).collect();
    let (all, left) =
        (all.join(", "), if sums > degree { format!(" sum {}", sums / degree) } else { String::new() });
    let text = format!(
        "parallel @t {{
  %x = constant value=1 f32[2] sum {sums} on {all}
  %y = reduction degree={degree} %x : f32[2]{left} on {groups}
  return %y
}}"
    );
    let graph = tasks_after(&text, Goal::Infer, "expand-shards");
    let order = moves(&graph).into_iter().flat_map(|task| added(&graph, task)).collect();
    (graph, order)
}

#[test]
fn t40_partial_sums_are_added_in_order() {
    let (_, order) = reduction(3, 3, "dev0");
    assert_eq!(order, [[0, 1, 2]]);
    let parts = [vec![1.0, 2.0], vec![3.0, 4.0], vec![5.0, 6.0]];
    assert_eq!(tree(&order[0].iter().map(|&part| parts[part].clone()).collect::<Vec<_>>()), [9.0, 12.0]);
    let (graph, order) = reduction(4, 2, "dev0, dev2");
    assert_eq!(order, [[0, 1], [2, 3]], "neighbours, not every other one");
    assert_eq!(routes(&graph), [route("y", &[0, 1], &[0]), route("y", &[2, 3], &[2])]);
}

#[test]
fn t40_the_gradient_of_a_sum_goes_to_every_part() {
    let sharded = expanded(ALL_FOUR);
    let seed = sharded.buffers.iter().find(|(_, buffer)| buffer.name == "s.grad").map(|(_, buffer)| buffer);
    assert_eq!(seed.map(|buffer| buffer.ty.to_string()).as_deref(), Some("f32[] copy 2"));
}

#[test]
fn t45_the_gradient_of_a_shared_value_is_one_sum() {
    let sharded = expanded(
        "parallel @t {
  %x = param init=ones f32[3] on dev0
  %t = relu %x : f32[3] on dev0
  %d = mul_scalar scalar=2 %t : f32[3] on dev0
  %o = add %d, %t : f32[3] on dev0
  %l = reduce kind=sum axes=[0] %o : f32[] on dev0
  return %l
}",
    );
    assert_eq!(names(&sharded)[4..], ["reduce_grad l", "unary_grad d", "binary t", "unary_grad t"]);
    let task = |index: usize| &sharded.tasks[TaskId::from_index(index)];
    let (upstream, scaled) = (task(4).writes[0].buffer, task(5).writes[0].buffer);
    assert!(task(6).read_buffers().eq([upstream, scaled]), "in the order of the backward walk");
    assert_eq!(task(7).reads[1].buffer, task(6).writes[0].buffer);
}

/// Kinds and routes of the movements of a graph that is only run forward.
fn forward(lines: &str, last: &str) -> (TaskGraph, Vec<MoveKind>) {
    let graph = tasks_after(&format!("parallel @t {{\n{lines}\n}}"), Goal::Infer, last);
    let kind = |task: &&Task| match task.op {
        TaskOp::Move { kind } => kind,
        _ => unreachable!("only movements"),
    };
    let kinds = moves(&graph).iter().map(kind).collect();
    (graph, kinds)
}

#[test]
fn t56_movements_that_undo_each_other_are_none() {
    let (graph, kinds) = forward(
        "%x = constant value=1 f32[4/2] on dev0, dev1
  %c = combine dim=0 degree=2 %x : f32[4] on dev0
  %p = repartition dim=0 degree=2 %c : f32[4/2] on dev0, dev1
  %y = exp %p : f32[4/2] on dev0, dev1
  return %y",
        "fuse-movements",
    );
    assert_eq!((kinds, graph.tasks.len()), (vec![], 4));
}

#[test]
fn t56_cuts_multiply() {
    let six = "dev0, dev1, dev2, dev3, dev4, dev5";
    let ends = |middle: &str, op: &str| {
        let lines = format!(
            "%x = constant value=1 f32[12] on dev0\n{middle}%z = {op} : f32[12/6] on {six}\nreturn %z"
        );
        let (graph, kinds) = forward(&lines, "fuse-movements");
        let rects: Vec<_> = graph.buffers.iter().map(|(_, buffer)| (buffer.rect(), buffer.device)).collect();
        (kinds, rects)
    };
    let twice = ends(
        "%y = repartition dim=0 degree=2 %x : f32[12/2] on dev0, dev1\n",
        "repartition dim=0 degree=3 %y",
    );
    let once = ends("", "repartition dim=0 degree=6 %x");
    assert_eq!(twice, once);
    assert_eq!(once.0, [MoveKind::Scatter]);
}

#[test]
fn t56_a_sum_copied_to_its_own_devices_is_an_all_reduce() {
    let (graph, kinds) = forward(
        "%x = constant value=1 f32[4] sum 2 on dev0, dev1
  %s = reduction degree=2 %x : f32[4] on dev0
  %r = replicate degree=2 %s : f32[4] copy 2 on dev0, dev1
  %y = exp %r : f32[4] copy 2 on dev0, dev1
  return %y",
        "fuse-movements",
    );
    assert_eq!(kinds, [MoveKind::AllReduce]);
    assert_eq!(
        added(&graph, moves(&graph)[0]),
        [[0, 1], [0, 1]],
        "both devices add the same in the same order"
    );
}

#[test]
fn b1_two_layers_on_two_devices() {
    let text = "parallel @t {
  %x = input f32[8, 6] on dev0
  %t = input i64[8] on dev0
  %w1 = param init=ones f32[4, 6] on dev0
  %w2 = param init=ones f32[2, 4] on dev1
  %h = linear %x, %w1 : f32[8, 4] on dev0
  %y = linear %h, %w2 : f32[8, 2] on dev1
  %l = cross_entropy ignore=-100 %y, %t : f32[] on dev0
  return %l
}";
    let goal = Goal::Train(Optimizer::sgd(0.9));
    let graph = tasks_after(text, goal, "expand-shards");
    let four = [
        route("h", &[0], &[1]),
        route("y", &[1], &[0]),
        route("y.grad", &[0], &[1]),
        route("h.grad", &[1], &[0]),
    ];
    assert_eq!(routes(&graph), four);
    let on = |device: usize| {
        let own = graph.tasks.iter().map(|(_, task)| task).filter(|task| !is_move(&task.op));
        let own = own.filter(|task| task.device.index() == device);
        own.map(|task| format!("{} {}", task.op.to_text().0, task.layer)).collect::<Vec<_>>()
    };
    let second = ["linear y", "linear_grad_input y", "linear_grad_weight y", "sgd w2"];
    assert_eq!(on(1), second);
    let first = [
        "fill l",
        "linear h",
        "cross_entropy l",
        "reduce l",
        "cross_entropy_grad l",
        "linear_grad_weight h",
        "sgd w1",
    ];
    assert_eq!(on(0), first, "x wants no gradient");
    let kept = |role: Role| graph.buffers.iter().filter(|(_, buffer)| buffer.role == role).count();
    assert_eq!((kept(Role::Param), kept(Role::State)), (2, 2));
}

#[test]
fn b2_one_layer_on_two_devices() {
    let text = "parallel @t {
  %x = input f32[8, 6] on dev0
  %t = input i64[8/2] on dev0, dev1
  %w = param init=ones f32[4, 6] on dev0
  %p = repartition dim=0 degree=2 %x : f32[8/2, 6] on dev0, dev1
  %r = replicate degree=2 %w : f32[4, 6] copy 2 on dev0, dev1
  %y = linear %p, %r : f32[8/2, 4] on dev0, dev1
  %s = cross_entropy ignore=-100 %y, %t : f32[] sum 2 on dev0, dev1
  %l = reduction degree=2 %s : f32[] on dev0
  return %l
}";
    let graph = tasks_after(text, Goal::Train(Optimizer::sgd(0.0)), "expand-shards");
    let wanted = [
        route("p", &[0], &[0, 1]),
        route("r", &[0], &[1]),
        route("l", &[0, 1], &[0]),
        route("s.grad", &[0], &[1]),
        route("w.grad", &[0, 1], &[0]),
    ];
    assert_eq!(
        routes(&graph),
        wanted,
        "scatter, broadcast, sum of the loss, its gradient, sum of the weight's"
    );
    let count = |name: &str| graph.tasks.iter().filter(|(_, task)| task.op.to_text().0 == name).count();
    let each =
        ["linear", "cross_entropy", "cross_entropy_grad", "linear_grad_weight", "sgd", "linear_grad_input"];
    assert_eq!(each.map(count), [2, 2, 2, 2, 1, 0]);
    let update = graph.tasks.iter().find(|(_, task)| task.op.name() == "sgd").map(|(id, _)| id);
    let before = ancestors(&graph, update.expect("there is an update"));
    let linear = graph.tasks.iter().filter(|(_, task)| matches!(task.op, TaskOp::Linear { .. }));
    assert!(linear.map(|(id, _)| id).all(|id| before.contains(&id)), "the weight is read before it changes");
}

/// Three branches that share values, on three devices.
const BRANCHES: &str = "parallel @branches {
  %x = param init=ones f32[8] on dev0
  %a = exp %x : f32[8] on dev0
  %b = sigmoid %a : f32[8] on dev0
  %c = tanh %b : f32[8] on dev1
  %d = mul %c, %b : f32[8] on dev1
  %e = mul %a, %b : f32[8] on dev[1-2]
  %f = mul %e, %x : f32[8] on dev0
  %g = mul %d, %x : f32[8] on dev1
  %s = add %f, %g : f32[8] on dev0
  %l = reduce kind=sum axes=[0] %s : f32[] on dev0
  return %l
}";

#[test]
fn a_tile_reaches_a_device_once_and_gradients_are_added_on_the_shortest_way_home() {
    let graph = tasks_after(BRANCHES, Goal::Gradients, "expand-shards");
    let wanted = [
        route("b", &[0], &[1]),
        route("a", &[0], &[1, 2]),
        route("b", &[0], &[2]),
        route("e", &[1], &[0]),
        route("x", &[0], &[1]),
        route("g", &[1], &[0]),
        route("s.grad", &[0], &[1]),
        route("f.grad0", &[0], &[1, 2]),
        route("b.grad", &[1], &[0]),
        route("e.grad0", &[1], &[0]),
        route("g.grad1", &[1], &[0]),
    ];
    assert_eq!(routes(&graph), wanted);
}
