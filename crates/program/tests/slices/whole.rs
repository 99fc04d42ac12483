//! Random whole programs: devices that mix up their tiles and receive parts of those of others.
//!
//! Every device has tiles that keep their values and *passing* ones, over which working memory may lie; the latter are
//! written before they are read in each run. An operation waits for every earlier one of another lane that it clashes with.

use phalanx_ir::TensorType;
use phalanx_program::rect::Tile;
use phalanx_program::{
    Blocks, Builder, Draft, Piece, Port, PortKind, PortTile, Program, RECEIVE, Slice, Wait, feeds, fetches,
    landing_bytes,
};

use crate::Random;

/// Rows and columns of the tiles of a device, and where they lie. The last three are passing ones.
const TILES: [([usize; 2], u64); 7] = [
    ([4, 8], 0),
    ([6, 6], 128),
    ([3, 20], 320),
    ([8, 8], 576),
    ([4, 8], 832),
    ([6, 6], 960),
    ([12, 12], 1152),
];
const KEPT: usize = 4;
const ARENA: u64 = 4096;

/// Where working memory may lie: over passing tiles, or apart.
const SCRATCHES: [u64; 3] = [832, 1152, 1728];

#[derive(Clone, Debug, Default)]
struct Op {
    lane: u32,
    kernel: &'static str,
    label: String,
    params: Vec<u64>,
    pieces: Vec<Piece>,
    reads: Vec<Slice>,
    writes: Vec<Slice>,
    scratch: Slice,
    waits: Vec<Wait>,
}

/// The bytes of a tile that keeps its values: lane, first byte and the one after the last.
pub fn kept(lane: usize) -> Vec<(usize, usize, usize)> {
    let bytes =
        |([rows, columns], at): ([usize; 2], u64)| (lane, at as usize, at as usize + 4 * rows * columns);
    TILES[..KEPT].iter().copied().map(bytes).collect()
}

fn slice(home: u32, tile: usize) -> Slice {
    let ([rows, columns], offset) = TILES[tile];
    Slice { lane: home, offset, bytes: (4 * rows * columns) as u64 }
}

fn meet(a: &Slice, b: &Slice) -> bool {
    a.lane == b.lane && a.offset.max(b.offset) < a.end().min(b.end())
}

fn clash(one: &Op, other: &Op) -> bool {
    let written = |op: &Op| [&op.writes[..], &[op.scratch]].concat();
    let touched = |op: &Op| [written(op), op.reads.clone()].concat();
    let any = |a: Vec<Slice>, b: Vec<Slice>| a.iter().any(|a| b.iter().any(|b| meet(a, b)));
    any(written(one), touched(other)) || any(touched(one), written(other))
}

/// A random program of `devices` devices with so many operations.
pub fn random_whole(random: &mut Random, devices: u32, count: u64) -> Program {
    let beside: Vec<bool> = (0..devices).map(|_| random.below(3) == 0).collect();
    let ports = ports(random, devices);
    let lanes = devices + beside.iter().filter(|beside| **beside).count() as u32;
    let mut ops: Vec<Op> = Vec::new();
    ops.extend(feeds(&ports, devices as usize).iter().zip(0..).filter_map(|(feed, lane)| {
        let draft = feed.as_ref()?.draft();
        Some(Op {
            lane,
            kernel: "feed",
            label: "arguments".into(),
            pieces: draft.pieces.clone(),
            writes: draft.writes.to_vec(),
            scratch: draft.scratch,
            ..Op::default()
        })
    }));
    let mut whole =
        Whole { random, devices, homes: homes(&beside), valid: vec![[false; TILES.len()]; devices as usize] };
    whole.valid.iter_mut().for_each(|valid| valid[..KEPT].fill(true));
    for number in 0..count {
        let lane = whole.random.below(lanes.into()) as u32;
        ops.extend(whole.op(lane, number));
    }
    ops.extend(fetches(&ports, devices as usize).iter().zip(0..).filter_map(|(fetch, lane)| {
        let draft = fetch.as_ref()?.draft();
        Some(Op {
            lane,
            kernel: "fetch",
            label: "results".into(),
            pieces: draft.pieces.clone(),
            reads: draft.reads.to_vec(),
            scratch: draft.scratch,
            ..Op::default()
        })
    }));
    add_waits(&mut ops);
    build(&ops, devices, &beside, ports)
}

