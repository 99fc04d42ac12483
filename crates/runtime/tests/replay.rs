//! Replaying with kernels that only count and copy.

use std::sync::{Arc, Mutex};

use phalanx_ir::TensorType;
use phalanx_program::{Builder, Draft, MAX_RESULT, Port, PortKind, PortTile, Program, Slice, feeds, fetches};
use phalanx_runtime::{Args, ExecutionMode, Kernels, PortError, Replay};

fn slice(offset: u64, bytes: u64) -> Slice {
    Slice { lane: 0, offset, bytes }
}

/// What a kernel was called with: its number, words, sizes of reads, writes and working memory.
type Called = (usize, Vec<u64>, Vec<usize>, Vec<usize>, usize);

/// Remembers every call; kernel 1 copies, kernel 2 adds its first word to every byte, kernel 3 counts in its state.
#[derive(Default)]
struct Recorder {
    calls: Mutex<Vec<Called>>,
}

impl Kernels for Recorder {
    fn execute(&self, kernel: usize, mut args: Args<'_>) {
        let reads = args.reads.iter().map(|slice| slice.len()).collect();
        let writes = args.writes.iter().map(|slice| slice.len()).collect();
        self.calls.lock().expect("no kernel panics").push((
            kernel,
            args.params.to_vec(),
            reads,
            writes,
            args.scratch.len(),
        ));
        match kernel {
            1 => args.writes[0].copy_from_slice(args.reads[0]),
            2 => {
                args.scratch.fill(0xff);
                let add = |(to, from): (&mut u8, &u8)| *to = from.wrapping_add(args.params[0] as u8);
                args.writes[0].iter_mut().zip(args.reads[0]).for_each(add);
            }
            _ => args.writes[0][0] += 1,
        }
    }
}

/// A tensor that is one tile.
fn whole(name: &str, kind: PortKind, ty: TensorType, offset: u64) -> Port {
    let slice = slice(offset, ty.bytes() as u64);
    let tile = PortTile { origin: vec![0; ty.shape.rank()], ty: ty.clone(), slice };
    Port { name: name.into(), kind, ty, tiles: vec![tile] }
}

fn port(name: &str, kind: PortKind, offset: u64) -> Port {
    whole(name, kind, TensorType::f32([2]), offset)
}

/// Adds an operation on eight bytes.
fn add(builder: &mut Builder, kernel: &str, params: &[u64], read: Option<u64>, write: u64) {
    let reads: Vec<_> = read.map(|offset| slice(offset, 8)).into_iter().collect();
    let scratch = if params.len() > 1 { slice(320, 100) } else { slice(0, 0) };
    let writes = &[slice(write, 8)];
    builder.operation(Draft {
        kernel,
        label: "",
        params,
        reads: &reads,
        writes,
        scratch,
        waits: &[],
        ..Draft::default()
    });
}

/// y = x + 3 + 4 byte by byte, in two steps, and a state that counts runs.
fn program() -> Program {
    let ports =
        [port("x", PortKind::Input, 0), port("y", PortKind::Output, 64), port("n", PortKind::State, 128)];
    let mut builder = Builder::new("chain");
    builder.lane(0, 448);
    feeds(&ports, 1)[0].iter().for_each(|feed| builder.operation(feed.draft()));
    add(&mut builder, "copy", &[], Some(0), 192);
    add(&mut builder, "add", &[3, 99], Some(192), 256);
    add(&mut builder, "add", &[4], Some(256), 64);
    add(&mut builder, "count", &[], None, 128);
    fetches(&ports, 1)[0].iter().for_each(|fetch| builder.operation(fetch.draft()));
    ports.into_iter().for_each(|port| builder.port(port));
    builder.finish().expect("the program is sound")
}

fn replay() -> Replay<Recorder> {
    Replay::new(program(), vec![Recorder::default()], 0)
}

#[test]
fn operations_run_in_order_with_their_arguments() {
    let mut replay = replay();
    replay.write("x", &[1, 2, 3, 4, 5, 6, 7, 255]).expect("the port is there");
    replay.run().expect("it completes");
    assert_eq!(*replay.read("y").expect("the port is there"), [8, 9, 10, 11, 12, 13, 14, 6]);
    let calls = replay.kernels()[0].calls.lock().expect("no kernel panics");
    assert_eq!(
        *calls,
        [
            (1, vec![], vec![8], vec![8], 0),
            (2, vec![3, 99], vec![8], vec![8], 100),
            (2, vec![4], vec![8], vec![8], 0),
            (3, vec![], vec![], vec![8], 0),
        ],
        "the runtime executes kernels 0, feed, and 4, fetch, itself"
    );
}

