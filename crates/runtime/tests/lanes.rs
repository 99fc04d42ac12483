//! Several lanes: waits, movements, panics, tensors in tiles, arguments and results.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use phalanx_ir::{DType, TensorType};
use phalanx_program::rect::Tile;
use phalanx_program::{
    Builder, Draft, Piece, Port, PortKind, PortTile, Program, RECEIVE, Slice, Wait, feeds, fetches,
};
use phalanx_runtime::{Args, ExecutionMode, Kernels, Replay};

fn slice(lane: u32, offset: u64) -> Slice {
    Slice { lane, offset, bytes: 64 }
}

/// The pieces of a movement that sums reads 0 to `parts` of 64 bytes into the only write.
fn whole_tile(parts: u32) -> Vec<Piece> {
    let tile = Tile { origin: &[0], extents: &[16] };
    let parts: Vec<_> = (0..parts).map(|read| (read, tile)).collect();
    vec![Piece::new(4, tile, (0, tile), &parts)]
}

/// A tensor of 64 bytes a lane, at `offset` in each.
fn rows(name: &str, lanes: u32, offset: u64, dtype: DType) -> Port {
    let cols = 64 / dtype.bytes();
    let tile = |lane| PortTile {
        origin: vec![lane as usize, 0],
        ty: TensorType::new(dtype, [1, cols]),
        slice: slice(lane, offset),
    };
    let ty = TensorType::new(dtype, [lanes as usize, cols]);
    Port { name: name.into(), kind: PortKind::State, ty, tiles: (0..lanes).map(tile).collect() }
}

/// Eight numbers of each lane are mixed with those that the lane before had in the last round.
///
/// Without the first wait a lane could overwrite what its neighbour still fetches; without the second it could fetch
/// what is not yet mixed.
fn ring(lanes: u32, rounds: u32) -> Program {
    let mut builder = Builder::new("ring");
    builder.port(rows("own", lanes, 0, DType::I64));
    for lane in 0..lanes {
        builder.lane(lane, 128);
        let (before, after) = ((lane + lanes - 1) % lanes, (lane + 1) % lanes);
        for round in 0..rounds {
            let fetched = round.checked_sub(1).map(|last| Wait { lane: after, position: 2 * last + 1 });
            let scratch = Slice { lane, ..Slice::default() };
            let draft = Draft { label: "", scratch, ..Draft::default() };
            builder.operation(Draft {
                kernel: "mix",
                params: &[u64::from(lane * rounds + round)],
                reads: &[slice(lane, 64)],
                writes: &[slice(lane, 0)],
                waits: fetched.as_slice(),
                ..draft.clone()
            });
            builder.operation(Draft {
                kernel: RECEIVE,
                pieces: whole_tile(1),
                reads: &[slice(before, 0)],
                writes: &[slice(lane, 64)],
                waits: &[Wait { lane: before, position: 2 * round }],
                ..draft.clone()
            });
        }
    }
    builder.finish().expect("the ring is sound")
}

/// Mixes; takes longer on some lanes and rounds, so that lanes run apart.
struct Mix;

fn mixed(own: u64, got: u64, word: u64) -> u64 {
    own.wrapping_mul(6364136223846793005).wrapping_add(got ^ word).rotate_left(17)
}

impl Kernels for Mix {
    fn execute(&self, _kernel: usize, mut args: Args<'_>) {
        let word = args.params[0];
        for _ in 0..(word * 7919 % 13) * 40 {
            std::hint::spin_loop();
        }
        let got = args.reads[0].as_chunks().0;
        for (own, &got) in args.writes[0].as_chunks_mut().0.iter_mut().zip(got) {
            *own = mixed(u64::from_ne_bytes(*own), u64::from_ne_bytes(got), word).to_ne_bytes();
        }
    }
}

/// What a ring leaves, one lane after the other.
fn ring_reference(lanes: usize, rounds: usize, runs: usize, own: &mut [u64]) {
    let mut got = vec![0; own.len()];
    for round in 0..runs * rounds {
        for (index, own) in own.iter_mut().enumerate() {
            let word = (index / 8 * rounds + round % rounds) as u64;
            *own = mixed(*own, got[index], word);
        }
        (0..own.len()).for_each(|index| got[index] = own[(index + own.len() - 8) % own.len()]);
    }
    assert_eq!(own.len(), 8 * lanes);
}

