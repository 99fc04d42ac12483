//! Schedules of random task graphs on one device are sound, and every way to break one is noticed.

use crate::generate::{Maker, SEEDS, each, errors, plain, workspace};
use phalanx_ir::Id;
use phalanx_ir::tasks::{Role, TaskGraph, TaskId};
use phalanx_schedule::{ALIGNMENT, ArenaRange, Owner, Schedule, ScheduleError, schedule};
use phalanx_testkit::Rng;

#[test]
fn schedules_are_sound_and_print_what_they_are() {
    each(1, |tasks, made, _| {
        made.verify(tasks).unwrap_or_else(|errors| panic!("{errors:?}\n{tasks}\n{made}"));
        assert!(made.peak() >= made.lanes[0].live, "{made}");
        assert!(made.peak().is_multiple_of(ALIGNMENT));
        assert_eq!(made.to_string().parse::<Schedule>().expect("a printed schedule parses"), made);
        assert_eq!(made, schedule(tasks, workspace), "the same graph gives the same schedule");
        for (id, _) in tasks.tasks.iter() {
            let need = workspace(id);
            assert_eq!(made.workspaces[id].is_some(), need > 0);
            assert!(
                made.workspaces[id].is_none_or(|place| place.bytes >= need && place.end() <= made.peak())
            );
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
    each(1, |tasks, made, _| {
        // Tasks of a microbatch depend on their own or earlier ones, so the order is the sorted one.
        let batches: Vec<_> = made.lanes[0].order.iter().map(|&task| tasks.tasks[task].microbatch).collect();
        assert!(batches.is_sorted(), "{batches:?}");
        true
    });
}

#[test]
fn swapped_tasks_are_noticed() {
    let applied = each(1, |tasks, mut made, rng| {
        let before = tasks.predecessors();
        let dependent: Vec<_> = before.iter().filter(|(_, before)| !before.is_empty()).collect();
        if dependent.is_empty() {
            return false;
        }
        let (late, needs) = rng.choose(&dependent);
        let early = rng.choose(needs);
        let position =
            |task| made.lanes[0].order.iter().position(|&other| other == task).expect("the task is ordered");
        let (a, b) = (position(early), position(late));
        made.lanes[0].order.swap(a, b);
        let expected = ScheduleError::Order { task: late, needs: early };
        let found = errors(&made, tasks);
        assert!(found.contains(&expected), "{expected}: {found:?}");
        true
    });
    assert!(applied > SEEDS / 2, "{applied}");
}

#[test]
fn dropped_doubled_and_unknown_tasks_are_noticed() {
    each(1, |tasks, made, rng| {
        let at = rng.below(made.lanes[0].order.len());
        let task = made.lanes[0].order[at];
        let mut dropped = made.clone();
        dropped.lanes[0].order.remove(at);
        assert_eq!(errors(&dropped, tasks), [ScheduleError::Count { task, times: 0 }]);
        let mut doubled = made.clone();
        doubled.lanes[0].order.insert(at, task);
        assert_eq!(errors(&doubled, tasks), [ScheduleError::Count { task, times: 2 }]);
        let mut unknown = made;
        let stranger = TaskId::from_index(tasks.tasks.len());
        unknown.lanes[0].order.push(stranger);
        assert_eq!(errors(&unknown, tasks), [ScheduleError::Count { task: stranger, times: 0 }]);
        true
    });
}

/// Breaks the place of a touched buffer and expects exactly that to be reported.
fn assert_place_is_checked(name: &str, break_place: impl Fn(ArenaRange, u64) -> Option<ArenaRange>) {
    each(1, |tasks, mut made, rng| {
        let id = rng.below(tasks.tasks.len());
        let touched = tasks.tasks[TaskId::from_index(id)].writes[0];
        let root = tasks.root(touched);
        let place = made.buffers[root].expect("a touched buffer is placed");
        let peak = made.peak();
        made.buffers[root] = break_place(place, peak);
        let found = errors(&made, tasks);
        let reported =
            |error: &ScheduleError| matches!(error, ScheduleError::Place { buffer, .. } if *buffer == root);
        assert!(found.iter().all(reported) && found.len() == 1, "{name}: {found:?}");
        true
    });
}

#[test]
fn wrong_places_are_noticed() {
    assert_place_is_checked("too small", |place, _| Some(ArenaRange { bytes: 3, ..place }));
    assert_place_is_checked("missing", |_, _| None);
    assert_place_is_checked("unaligned", |place, _| Some(ArenaRange { offset: place.offset + 8, ..place }));
    assert_place_is_checked("outside", |place, peak| Some(ArenaRange { offset: peak, ..place }));
    assert_place_is_checked("far outside", |place, _| Some(ArenaRange { offset: u64::MAX - 63, ..place }));
}

#[test]
fn a_place_on_a_live_neighbour_is_noticed() {
    let applied = each(1, |tasks, mut made, rng| {
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
        made.buffers[small] = Some(ArenaRange { offset: target.offset, ..place });
        let pair = [Owner::Buffer(small), Owner::Buffer(large)];
        // A third owner that took over the bytes in between may be met first, so one of the pair must be named.
        let names_one = |error: &ScheduleError| match error {
            ScheduleError::Overlap { a, b } => pair.contains(a) || pair.contains(b),
            _ => false,
        };
        let found = errors(&made, tasks);
        assert!(found.iter().any(names_one), "{pair:?}: {found:?}");
        true
    });
    assert!(applied > SEEDS / 2, "{applied}");
}

#[test]
fn workspaces_are_checked_too() {
    let applied = each(1, |tasks, made, rng| {
        let with: Vec<_> = made.workspaces.iter().filter_map(|(id, place)| Some((id, (*place)?))).collect();
        if with.is_empty() {
            return false;
        }
        let (task, place) = rng.choose(&with);
        let written = made.place(tasks, tasks.tasks[task].writes[0]);
        let mut onto = made.clone();
        onto.workspaces[task] = Some(ArenaRange { offset: written.offset, bytes: 64 });
        let name = format!("the workspace of {task}");
        let named = |error: &ScheduleError| error.to_string().contains(&name);
        assert!(errors(&onto, tasks).iter().any(named), "{name} lies on a live buffer");
        for broken in
            [ArenaRange { offset: made.peak(), ..place }, ArenaRange { offset: place.offset + 1, ..place }]
        {
            let mut moved = made.clone();
            moved.workspaces[task] = Some(broken);
            assert!(errors(&moved, tasks).iter().any(named), "{name} is at {broken:?} of {}", made.peak());
        }
        true
    });
    assert!(applied > SEEDS / 2, "{applied}");
}

/// A chain of temporaries of these sizes, each computed from the one before.
fn chain(sizes: &[usize]) -> TaskGraph {
    let mut maker = Maker::new("chain");
    let mut last = Vec::new();
    for &elements in sizes {
        last = vec![maker.compute(0, plain(), &last, elements)];
    }
    maker.graph
}

#[test]
fn a_chain_needs_no_more_than_its_largest_neighbours() {
    for n in [1, 2, 3, 10, 1000] {
        let even = schedule(&chain(&vec![16; n]), |_| 0);
        assert_eq!(even.peak(), 64 * n.min(2) as u64);
        assert_eq!(even.peak(), even.lanes[0].live);
    }
    let grows = schedule(&chain(&[16, 32, 48, 64]), |_| 0);
    assert_eq!((grows.peak(), grows.lanes[0].live), (64 * 7, 64 * 7));
}

#[test]
fn everything_at_once_is_packed_without_gaps() {
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed);
        let mut maker = Maker::new("all");
        let writes =
            (0..1 + rng.below(10)).map(|_| maker.buffer(0, Role::Output, 1 + rng.below(100))).collect();
        maker.task(0, plain(), vec![], writes);
        let made = schedule(&maker.graph, |_| 100);
        assert_eq!(made.peak(), made.lanes[0].live);
    }
}

#[test]
fn an_empty_graph_needs_nothing() {
    let made = schedule(&TaskGraph::default(), |_| 1);
    assert_eq!((made.peak(), made.total_peak(), made.lanes.len()), (0, 0, 0));
    assert_eq!(made.verify(&TaskGraph::default()), Ok(()));
}

#[test]
fn malformed_texts_are_refused() {
    let text = schedule(&chain(&[16, 32]), |_| 64).to_string();
    let changes = [
        ("lane", "street", "expected `lane`, `run`, `place` or `workspace`"),
        ("lane dev0", "lane 0", "`0` is not an id like dev0"),
        ("run t1", "run t1 after b0", "`b0` is not an id like t0"),
        ("run t1", "run t99999999 after t0", "t99999999 is beyond the tasks that a text of 7 lines can have"),
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
