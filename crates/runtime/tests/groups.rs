//! Groups of processors: which member runs which task, in which order, and what becomes of their tasks.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier, Mutex};

use phalanx_runtime::{Config, Context, Fault, Group, GroupError, Options, ProcessorId, Runtime, Task};

const P0: ProcessorId = ProcessorId(0);
const P1: ProcessorId = ProcessorId(1);

fn runtime(processors: u32) -> Runtime {
    Runtime::new(Config::new(processors, 0))
}

/// Keeps a processor from doing anything else until the sender is dropped; it does so when this returns.
fn plug(runtime: &Runtime, processor: ProcessorId) -> Sender<()> {
    let (open, gate) = channel::<()>();
    let (here, plugged) = channel();
    runtime.spawn(processor, Options { priority: i32::MAX, ..Options::default() }, move |_| {
        here.send(()).expect("the test listens");
        gate.recv().expect_err("the test drops its end");
    });
    plugged.recv().expect("the plug runs");
    open
}

/// What ran, and on which processor.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(u32, u32)>>>);

impl Log {
    fn task(&self, what: u32) -> impl FnOnce(&Context<'_>) + Send + 'static {
        let log = self.clone();
        move |context| log.0.lock().expect("no thread panics").push((what, context.processor()))
    }

    fn names(&self) -> Vec<u32> {
        self.0.lock().expect("no thread panics").iter().map(|&(what, _)| what).collect()
    }

    fn sorted_names(&self) -> Vec<u32> {
        let mut names = self.names();
        names.sort_unstable();
        names
    }
}

fn wait_all(runtime: &Runtime, tasks: &[Task]) {
    tasks.iter().for_each(|task| runtime.wait(task.finish()).expect("no task fails"));
}

#[test]
fn of_equal_priorities_a_members_own_task_goes_before_the_groups() {
    let (runtime, log) = (runtime(1), Log::default());
    let group = runtime.group(&[P0]).expect("it has a member");
    let open = plug(&runtime, P0);
    let options = |priority| Options { priority, ..Options::default() };
    let tasks = [
        runtime.spawn_any(&group, options(0), log.task(0)),
        runtime.spawn(P0, options(0), log.task(1)),
        runtime.spawn_any(&group, options(0), log.task(2)),
        runtime.spawn(P0, options(-1), log.task(3)),
        runtime.spawn_any(&group, options(1), log.task(4)),
        runtime.spawn(P0, options(0), log.task(5)),
    ];
    drop(open);
    wait_all(&runtime, &tasks);
    assert_eq!(log.names(), [4, 1, 5, 0, 2, 3]);
}

#[test]
fn each_member_runs_its_share() {
    const MEMBERS: u32 = 3;
    let runtime = runtime(MEMBERS);
    let members: Vec<_> = runtime.processors().collect();
    let group = runtime.group(&members).expect("it has members");
    for _ in 0..50 {
        let (meet, log) = (Arc::new(Barrier::new(MEMBERS as usize)), Log::default());
        // Tasks that wait for each other on their threads: none of them ends before each member has one.
        let spawn = |number| {
            let (meet, task) = (Arc::clone(&meet), log.task(number));
            runtime.spawn_any(&group, Options::default(), move |context| {
                meet.wait();
                task(context);
            })
        };
        let tasks: Vec<_> = (0..MEMBERS).map(spawn).collect();
        wait_all(&runtime, &tasks);
        let mut ran_on: Vec<_> = log.0.lock().expect("no thread panics").iter().map(|&(_, on)| on).collect();
        ran_on.sort_unstable();
        assert_eq!(ran_on, [0, 1, 2]);
    }
}

#[test]
fn a_busy_member_holds_up_nobody() {
    let (runtime, log) = (runtime(2), Log::default());
    let group = runtime.group(&[P0, P1]).expect("it has members");
    let _busy = plug(&runtime, P0);
    let tasks: Vec<_> =
        (0..20).map(|number| runtime.spawn_any(&group, Options::default(), log.task(number))).collect();
    wait_all(&runtime, &tasks);
    assert_eq!(
        *log.0.lock().expect("no thread panics"),
        (0..20).map(|number| (number, 1)).collect::<Vec<_>>()
    );
}

#[test]
fn a_task_of_a_group_moves_to_its_new_priority() {
    let (runtime, log) = (runtime(1), Log::default());
    let group = runtime.group(&[P0]).expect("it has a member");
    let open = plug(&runtime, P0);
    let tasks: Vec<_> =
        (0..3).map(|number| runtime.spawn_any(&group, Options::default(), log.task(number))).collect();
    assert!(tasks[2].set_priority(1));
    drop(group);
    assert!(tasks[0].set_priority(-1), "also after the group has gone");
    drop(open);
    wait_all(&runtime, &tasks);
    assert_eq!(log.names(), [2, 1, 0]);
}

#[test]
fn tasks_outlive_their_group() {
    let (runtime, log) = (runtime(2), Log::default());
    let plugs = [P0, P1].map(|processor| plug(&runtime, processor));
    let group = runtime.group(&[P0, P1]).expect("it has members");
    let late = runtime.events().user();
    let mut finish = Vec::new();
    for number in 0..40 {
        let after = if number < 30 { Default::default() } else { late.event() };
        let options = Options { after, ..Options::default() };
        finish.push(runtime.spawn_any(&group, options, log.task(number)).finish());
    }
    drop(group);
    drop(plugs);
    finish[..30].iter().for_each(|&event| runtime.wait(event).expect("no task fails"));
    assert_eq!(log.sorted_names(), (0..30).collect::<Vec<_>>());
    runtime.events().trigger(late).expect("once");
    finish[30..].iter().for_each(|&event| runtime.wait(event).expect("no task fails"));
    assert_eq!(log.sorted_names(), (0..40).collect::<Vec<_>>());
}

#[test]
fn groups_come_and_go_and_come_again() {
    let (runtime, log) = (runtime(2), Log::default());
    let run = |group: &Group, number| {
        let task = runtime.spawn_any(group, Options::default(), log.task(number));
        runtime.wait(task.finish()).expect("it does not fail");
    };
    for number in 0..200 {
        let group = runtime.group(&[P0, P1]).expect("it has members");
        run(&group, number);
        run(&group.clone(), number);
    }
    assert_eq!(log.names(), (0..200).flat_map(|number| [number; 2]).collect::<Vec<_>>());
}

#[test]
fn a_group_without_members_or_with_unknown_ones_is_refused() {
    let runtime = runtime(2);
    assert_eq!(runtime.group(&[]).err(), Some(GroupError::Empty));
    let error = runtime.group(&[P0, ProcessorId(2)]).err().expect("there is no processor 2");
    assert_eq!(error, GroupError::NoSuchProcessor { processor: 2, processors: 2 });
    assert_eq!(error.to_string(), "a group with processor 2 of a runtime with 2; members are 0 to 1");
}

#[test]
fn a_groups_task_that_becomes_ready_after_the_end_is_told() {
    let runtime = runtime(2);
    let events = Arc::clone(runtime.events());
    let group = runtime.group(&[P0, P1]).expect("it has members");
    let late = events.user();
    let options = Options { name: "late", after: late.event(), ..Options::default() };
    let task = runtime.spawn_any(&group, options, |_| panic!("its processors have gone"));
    drop(runtime);
    events.trigger(late).expect("once");
    let fault = events.wait(task.finish()).expect_err("it cannot run");
    assert_eq!(fault, Fault::refused("late", "its processor has been shut down"));
}

#[test]
fn a_group_of_another_runtime_is_a_fault() {
    let (ours, theirs) = (runtime(1), runtime(1));
    let group = theirs.group(&[P0]).expect("it has a member");
    let task =
        ours.spawn_any(&group, Options { name: "lost", ..Options::default() }, |_| panic!("it never runs"));
    let fault = ours.wait(task.finish()).expect_err("the group is not ours");
    assert_eq!(fault, Fault::refused("lost", "spawned on a group of another runtime"));
}
