//! Tasks one by one: order, life, waits, failures, and the end of the runtime.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use phalanx_runtime::flow::{self, Builder, TaskKind};
use phalanx_runtime::{
    Cause, Config, Context, Event, Events, Fault, Function, Launch, Options, ProcessorId, Runtime, Status,
    Task,
};

const P0: ProcessorId = ProcessorId(0);
const P1: ProcessorId = ProcessorId(1);

fn runtime(processors: u32) -> Runtime {
    Runtime::new(Config::new(processors, 0))
}

/// Keeps a processor from doing anything else until the sender is used or dropped; it does so when this returns.
fn plug(runtime: &Runtime, processor: ProcessorId) -> Sender<()> {
    let (open, gate) = channel();
    let (here, plugged) = channel();
    let urgent = Options { priority: i32::MAX, ..Options::default() };
    runtime.spawn(processor, urgent, move |_| {
        here.send(()).expect("the test listens");
        // An error means that the test has dropped its end, which opens the gate too.
        let _ = gate.recv();
    });
    plugged.recv().expect("the plug runs");
    open
}

/// Names of tasks in the order in which they ran.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u32>>>);

impl Log {
    fn note(&self, what: u32) {
        self.0.lock().expect("no thread panics").push(what);
    }

    fn task(&self, what: u32) -> impl FnOnce(&Context<'_>) + Send + 'static {
        let log = self.clone();
        move |_| log.note(what)
    }

    fn get(&self) -> Vec<u32> {
        self.0.lock().expect("no thread panics").clone()
    }
}

fn cause(runtime: &Runtime, task: &Task) -> Cause {
    runtime.wait(task.finish()).expect_err("the task fails").cause().clone()
}

#[test]
fn urgent_tasks_go_first_and_equal_ones_in_the_order_of_spawning() {
    let (runtime, log) = (runtime(1), Log::default());
    let open = plug(&runtime, P0);
    let priorities = [0, 5, -1, 5, 0, i32::MIN, i32::MAX];
    let tasks: Vec<_> = (0u32..)
        .zip(priorities)
        .map(|(number, priority)| {
            runtime.spawn(P0, Options { priority, ..Options::default() }, log.task(number))
        })
        .collect();
    drop(open);
    tasks.iter().for_each(|task| runtime.wait(task.finish()).expect("no task fails"));
    assert_eq!(log.get(), [6, 1, 3, 0, 4, 2, 5]);
}

#[test]
fn a_task_that_waited_goes_on_before_new_ones_of_its_priority() {
    let (runtime, log) = (runtime(1), Log::default());
    let event = runtime.events().user();
    let (here, started) = channel();
    let waits = runtime.spawn(P0, Options::default(), {
        let log = log.clone();
        move |context| {
            here.send(()).expect("the test listens");
            context.wait(event.event()).expect("the event does not fail");
            log.note(0);
        }
    });
    started.recv().expect("the task runs");
    let open = plug(&runtime, P0);
    let new = runtime.spawn(P0, Options::default(), log.task(1));
    let urgent = runtime.spawn(P0, Options { priority: 1, ..Options::default() }, log.task(2));
    runtime.events().trigger(event).expect("once");
    drop(open);
    [waits, new, urgent].iter().for_each(|task| runtime.wait(task.finish()).expect("no task fails"));
    assert_eq!(log.get(), [2, 0, 1]);
}

#[test]
fn a_task_moves_to_its_new_priority_and_runs_once() {
    let (runtime, log) = (runtime(1), Log::default());
    let open = plug(&runtime, P0);
    let event = runtime.events().user();
    let mut tasks: Vec<_> =
        (0..4).map(|number| runtime.spawn(P0, Options::default(), log.task(number))).collect();
    let later = Options { after: event.event(), ..Options::default() };
    tasks.push(runtime.spawn(P0, later, log.task(4)));
    assert!(tasks[3].set_priority(7), "raised");
    assert!(tasks[0].set_priority(-7), "lowered");
    assert!(tasks[1].set_priority(9) && tasks[1].set_priority(-9), "raised, then lowered");
    assert!(tasks[4].set_priority(8), "raised before it is ready");
    runtime.events().trigger(event).expect("once");
    drop(open);
    tasks.iter().for_each(|task| runtime.wait(task.finish()).expect("no task fails"));
    assert_eq!(log.get(), [4, 3, 2, 0, 1]);
    assert!(!tasks[2].set_priority(1), "it is over");
}

#[test]
fn a_cancelled_task_never_runs_and_lets_go_of_what_it_captured() {
    let runtime = runtime(1);
    let open = plug(&runtime, P0);
    let never = runtime.events().user();
    let captured = Arc::new(());
    let [ready, waiting] = [Event::NONE, never.event()].map(|after| {
        let captured = Arc::clone(&captured);
        let options = Options { name: "victim", after, ..Options::default() };
        runtime.spawn(P0, options, move |_| panic!("{captured:?} of a cancelled task"))
    });
    assert_eq!((ready.status(), waiting.status()), (Status::Ready, Status::Waiting));
    for task in [&ready, &waiting] {
        assert!(task.cancel());
        assert!(!task.cancel(), "once");
        assert_eq!(task.status(), Status::Cancelled);
        let fault = runtime.wait(task.finish()).expect_err("it is cancelled");
        assert_eq!((fault.operation(), fault.cause()), ("victim", &Cause::Cancelled));
    }
    assert_eq!(Arc::strong_count(&captured), 1);
    drop(open);
    runtime.events().trigger(never).expect("once");
    let last = runtime.spawn(P0, Options::default(), |_| {});
    runtime.wait(last.finish()).expect("the processor goes on");
}

#[test]
fn the_status_tells_where_a_task_is() {
    let runtime = runtime(1);
    let [start, middle, attached] = [(); 3].map(|()| runtime.events().user());
    let (tell, told) = channel();
    let options = Options { after: start.event(), ..Options::default() };
    let task = runtime.spawn(P0, options, move |context| {
        tell.send(()).expect("the test listens");
        context.wait(middle.event()).expect("the event does not fail");
        context.finish_after(attached.event());
    });
    assert_eq!(task.status(), Status::Waiting);
    runtime.events().trigger(start).expect("once");
    told.recv().expect("the task runs");
    assert_eq!(task.status(), Status::Running);
    assert!(!task.cancel() && !task.set_priority(1), "it has started");
    runtime.events().trigger(middle).expect("once");
    let after = runtime.spawn(P0, Options { priority: -1, ..Options::default() }, |_| {});
    runtime.wait(after.finish()).expect("it does not fail");
    assert_eq!(task.status(), Status::Running, "its body has returned, what it attached has not triggered");
    runtime.events().trigger(attached).expect("once");
    runtime.wait(task.finish()).expect("it does not fail");
    assert_eq!(task.status(), Status::Completed);
}

#[test]
fn a_task_behind_a_poisoned_event_never_runs_and_passes_the_fault_on() {
    let runtime = runtime(2);
    let failing = runtime.spawn(P0, Options { name: "culprit", ..Options::default() }, |context| {
        context.fail("first");
        context.fail("second");
    });
    let options = Options { name: "heir", after: failing.finish(), ..Options::default() };
    let heir = runtime.spawn(P1, options, |_| panic!("it never runs"));
    let fault = runtime.wait(heir.finish()).expect_err("the fault is passed on");
    assert_eq!(fault, Fault::failed("culprit", "first"));
    assert_eq!((failing.status(), heir.status()), (Status::Failed, Status::Cancelled));
}

/// Spawns a task that captures `N` bytes.
fn check_capture<const N: usize>(runtime: &Runtime) {
    let bytes: [u8; N] = std::array::from_fn(|index| (index * 7 + N) as u8);
    let (send, received) = channel();
    runtime.spawn(P0, Options::default(), move |_| send.send(bytes).expect("the test listens"));
    assert_eq!(received.recv().expect("the task runs"), bytes);
}

#[test]
fn captures_of_any_size_arrive_intact() {
    let runtime = runtime(1);
    check_capture::<0>(&runtime);
    check_capture::<1>(&runtime);
    check_capture::<64>(&runtime);
    check_capture::<65>(&runtime);
    check_capture::<4096>(&runtime);
}

#[test]
fn what_a_task_attaches_delays_its_finish_but_not_its_processor() {
    let runtime = runtime(1);
    let [first, second] = [(); 2].map(|()| runtime.events().user());
    let task = runtime.spawn(P0, Options::default(), move |context| {
        context.finish_after(first.event());
        context.finish_after(second.event());
    });
    let next = runtime.spawn(P0, Options::default(), |_| {});
    runtime.wait(next.finish()).expect("the processor is free");
    assert_eq!(runtime.events().outcome(task.finish()), None);
    runtime.events().trigger(second).expect("once");
    assert_eq!(runtime.events().outcome(task.finish()), None);
    runtime.events().trigger(first).expect("once");
    assert_eq!(runtime.wait(task.finish()), Ok(()));
}

#[test]
fn poison_of_what_a_task_attaches_is_its_own() {
    let runtime = runtime(1);
    let event = runtime.events().user();
    let task = runtime.spawn(P0, Options::default(), move |context| context.finish_after(event.event()));
    runtime.events().cancel(event, "the attached one").expect("once");
    let fault = runtime.wait(task.finish()).expect_err("the poison is passed on");
    assert_eq!(fault, Fault::new("the attached one", Cause::Cancelled));
    assert_eq!(task.status(), Status::Failed);
}

#[test]
fn a_task_that_fails_does_not_wait_for_what_it_attached() {
    let runtime = runtime(1);
    let never = runtime.events().user();
    let task = runtime.spawn(P0, Options::default(), move |context| {
        context.finish_after(never.event());
        context.fail("of its own");
    });
    assert_eq!(cause(&runtime, &task), Cause::Failed("of its own".into()));
}

#[test]
fn a_panic_fails_the_task_and_spares_the_worker() {
    let runtime = runtime(1);
    let task = runtime.spawn(P0, Options { name: "rash", ..Options::default() }, |_| panic!("on purpose"));
    assert_eq!(runtime.wait(task.finish()), Err(Fault::failed("rash", "on purpose")));
    let unnamed = runtime.spawn(P0, Options::default(), |_| panic!("{}", 7));
    assert_eq!(runtime.wait(unnamed.finish()), Err(Fault::failed("a task", "7")));
}

#[test]
fn a_waiter_that_panics_spares_the_worker() {
    let runtime = runtime(1);
    let open = plug(&runtime, P0);
    let task = runtime.spawn(P0, Options::default(), |_| {});
    runtime.events().subscribe(task.finish(), |_| panic!("on purpose"));
    drop(open);
    let next = runtime.spawn(P0, Options::default(), |_| {});
    assert_eq!((runtime.wait(task.finish()), runtime.wait(next.finish())), (Ok(()), Ok(())));
}

#[test]
fn a_processor_that_does_not_exist_is_a_fault() {
    let runtime = runtime(2);
    let task = runtime.spawn(ProcessorId(2), Options { name: "lost", ..Options::default() }, |_| {});
    let fault = runtime.wait(task.finish()).expect_err("there is no such processor");
    assert_eq!(fault, Fault::refused("lost", "spawned on processor 2 of a runtime with 2; use 0 to 1"));
    assert_eq!(task.status(), Status::Cancelled);
}

#[test]
fn every_task_of_several_threads_runs_once() {
    const EACH: u64 = 20_000;
    let (runtime, sum) = (runtime(2), Arc::new(AtomicU64::new(0)));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (runtime, sum) = (&runtime, &sum);
            scope.spawn(move || {
                let spawn = |number| {
                    let sum = Arc::clone(sum);
                    let options = Options { priority: (number % 5) as i32, ..Options::default() };
                    let body = move |_: &Context<'_>| {
                        // Relaxed: the finish events order it before the assertion.
                        sum.fetch_add(number, Ordering::Relaxed);
                    };
                    runtime.spawn(ProcessorId((number % 2) as u32), options, body)
                };
                let tasks: Vec<_> = (thread * EACH..(thread + 1) * EACH).map(spawn).collect();
                tasks.iter().for_each(|task| runtime.wait(task.finish()).expect("no task fails"));
            });
        }
    });
    assert_eq!(sum.load(Ordering::Relaxed), 3 * EACH * (3 * EACH - 1) / 2);
}

