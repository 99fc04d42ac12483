//! What moves between ranks, beside what the MPI library does when it is called directly.
//!
//! An all-reduce is what training does to gradients: a program in which every rank sums one block, parts in rank order,
//! and gathers the others, replayed by the runtime. The library is free to sum in any order. Both are timed in turns,
//! after a barrier, until the last rank has ended.

use std::sync::Arc;
use std::time::Instant;

use phalanx::Error;
use phalanx::internals::polls;
use phalanx::pipeline::{CompileError, EmitError};
use phalanx_ir::{DType, TensorType};
use phalanx_net::mpi::Mpi;
use phalanx_net::{NetError, Network};
use phalanx_program::rect::Tile;
use phalanx_program::{
    ALIGNMENT, Builder, Draft, Piece, Placement, Port, PortKind, PortTile, RECEIVE, Slice, Wait,
    landing_bytes,
};
use phalanx_runtime::{Args, Kernels, Replay};
use serde::Serialize;

use super::median;
use crate::ping_pong::PingPong;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Exchange {
    /// A message to and fro between the first two ranks.
    PingPong,
    /// Every rank gets the sum over all.
    AllReduce,
    /// Every rank gets a block of every other.
    AllToAll,
}

/// One size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExchangeRow {
    /// What.
    pub exchange: Exchange,
    /// Ranks that take part.
    pub ranks: u32,
    /// Bytes of every rank; of a message in a ping-pong.
    pub bytes: usize,
    /// Microseconds of ours, median; one way in a ping-pong.
    pub us: f64,
    /// Microseconds of the library, median.
    pub mpi_us: f64,
    /// Bytes per second of ours, in GB/s.
    pub gb_per_s: f64,
    /// How many times the library's bandwidth ours is.
    pub ratio: f64,
}

/// Measures one size in `rounds` turns.
pub fn exchange(
    exchange: Exchange,
    bytes: usize,
    rounds: usize,
    network: &Arc<dyn Network>,
    mpi: &Mpi,
) -> Result<ExchangeRow, Error> {
    // Blocks of all ranks start on aligned bytes.
    let aligned = ALIGNMENT as usize * network.size() as usize;
    let bytes = if exchange == Exchange::PingPong { bytes } else { bytes.next_multiple_of(aligned) };
    let (us, mpi_us) = match exchange {
        Exchange::PingPong => ping_pong(bytes, rounds, network, mpi)?,
        Exchange::AllReduce | Exchange::AllToAll => collective(exchange, bytes, rounds, network, mpi)?,
    };
    let ranks = if exchange == Exchange::PingPong { 2 } else { network.size() };
    let gb_per_s = bytes as f64 / us / 1e3;
    Ok(ExchangeRow { exchange, ranks, bytes, us, mpi_us, gb_per_s, ratio: mpi_us / us })
}

/// Microseconds of `work` on the slowest rank, all starting together.
fn timed(network: &dyn Network, mut work: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    network.barrier()?;
    let start = Instant::now();
    work()?;
    let own = start.elapsed().as_secs_f64() * 1e6;
    let all = network.all_gather(&own.to_ne_bytes())?;
    let times = all.iter().filter_map(|bytes| Some(f64::from_ne_bytes(bytes.as_slice().try_into().ok()?)));
    Ok(times.fold(own, f64::max))
}

fn collective(
    exchange: Exchange,
    bytes: usize,
    rounds: usize,
    network: &Arc<dyn Network>,
    mpi: &Mpi,
) -> Result<(f64, f64), Error> {
    let (ranks, rank) = (network.size(), network.rank());
    let elements = bytes / 4;
    let program = match exchange {
        Exchange::AllReduce => all_reduce(ranks, elements),
        _ => all_to_all(ranks, elements),
    };
    let unsound = |errors| Error::from(CompileError::from(EmitError::Unsound(errors)));
    let placement = Placement { ranks, of_device: (0..ranks).collect() };
    let part = program.finish().and_then(|whole| whole.slice(&placement, rank)).map_err(unsound)?;
    let busy = part.homes().count();
    let mut replay = Replay::on_network(part, vec![NoKernels; busy], polls(busy), network)?;
    let values: Vec<f32> = (0..elements).map(|index| value(rank, index)).collect();
    let (mut sums, mut blocks) = (values.clone(), vec![0; bytes]);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    // The first turn warms up both.
    for turn in 0..=rounds {
        // What is exchanged was written just before, as gradients are; so is what the library gets.
        replay.write("x", bytemuck::cast_slice(&values))?;
        let us = timed(&**network, || Ok(replay.run()?))?;
        sums.copy_from_slice(&values);
        let mpi_us = timed(&**network, || match exchange {
            Exchange::AllReduce => Ok(mpi.raw().all_reduce(&mut sums)?),
            _ => Ok(mpi.raw().all_to_all(bytemuck::cast_slice(&values), &mut blocks)?),
        })?;
        if turn > 0 {
            ours.push(us);
            theirs.push(mpi_us);
        }
    }
    check(exchange, ranks, rank, bytemuck::cast_slice(&replay.read("y")?))?;
    Ok((median(&ours), median(&theirs)))
}