#[test]
fn state_lives_across_runs_and_inputs_can_change() {
    let mut replay = replay();
    for run in 1..=5u8 {
        replay.write("x", &[run; 8]).expect("the port is there");
        replay.run().expect("it completes");
        assert_eq!(replay.read("n").expect("the port is there")[0], run);
        assert_eq!(*replay.read("y").expect("the port is there"), [run + 7; 8]);
    }
    assert_eq!(replay.kernels()[0].calls.lock().expect("no kernel panics").len(), 20);
}

#[test]
fn arguments_wait_for_the_next_run_and_results_stay_until_it() {
    let mut replay = replay();
    assert_eq!(*replay.read("y").expect("the port is there"), [0; 8], "before the first run");
    replay.write("x", &[1; 8]).expect("the port is there");
    replay.run().expect("it completes");
    replay.write("x", &[5; 8]).expect("the port is there");
    assert_eq!(*replay.read("x").expect("the port is there"), [5; 8], "as written");
    assert_eq!(*replay.read("y").expect("the port is there"), [8; 8], "of the last run");
    replay.write("y", &[9; 8]).expect("the port is there");
    assert_eq!(*replay.read("y").expect("the port is there"), [9; 8], "as written");
    replay.run().expect("it completes");
    replay.run().expect("it completes");
    assert_eq!(*replay.read("y").expect("the port is there"), [12; 8], "arguments stay for further runs");
}

#[test]
fn runs_keep_their_numbers_when_the_door_changes() {
    let mut replay = replay();
    for run in 0..20_u8 {
        let execution = [
            ExecutionMode::Immediate,
            ExecutionMode::Replay,
            ExecutionMode::Replay,
            ExecutionMode::Stepped(7),
        ][run as usize % 4];
        replay.set_execution(execution);
        replay.write("x", &[run; 8]).expect("the port is there");
        replay.run().expect("it completes");
        assert_eq!(
            *replay.read("y").expect("the port is there"),
            [run + 7; 8],
            "run {run} through {execution:?}"
        );
        let lane = replay.watch().lanes()[0];
        assert_eq!((lane.run, lane.done, lane.running), (u64::from(run) + 1, 0, false), "run {run}");
        assert_eq!(replay.watch().completed(), 6 * (u64::from(run) + 1));
    }
}

/// One output at the limit and one above it: the first is fetched, the second lies in the arena.
#[test]
fn outputs_of_any_size_are_read() {
    let floats = MAX_RESULT as usize / 4;
    let ports = [
        whole("most", PortKind::Output, TensorType::f32([floats]), 0),
        whole("more", PortKind::Output, TensorType::f32([floats + 1]), MAX_RESULT),
    ];
    let mut builder = Builder::new("outputs");
    builder.lane(0, 3 * MAX_RESULT);
    builder.operation(Draft { kernel: "ones", writes: &[slice(0, 2 * MAX_RESULT + 4)], ..Draft::default() });
    fetches(&ports, 1)[0].iter().for_each(|fetch| builder.operation(fetch.draft()));
    ports.into_iter().for_each(|port| builder.port(port));
    let mut replay = Replay::new(builder.finish().expect("the program is sound"), vec![Ones], 0);
    replay.run().expect("it completes");
    for (name, bytes) in [("most", 4 * floats), ("more", 4 * floats + 4)] {
        assert_eq!(*replay.read(name).expect("the port is there"), vec![1; bytes], "{name}");
    }
}

struct Ones;

impl Kernels for Ones {
    fn execute(&self, _kernel: usize, mut args: Args<'_>) {
        args.writes[0].fill(1);
    }
}

#[test]
fn an_observer_sees_every_position_and_decides_when_it_runs() {
    let mut replay = replay();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&seen);
    replay.observe(Some(Arc::new(move |position: usize, _, execute: &mut dyn FnMut()| {
        execute();
        list.lock().expect("no kernel panics").push(position);
    })));
    replay.run().expect("it completes");
    assert_eq!(*seen.lock().expect("no kernel panics"), [0, 1, 2, 3, 4, 5]);
    assert_eq!(replay.kernels()[0].calls.lock().expect("no kernel panics").len(), 4);
}

