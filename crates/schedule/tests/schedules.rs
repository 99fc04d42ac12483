//! Schedules of random task graphs are sound, and every way to break one is noticed.

use phalanx_ir::parallel::DeviceId;
use phalanx_ir::tasks::{Buffer, BufferId, Role, Task, TaskGraph, TaskId, TaskOp};
use phalanx_ir::{Id, TensorType, Unary};
use phalanx_schedule::{ALIGNMENT, Place, Schedule, ScheduleError, schedule};
use phalanx_testkit::Rng;

const SEEDS: u64 = 300;

fn device() -> DeviceId {
    DeviceId::from_index(0)
}

fn buffer(role: Role, elements: usize, view_of: Option<BufferId>) -> Buffer {
    Buffer { name: "b".into(), ty: TensorType::f32([elements]), device: device(), role, view_of }
}

fn task(op: TaskOp, reads: Vec<BufferId>, writes: Vec<BufferId>, microbatch: u32) -> Task {
    Task { op, reads, writes, device: device(), layer: "l".into(), microbatch }
}

fn plain() -> TaskOp {
    TaskOp::Unary { kind: Unary::Exp }
}

/// A sound graph of up to thirty tasks: fed buffers, views, outputs, sums in place, several microbatches.
fn random_tasks(seed: u64) -> TaskGraph {
    let mut rng = Rng::new(seed);
    let mut graph = TaskGraph { name: "random".into(), ..TaskGraph::default() };
    let mut written = Vec::new();
    for _ in 0..1 + rng.below(3) {
        let role = rng.choose(&[Role::Input, Role::Param, Role::State]);
        let elements = 1 + rng.below(100);
        written.push(graph.buffers.push(buffer(role, elements, None)));
    }
    let mut microbatch = 0;
    for _ in 0..2 + rng.below(30) {
        microbatch += u32::from(rng.once_in(8));
        if rng.once_in(5) {
            let of = rng.choose(&written);
            let Buffer { ty, role, .. } = graph.buffers[of].clone();
            written.push(graph.buffers.push(buffer(role, ty.shape.elements(), Some(of))));
        }
        let reads: Vec<_> = (0..rng.below(3)).map(|_| rng.choose(&written)).collect();
        let target = rng.choose(&written);
        let is_apart = |&read: &BufferId| graph.root(read) != graph.root(target);
        if rng.once_in(4)
            && graph.buffers[graph.root(target)].role == Role::Temp
            && reads.iter().all(is_apart)
        {
            let op = TaskOp::Rotary { base: 1.0, inverse: false, accumulate: true };
            graph.tasks.push(task(op, reads, vec![target], microbatch));
            continue;
        }
        let mut writes = Vec::new();
        for _ in 0..1 + rng.below(2) {
            let role = if rng.once_in(6) { Role::Output } else { Role::Temp };
            let elements = 1 + rng.below(300);
            writes.push(graph.buffers.push(buffer(role, elements, None)));
        }
        written.extend(&writes);
        graph.tasks.push(task(plain(), reads, writes, microbatch));
    }
    graph.verify().expect("a random task graph is sound");
    graph
}

/// Some tasks need working memory.
fn workspace(task: TaskId) -> u64 {
    [0, 0, 1, 64, 1000][task.index() % 5]
}

fn errors(schedule: &Schedule, tasks: &TaskGraph) -> Vec<ScheduleError> {
    schedule.verify(tasks).expect_err("a broken schedule is noticed")
}

/// Runs `check` on many graphs with their schedules and gives how often it applied.
fn each(mut check: impl FnMut(&TaskGraph, Schedule, &mut Rng) -> bool) -> u64 {
    let mut applied = 0;
    for seed in 0..SEEDS {
        let tasks = random_tasks(seed);
        let made = schedule(&tasks, workspace);
        applied += u64::from(check(&tasks, made, &mut Rng::new(seed)));
    }
    applied
}