#[test]
fn lanes_see_what_they_waited_for_and_overwrite_nothing_too_early() {
    for lanes in 2..=8 {
        for spins in [0, 300] {
            let (rounds, runs) = (20, 60);
            let replays = (0..lanes).map(|_| Mix).collect();
            let mut replay = Replay::new(ring(lanes, rounds), replays, spins);
            let mut own: Vec<u64> = (0..8 * u64::from(lanes)).map(|i| i * i + 1).collect();
            let bytes: Vec<u8> = own.iter().flat_map(|value| value.to_ne_bytes()).collect();
            replay.write("own", &bytes).expect("the port is there");
            match spins {
                0 => (0..runs).for_each(|_| replay.run().expect("it completes")),
                _ => overlap(&mut replay, runs as u64),
            }
            ring_reference(lanes as usize, rounds as usize, runs, &mut own);
            let bytes: Vec<u8> = own.iter().flat_map(|value| value.to_ne_bytes()).collect();
            assert_eq!(
                *replay.read("own").expect("the port is there"),
                bytes,
                "{lanes} lanes, {spins} spins"
            );
        }
    }
}

/// Runs with as many in flight as can be.
fn overlap(replay: &mut Replay<Mix>, runs: u64) {
    for run in 0..runs {
        assert_eq!(replay.launch(), run);
        if run > 0 {
            replay.wait(run - 1).expect("it completes");
        }
    }
    replay.wait(runs - 1).expect("it completes");
}

#[test]
fn all_doors_leave_the_same_bytes() {
    for lanes in 2..=5 {
        let left = |execution: ExecutionMode| {
            let mut replay = Replay::new(ring(lanes, 7), (0..lanes).map(|_| Mix).collect(), 0);
            replay.set_execution(execution);
            overlap(&mut replay, 6);
            replay.read("own").expect("the port is there").into_owned()
        };
        let replayed = left(ExecutionMode::Replay);
        assert!(replayed.iter().any(|&byte| byte != 0), "something was mixed");
        assert_eq!(left(ExecutionMode::Immediate), replayed, "{lanes} lanes, immediate");
        for seed in 0..50 {
            assert_eq!(
                left(ExecutionMode::Stepped(seed)),
                replayed,
                "{lanes} lanes, stepped with seed {seed}"
            );
        }
    }
}

/// Each lane doubles its floats, then fetches the sum over all lanes.
fn all_reduce(lanes: u32) -> Program {
    let mut builder = Builder::new("sum");
    builder.port(rows("x", lanes, 0, DType::F32));
    builder.port(rows("sum", lanes, 64, DType::F32));
    let reads: Vec<_> = (0..lanes).map(|lane| slice(lane, 0)).collect();
    for lane in 0..lanes {
        builder.lane(lane, 128);
        let scratch = Slice { lane, ..Slice::default() };
        let waits: Vec<_> =
            (0..lanes).filter(|&other| other != lane).map(|lane| Wait { lane, position: 0 }).collect();
        builder.operation(Draft { kernel: "double", writes: &[slice(lane, 0)], scratch, ..Draft::default() });
        builder.operation(Draft {
            kernel: RECEIVE,
            pieces: whole_tile(lanes),
            reads: &reads,
            writes: &[slice(lane, 64)],
            scratch,
            waits: &waits,
            ..Draft::default()
        });
    }
    builder.finish().expect("the lanes are sound")
}

struct Double;

impl Kernels for Double {
    fn execute(&self, _kernel: usize, mut args: Args<'_>) {
        for value in args.writes[0].as_chunks_mut().0 {
            *value = (2.0 * f32::from_ne_bytes(*value)).to_ne_bytes();
        }
    }
}

fn tree_sum(values: &[f32]) -> f32 {
    match values {
        [only] => *only,
        _ => {
            let (left, right) = values.split_at(values.len().next_power_of_two() / 2);
            tree_sum(left) + tree_sum(right)
        }
    }
}

#[test]
fn a_sum_over_lanes_is_the_same_tree_on_all_of_them() {
    for lanes in 2..=8usize {
        let replays = (0..lanes).map(|_| Double).collect();
        let mut replay = Replay::new(all_reduce(lanes as u32), replays, 0);
        let mut x: Vec<f32> =
            (0..16 * lanes).map(|i| ((i * 7919 % 101) as f32 - 50.3) * 10f32.powi(i as i32 % 7)).collect();
        let bytes: Vec<u8> = x.iter().flat_map(|value| value.to_ne_bytes()).collect();
        replay.write("x", &bytes).expect("the port is there");
        for run in 0..50 {
            replay.run().expect("it completes");
            x.iter_mut().for_each(|value| *value *= 2.0);
            let column = |col: usize| (0..lanes).map(|lane| x[16 * lane + col]).collect::<Vec<_>>();
            let sums: Vec<u8> = (0..16).flat_map(|col| tree_sum(&column(col)).to_ne_bytes()).collect();
            assert_eq!(
                *replay.read("sum").expect("the port is there"),
                sums.repeat(lanes),
                "run {run}, {lanes} lanes"
            );
        }
    }
}

