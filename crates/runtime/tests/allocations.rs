//! Runs of several lanes allocate nothing, nor does writing tensors in tiles, arguments among them.
//!
//! A binary of its own, and one test: the allocator counts for the whole process.

use phalanx_ir::TensorType;
use phalanx_program::rect::Tile;
use phalanx_program::{
    Builder, Draft, Piece, Port, PortKind, PortTile, Program, RECEIVE, Slice, Wait, feeds, fetches,
};
use phalanx_runtime::{Args, Kernels, Replay};
use phalanx_testkit::allocations::{self, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LANES: u32 = 4;
const ROUNDS: u32 = 50;

/// In every round each lane adds one to its row and then fetches the sum of all rows into another place.
fn program() -> Program {
    let slice = |lane, offset| Slice { lane, offset, bytes: 64 };
    let mut builder = Builder::new("sums");
    let port = |name: &str, kind, offset| {
        let tile = |lane| PortTile {
            origin: vec![lane as usize, 0],
            ty: TensorType::f32([1, 16]),
            slice: slice(lane, offset),
        };
        let tiles = (0..LANES).map(tile).collect();
        Port { name: name.into(), kind, ty: TensorType::f32([LANES as usize, 16]), tiles }
    };
    let ports = [
        port("x", PortKind::Input, 0),
        port("again", PortKind::State, 0),
        port("sum", PortKind::State, 64),
        port("result", PortKind::Output, 64),
    ];
    let (feeds, fetches) = (feeds(&ports, LANES as usize), fetches(&ports, LANES as usize));
    ports.into_iter().for_each(|port| builder.port(port));
    let tile = Tile { origin: &[0, 0], extents: &[1, 16] };
    let parts: Vec<_> = (0..LANES).map(|read| (read, tile)).collect();
    let pieces = vec![Piece::new(4, tile, (0, tile), &parts)];
    let reads: Vec<_> = (0..LANES).map(|lane| slice(lane, 0)).collect();
    for lane in 0..LANES {
        builder.lane(lane, 128);
        feeds[lane as usize].iter().for_each(|feed| builder.operation(feed.draft()));
        let scratch = Slice { lane, ..Slice::default() };
        let others = |position: u32| {
            (0..LANES).filter(|&other| other != lane).map(|lane| Wait { lane, position }).collect::<Vec<_>>()
        };
        for round in 0..ROUNDS {
            let waits = round.checked_sub(1).map_or(vec![], |last| others(2 * last + 2));
            let writes = &[slice(lane, 0)];
            builder.operation(Draft { kernel: "one", writes, scratch, waits: &waits, ..Draft::default() });
            builder.operation(Draft {
                kernel: RECEIVE,
                pieces: pieces.clone(),
                reads: &reads,
                writes: &[slice(lane, 64)],
                scratch,
                waits: &others(2 * round + 1),
                ..Draft::default()
            });
        }
        fetches[lane as usize].iter().for_each(|fetch| builder.operation(fetch.draft()));
    }
    builder.finish().expect("the lanes are sound")
}

struct AddOne;

impl Kernels for AddOne {
    fn execute(&self, _kernel: usize, mut args: Args<'_>) {
        for value in args.writes[0].as_chunks_mut().0 {
            *value = (f32::from_ne_bytes(*value) + 1.0).to_ne_bytes();
        }
    }
}

#[test]
fn runs_and_writes_allocate_nothing() {
    for spins in [0, 300] {
        let mut replay = Replay::new(program(), (0..LANES).map(|_| AddOne).collect(), spins);
        let zeros = vec![0; 64 * LANES as usize];
        // The first run may meet threads that are still starting, which allocate.
        replay.run().expect("it completes");
        let before = allocations::count();
        for _ in 0..100 {
            replay.write("x", &zeros).expect("the port is there");
            replay.write("again", &zeros).expect("the port is there");
            replay.run().expect("it completes");
            assert_eq!(replay.read("result").expect("the port is there").len(), zeros.len());
        }
        assert_eq!(allocations::count() - before, 0, "allocations of 100 runs with {spins} spins");
        let sums = replay.read("sum").expect("the port is there");
        assert!(allocations::count() > before, "gathering allocates, and the allocator counts");
        let expected = (ROUNDS * LANES) as f32;
        assert_eq!(sums, replay.read("result").expect("the port is there"));
        assert!(sums.as_chunks().0.iter().all(|&value| f32::from_ne_bytes(value) == expected));
    }
}
