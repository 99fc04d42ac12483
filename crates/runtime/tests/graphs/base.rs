//! The base scenario: write, copy and read step by step, then as a graph with a nested one, launched from all sides.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use phalanx_runtime::flow::{Builder, Mode, Patch, Task, TaskKind};
use phalanx_runtime::{Context, Event, Function, Launch, LaunchError, Options, Runtime};

use crate::{Count, bind, function, runtime};

/// Two cells, what was read, and a sum.
#[derive(Default)]
struct Data {
    source: AtomicI64,
    target: AtomicI64,
    sum: AtomicI64,
    wrong: Count,
    reads: Count,
}

fn number(context: &Context<'_>) -> i64 {
    i64::from_ne_bytes(context.args().try_into().expect("eight bytes of arguments"))
}

/// Write, copy, read, add.
fn functions(data: &Arc<Data>) -> Vec<Function> {
    let with = |body: fn(&Data, i64)| {
        let data = Arc::clone(data);
        function(move |context| body(&data, number(context)))
    };
    vec![
        with(|data, value| data.source.store(value, Relaxed)),
        with(|data, _| data.target.store(data.source.load(Relaxed), Relaxed)),
        with(|data, value| {
            data.reads.add();
            if data.target.load(Relaxed) != value {
                data.wrong.add();
            }
        }),
        with(|data, value| {
            data.sum.fetch_add(value, Relaxed);
        }),
    ]
}

const DECLARED: i64 = 1000;

/// Write, copy, read, and a nested flow that adds what the run says; posts when the run has begun.
fn flow() -> Builder {
    let declared = DECLARED.to_ne_bytes();
    let add = |builder: &mut Builder, processor, function, name| {
        builder.task(Task { processor, function, kind: TaskKind::NonBlocking, name, args: &declared })
    };
    let mut inner = Builder::new("inner", 2);
    let arrive = add(&mut inner, 1, 3, "arrive");
    inner.interpolate(arrive, 0, 0..8, Patch::AddI64);
    let mut outer = Builder::new("outer", 2);
    outer.mode(Mode::Serializable).run_args(16);
    let write = add(&mut outer, 0, 0, "write");
    let copy = add(&mut outer, 1, 1, "copy");
    let read = add(&mut outer, 0, 2, "read");
    outer.interpolate(write, 0, 0..8, Patch::Overwrite);
    outer.interpolate(read, 0, 0..8, Patch::Overwrite);
    let nested = outer.nest(&inner, 8);
    outer.edge(write, copy);
    outer.edge(copy, read);
    nested.roots().iter().for_each(|&root| outer.edge(read, root));
    outer.post("acquired", &[write]);
    outer
}

fn args(value: i64, added: i64) -> Vec<u8> {
    [value.to_ne_bytes(), added.to_ne_bytes()].concat()
}

fn immediate(runtime: &Runtime, data: &Arc<Data>) {
    let [first, second] = [0, 1].map(|n| runtime.processors().nth(n).expect("there are two"));
    let spawn = |on, after, body: fn(&Data)| {
        let data = Arc::clone(data);
        runtime.spawn(on, Options { after, ..Options::default() }, move |_| body(&data)).finish()
    };
    let write = spawn(first, Event::NONE, |data| data.source.store(5, Relaxed));
    let copy = spawn(second, write, |data| data.target.store(data.source.load(Relaxed), Relaxed));
    let read = spawn(first, copy, |data| {
        data.reads.add();
        if data.target.load(Relaxed) != 5 {
            data.wrong.add();
        }
    });
    assert_eq!(runtime.wait(read), Ok(()));
}

#[test]
fn launches_whose_starts_fire_in_reverse_order_all_read_their_own() {
    for round in 0..50 {
        let runtime = runtime(2);
        let data = Arc::new(Data::default());
        immediate(&runtime, &data);
        let graph = bind(&runtime, flow().finish().expect("the flow is sound"), functions(&data));
        let starts = [0; 4].map(|_| runtime.events().user());
        let runs: Vec<_> = (0..4)
            .map(|run| {
                let (start, args) = (starts[run].event(), args(run as i64 + 1, 10 * run as i64));
                graph.launch(Launch { start, args: &args, ..Launch::default() }).expect("it takes launches")
            })
            .collect();
        for run in 0..3 {
            runtime.events().trigger_after(starts[run], runs[run + 1].posts[0]);
        }
        let last = runtime.processors().nth(1).expect("there are two");
        let fifth = graph.clone();
        let task = runtime.spawn(last, Options { name: "fifth", ..Options::default() }, move |context| {
            let run =
                fifth.launch(Launch { args: &args(9, -1), ..Launch::default() }).expect("it takes launches");
            assert_eq!(context.wait(fifth.destroy(Event::NONE).expect("it is the first to do so")), Ok(()));
            assert_eq!(context.wait(run.finish), Ok(()));
        });
        runtime.events().trigger(starts[3]).expect("it is triggered once");
        assert_eq!(runtime.wait(task.finish()), Ok(()), "round {round}");
        for run in runs {
            assert_eq!(runtime.events().outcome(run.finish), Some(Ok(())), "round {round}");
        }
        assert_eq!((data.wrong.get(), data.reads.get()), (0, 6), "round {round}");
        assert_eq!(data.sum.load(Relaxed), 5 * DECLARED + 60 - 1, "round {round}");
        let refused = graph.launch(Launch { args: &args(0, 0), ..Launch::default() }).err();
        assert_eq!(refused, Some(LaunchError::Destroyed("outer".into())));
    }
}
