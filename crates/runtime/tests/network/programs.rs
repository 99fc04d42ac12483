//! Whole programs that can be cut anywhere, and their kernels.

use phalanx_ir::{DType, TensorType};
use phalanx_program::rect::Tile;
use phalanx_program::{
    Builder, Draft, Piece, Port, PortKind, PortTile, Program, RECEIVE, Slice, Wait, feeds, fetches,
};
use phalanx_runtime::{Args, Kernels};

/// A tensor with one row for each device, at `offset` in each.
fn rows(name: &str, kind: PortKind, devices: u32, offset: u64, ty: &TensorType) -> Port {
    let shape = |rows: usize| TensorType::new(ty.dtype, [rows, ty.shape.dims()[0]]);
    let tile = |lane: u32| PortTile {
        origin: vec![lane as usize, 0],
        ty: shape(1),
        slice: Slice { lane, offset, bytes: ty.bytes() as u64 },
    };
    Port { name: name.into(), kind, ty: shape(devices as usize), tiles: (0..devices).map(tile).collect() }
}

/// Eight numbers of each device are mixed with those that the device before had in the last round.
pub fn ring(devices: u32, rounds: u32) -> Program {
    let slice = |lane, offset| Slice { lane, offset, bytes: 64 };
    let tile = Tile { origin: &[0], extents: &[16] };
    let pieces = vec![Piece::new(4, tile, (0, tile), &[(0, tile)])];
    let mut builder = Builder::new("ring");
    builder.port(rows("own", PortKind::State, devices, 0, &TensorType::new(DType::I64, [8])));
    for lane in 0..devices {
        builder.lane(lane, 128);
        let (before, after) = ((lane + devices - 1) % devices, (lane + 1) % devices);
        let draft = Draft { scratch: Slice { lane, ..Slice::default() }, ..Draft::default() };
        for round in 0..rounds {
            let fetched = round.checked_sub(1).map(|last| Wait { lane: after, position: 2 * last + 1 });
            builder.operation(Draft {
                kernel: "mix",
                label: "own",
                params: &[u64::from(lane * rounds + round)],
                reads: &[slice(lane, 64)],
                writes: &[slice(lane, 0)],
                waits: fetched.as_slice(),
                ..draft.clone()
            });
            builder.operation(Draft {
                kernel: RECEIVE,
                label: "neighbour",
                pieces: pieces.clone(),
                reads: &[slice(before, 0)],
                writes: &[slice(lane, 64)],
                waits: &[Wait { lane: before, position: 2 * round }],
                ..draft.clone()
            });
        }
    }
    builder.finish().expect("the ring is sound")
}

/// Mixes whole numbers.
pub struct Mix;

impl Kernels for Mix {
    fn execute(&self, _kernel: usize, mut args: Args<'_>) {
        let got = args.reads[0].as_chunks().0;
        for (own, &got) in args.writes[0].as_chunks_mut().0.iter_mut().zip(got) {
            let mixed = u64::from_ne_bytes(*own).wrapping_mul(6364136223846793005);
            let mixed = mixed.wrapping_add(u64::from_ne_bytes(got) ^ args.params[0]).rotate_left(17);
            *own = mixed.to_ne_bytes();
        }
    }
}

/// A matrix of each device, and its bytes.
const ROWS: usize = 4;
const COLS: usize = 20;
const BYTES: u64 = 320;

/// Where a device has its own matrix, what it has exchanged, the sum, its input, and the working memory of movements.
const OWN: u64 = 0;
const EXCHANGED: u64 = BYTES;
const SUM: u64 = 2 * BYTES;
const INPUT: u64 = 3 * BYTES;
const LANDING: u64 = 4 * BYTES;

/// The pieces of a movement for device `to`: from every device some columns, to a place of that device's own, and the
/// sum of all matrices.
fn exchange_pieces(devices: u32, to: u32) -> Vec<Piece> {
    let extents = &[ROWS, COLS];
    let mut pieces = Vec::new();
    for from in 0..devices {
        // Columns that the receiver's number chooses there become columns that the sender's chooses here.
        let [target, source] = [from, to].map(|device| [0, COLS - 4 * device as usize]);
        let rect = Tile { origin: &[0, COLS], extents: &[ROWS, 4] };
        let part = (from, Tile { origin: &source, extents });
        pieces.push(Piece::new(4, rect, (0, Tile { origin: &target, extents }), &[part]));
    }
    let all = Tile { origin: &[0, 0], extents };
    let parts: Vec<_> = (0..devices).map(|from| (from, all)).collect();
    pieces.push(Piece::new(4, all, (1, all), &parts));
    pieces
}

