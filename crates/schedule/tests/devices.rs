//! Schedules of random task graphs on several devices mean what the task graph says, whatever the lanes' relative speed,
//! and every way to break one is noticed.

use crate::generate::{Maker, SEEDS, device, each, each_in, errors, made_in, plain, random_tasks, workspace};
use phalanx_ir::Id;
use phalanx_ir::tasks::{BufferId, Role, TaskError, TaskGraph, TaskId, TaskOp};
use phalanx_schedule::search::Effort;
use phalanx_schedule::{
    ALIGNMENT, ArenaRange, LaneKind, Owner, Schedule, ScheduleError, Style, TaskCosts, schedule,
    schedule_by_search,
};
use phalanx_testkit::{Rng, cases};

const DEVICES: usize = 4;

/// What lies in a cache line: bytes of an owner, as a task left them.
type Line = Option<(Owner, Option<TaskId>)>;

/// Runs the lanes in a random interleaving that respects the waits and checks that every task reads what the task graph
/// says. Tells the first task that does not, or that the lanes cannot go on.
fn run_at_random(tasks: &TaskGraph, made: &Schedule, rng: &mut Rng) -> Result<(), String> {
    let mut arenas: Vec<Vec<Line>> =
        made.lanes.iter().map(|lane| vec![None; (lane.peak / ALIGNMENT) as usize + 1]).collect();
    let lane_of = |device| made.lanes.iter().position(|lane| lane.device == device).expect("a lane");
    let lines =
        |place: ArenaRange| (place.offset / ALIGNMENT) as usize..place.end().div_ceil(ALIGNMENT) as usize;
    let home = |root: BufferId| (lane_of(tasks.buffers[root].device), lines(made.place(tasks, root)));
    let fed = || tasks.buffers.iter().filter(|(_, b)| b.view_of.is_none() && b.role.is_fed());
    for (id, _) in fed() {
        let (lane, range) = home(id);
        arenas[lane][range].fill(Some((Owner::Buffer(id), None)));
    }
    let expected = versions(tasks);
    let mut done = vec![false; tasks.tasks.len()];
    let mut next = vec![0; made.lanes.len()];
    loop {
        let head = |lane: usize| made.lanes[lane].order.get(next[lane]).copied();
        let is_free = |task: &TaskId| made.waits[*task].iter().all(|other| done[other.index()]);
        let free: Vec<usize> =
            (0..next.len()).filter(|&lane| head(lane).is_some_and(|t| is_free(&t))).collect();
        if free.is_empty() {
            break;
        }
        let lane = rng.choose(&free);
        let id = head(lane).expect("a free lane has a task");
        for (root, version) in &expected[id.index()] {
            let (lane, range) = home(*root);
            if arenas[lane][range].iter().any(|&line| line != Some((Owner::Buffer(*root), *version))) {
                return Err(format!("{id} reads {root}"));
            }
        }
        if let Some(place) = made.workspaces[id] {
            let arena = lane_of(made.lanes[lane].device);
            arenas[arena][lines(place)].fill(Some((Owner::Workspace(id), Some(id))));
        }
        for &write in &tasks.tasks[id].writes {
            let (lane, range) = home(tasks.root(write));
            arenas[lane][range].fill(Some((Owner::Buffer(tasks.root(write)), Some(id))));
        }
        done[id.index()] = true;
        next[lane] += 1;
    }
    if done.iter().all(|&done| done) { Ok(()) } else { Err("the lanes cannot go on".into()) }
}

/// For every task the buffers it reads, each with the task that wrote it last in the list.
fn versions(tasks: &TaskGraph) -> Vec<Vec<(BufferId, Option<TaskId>)>> {
    let mut last: Vec<Option<TaskId>> = vec![None; tasks.buffers.len()];
    let mut all = Vec::new();
    for (id, task) in tasks.tasks.iter() {
        let updated = task.writes.iter().enumerate().filter(|&(slot, _)| task.op.reads_write(slot));
        let reads = task.reads.iter().chain(updated.map(|(_, write)| write)).map(|&read| tasks.root(read));
        all.push(reads.map(|root| (root, last[root.index()])).collect());
        task.writes.iter().for_each(|&write| last[tasks.root(write).index()] = Some(id));
    }
    all
}