#[test]
fn the_arena_is_zero_at_first_and_as_large_as_the_program_says() {
    let mut builder = Builder::new("large");
    builder.lane(0, 1 << 20);
    builder.port(whole("all", PortKind::State, TensorType::f32([1 << 18]), 0));
    let program = builder.finish().expect("the program is sound");
    let mut replay = Replay::new(program, vec![Recorder::default()], 0);
    assert!(replay.arena_bytes().eq([1 << 20]));
    assert!(replay.read("all").expect("the port is there").iter().all(|&byte| byte == 0));
    replay.run().expect("it completes");
    assert!(replay.read("all").expect("the port is there").iter().all(|&byte| byte == 0), "nothing to run");
}

#[test]
fn slices_are_aligned_in_memory() {
    let mut replay = replay();
    for name in ["y", "n"] {
        let mut seen = 0;
        let fill = |tile: &PortTile, bytes: &mut [u8]| {
            let address = bytes.as_ptr() as usize;
            assert!(address.is_multiple_of(phalanx_program::ALIGNMENT as usize), "{name} at {address}");
            assert_eq!((tile.origin.as_slice(), bytes.len()), (&[0][..], 8));
            seen += 1;
        };
        replay.fill_tiles(name, fill).expect("the port is there");
        assert_eq!(seen, 1, "{name} is one tile");
    }
    let error = replay.fill_tiles("x", |_, _| ()).expect_err("a run would overwrite its tiles");
    assert_eq!(
        error.to_string(),
        "`x` is an input, whose tiles every run fills with its arguments: write the whole tensor"
    );
}

#[test]
fn unknown_ports_are_named_with_the_known_ones() {
    let mut replay = replay();
    let error = replay.read("z").expect_err("there is no such port");
    let known = "x, y, n".to_string();
    assert_eq!(error, PortError::Unknown { program: "chain".into(), name: "z".into(), known });
    assert_eq!(error.to_string(), "program `chain` has no tensor `z`; it has x, y, n");
    assert_eq!(replay.write("z", &[]).expect_err("there is no such port"), error);
    assert_eq!(replay.fill_tiles("z", |_, _| ()).expect_err("there is no such port"), error);
    assert_eq!(replay.port("z").expect_err("there is no such port"), error);
}

#[test]
fn a_write_brings_exactly_the_bytes_of_the_tensor() {
    let mut replay = replay();
    replay.write("x", &[1; 8]).expect("eight bytes fit");
    for found in [0, 7, 9] {
        let error = replay.write("x", &vec![2; found]).expect_err("another size does not fit");
        assert_eq!(error, PortError::Size { name: "x".into(), ty: "f32[2]".into(), need: 8, found });
    }
    assert_eq!(*replay.read("x").expect("the port is there"), [1; 8], "a refused write changes nothing");
}

#[test]
fn a_program_of_many_operations_runs_them_all() {
    for n in [1usize, 1000, 100_000] {
        let mut builder = Builder::new("chain");
        builder.lane(0, 128);
        builder.port(port("n", PortKind::State, 64));
        add(&mut builder, "copy", &[], Some(0), 64);
        add(&mut builder, "add", &[0], Some(0), 64);
        for _ in 0..n {
            add(&mut builder, "count", &[], None, 64);
        }
        let program = builder.finish().expect("the program is sound");
        let mut replay = Replay::new(program, vec![Wrapping], 0);
        replay.run().expect("it completes");
        let bytes = replay.read("n").expect("the port is there");
        assert_eq!(u64::from_le_bytes((*bytes).try_into().expect("eight bytes")), n as u64);
    }
}

/// Counts in eight bytes; the other kernels do nothing.
struct Wrapping;

impl Kernels for Wrapping {
    fn execute(&self, kernel: usize, mut args: Args<'_>) {
        if kernel == 2 {
            let state: &mut [u8; 8] = (&mut *args.writes[0]).try_into().expect("eight bytes");
            *state = (u64::from_le_bytes(*state) + 1).to_le_bytes();
        }
    }
}