/// In every round each device blends its matrix with what it got, then gets columns of all others and the sum of all.
/// With `beside`, movements have lanes of their own.
pub fn exchange(devices: u32, rounds: u32, beside: bool) -> Program {
    let slice = |lane, offset| Slice { lane, offset, bytes: BYTES };
    let row = TensorType::f32([ROWS * COLS]);
    let ports = [
        rows("x", PortKind::Input, devices, INPUT, &row),
        rows("own", PortKind::State, devices, OWN, &row),
        rows("out", PortKind::Output, devices, SUM, &row),
    ];
    let n = devices as usize;
    let (feeds, fetches) = (feeds(&ports, n), fetches(&ports, n));
    // Where the operations of a round are; the feed comes first.
    let blended = |lane, round| Wait { lane, position: if beside { 1 + round } else { 1 + 2 * round } };
    let moved = |lane, round| match beside {
        true => Wait { lane: devices + lane, position: round },
        false => Wait { lane, position: 2 + 2 * round },
    };
    let of_others = |lane: u32, of: &dyn Fn(u32) -> Wait| -> Vec<Wait> {
        (0..devices).filter(|&other| beside || other != lane).map(of).collect()
    };
    let blend = |builder: &mut Builder, lane: u32, round: u32| {
        let waits = round.checked_sub(1).map_or(vec![], |last| of_others(lane, &|lane| moved(lane, last)));
        builder.operation(Draft {
            kernel: "blend",
            label: "own",
            params: &[u64::from(round)],
            reads: &[EXCHANGED, SUM, INPUT].map(|offset| slice(lane, offset)),
            writes: &[slice(lane, OWN)],
            scratch: Slice { lane, ..Slice::default() },
            waits: &waits,
            ..Draft::default()
        });
    };
    let reads: Vec<_> = (0..devices).map(|lane| slice(lane, OWN)).collect();
    let exchange = |builder: &mut Builder, lane: u32, round: u32| {
        builder.operation(Draft {
            kernel: RECEIVE,
            label: "all",
            pieces: exchange_pieces(devices, lane),
            reads: &reads,
            writes: &[slice(lane, EXCHANGED), slice(lane, SUM)],
            scratch: Slice { lane, offset: LANDING, bytes: BYTES * u64::from(devices) },
            waits: &of_others(lane, &|lane| blended(lane, round)),
            ..Draft::default()
        });
    };
    let mut builder = Builder::new("exchange");
    for lane in 0..devices {
        builder.lane(lane, LANDING + BYTES * u64::from(devices));
        feeds[lane as usize].iter().for_each(|feed| builder.operation(feed.draft()));
        for round in 0..rounds {
            blend(&mut builder, lane, round);
            if !beside {
                exchange(&mut builder, lane, round);
            }
        }
        let waits = if beside { vec![moved(lane, rounds - 1)] } else { vec![] };
        let last = fetches[lane as usize].iter();
        last.for_each(|fetch| builder.operation(Draft { waits: &waits, ..fetch.draft() }));
    }
    for lane in (0..devices).filter(|_| beside) {
        builder.transfer_lane(lane, lane);
        (0..rounds).for_each(|round| exchange(&mut builder, lane, round));
    }
    ports.into_iter().for_each(|port| builder.port(port));
    builder.finish().expect("the lanes are sound")
}

/// Blends numbers so that it matters what was summed in which order.
pub struct Blend;

impl Kernels for Blend {
    fn execute(&self, _kernel: usize, mut args: Args<'_>) {
        let float = |bytes: &[u8], at: usize| f32::from_ne_bytes(bytes.as_chunks().0[at]);
        let [got, sum, input] = [0, 1, 2].map(|read| args.reads[read]);
        for (at, own) in args.writes[0].as_chunks_mut().0.iter_mut().enumerate() {
            let old = f32::from_ne_bytes(*own);
            let new = 0.3 * old + 0.7 * float(got, at) + 0.1 * float(sum, at) + float(input, at);
            *own = (new + args.params[0] as f32).sin().to_ne_bytes();
        }
    }
}
