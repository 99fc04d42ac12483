//! Graphs whose operations leave work on a device: how far the host runs ahead, and that nothing gets stuck.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use phalanx_immediate::{DrainMode, QueueOrder, Software, SoftwareConfig};
use phalanx_runtime::flow::{Builder, Flow, Mode, OpId, Task, TaskKind};
use phalanx_runtime::{
    Config, Context, Device, Function, Graph, GraphError, Launch, ProcessorId, Runtime, UserEvent,
};

const CHAIN: u64 = 12;

fn with_device(config: SoftwareConfig, credits: usize) -> (Runtime, Arc<Software>) {
    let runtime = Runtime::new(Config::new(2, 0));
    let device = Software::new(config);
    let attach =
        |number| runtime.attach(ProcessorId(number), Arc::clone(&device) as Arc<dyn Device>, credits);
    assert_eq!([0, 0, 2].map(attach), [true, false, false], "one device for each of two processors");
    (runtime, device)
}

fn stepped() -> SoftwareConfig {
    SoftwareConfig { drain: DrainMode::Stepped, ..SoftwareConfig::default() }
}

fn task(flow: &mut Builder, processor: u32, function: u32, kind: TaskKind, args: &[u8]) -> OpId {
    flow.task(Task { processor, function, kind, name: "op", args })
}

/// A chain of operations on the device and one on a plain processor that reads what they left.
fn chain(kind: TaskKind) -> Flow {
    let mut flow = Builder::new("chain", 2);
    let ops: Vec<_> = (0..CHAIN).map(|i| task(&mut flow, 0, 0, kind, &i.to_ne_bytes())).collect();
    ops.windows(2).for_each(|pair| flow.edge(pair[0], pair[1]));
    let reader = task(&mut flow, 1, 1, TaskKind::NonBlocking, &[]);
    flow.edge(ops[ops.len() - 1], reader);
    flow.finish().expect("a chain is sound")
}

/// What the chain's operations do and leave behind.
struct Chain {
    issued: Arc<AtomicU64>,
    read: Arc<AtomicU64>,
    graph: Graph,
}

/// Operation i multiplies the device's value by 3 and adds i; the one called `tells` triggers `told` on the host.
fn bind(runtime: &Runtime, kind: TaskKind, tells: u64, told: UserEvent) -> Chain {
    let value = Arc::new(AtomicU64::new(1));
    let (issued, read) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let events = Arc::clone(runtime.events());
    let (count, device_value) = (Arc::clone(&issued), Arc::clone(&value));
    let issue = move |context: &Context<'_>| {
        let number = u64::from_ne_bytes(context.args().try_into().expect("eight bytes"));
        let (device, lane) = context.lane().expect("an operation on a device has a lane");
        let value = Arc::clone(&device_value);
        // Relaxed: the device's order and the token's firing are what is tested to order these.
        let work = move || value.store(3 * value.load(Relaxed) + number, Relaxed);
        device.enqueue(lane, Box::new(work));
        count.fetch_add(1, Relaxed);
        if number == tells {
            events.trigger(told).expect("told once");
        }
    };
    let seen = Arc::clone(&read);
    let look = move |_: &Context<'_>| seen.store(value.load(Relaxed), Relaxed);
    let functions: Vec<Function> = vec![Box::new(issue), Box::new(look)];
    let processors: Vec<_> = runtime.processors().collect();
    let graph = runtime.graph(chain(kind), functions, &processors).expect("the chain can be bound");
    Chain { issued, read, graph }
}

fn expected() -> u64 {
    (0..CHAIN).fold(1, |value, number| 3 * value + number)
}

#[test]
fn ordered_operations_are_all_issued_before_the_device_has_done_any() {
    let (runtime, device) = with_device(stepped(), 1024);
    let told = runtime.events().user();
    let chain = bind(&runtime, TaskKind::StreamOrdered, CHAIN - 1, told);
    let run = chain.graph.launch(Launch::default()).expect("it can be launched");
    runtime.wait(told.event()).expect("the last operation is issued");
    assert_eq!(chain.issued.load(Relaxed), CHAIN, "all bodies have run and the device has done nothing");
    assert_eq!(runtime.events().outcome(run.finish), None);
    while runtime.events().outcome(run.finish).is_none() {
        device.step();
    }
    assert_eq!(runtime.wait(run.finish), Ok(()));
    assert_eq!(chain.read.load(Relaxed), expected(), "the reader sees what the device has done");
}