#[test]
fn an_observer_sees_every_operation_of_every_lane_once() {
    let mut replay = Replay::new(all_reduce(4), (0..4).map(|_| Double).collect(), 0);
    let seen: Arc<[_]> = (0..8).map(|_| AtomicU64::new(0)).collect();
    let counts = Arc::clone(&seen);
    replay.observe(Some(Arc::new(move |position: usize, _, execute: &mut dyn FnMut()| {
        execute();
        counts[position].fetch_add(1, Relaxed);
    })));
    (0..10).for_each(|_| replay.run().expect("it completes"));
    replay.observe(None);
    replay.run().expect("it completes");
    assert_eq!(seen.iter().map(|count| count.load(Relaxed)).collect::<Vec<_>>(), [10; 8]);
}

/// Doubles, but panics when armed.
#[derive(Default)]
struct Fragile {
    armed: AtomicBool,
}

impl Kernels for Fragile {
    fn execute(&self, kernel: usize, args: Args<'_>) {
        assert!(!self.armed.load(Relaxed), "this lane breaks");
        Double.execute(kernel, args);
    }
}

#[test]
fn a_panic_fails_the_run_and_the_next_run_is_whole() {
    for broken in 0..4 {
        let kernels = (0..4).map(|_| Fragile::default()).collect();
        let mut replay = Replay::new(all_reduce(4), kernels, if broken % 2 == 0 { 0 } else { 300 });
        replay.run().expect("it completes");
        for _ in 0..20 {
            replay.kernels()[broken].armed.store(true, Relaxed);
            let fault = replay.run().expect_err("the lane breaks");
            assert!(fault.to_string().ends_with("failed: this lane breaks"), "lane {broken}: {fault}");
            replay.kernels()[broken].armed.store(false, Relaxed);
        }
        let ones: Vec<u8> = [1f32; 64].iter().flat_map(|value| value.to_ne_bytes()).collect();
        replay.write("x", &ones).expect("the port is there");
        replay.run().expect("it completes");
        let sums: Vec<u8> = [8f32; 64].iter().flat_map(|value| value.to_ne_bytes()).collect();
        assert_eq!(*replay.read("sum").expect("the port is there"), sums, "after lane {broken} broke");
    }
}

#[test]
fn lanes_without_operations_take_part() {
    let mut builder = Builder::new("idle");
    builder.port(rows("x", 3, 0, DType::F32));
    for lane in 0..3 {
        builder.lane(lane, 64);
        if lane == 1 {
            let scratch = Slice { lane, ..Slice::default() };
            builder.operation(Draft {
                kernel: "double",
                writes: &[slice(1, 0)],
                scratch,
                ..Draft::default()
            });
        }
    }
    let program = builder.finish().expect("a lane may be idle");
    let mut replay = Replay::new(program, vec![Double, Double, Double], 0);
    let ones: Vec<u8> = [1f32; 48].iter().flat_map(|value| value.to_ne_bytes()).collect();
    replay.write("x", &ones).expect("the port is there");
    (0..3).for_each(|_| replay.run().expect("it completes"));
    let expected = [[1f32; 16], [8f32; 16], [1f32; 16]];
    let expected: Vec<u8> = expected.as_flattened().iter().flat_map(|value| value.to_ne_bytes()).collect();
    assert_eq!(*replay.read("x").expect("the port is there"), expected);
}

struct Nothing;

