//! Arguments of operations and of runs: what a body reads is what was declared, patched with what its own launch gave.

use std::sync::{Arc, Mutex};

use phalanx_ir::Id;
use phalanx_runtime::flow::{Builder, Mode, Patch, Task, TaskKind};
use phalanx_runtime::{Function, Launch};
use phalanx_testkit::Rng;

use crate::{bind, function, runtime};

/// What an operation was given: run, operation, bytes.
type Entry = (u64, usize, Vec<u8>);

/// What operations were given.
#[derive(Clone, Default)]
struct Given(Arc<Mutex<Vec<Entry>>>);

impl Given {
    fn body(&self) -> Function {
        let given = self.clone();
        function(move |context| {
            let op = context.op().expect("it runs in a graph").index();
            let entry = (context.run(), op, context.args().to_vec());
            given.0.lock().expect("no thread panics with it").push(entry);
        })
    }

    fn sorted(&self) -> Vec<Entry> {
        let mut given = self.0.lock().expect("no thread panics with it").clone();
        given.sort();
        given
    }
}

fn task(processor: u32, args: &[u8]) -> Task<'_> {
    Task { processor, kind: TaskKind::NonBlocking, name: "task", args, ..Task::default() }
}

#[test]
fn runs_overwrite_and_add_to_what_was_declared() {
    let runtime = runtime(2);
    let given = Given::default();
    let mut builder = Builder::new("patches", 2);
    builder.run_args(16);
    let declared = [100_i64.to_ne_bytes(), 0.5_f64.to_ne_bytes()].concat();
    let integer = builder.task(task(0, &declared));
    let float = builder.task(task(1, &declared));
    let both = builder.task(task(1, &declared));
    let untouched = builder.task(task(0, &declared));
    builder.interpolate(integer, 0, 0..8, Patch::AddI64);
    builder.interpolate(float, 8, 8..16, Patch::AddF64);
    builder.interpolate(both, 0, 0..8, Patch::Overwrite);
    builder.interpolate(both, 0, 0..8, Patch::AddI64);
    builder.interpolate(both, 12, 2..6, Patch::Overwrite);
    let graph = bind(&runtime, builder.finish().expect("patches lie inside"), vec![given.body()]);
    let mut expected = Vec::new();
    for run in 0..50 {
        let (add, more) = (7 - 3 * run as i64, 0.25 * run as f64);
        let args = [add.to_ne_bytes(), more.to_ne_bytes()].concat();
        let launched = graph.launch(Launch { args: &args, ..Launch::default() }).expect("it takes launches");
        assert_eq!(runtime.wait(launched.finish), Ok(()));
        let pair = |first: [u8; 8], second: [u8; 8]| [first, second].concat();
        expected.push((run, integer.index(), pair((100 + add).to_ne_bytes(), 0.5_f64.to_ne_bytes())));
        expected.push((run, float.index(), pair(100_i64.to_ne_bytes(), (0.5 + more).to_ne_bytes())));
        let mut last = pair((2 * add).to_ne_bytes(), 0.5_f64.to_ne_bytes());
        last[12..16].copy_from_slice(&args[2..6]);
        expected.push((run, both.index(), last));
        expected.push((run, untouched.index(), declared.clone()));
    }
    assert_eq!(given.sorted(), expected);
}

#[test]
fn runs_in_flight_keep_their_own_arguments() {
    let runtime = runtime(2);
    for mode in [Mode::Ordered, Mode::Serializable, Mode::Concurrent, Mode::Pipelined { depth: 3 }] {
        let given = Given::default();
        let random = &mut Rng::new(11);
        let mut builder = Builder::new("sizes", 2);
        builder.mode(mode).run_args(2048);
        // Overlapping bytes of all sizes, each somewhere in an operation's own.
        let mut patches = Vec::new();
        for (place, bytes) in [1, 2, 3, 8, 31, 256, 1000, 2048].into_iter().enumerate() {
            let declared = vec![0xa5; bytes + place];
            let op = builder.task(task(place as u32 % 2, &declared));
            let from = random.below(2048 - bytes + 1);
            builder.interpolate(op, place as u32, from as u32..(from + bytes) as u32, Patch::Overwrite);
            patches.push((op.index(), place, from..from + bytes));
        }
        let graph = bind(&runtime, builder.finish().expect("patches lie inside"), vec![given.body()]);
        let start = runtime.events().user();
        let (mut runs, mut expected, mut buffer) = (Vec::new(), Vec::new(), vec![0; 2048]);
        for run in 0..20 {
            buffer.iter_mut().for_each(|byte| *byte = random.bits() as u8);
            let launch = Launch { start: start.event(), args: &buffer, ..Launch::default() };
            runs.push(graph.launch(launch).expect("it takes launches").finish);
            for (op, at, from) in &patches {
                expected.push((run, *op, [&vec![0xa5; *at], &buffer[from.clone()]].concat()));
            }
            // What the caller does with its buffer afterwards is its own affair.
            buffer.fill(0xff);
        }
        runtime.events().trigger(start).expect("it is triggered once");
        for run in runs {
            assert_eq!(runtime.wait(run), Ok(()), "{mode:?}");
        }
        assert_eq!(given.sorted(), expected, "{mode:?}");
    }
}