/// A counter that loses counts unless the threads that count exclude each other.
#[derive(Clone, Default)]
struct Counter(Arc<AtomicU64>);

impl Counter {
    fn count(&self) {
        // Relaxed, and two steps on purpose: what orders them is under test.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn a_task_launches_a_graph_on_its_only_processor_and_waits_a_thousand_times() {
    let (runtime, counter) = (runtime(1), Counter::default());
    let mut builder = Builder::new("one", 1);
    builder.task(flow::Task {
        processor: 0,
        function: 0,
        kind: TaskKind::NonBlocking,
        name: "count",
        args: &[],
    });
    let count: Function = Box::new({
        let counter = counter.clone();
        move |_| counter.count()
    });
    let flow = builder.finish().expect("one operation is a flow");
    let graph = runtime.graph(flow, vec![count], &[P0]).expect("it fits");
    let task = runtime.spawn(P0, Options::default(), move |context| {
        for _ in 0..1000 {
            let run = graph.launch(Launch::default()).expect("nothing is in the way");
            context.wait(run.finish).expect("the run does not fail");
        }
    });
    runtime.wait(task.finish()).expect("it does not fail");
    assert_eq!(counter.get(), 1000);
}

#[test]
fn an_operation_of_a_graph_waits_for_a_task_on_its_own_processor() {
    let runtime = runtime(1);
    let event = runtime.events().user();
    let mut builder = Builder::new("wait", 1);
    builder.task(flow::Task { processor: 0, function: 0, kind: TaskKind::Blocking, name: "wait", args: &[] });
    let wait: Function = Box::new(move |context| context.wait(event.event()).expect("it is triggered"));
    let flow = builder.finish().expect("one operation is a flow");
    let graph = runtime.graph(flow, vec![wait], &[P0]).expect("it fits");
    let run = graph.launch(Launch::default()).expect("nothing is in the way");
    let events = Arc::clone(runtime.events());
    runtime.spawn(P0, Options::default(), move |_| events.trigger(event).expect("once"));
    assert_eq!(runtime.wait(run.finish), Ok(()));
}

const LARGE: usize = 1 << 20;

thread_local! {
    static LARGE_STORAGE: [std::cell::Cell<u8>; LARGE] = const { [const { std::cell::Cell::new(3) }; LARGE] };
}

#[test]
fn a_worker_has_room_for_large_thread_local_storage() {
    let runtime = runtime(1);
    let (send, received) = channel();
    runtime.spawn(P0, Options::default(), move |_| {
        let sum = LARGE_STORAGE.with(|bytes| bytes.iter().map(|byte| u64::from(byte.get())).sum::<u64>());
        send.send(sum).expect("the test listens");
    });
    assert_eq!(received.recv(), Ok(3 * LARGE as u64));
}

/// A task that has begun to wait, for ever, and then says what it was told, at its first wait and at its second.
fn wait_for_ever(runtime: &Runtime, processor: ProcessorId) -> Receiver<[Cause; 2]> {
    let never = runtime.events().user().event();
    let (tell, told) = channel();
    let (here, waits) = channel();
    runtime.spawn(processor, Options::default(), move |context| {
        here.send(()).expect("the test listens");
        let causes = [(); 2].map(|()| context.wait(never).expect_err("it waits in vain").cause().clone());
        tell.send(causes).expect("the test listens");
    });
    waits.recv().expect("the task runs");
    told
}

#[test]
fn a_runtime_starts_and_ends_ten_times_with_tasks_that_wait_for_ever() {
    let closed = Cause::Refused("its processor has been shut down".into());
    for _ in 0..10 {
        let runtime = runtime(2);
        let events = Arc::downgrade(runtime.events());
        let told: Vec<_> = [P0, P0, P1].map(|processor| wait_for_ever(&runtime, processor)).into();
        let captured = Arc::new(());
        let never = runtime.events().user();
        for processor in [P0, P1] {
            let captured = Arc::clone(&captured);
            let options = Options { after: never.event(), ..Options::default() };
            runtime.spawn(processor, options, move |_| drop(captured));
        }
        drop(runtime);
        for told in told {
            assert_eq!(told.recv(), Ok([closed.clone(), closed.clone()]));
        }
        assert_eq!(events.strong_count(), 0, "nothing keeps the table of events");
        assert_eq!(Arc::strong_count(&captured), 1, "tasks that never became ready are dropped");
    }
}

#[test]
fn what_is_ready_at_the_end_runs_and_what_becomes_ready_later_is_told() {
    let runtime = runtime(1);
    let events: Arc<Events> = Arc::clone(runtime.events());
    let (late, log) = (events.user(), Log::default());
    let task = runtime.spawn(P0, Options { name: "late", after: late.event(), ..Options::default() }, |_| {
        panic!("its processor has gone");
    });
    let open = plug(&runtime, P0);
    (0..3).for_each(|number| drop(runtime.spawn(P0, Options::default(), log.task(number))));
    drop(open);
    drop(runtime);
    assert_eq!(log.get(), [0, 1, 2]);
    events.trigger(late).expect("once");
    let fault = events.wait(task.finish()).expect_err("it cannot run");
    assert_eq!(fault, Fault::refused("late", "its processor has been shut down"));
}

#[test]
fn a_task_may_own_the_runtime_that_runs_it() {
    let runtime = runtime(2);
    let (tell, told) = channel();
    let (go, gate) = channel::<()>();
    // A second worker, idle while the task runs.
    let event = runtime.events().user();
    let waits = runtime.spawn(P0, Options::default(), move |context| {
        context.wait(event.event()).expect("it does not fail");
    });
    let trigger = runtime.spawn(P0, Options::default(), {
        let events = Arc::clone(runtime.events());
        move |_| events.trigger(event).expect("once")
    });
    [waits, trigger].iter().for_each(|task| runtime.wait(task.finish()).expect("no task fails"));
    let owner = runtime.clone();
    runtime.spawn(P0, Options::default(), move |_| {
        gate.recv().expect("the test sends");
        drop(owner);
        tell.send(()).expect("the test listens");
    });
    drop(runtime);
    go.send(()).expect("the task listens");
    told.recv().expect("the task goes on after the runtime has ended");
}