impl Kernels for Nothing {
    fn execute(&self, _kernel: usize, _args: Args<'_>) {}
}

/// A 4 by 6 tensor of bytes in quarters, two of them mirrored, and one whole tensor on two lanes.
fn tiled() -> Replay<Nothing> {
    let tile = |origin: [usize; 2], extents: [usize; 2], lane, offset| {
        let ty = TensorType::new(DType::Bool, extents);
        let slice = Slice { lane, offset, bytes: ty.bytes() as u64 };
        PortTile { origin: origin.to_vec(), ty, slice }
    };
    let ty = TensorType::new(DType::Bool, [4, 6]);
    let port = |name: &str, tiles| Port { name: name.into(), kind: PortKind::Param, ty: ty.clone(), tiles };
    let mut builder = Builder::new("tiles");
    builder.port(port(
        "cut",
        vec![
            tile([0, 0], [2, 3], 0, 0),
            tile([0, 3], [2, 3], 1, 0),
            tile([2, 0], [2, 3], 0, 64),
            tile([2, 3], [2, 3], 1, 64),
            tile([0, 3], [2, 3], 2, 0),
            tile([2, 3], [2, 3], 2, 64),
        ],
    ));
    builder.port(port("mirrored", vec![tile([0, 0], [4, 6], 1, 128), tile([0, 0], [4, 6], 2, 128)]));
    (0..3).for_each(|lane| assert_eq!(builder.lane(lane, 192), lane));
    let program = builder.finish().expect("the tiles cover their tensors");
    Replay::new(program, vec![Nothing, Nothing, Nothing], 0)
}

#[test]
fn a_write_reaches_every_tile_and_a_read_joins_them() {
    let mut replay = tiled();
    let numbers: Vec<u8> = (0..24).collect();
    for name in ["cut", "mirrored"] {
        replay.write(name, &numbers).expect("the port is there");
        assert_eq!(*replay.read(name).expect("the port is there"), numbers, "{name}");
    }
    let mut tiles = Vec::new();
    replay
        .fill_tiles("cut", |tile, bytes| tiles.push((tile.slice.lane, bytes.to_vec())))
        .expect("it is there");
    assert_eq!(tiles[1], (1, vec![3, 4, 5, 9, 10, 11]));
    assert_eq!(tiles[2], (0, vec![12, 13, 14, 18, 19, 20]));
    assert_eq!((&tiles[4].1, &tiles[5].1), (&tiles[1].1, &tiles[3].1), "mirrored tiles are equal");
    use std::borrow::Cow;
    assert!(matches!(replay.read("mirrored"), Ok(Cow::Borrowed(_))), "one lane has it all");
    assert!(matches!(replay.read("cut"), Ok(Cow::Owned(_))), "no lane has it all");
}

#[test]
fn tiles_are_filled_in_place_and_the_first_mirror_is_read() {
    let mut replay = tiled();
    let fill = |tile: &PortTile, bytes: &mut [u8]| {
        let origin = &tile.origin;
        for (index, byte) in bytes.iter_mut().enumerate() {
            let (row, col) = (origin[0] + index / 3, origin[1] + index % 3);
            *byte = (10 * row + col) as u8 + if tile.slice.lane == 2 { 100 } else { 0 };
        }
    };
    replay.fill_tiles("cut", fill).expect("the port is there");
    let expected: Vec<u8> = (0..4).flat_map(|row| (0..6).map(move |col| 10 * row + col)).collect();
    assert_eq!(*replay.read("cut").expect("the port is there"), expected, "lane 2 has only mirrors");
}

/// Each lane moves its tile of the input on to the next one, whose tile of the output it is.
fn passing(lanes: u32) -> Program {
    let (input, output) = (rows("in", lanes, 0, DType::F32), rows("out", lanes, 64, DType::F32));
    // Mirrors on the last lane, which are never written.
    let mut tiles = output.tiles.clone();
    tiles.extend(output.tiles.iter().map(|tile| PortTile { slice: slice(lanes - 1, 128), ..tile.clone() }));
    let ports = [Port { kind: PortKind::Input, ..input }, Port { kind: PortKind::Output, tiles, ..output }];
    let (feeds, fetches) = (feeds(&ports, lanes as usize), fetches(&ports, lanes as usize));
    let mut builder = Builder::new("passing");
    ports.into_iter().for_each(|port| builder.port(port));
    for lane in 0..lanes {
        builder.lane(lane, 192);
        feeds[lane as usize].iter().for_each(|feed| builder.operation(feed.draft()));
        let before = (lane + lanes - 1) % lanes;
        builder.operation(Draft {
            kernel: RECEIVE,
            pieces: whole_tile(1),
            reads: &[slice(before, 0)],
            writes: &[slice(lane, 64)],
            scratch: Slice { lane, ..Slice::default() },
            waits: &[Wait { lane: before, position: 0 }],
            ..Draft::default()
        });
        fetches[lane as usize].iter().for_each(|fetch| builder.operation(fetch.draft()));
    }
    builder.finish().expect("the lanes are sound")
}

#[test]
fn arguments_reach_all_lanes_and_results_come_from_the_first_mirrors() {
    for lanes in [2, 3, 8] {
        let program = passing(lanes);
        let carried: Vec<_> = program.operations().iter().map(|op| program.carried(op).len()).collect();
        assert_eq!(carried, [1, 0, 0].repeat(lanes as usize), "a feed waits for the reader of its tile");
        let mut replay = Replay::new(program, (0..lanes).map(|_| Nothing).collect(), 0);
        for run in 0..50u8 {
            let bytes: Vec<u8> = (0..64 * lanes).map(|i| (i * 7) as u8 ^ run).collect();
            replay.write("in", &bytes).expect("the port is there");
            replay.run().expect("it completes");
            let (last, rest) = (&bytes[bytes.len() - 64..], &bytes[..bytes.len() - 64]);
            assert_eq!(*replay.read("out").expect("the port is there"), [last, rest].concat(), "run {run}");
        }
    }
}