#[test]
fn opaque_operations_wait_until_the_device_has_done_the_one_before() {
    let (runtime, device) = with_device(stepped(), 1024);
    let told = runtime.events().user();
    let chain = bind(&runtime, TaskKind::Async, 0, told);
    let run = chain.graph.launch(Launch::default()).expect("it can be launched");
    runtime.wait(told.event()).expect("the first operation is issued");
    assert_eq!(chain.issued.load(Relaxed), 1, "its successor waits for the device");
    while runtime.events().outcome(run.finish).is_none() {
        device.step();
    }
    assert_eq!(runtime.wait(run.finish), Ok(()));
    assert_eq!((chain.issued.load(Relaxed), chain.read.load(Relaxed)), (CHAIN, expected()));
}

#[test]
fn credits_bound_how_far_the_host_runs_ahead() {
    let (runtime, device) = with_device(stepped(), 3);
    let told = runtime.events().user();
    let chain = bind(&runtime, TaskKind::StreamOrdered, 2, told);
    let run = chain.graph.launch(Launch::default()).expect("it can be launched");
    runtime.wait(told.event()).expect("the third operation is issued");
    let mut most = 0;
    while runtime.events().outcome(run.finish).is_none() {
        most = most.max(device.unfired());
        device.step();
    }
    assert!(most <= 3, "{most} tokens in flight with 3 credits");
    assert_eq!(chain.read.load(Relaxed), expected());
}

#[test]
fn work_that_panics_on_the_device_poisons_the_run_and_its_reader() {
    let (runtime, device) = with_device(stepped(), 1024);
    let mut flow = Builder::new("fails", 2);
    let first = task(&mut flow, 0, 0, TaskKind::StreamOrdered, &[]);
    let second = task(&mut flow, 0, 1, TaskKind::StreamOrdered, &[]);
    let reader = task(&mut flow, 1, 2, TaskKind::NonBlocking, &[]);
    flow.edge(first, second);
    flow.edge(second, reader);
    let ran = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&ran);
    let enqueue = |work: fn()| -> Function {
        Box::new(move |context: &Context<'_>| {
            let (device, lane) = context.lane().expect("an operation on a device has a lane");
            device.enqueue(lane, Box::new(work));
        })
    };
    let functions: Vec<Function> = vec![
        enqueue(|| panic!("out of registers")),
        enqueue(|| {}),
        Box::new(move |_| {
            seen.fetch_add(1, Relaxed);
        }),
    ];
    let processors: Vec<_> = runtime.processors().collect();
    let graph =
        runtime.graph(flow.finish().expect("sound"), functions, &processors).expect("it can be bound");
    let run = graph.launch(Launch::default()).expect("it can be launched");
    while runtime.events().outcome(run.finish).is_none() {
        device.step();
    }
    let fault = runtime.wait(run.finish).expect_err("the run is poisoned");
    assert!(fault.to_string().contains("out of registers"), "{fault}");
    assert_eq!(ran.load(Relaxed), 0, "the reader is skipped");
}

#[test]
fn an_operation_for_a_device_needs_one() {
    let runtime = Runtime::new(Config::new(2, 0));
    let functions: Vec<Function> = vec![Box::new(|_| {}), Box::new(|_| {})];
    let processors: Vec<_> = runtime.processors().collect();
    let refused =
        runtime.graph(chain(TaskKind::StreamOrdered), functions, &processors).err().expect("refused");
    assert!(matches!(refused, GraphError::NoDevice { processor: 0, .. }), "{refused}");
}

/// A small random graph of operations on two devices and two plain processors.
fn random_flow(random: &mut impl FnMut(u64) -> u64) -> Flow {
    let mut flow = Builder::new("random", 4);
    flow.mode(Mode::Concurrent);
    let mut ops: Vec<OpId> = Vec::new();
    for _ in 0..4 + random(8) {
        let processor = random(4) as u32;
        let kind = match (processor, random(4)) {
            (0 | 1, 0) => TaskKind::Async,
            (0 | 1, _) => TaskKind::StreamOrdered,
            _ => TaskKind::NonBlocking,
        };
        let op = task(&mut flow, processor, (processor > 1).into(), kind, &[]);
        for _ in 0..random(3).min(ops.len() as u64) {
            flow.edge(ops[random(ops.len() as u64) as usize], op);
        }
        ops.push(op);
    }
    flow.finish().expect("edges point forward")
}