/// Element `index` of what a rank brings: small whole numbers, whose sums are exact in any order.
fn value(rank: u32, index: usize) -> f32 {
    ((index * 7 + rank as usize * 13) % 1000) as f32
}

/// Looks at what came out.
fn check(exchange: Exchange, ranks: u32, rank: u32, found: &[f32]) -> Result<(), Error> {
    let block = found.len() / ranks as usize;
    let expected = |index: usize| match exchange {
        Exchange::AllReduce => (0..ranks).map(|rank| value(rank, index)).sum(),
        _ => value((index / block) as u32, rank as usize * block + index % block),
    };
    match (0..found.len()).find(|&index| found[index] != expected(index)) {
        None => Ok(()),
        Some(index) => {
            let problem = format!("element {index} is {}, not {}: a bug", found[index], expected(index));
            Err(NetError::Mismatch { rank, problem }.into())
        }
    }
}

#[derive(Clone)]
struct NoKernels;

impl Kernels for NoKernels {
    fn execute(&self, _: usize, _: Args<'_>) {}
}

/// A program of receives on one device a rank: `x` is what each brings, `y` what it gets.
struct Plan {
    builder: Builder,
    ranks: u32,
    elements: usize,
    /// Elements of one rank's block.
    block: usize,
}

/// Where things lie in every arena: each region has room for all elements.
const X: u64 = 0;
const Y: u64 = 1;
const SCRATCH: u64 = 2;

const ORIGIN: [usize; 1] = [0];

impl Plan {
    fn new(name: &str, ranks: u32, elements: usize) -> Self {
        let mut plan =
            Plan { builder: Builder::new(name), ranks, elements, block: elements / ranks as usize };
        let ty = TensorType::new(DType::F32, [elements]);
        for (name, region) in [("x", X), ("y", Y)] {
            let tile = |lane| {
                let slice = plan.slice(lane, region, 0, elements);
                PortTile { origin: ORIGIN.to_vec(), ty: ty.clone(), slice }
            };
            let tiles = (0..ranks).map(tile).collect();
            plan.builder.port(Port { name: name.into(), kind: PortKind::State, ty: ty.clone(), tiles });
        }
        plan
    }

    /// Elements of a region of a lane's arena, `first` of them left out.
    fn slice(&self, lane: u32, region: u64, first: usize, elements: usize) -> Slice {
        let room = (4 * self.elements as u64).next_multiple_of(ALIGNMENT);
        Slice { lane, offset: region * room + 4 * first as u64, bytes: 4 * elements as u64 }
    }

    /// Lets a lane receive; scratch lies behind everything else.
    fn receive(
        &mut self,
        lane: u32,
        pieces: Vec<Piece>,
        [reads, writes]: [&[Slice]; 2],
        scratch: u64,
        waits: &[Wait],
    ) {
        let scratch = Slice { bytes: scratch, ..self.slice(lane, SCRATCH, 0, 0) };
        let (kernel, label) = (RECEIVE, "exchange");
        self.builder.operation(Draft {
            kernel,
            label,
            pieces,
            reads,
            writes,
            scratch,
            waits,
            ..Draft::default()
        });
    }

    /// The pieces of writing one block of each of so many ranks, in their order.
    fn gather(&self, ranks: usize) -> Vec<Piece> {
        let block = Tile { origin: &ORIGIN, extents: &[self.block] };
        let piece = |index| Piece::new(4, block, (index, block), &[(index, block)]);
        (0..ranks as u32).map(piece).collect()
    }