#[test]
fn schedules_are_sound_and_print_what_they_are() {
    each(|tasks, made, _| {
        made.verify(tasks).unwrap_or_else(|errors| panic!("{errors:?}\n{tasks}\n{made}"));
        assert!(made.peak >= made.live, "{made}");
        assert!(made.peak.is_multiple_of(ALIGNMENT));
        assert_eq!(made.to_string().parse::<Schedule>().expect("a printed schedule parses"), made);
        assert_eq!(made, schedule(tasks, workspace), "the same graph gives the same schedule");
        for (id, _) in tasks.tasks.iter() {
            let need = workspace(id);
            assert_eq!(made.workspaces[id].is_some(), need > 0);
            assert!(made.workspaces[id].is_none_or(|place| place.bytes >= need && place.end() <= made.peak));
        }
        for (id, buffer) in tasks.buffers.iter() {
            assert!(buffer.view_of.is_none() || made.buffers[id].is_none(), "a view has no place of its own");
            if buffer.role.is_fed() {
                assert_eq!(
                    made.place(tasks, id),
                    made.buffers[tasks.root(id)].expect("fed buffers are placed")
                );
            }
        }
        true
    });
}

#[test]
fn earlier_microbatches_run_first() {
    each(|tasks, made, _| {
        // Tasks of a microbatch depend on their own or earlier ones, so the order is the sorted one.
        let batches: Vec<_> = made.order.iter().map(|&task| tasks.tasks[task].microbatch).collect();
        assert!(batches.is_sorted(), "{batches:?}");
        true
    });
}

#[test]
fn swapped_tasks_are_noticed() {
    let applied = each(|tasks, mut made, rng| {
        let before = tasks.predecessors();
        let dependent: Vec<_> = before.iter().filter(|(_, before)| !before.is_empty()).collect();
        if dependent.is_empty() {
            return false;
        }
        let (late, needs) = rng.choose(&dependent);
        let early = rng.choose(needs);
        let position =
            |task| made.order.iter().position(|&other| other == task).expect("the task is ordered");
        let (a, b) = (position(early), position(late));
        made.order.swap(a, b);
        let expected = ScheduleError::Order { task: late, needs: early };
        let found = errors(&made, tasks);
        assert!(found.contains(&expected), "{expected}: {found:?}");
        true
    });
    assert!(applied > SEEDS / 2, "{applied}");
}

#[test]
fn dropped_doubled_and_unknown_tasks_are_noticed() {
    each(|tasks, made, rng| {
        let at = rng.below(made.order.len());
        let task = made.order[at];
        let mut dropped = made.clone();
        dropped.order.remove(at);
        assert_eq!(errors(&dropped, tasks), [ScheduleError::Count { task, times: 0 }]);
        let mut doubled = made.clone();
        doubled.order.insert(at, task);
        assert_eq!(errors(&doubled, tasks), [ScheduleError::Count { task, times: 2 }]);
        let mut unknown = made;
        let stranger = TaskId::from_index(tasks.tasks.len());
        unknown.order.push(stranger);
        assert_eq!(errors(&unknown, tasks), [ScheduleError::Count { task: stranger, times: 0 }]);
        true
    });
}

/// Breaks the place of a touched buffer and expects exactly that to be reported.
fn assert_place_is_checked(name: &str, break_place: impl Fn(Place, u64) -> Option<Place>) {
    each(|tasks, mut made, rng| {
        let id = rng.below(tasks.tasks.len());
        let touched = tasks.tasks[TaskId::from_index(id)].writes[0];
        let root = tasks.root(touched);
        let place = made.buffers[root].expect("a touched buffer is placed");
        made.buffers[root] = break_place(place, made.peak);
        let found = errors(&made, tasks);
        let reported =
            |error: &ScheduleError| matches!(error, ScheduleError::Place { buffer, .. } if *buffer == root);
        assert!(found.iter().all(reported) && found.len() == 1, "{name}: {found:?}");
        true
    });
}

#[test]
fn wrong_places_are_noticed() {
    assert_place_is_checked("too small", |place, _| Some(Place { bytes: 3, ..place }));
    assert_place_is_checked("missing", |_, _| None);
    assert_place_is_checked("unaligned", |place, _| Some(Place { offset: place.offset + 8, ..place }));
    assert_place_is_checked("outside", |place, peak| Some(Place { offset: peak, ..place }));
    assert_place_is_checked("far outside", |place, _| Some(Place { offset: u64::MAX - 63, ..place }));
}