/// One lane for each device, and lanes of transfers with and without a limit.
const STYLES: [Style; 3] = [
    Style { overlap: false, prefetch: None },
    Style { overlap: true, prefetch: None },
    Style { overlap: true, prefetch: Some(1) },
];

#[test]
fn movements_come_in_the_same_order_on_every_device() {
    for style in &STYLES[1..] {
        let applied = each_in(DEVICES, *style, |tasks, made, _| {
            let mut before = std::collections::BTreeSet::new();
            for lane in made.lanes.iter().filter(|lane| lane.kind == LaneKind::Transfers) {
                let movements: Vec<usize> = lane
                    .order
                    .iter()
                    .filter_map(|&task| match tasks.tasks[task].op {
                        TaskOp::Receive { movement } => Some(movement),
                        _ => None,
                    })
                    .collect();
                for (at, &first) in movements.iter().enumerate() {
                    before.extend(movements[at + 1..].iter().map(|&second| (first, second)));
                }
            }
            assert!(before.iter().all(|&(a, b)| a == b || !before.contains(&(b, a))), "{tasks}\n{made}");
            before.len() > 10
        });
        assert!(applied > SEEDS / 4, "{applied}");
    }
}

#[test]
fn schedules_are_sound_and_mean_what_the_graph_says() {
    let mut waits = 0;
    for (devices, style) in [2, 3, DEVICES, 9].into_iter().flat_map(|n| STYLES.map(|style| (n, style))) {
        each_in(devices, style, |tasks, made, rng| {
            made.verify(tasks).unwrap_or_else(|errors| panic!("{errors:?}\n{tasks}\n{made}"));
            for _ in 0..4 {
                run_at_random(tasks, &made, rng).unwrap_or_else(|why| panic!("{why}\n{tasks}\n{made}"));
            }
            assert_eq!(made.to_string().parse::<Schedule>().expect("a printed schedule parses"), made);
            assert_eq!(made, made_in(tasks, style), "the same graph gives the same schedule");
            assert!(
                !style.overlap
                    || !made.lanes.iter().any(|lane| lane.kind == LaneKind::Compute
                        && lane
                            .order
                            .iter()
                            .any(|&task| matches!(tasks.tasks[task].op, TaskOp::Receive { .. })))
            );
            assert!(made.lanes.iter().all(|lane| lane.peak >= lane.live));
            assert_eq!(made.peak(), made.lanes.iter().map(|lane| lane.peak).max().unwrap_or(0));
            assert_eq!(made.total_peak(), made.lanes.iter().map(|lane| lane.peak).sum::<u64>());
            for lane in made.devices() {
                assert_eq!(made.lane_of(lane.device), Some(lane));
            }
            assert_eq!(made.lane_of(device(devices)), None);
            waits += made.waits.iter().map(|(_, waits)| waits.len()).sum::<usize>();
            true
        });
    }
    assert!(waits > 10_000, "{waits}");
}

#[test]
fn no_wait_can_be_spared() {
    for style in STYLES {
        no_wait_can_be_spared_in(style);
    }
}

fn no_wait_can_be_spared_in(style: Style) {
    let mut kinds = [0, 0];
    each_in(DEVICES, style, |tasks, made, _| {
        for (task, waits) in made.waits.iter() {
            for at in 0..waits.len() {
                let mut broken = made.clone();
                let on = broken.waits[task].remove(at);
                let found = errors(&broken, tasks);
                let is_order = |error: &ScheduleError| matches!(error, ScheduleError::Order { .. });
                let is_race = |error: &ScheduleError| matches!(error, ScheduleError::Race { .. });
                let depends = found.contains(&ScheduleError::Order { task, needs: on });
                kinds[usize::from(!depends)] += 1;
                // A wait that is not for a result is for bytes.
                assert!(depends || found.iter().any(|e| is_order(e) || is_race(e)), "{task} {on}: {found:?}");
                assert!(!found.iter().any(|error| matches!(error, ScheduleError::Cycle { .. })));
            }
        }
        true
    });
    assert!(kinds[0] > 1000 && kinds[1] > 100, "{kinds:?}");
}

