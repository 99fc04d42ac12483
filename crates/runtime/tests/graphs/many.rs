//! Many runs at a time, graphs beside ordinary tasks, more threads than cores: no task starves, no wake-up is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use phalanx_runtime::flow::{Builder, Mode};
use phalanx_runtime::{Graph, Options, ProcessorId, Runtime, UserEvent};
use phalanx_testkit::Rng;

use crate::{Count, bind, function, launch, nonblocking, replay, runtime};

const PROCESSORS: u32 = 2;
const GRAPHS: u64 = 8;
const RUNS: u64 = 300;
const OPS: u64 = 400;

/// Bodies of graphs so far, by processor.
type Bodies = Arc<[AtomicU64; PROCESSORS as usize]>;

/// A random graph of non-blocking tasks whose bodies count.
fn graph(runtime: &Runtime, bodies: &Bodies, seed: u64) -> Graph {
    let random = &mut Rng::new(seed);
    let mut builder = Builder::new("counts", PROCESSORS);
    builder.mode(if seed.is_multiple_of(2) { Mode::Concurrent } else { Mode::Ordered });
    let ops: Vec<_> =
        (0..OPS).map(|_| nonblocking(&mut builder, random.below(PROCESSORS as usize) as u32, 0)).collect();
    for to in 1..ops.len() {
        random.subset(to, 1).into_iter().for_each(|from| builder.edge(ops[from], ops[to]));
    }
    let bodies = Arc::clone(bodies);
    let body = function(move |context| {
        bodies[context.processor() as usize].fetch_add(1, Relaxed);
    });
    bind(runtime, builder.finish().expect("edges go forward"), vec![body])
}

/// A task that becomes ready while its processor is busy with it, and so knows how much went before it.
struct Relay {
    runtime: Runtime,
    bodies: Bodies,
    /// The most bodies of graphs between a task's becoming ready and its running.
    longest: Arc<AtomicU64>,
    end: UserEvent,
}

impl Relay {
    fn pass(self, on: ProcessorId, left: u32) {
        let now = move |relay: &Relay| relay.bodies[on.0 as usize].load(Relaxed);
        let ready = now(&self);
        let runtime = self.runtime.clone();
        runtime.spawn(on, Options::default(), move |_| {
            self.longest.fetch_max(now(&self) - ready, Relaxed);
            match left {
                0 => self.runtime.events().trigger(self.end).expect("it is triggered once"),
                left => self.pass(on, left - 1),
            }
        });
    }
}

/// A worker looks at other work after this many bodies, and finishes the chain it is in, which is as long at most.
const BUDGET: u64 = 64;

#[test]
fn thousands_of_runs_leave_room_for_ordinary_tasks() {
    let runtime = runtime(PROCESSORS);
    let bodies = Bodies::default();
    let graphs: Vec<_> = (0..GRAPHS).map(|seed| graph(&runtime, &bodies, seed)).collect();
    let longest = Arc::new(AtomicU64::new(0));
    let mut ends = Vec::new();
    for round in 0..RUNS {
        ends.extend(graphs.iter().map(|graph| launch(graph).finish));
        if round == RUNS / 4 {
            for on in runtime.processors() {
                let (end, longest, bodies) =
                    (runtime.events().user(), Arc::clone(&longest), Arc::clone(&bodies));
                let relay = Relay { runtime: runtime.clone(), bodies, longest, end };
                ends.push(end.event());
                // From a task of its own, so that the processor is busy when the first one becomes ready.
                runtime.spawn(on, Options::default(), move |_| relay.pass(on, 2000));
            }
        }
    }
    for end in ends {
        assert_eq!(runtime.wait(end), Ok(()));
    }
    let total: u64 = bodies.iter().map(|bodies| bodies.load(Relaxed)).sum();
    assert_eq!(total, GRAPHS * RUNS * OPS);
    let longest = longest.load(Relaxed);
    assert!(longest < 2 * BUDGET, "{longest} bodies of graphs before a task that was ready");
}

#[test]
fn a_busy_task_on_one_processor_holds_up_nobody_else() {
    let runtime = runtime(4);
    let stop = Arc::new(AtomicBool::new(false));
    let spin = Arc::clone(&stop);
    let busy = runtime.spawn(ProcessorId(3), Options::default(), move |_| {
        while !spin.load(Relaxed) {
            std::hint::spin_loop();
        }
    });
    let count = Count::default();
    let mut builder = Builder::new("crossing", 3);
    let mut last = Vec::new();
    for _ in 0..6 {
        let layer: Vec<_> = (0..3).map(|place| nonblocking(&mut builder, place, 0)).collect();
        for &from in &last {
            layer.iter().for_each(|&to| builder.edge(from, to));
        }
        last = layer;
    }
    let graph = bind(&runtime, builder.finish().expect("layers go forward"), vec![count.body()]);
    for _ in 0..1000 {
        assert_eq!(replay(&runtime, &graph), Ok(()));
    }
    assert_eq!(runtime.events().outcome(busy.finish()), None);
    stop.store(true, Relaxed);
    assert_eq!(runtime.wait(busy.finish()), Ok(()));
    assert_eq!(count.get(), 18_000);
}

#[test]
fn several_threads_launch_one_graph() {
    let runtime = runtime(PROCESSORS);
    for mode in [Mode::Ordered, Mode::Serializable, Mode::Concurrent, Mode::Pipelined { depth: 2 }] {
        let count = Count::default();
        let mut builder = Builder::new("shared", PROCESSORS);
        builder.mode(mode);
        let ops = [0, 1, 0].map(|place| nonblocking(&mut builder, place, 0));
        builder.edge(ops[0], ops[1]);
        builder.edge(ops[1], ops[2]);
        let graph = bind(&runtime, builder.finish().expect("a chain"), vec![count.body()]);
        let launches = || {
            let runs: Vec<_> = (0..RUNS).map(|_| launch(&graph)).collect();
            runs.iter().for_each(|run| assert_eq!(runtime.wait(run.finish), Ok(()), "{mode:?}"));
            runs.into_iter().map(|run| run.number).collect::<Vec<_>>()
        };
        let mut numbers = std::thread::scope(|scope| {
            let threads = [0; 3].map(|_| scope.spawn(launches));
            threads.map(|thread| thread.join().expect("it does not panic")).concat()
        });
        numbers.sort_unstable();
        assert_eq!(numbers, (0..3 * RUNS).collect::<Vec<_>>(), "{mode:?}");
        assert_eq!(count.get(), 9 * RUNS, "{mode:?}");
    }
}

#[test]
fn runtimes_come_and_go() {
    for _ in 0..50 {
        let runtime = runtime(3);
        let bodies = Bodies::default();
        let graph = graph(&runtime, &bodies, 1);
        for _ in 0..10 {
            assert_eq!(replay(&runtime, &graph), Ok(()));
        }
    }
}
