//! Tiles of one cache line sent from thread to thread, by which a caller with a clock measures what a pipe costs.

use phalanx_kernels::spmd::Layout;
use phalanx_kernels::spmd::extent::Extent;
use phalanx_kernels::spmd::halves::step::{Watch, alone};
use phalanx_kernels::spmd::layout::{Alignment, BlockLayout, Direction, PipeSpec};
use phalanx_kernels::spmd::pipe::{Ends, Half, PipeError, open};

/// Floats of a tile.
const TILE: usize = 16;

/// Sends `tiles` tiles from one thread to another through a ring of `depth` slots; the sum of what arrived.
///
/// Starting the threads is part of it: let there be many tiles.
pub fn hand_over(tiles: u64, depth: u32) -> f32 {
    let send = async |mut ends: Ends<'_>| {
        let mut pipe = ends.producer(0)?;
        for _ in 0..tiles {
            pipe.push(ones).await?;
        }
        Ok(())
    };
    let receive = async |mut ends: Ends<'_>| sum(&mut ends).await;
    apart(Direction::Forward, depth, send, receive)
}

/// Sends `tiles` tiles to another thread and each of them back before the next, which takes twice the time from a push
/// to its pop; the sum of what arrived.
pub fn to_and_fro(tiles: u64) -> f32 {
    let send = async |mut ends: Ends<'_>| {
        let (mut there, mut back) = (ends.producer(0)?, ends.consumer(0)?);
        for _ in 0..tiles {
            there.push(ones).await?;
            back.pop().await?;
        }
        Ok(())
    };
    let reply = async |mut ends: Ends<'_>| {
        let (mut there, mut back) = (ends.consumer(0)?, ends.producer(0)?);
        let mut total = 0.0;
        while let Some(tile) = there.pop().await? {
            total += tile[0];
            back.push(ones).await?;
        }
        Ok(total)
    };
    apart(Direction::Both, 1, send, reply)
}

fn ones(slot: &mut [f32]) -> Extent {
    slot.fill(1.0);
    Extent::new(1, slot.len())
}

async fn sum(ends: &mut Ends<'_>) -> Result<f32, PipeError> {
    let mut pipe = ends.consumer(0)?;
    let mut total = 0.0;
    while let Some(tile) = pipe.pop().await? {
        total += tile[0];
    }
    Ok(total)
}

/// Runs the halves of one block on two threads; what the vector half returns.
fn apart<M, V>(direction: Direction, depth: u32, matrix: M, vector: V) -> f32
where
    M: AsyncFnOnce(Ends<'_>) -> Result<(), PipeError> + Send,
    V: AsyncFnOnce(Ends<'_>) -> Result<f32, PipeError>,
{
    let pipe = PipeSpec { id: 0, direction, slot_bytes: (TILE * size_of::<f32>()) as u64, depth };
    let layout = BlockLayout::plan(&[pipe], &[], Alignment::CPU, 0).expect("a small pipe has a layout");
    let place = Layout::new("pipe", layout.workspace(), 1).expect("a small pipe has room");
    let mut memory = vec![0; place.total() as usize];
    let slice = place.at(memory.as_ptr().addr()).slice(0);
    let opened = open(&layout, &mut memory[slice]).expect("the memory is made for the layout");
    let (ledger, watch) = (opened.ledger.clone(), Watch::default());
    let mut total = 0.0;
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| alone(Half::Matrix, matrix(opened.matrix), &opened.ledger, &watch));
        let receive = async { vector(opened.vector).await.map(|sum| total = sum) };
        let received = alone(Half::Vector, receive, &ledger, &watch);
        let sent = sender.join().expect("a half's panic is caught");
        sent.and(received).expect("the halves agree on every tile");
    });
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_arrives() {
        for depth in [1, 2, 8] {
            assert_eq!(hand_over(1000, depth), 1000.0);
        }
        assert_eq!(to_and_fro(1000), 1000.0);
    }
}