#[test]
fn orders_found_by_search_are_sound() {
    let link = "2us,1GB".parse().ok();
    for seed in 0..cases(SEEDS / 6) {
        let (tasks, mut rng) = (&random_tasks(seed, DEVICES), Rng::new(seed));
        let costs = TaskCosts::modelled(tasks, link.clone());
        for memory in [None, Some(4096)] {
            let made = schedule_by_search(tasks, &costs, memory, Effort::default(), workspace)
                .expect("the graph is small");
            made.verify(tasks).unwrap_or_else(|errors| panic!("{errors:?}\n{tasks}\n{made}"));
            run_at_random(tasks, &made, &mut rng).unwrap_or_else(|why| panic!("{why}\n{tasks}\n{made}"));
        }
    }
}

#[test]
fn swapped_tasks_are_noticed() {
    let applied = each(DEVICES, |tasks, made, rng| {
        let before = tasks.predecessors();
        let same = |a: TaskId, b: TaskId| tasks.tasks[a].device == tasks.tasks[b].device;
        let pairs: Vec<(TaskId, TaskId)> = before
            .iter()
            .flat_map(|(late, needs)| needs.iter().map(move |&early| (early, late)))
            .filter(|&(early, late)| same(early, late))
            .collect();
        if pairs.is_empty() {
            return false;
        }
        let (early, late) = rng.choose(&pairs);
        let mut swapped = made.clone();
        let lane = swapped.lanes.iter_mut().find(|lane| lane.device == tasks.tasks[early].device);
        let order = &mut lane.expect("the lane of the tasks").order;
        let at = |task| order.iter().position(|&other| other == task).expect("the task is ordered");
        let (a, b) = (at(early), at(late));
        order.swap(a, b);
        let found = errors(&swapped, tasks);
        let expected = ScheduleError::Order { task: late, needs: early };
        let is_cycle = matches!(found[..], [ScheduleError::Cycle { .. }]);
        assert!(is_cycle || found.contains(&expected), "{expected}: {found:?}");
        true
    });
    assert!(applied > SEEDS / 2, "{applied}");
}

#[test]
fn lanes_must_hold_every_task_of_their_device_once() {
    each(DEVICES, |tasks, made, rng| {
        let full: Vec<usize> =
            (0..made.lanes.len()).filter(|&lane| !made.lanes[lane].order.is_empty()).collect();
        let lane = rng.choose(&full);
        let at = rng.below(made.lanes[lane].order.len());
        let mut dropped = made.clone();
        let task = dropped.lanes[lane].order.remove(at);
        assert_eq!(errors(&dropped, tasks), [ScheduleError::Count { task, times: 0 }]);
        if made.lanes.len() > 1 {
            let other = (lane + 1) % made.lanes.len();
            dropped.lanes[other].order.push(task);
            let expected =
                ScheduleError::Lane { task, device: made.lanes[lane].device, lane: made.lanes[other].device };
            assert_eq!(errors(&dropped, tasks), [expected]);
            let mut fewer = made.clone();
            fewer.lanes.remove(lane);
            assert!(matches!(errors(&fewer, tasks)[..], [ScheduleError::Lanes { .. }]));
        }
        let mut short = made;
        short.waits = short.waits.iter().skip(1).map(|(_, waits)| waits.clone()).collect();
        assert!(matches!(errors(&short, tasks)[..], [ScheduleError::Tables { .. }]));
        true
    });
}

#[test]
fn cycles_and_meaningless_waits_are_noticed() {
    let applied = each(DEVICES, |tasks, made, rng| {
        let with: Vec<TaskId> =
            made.waits.iter().filter(|(_, waits)| !waits.is_empty()).map(|(id, _)| id).collect();
        if with.is_empty() {
            return false;
        }
        let task = rng.choose(&with);
        let on = rng.choose(&made.waits[task]);
        let mut broken = made.clone();
        broken.waits[on].push(task);
        let found = errors(&broken, tasks);
        let [ScheduleError::Cycle { tasks: circle }] = &found[..] else { panic!("{found:?}") };
        assert!(circle.contains(&task) && circle.contains(&on), "{circle:?}");
        for wrong in [task, TaskId::from_index(tasks.tasks.len())] {
            let mut broken = made.clone();
            broken.waits[task].push(wrong);
            assert_eq!(errors(&broken, tasks), [ScheduleError::Wait { task, on: wrong }]);
        }
        true
    });
    assert!(applied > SEEDS / 2, "{applied}");
}