#[test]
fn a_place_on_a_live_neighbour_is_noticed() {
    let applied = each(|tasks, mut made, rng| {
        // The operands of one task are alive together.
        let task = &tasks.tasks[TaskId::from_index(rng.below(tasks.tasks.len()))];
        let mut roots: Vec<_> =
            task.reads.iter().chain(&task.writes).map(|&buffer| tasks.root(buffer)).collect();
        roots.sort_unstable();
        roots.dedup();
        if roots.len() < 2 {
            return false;
        }
        roots.sort_by_key(|&root| tasks.buffers[root].ty.bytes());
        let (small, large) = (roots[0], roots[1]);
        let target = made.buffers[large].expect("a touched buffer is placed");
        let place = made.buffers[small].expect("a touched buffer is placed");
        made.buffers[small] = Some(Place { offset: target.offset, ..place });
        let pair = [small.to_string(), large.to_string()];
        let is_pair = |error: &ScheduleError| match error {
            ScheduleError::Overlap { a, b } => pair.contains(a) && pair.contains(b),
            _ => false,
        };
        let found = errors(&made, tasks);
        assert!(found.iter().any(is_pair), "{pair:?}: {found:?}");
        true
    });
    assert!(applied > SEEDS / 2, "{applied}");
}

#[test]
fn workspaces_are_checked_too() {
    let applied = each(|tasks, made, rng| {
        let with: Vec<_> = made.workspaces.iter().filter_map(|(id, place)| Some((id, (*place)?))).collect();
        if with.is_empty() {
            return false;
        }
        let (task, place) = rng.choose(&with);
        let written = made.place(tasks, tasks.tasks[task].writes[0]);
        let mut onto = made.clone();
        onto.workspaces[task] = Some(Place { offset: written.offset, bytes: 64 });
        let name = format!("the workspace of {task}");
        let named = |error: &ScheduleError| error.to_string().contains(&name);
        assert!(errors(&onto, tasks).iter().any(named), "{name} lies on a live buffer");
        for broken in [Place { offset: made.peak, ..place }, Place { offset: place.offset + 1, ..place }] {
            let mut moved = made.clone();
            moved.workspaces[task] = Some(broken);
            assert!(errors(&moved, tasks).iter().any(named), "{name} is at {broken:?} of {}", made.peak);
        }
        true
    });
    assert!(applied > SEEDS / 2, "{applied}");
}

/// A chain of temporaries of these sizes, each computed from the one before.
fn chain(sizes: &[usize]) -> TaskGraph {
    let mut graph = TaskGraph { name: "chain".into(), ..TaskGraph::default() };
    let mut last = Vec::new();
    for &elements in sizes {
        let next = graph.buffers.push(buffer(Role::Temp, elements, None));
        graph.tasks.push(task(plain(), last, vec![next], 0));
        last = vec![next];
    }
    graph
}

#[test]
fn a_chain_needs_no_more_than_its_largest_neighbours() {
    for n in [1, 2, 3, 10, 1000] {
        let even = schedule(&chain(&vec![16; n]), |_| 0);
        assert_eq!(even.peak, 64 * n.min(2) as u64);
        assert_eq!(even.peak, even.live);
    }
    let grows = schedule(&chain(&[16, 32, 48, 64]), |_| 0);
    assert_eq!((grows.peak, grows.live), (64 * 7, 64 * 7));
}

#[test]
fn everything_at_once_is_packed_without_gaps() {
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed);
        let mut graph = TaskGraph { name: "all".into(), ..TaskGraph::default() };
        let writes: Vec<_> = (0..1 + rng.below(10))
            .map(|_| graph.buffers.push(buffer(Role::Output, 1 + rng.below(100), None)))
            .collect();
        graph.tasks.push(task(plain(), vec![], writes, 0));
        let made = schedule(&graph, |_| 100);
        assert_eq!(made.peak, made.live);
    }
}

#[test]
fn an_empty_graph_needs_nothing() {
    let made = schedule(&TaskGraph::default(), |_| 1);
    assert_eq!((made.peak, made.live, made.order.len()), (0, 0, 0));
}

#[test]
fn malformed_texts_are_refused() {
    let text = schedule(&chain(&[16, 32]), |_| 64).to_string();
    let changes = [
        ("peak", "height", "expected `peak`, `run`, `place` or `workspace`"),
        ("run t0", "run b0", "`b0` is not an id like t0"),
        ("place b1", "place b2", "b2 is not the next one"),
        ("run t1", "run t1 twice", "text is left over at the end"),
        ("bytes 64", "bytes many", "`many` is not a size"),
    ];
    for (from, to, message) in changes {
        let error = text.replacen(from, to, 1).parse::<Schedule>().expect_err("the text is wrong");
        assert_eq!(error.message, message);
    }
}