/// By lane: its home. Lanes beside others come after all homes.
fn homes(beside: &[bool]) -> Vec<u32> {
    let guests = (0..).zip(beside).filter(|(_, beside)| **beside).map(|(home, _)| home);
    (0..beside.len() as u32).chain(guests).collect()
}

fn add_waits(ops: &mut [Op]) {
    let mut counts: Vec<u32> = vec![0; 64];
    let mut spots = Vec::new();
    for op in ops.iter() {
        spots.push(Wait { lane: op.lane, position: counts[op.lane as usize] });
        counts[op.lane as usize] += 1;
    }
    for at in 0..ops.len() {
        let mut waits: Vec<Wait> = Vec::new();
        for before in (0..at).rev().filter(|&before| ops[before].lane != ops[at].lane) {
            let is_new = waits.iter().all(|wait| wait.lane != ops[before].lane);
            if is_new && clash(&ops[before], &ops[at]) {
                waits.push(spots[before]);
            }
        }
        ops[at].waits = waits;
    }
}

fn build(ops: &[Op], devices: u32, beside: &[bool], ports: Vec<Port>) -> Program {
    let mut builder = Builder::new("random");
    ports.into_iter().for_each(|port| builder.port(port));
    for (lane, home) in (0..).zip(homes(beside)) {
        match lane < devices {
            true => builder.lane(home, ARENA),
            false => builder.transfer_lane(home, home),
        };
        for op in ops.iter().filter(|op| op.lane == lane) {
            let Op { kernel, label, params, pieces, reads, writes, scratch, waits, .. } = op;
            let blocks = Blocks::new(1 + (params.len() + pieces.len()) as u32 % 3).expect("one to three");
            let (pieces, messages, scratch) = (pieces.clone(), Vec::new(), *scratch);
            builder.operation(Draft {
                kernel,
                label,
                blocks,
                params,
                pieces,
                messages,
                reads,
                writes,
                scratch,
                waits,
            });
        }
    }
    builder.finish().expect("everything that clashes is ordered")
}

/// An input and an output that some devices have copies of, an output in two halves, and all kept tiles as parameters.
fn ports(random: &mut Random, devices: u32) -> Vec<Port> {
    let mut some = |tile: usize| -> Vec<PortTile> {
        let first = random.below(devices.into()) as u32;
        let whole = |lane| PortTile {
            origin: vec![0, 0],
            ty: TensorType::f32(TILES[tile].0),
            slice: slice(lane, tile),
        };
        (0..devices).filter(|&lane| lane == first || random.below(2) == 0).map(whole).collect()
    };
    let (x, y) = (some(0), some(1));
    let half = |lane: u32| PortTile {
        origin: vec![3 * lane as usize, 0],
        ty: TensorType::f32(TILES[2].0),
        slice: slice(lane, 2),
    };
    let port = |name: &str, kind, dims: [usize; 2], tiles| Port {
        name: name.into(),
        kind,
        ty: TensorType::f32(dims),
        tiles,
    };
    vec![
        port("x", PortKind::Input, TILES[0].0, x),
        port("y", PortKind::Output, TILES[1].0, y),
        port("z", PortKind::Output, [6, 20], vec![half(0), half(1)]),
    ]
}

struct Whole<'a> {
    random: &'a mut Random,
    devices: u32,
    homes: Vec<u32>,
    /// By device and tile: whether it may be read.
    valid: Vec<[bool; TILES.len()]>,
}