#[test]
fn a_longer_circle_is_told_task_by_task() {
    let mut maker = Maker::new("ring");
    for on in 0..3 {
        for _ in 0..3 {
            maker.compute(on, plain(), &[], 16);
        }
    }
    let mut made = schedule(&maker.graph, |_| 0);
    made.verify(&maker.graph).expect("independent tasks need no waits");
    let task = TaskId::from_index;
    // Lanes are 0 1 2, 3 4 5, 6 7 8; every middle task waits for the last one of the next lane.
    for lane in 0..3 {
        made.waits[task(3 * lane + 1)].push(task((3 * lane + 5) % 9));
    }
    let circle = [7, 8, 4, 5, 1, 2].map(task).to_vec();
    let found = errors(&made, &maker.graph);
    let [ScheduleError::Cycle { tasks }] = &found[..] else { panic!("{found:?}") };
    let mut turned = circle.clone();
    let starts = (0..6).any(|_| {
        turned.rotate_left(1);
        turned == *tasks
    });
    assert!(starts, "{tasks:?}");
}

#[test]
fn shrunk_and_moved_buffers_are_noticed() {
    let applied = each(DEVICES, |tasks, made, rng| {
        let receives: Vec<TaskId> = tasks
            .tasks
            .iter()
            .filter(|(_, task)| matches!(task.op, TaskOp::Receive { .. }))
            .map(|(id, _)| id)
            .collect();
        if receives.is_empty() {
            return false;
        }
        let receive = &tasks.tasks[rng.choose(&receives)];
        let root = tasks.root(receive.writes[0]);
        let place = made.buffers[root].expect("a touched buffer is placed");
        let mut shrunk = made.clone();
        shrunk.buffers[root] = Some(ArenaRange { bytes: place.bytes - ALIGNMENT, ..place });
        let found = errors(&shrunk, tasks);
        assert!(matches!(found[..], [ScheduleError::Place { buffer, .. }] if buffer == root), "{found:?}");
        // What the device has sent and not computed anew is alive while others fetch it: nothing may lie there.
        let read = tasks.root(receive.reads[0]);
        let sibling = |id: BufferId| tasks.buffers[id].device == tasks.buffers[read].device && id != read;
        let mut fed = made.buffers.iter().filter(|&(id, place)| {
            place.is_some_and(|place| place.bytes > 0) && tasks.buffers[id].role.is_fed() && sibling(id)
        });
        let Some((onto, _)) = fed.next_back() else { return false };
        let mut moved = made.clone();
        let target = made.buffers[onto].expect("a fed buffer is placed");
        let bytes = made.buffers[read].expect("a read buffer is placed").bytes;
        if target.offset + bytes > made.lane_of(tasks.buffers[read].device).expect("a lane").peak {
            return false;
        }
        moved.buffers[read] = Some(ArenaRange { offset: target.offset, bytes });
        let named = |error: &ScheduleError| match error {
            ScheduleError::Overlap { a, b } => [*a, *b].contains(&Owner::Buffer(read)),
            _ => false,
        };
        let found = errors(&moved, tasks);
        assert!(found.iter().any(named), "{read} on {onto}: {found:?}");
        true
    });
    assert!(applied > SEEDS / 4, "{applied}");
}

#[test]
fn a_lost_side_of_a_movement_is_noticed() {
    let applied = each(DEVICES, |tasks, _, rng| {
        let is_far = |task: TaskId, read: &BufferId| tasks.buffers[*read].device != tasks.tasks[task].device;
        let far: Vec<TaskId> = tasks
            .tasks
            .ids()
            .filter(|&id| tasks.tasks[id].reads.iter().any(|read| is_far(id, read)))
            .collect();
        if far.is_empty() {
            return false;
        }
        let receive = rng.choose(&far);
        let movement = match tasks.tasks[receive].op {
            TaskOp::Receive { movement } => movement,
            ref op => panic!("{op:?} reads another device's memory"),
        };
        let reported = |graph: &TaskGraph| match graph.verify() {
            Ok(()) => false,
            Err(errors) => {
                errors.iter().any(|e| matches!(e, TaskError::Side { task, .. } if *task == receive))
            }
        };
        let mut sourceless = tasks.clone();
        sourceless.tasks[receive].reads.clear();
        assert!(reported(&sourceless), "{receive} has no source");
        let mut unsent = tasks.clone();
        for id in tasks.tasks.ids() {
            if tasks.tasks[id].op == (TaskOp::Send { movement }) {
                unsent.tasks[id].reads.clear();
            }
        }
        assert!(reported(&unsent), "{receive} has no sender");
        true
    });
    assert!(applied > SEEDS / 2, "{applied}");
}