/// 10^5 runs of random graphs, two at a time, with work of others between, on devices whose lanes share queues: every
/// run ends, whatever order the devices choose.
#[test]
fn aliased_lanes_never_block_each_other() {
    let mut state = 1u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for round in 0..50 {
        let runtime = Runtime::new(Config::new(4, 0));
        let devices: Vec<_> = (0..2)
            .map(|device| {
                Software::new(SoftwareConfig {
                    queues: NonZeroU32::new(1 + random(3) as u32),
                    order: QueueOrder::Seeded(round * 2 + device),
                    ..SoftwareConfig::default()
                })
            })
            .collect();
        for (number, device) in devices.iter().enumerate() {
            let device = Arc::clone(device) as Arc<dyn Device>;
            assert!(runtime.attach(ProcessorId(number as u32), device, 1 + random(6) as usize));
        }
        let done = Arc::new(AtomicU64::new(0));
        let processors: Vec<_> = runtime.processors().collect();
        let graphs: Vec<_> = (0..2)
            .map(|_| {
                let (on_device, on_host) = (Arc::clone(&done), Arc::clone(&done));
                let issue = move |context: &Context<'_>| {
                    let (device, lane) = context.lane().expect("an operation on a device has a lane");
                    let done = Arc::clone(&on_device);
                    device.enqueue(lane, Box::new(move || _ = done.fetch_add(1, Relaxed)));
                };
                let count = move |_: &Context<'_>| _ = on_host.fetch_add(1, Relaxed);
                let functions: Vec<Function> = vec![Box::new(issue), Box::new(count)];
                runtime.graph(random_flow(&mut random), functions, &processors).expect("it can be bound")
            })
            .collect();
        let other = devices[0].lease();
        let runs = 1_000;
        for _ in 0..runs / 4 {
            let batch: Vec<_> = (0..8)
                .map(|number| graphs[number % 2].launch(Launch::default()).expect("it can be launched"))
                .collect();
            devices[0].enqueue(other, Box::new(|| {}));
            let token = devices[0].record(other);
            devices[0].wait(other, token);
            for run in batch {
                assert_eq!(runtime.wait(run.finish), Ok(()), "round {round}");
            }
        }
        devices[0].give_back(other);
        let per_round: u64 = graphs.iter().map(|graph| graph.flow().steps().len() as u64).sum();
        assert_eq!(
            done.load(Relaxed),
            per_round * runs,
            "round {round}: every operation of every run happened once"
        );
    }
}

/// The second run's work is there before the first run's ends, and waits for the first run's end: it must hear of that
/// although the device has more to do.
#[test]
fn a_run_ends_when_its_work_does_whatever_else_the_device_has_to_do() {
    let (runtime, _device) = with_device(SoftwareConfig::default(), 1024);
    let ((begin, begun), (go, gate)) = (channel(), channel::<()>());
    let first = one_work(&runtime, None, move || {
        begin.send(()).expect("the test listens");
        gate.recv().expect("the test goes on");
    });
    let run = first.launch(Launch::default()).expect("it can be launched");
    begun.recv().expect("the device has begun");
    let (events, finish) = (Arc::clone(runtime.events()), run.finish);
    let (tell, issued) = channel();
    let second =
        one_work(&runtime, Some(tell), move || events.wait(finish).expect("the first run ends well"));
    let last = second.launch(Launch::default()).expect("it can be launched");
    issued.recv().expect("its work is there");
    go.send(()).expect("the device waits");
    assert_eq!([run.finish, last.finish].map(|finish| runtime.wait(finish)), [Ok(()), Ok(())]);
}

/// A graph of one operation that leaves `work` on the device, and says so.
fn one_work(runtime: &Runtime, issued: Option<Sender<()>>, work: impl FnOnce() + Send + 'static) -> Graph {
    let mut flow = Builder::new("one", 1);
    task(&mut flow, 0, 0, TaskKind::StreamOrdered, &[]);
    let work = Mutex::new(Some(work));
    let issue = move |context: &Context<'_>| {
        let (device, lane) = context.lane().expect("an operation on a device has a lane");
        let work = work.lock().expect("no thread panics with it").take().expect("it is launched once");
        device.enqueue(lane, Box::new(work));
        issued.iter().for_each(|issued| issued.send(()).expect("the test listens"));
    };
    let flow = flow.finish().expect("one operation is sound");
    runtime.graph(flow, vec![Box::new(issue)], &[ProcessorId(0)]).expect("it calls one function")
}