    /// The blocks that `ranks` have in a region, each block where its rank is in the order of all.
    fn own_blocks(&self, region: u64, ranks: &[u32]) -> Vec<Slice> {
        let block = |&rank: &u32| self.slice(rank, region, rank as usize * self.block, self.block);
        ranks.iter().map(block).collect()
    }

    /// The blocks of `ranks` in a lane's region.
    fn blocks(&self, lane: u32, region: u64, ranks: &[u32]) -> Vec<Slice> {
        let block = |&rank: &u32| self.slice(lane, region, rank as usize * self.block, self.block);
        ranks.iter().map(block).collect()
    }

    /// The pieces of summing a lane's block, and the bytes in which parts wait.
    fn sum(&self, lane: u32) -> (Vec<Piece>, u64) {
        let whole = Tile { origin: &ORIGIN, extents: &[self.elements] };
        let parts: Vec<_> = (0..self.ranks).map(|rank| (rank, whole)).collect();
        let block = Tile { origin: &[lane as usize * self.block], extents: &[self.block] };
        let pieces = vec![Piece::new(4, block, (0, block), &parts)];
        let scratch = landing_bytes(&pieces, |rank| rank != lane);
        (pieces, scratch)
    }
}

/// Every rank sums its block where it will be needed, then all gather those of the others.
fn all_reduce(ranks: u32, elements: usize) -> Builder {
    let mut plan = Plan::new("all_reduce", ranks, elements);
    for lane in 0..ranks {
        let (pieces, scratch) = plan.sum(lane);
        let arena = plan.slice(lane, SCRATCH, 0, 0).offset + scratch;
        plan.builder.lane(lane, arena);
        let all: Vec<Slice> = (0..ranks).map(|rank| plan.slice(rank, X, 0, elements)).collect();
        let own = plan.blocks(lane, Y, &[lane]);
        plan.receive(lane, pieces, [&all, &own], scratch, &[]);
        let others: Vec<u32> = (0..ranks).filter(|&other| other != lane).collect();
        let waits: Vec<Wait> = others.iter().map(|&lane| Wait { lane, position: 0 }).collect();
        let (from, to) = (plan.own_blocks(Y, &others), plan.blocks(lane, Y, &others));
        plan.receive(lane, plan.gather(others.len()), [&from, &to], 0, &waits);
    }
    plan.builder
}

fn all_to_all(ranks: u32, elements: usize) -> Builder {
    let mut plan = Plan::new("all_to_all", ranks, elements);
    let all: Vec<u32> = (0..ranks).collect();
    for lane in 0..ranks {
        let arena = plan.slice(lane, SCRATCH, 0, 0).offset;
        plan.builder.lane(lane, arena);
        let own = lane as usize * plan.block;
        let from: Vec<Slice> = all.iter().map(|&rank| plan.slice(rank, X, own, plan.block)).collect();
        let to = plan.blocks(lane, Y, &all);
        plan.receive(lane, plan.gather(all.len()), [&from, &to], 0, &[]);
    }
    plan.builder
}

/// Microseconds one way, ours and the library's; ranks beyond the second wait.
fn ping_pong(
    bytes: usize,
    rounds: usize,
    network: &Arc<dyn Network>,
    mpi: &Mpi,
) -> Result<(f64, f64), Error> {
    let (rank, trips) = (network.rank(), if bytes < 1 << 16 { 200 } else { 10 });
    let mut ping_pong = PingPong::new(Arc::clone(network), bytes)?;
    // What is caught lands in another place than what is thrown, as with ours.
    let (sent, mut received) = (vec![1u8; bytes], vec![1u8; bytes]);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for turn in 0..=rounds {
        let us = timed(&**network, || Ok(ping_pong.trips(trips)?))?;
        let mpi_us = timed(&**network, || {
            let raw = mpi.raw();
            for _ in 0..trips {
                match rank {
                    0 => raw.send(1, &sent).and_then(|()| raw.receive(1, &mut received))?,
                    1 => raw.receive(0, &mut received).and_then(|()| raw.send(0, &sent))?,
                    _ => {}
                }
            }
            Ok(())
        })?;
        if turn > 0 {
            ours.push(us / (2 * trips) as f64);
            theirs.push(mpi_us / (2 * trips) as f64);
        }
    }
    Ok((median(&ours), median(&theirs)))
}