/// Breaks a schedule in a random way.
fn mutate(tasks: &TaskGraph, made: &mut Schedule, rng: &mut Rng) {
    let task = TaskId::from_index(rng.below(tasks.tasks.len()));
    match rng.below(5) {
        0 => made.waits[task].clear(),
        1 => {
            let lane = rng.below(made.lanes.len());
            let order = &mut made.lanes[lane].order;
            if order.len() > 1 {
                let at = rng.below(order.len() - 1);
                order.swap(at, at + 1);
            }
        }
        2 | 3 => {
            let buffer = BufferId::from_index(rng.below(tasks.buffers.len()));
            let peak = made.lane_of(tasks.buffers[buffer].device).expect("a lane").peak;
            if let Some(place) = &mut made.buffers[buffer] {
                let room = (peak - place.bytes) / ALIGNMENT;
                place.offset = ALIGNMENT * rng.below(room as usize + 1) as u64;
            }
        }
        _ => {
            let peak = made.lane_of(tasks.tasks[task].device).expect("a lane").peak;
            if let Some(place) = &mut made.workspaces[task] {
                let room = (peak - place.bytes) / ALIGNMENT;
                place.offset = ALIGNMENT * rng.below(room as usize + 1) as u64;
            }
        }
    }
}

/// Broken schedules of a whole soak; a tenth of them is more than two thousand.
const MUTANTS: u64 = 24_000;

#[test]
fn what_the_verifier_accepts_runs_right_however_it_was_changed() {
    let (mut accepted, mut wrong) = (0, 0);
    for seed in 0..cases(MUTANTS) {
        let mut rng = Rng::new(seed);
        let tasks = random_tasks(seed, 1 + rng.below(5));
        let mut made = schedule(&tasks, workspace);
        for _ in 0..1 + rng.below(2) {
            mutate(&tasks, &mut made, &mut rng);
        }
        let verdict = made.verify(&tasks);
        accepted += u64::from(verdict.is_ok());
        for _ in 0..5 {
            let run = run_at_random(&tasks, &made, &mut rng);
            wrong += u64::from(run.is_err());
            assert!(verdict.is_err() || run.is_ok(), "{run:?}\n{tasks}\n{made}");
        }
    }
    // The test means something only if both happen often.
    let often = cases(MUTANTS / 10);
    assert!(accepted > often && wrong > often, "{accepted} accepted, {wrong} wrong runs");
}

#[test]
fn bytes_fetched_by_another_device_are_not_written_before() {
    // The last task takes the bytes of what was sent, while the other device may still be fetching them.
    let mut maker = Maker::new("reuse");
    let sent = maker.compute(0, plain(), &[], 1600);
    maker.movement(&[sent], &[1], Role::Output);
    let small = maker.compute(0, plain(), &[], 16);
    let taker = maker.compute(0, plain(), &[small], 1600);
    let made = schedule(&maker.graph, |_| 0);
    made.verify(&maker.graph).unwrap_or_else(|errors| panic!("{errors:?}"));
    let [receive, last] = [2, 4].map(TaskId::from_index);
    assert_eq!(made.lane_of(device(0)).expect("a lane").peak, 6400 + 64);
    assert_eq!(made.waits[last], [receive]);
    let mut broken = made.clone();
    broken.waits[last].clear();
    let found = errors(&broken, &maker.graph);
    let [ScheduleError::Race { first, a, second, b }] = found[..] else { panic!("{found:?}") };
    let mut uses = [(first, a), (second, b)];
    uses.sort_unstable();
    assert_eq!(uses, [(receive, Owner::Buffer(sent)), (last, Owner::Buffer(taker))]);
}