impl Whole<'_> {
    fn below(&mut self, end: usize) -> usize {
        self.random.below(end as u64) as usize
    }

    /// A random operation of a lane.
    fn op(&mut self, lane: u32, number: u64) -> Option<Op> {
        let home = self.homes[lane as usize];
        let label = format!("t{number}");
        let empty = Slice { lane: home, ..Slice::default() };
        let op = Op { lane, label, scratch: empty, ..Op::default() };
        let target = self.below(TILES.len());
        let is_guest = lane >= self.devices;
        let op = match self.below(5) {
            kind if kind >= 3 || is_guest => self.receive(op, home, target)?,
            0 => Op { kernel: "fill", params: vec![number], writes: vec![slice(home, target)], ..op },
            _ => self.mixing(op, home, target, number)?,
        };
        for tile in KEPT..TILES.len() {
            self.valid[home as usize][tile] &= !meet(&slice(home, tile), &op.scratch);
        }
        if op.kernel == "fill" {
            self.valid[home as usize][target] = true;
        }
        Some(op)
    }

    fn mixing(&mut self, op: Op, home: u32, target: usize, number: u64) -> Option<Op> {
        let mut reads: Vec<usize> = (0..self.below(3)).map(|_| self.below(TILES.len())).collect();
        reads.retain(|&tile| tile != target && self.valid[home as usize][tile]);
        self.valid[home as usize][target].then(|| Op {
            kernel: "mix",
            params: vec![number],
            reads: reads.iter().map(|&tile| slice(home, tile)).collect(),
            writes: vec![slice(home, target)],
            ..op
        })
    }

    /// A receive of some rectangles of a tile, which must be valid since others stay as they are.
    fn receive(&mut self, op: Op, home: u32, target: usize) -> Option<Op> {
        if !self.valid[home as usize][target] {
            return None;
        }
        let (mut reads, mut pieces) = (Vec::new(), Vec::new());
        let extents = TILES[target].0;
        let rows = self.below(extents[0]) + 1;
        for (first, end) in [(0, rows), (rows, extents[0])] {
            if first < end {
                self.piece(home, target, [first, end], &mut reads, &mut pieces);
            }
        }
        let need = landing_bytes(&pieces, |_| true);
        let offset = SCRATCHES[self.below(SCRATCHES.len())];
        let scratch = Slice { lane: home, offset, bytes: need };
        let writes = vec![slice(home, target)];
        let overlaps = reads.iter().chain(&writes).any(|slice| meet(slice, &scratch));
        (!overlaps && scratch.end() <= ARENA).then_some(Op {
            kernel: RECEIVE,
            pieces,
            reads,
            writes,
            scratch,
            ..op
        })
    }

    /// Adds a piece: some columns of rows of the target, from one or several tiles elsewhere.
    fn piece(
        &mut self,
        home: u32,
        target: usize,
        rows: [usize; 2],
        reads: &mut Vec<Slice>,
        pieces: &mut Vec<Piece>,
    ) {
        let columns = TILES[target].0[1];
        let first = self.below(columns);
        let mut extents = [rows[1] - rows[0], 1 + self.below(columns - first)];
        if self.below(3) == 0 {
            extents[1] = columns - first;
        }
        let origin = [100 + rows[0], 100 + first];
        let parts = if self.below(2) == 0 { 1 } else { 2 + self.below(4) };
        let mut sources = Vec::new();
        for _ in 0..50 {
            let (device, tile) = (self.below(self.devices as usize), self.below(TILES.len()));
            let fits = TILES[tile].0.iter().zip(extents).all(|(&tile, rect)| tile >= rect);
            if sources.len() < parts
                && fits
                && self.valid[device][tile]
                && (device != home as usize || tile != target)
            {
                let room = [0, 1].map(|dim| TILES[tile].0[dim] - extents[dim] + 1);
                let at = [0, 1].map(|dim| origin[dim] - self.below(room[dim]));
                sources.push((reads.len() as u32, at, TILES[tile].0));
                reads.push(slice(device as u32, tile));
            }
        }
        let tile = |origin, extents| Tile { origin, extents };
        let parts: Vec<_> =
            sources.iter().map(|(read, origin, extents)| (*read, tile(&origin[..], &extents[..]))).collect();
        if !parts.is_empty() {
            let target = (0, tile(&[100, 100], &TILES[target].0));
            pieces.push(Piece::new(4, tile(&origin, &extents), target, &parts));
        }
    }
}
