use super::super::layout::{Alignment, Direction, PipeSpec, Way};
use super::super::pipe::RingState;
use super::step::Watch;
use super::*;
use crate::spmd::Layout;
use crate::spmd::extent::Extent;

fn pipes(direction: Direction) -> BlockLayout {
    let pipes = [0, 1].map(|id| PipeSpec::new(id, direction, 64));
    BlockLayout::plan(&pipes, &[], Alignment::CPU, 0).unwrap()
}

/// A slice of `memory`, which is made for it.
fn slice<'a>(layout: &BlockLayout, memory: &'a mut Vec<u8>) -> &'a mut [u8] {
    let place = Layout::new("halves", layout.workspace(), 1).unwrap();
    memory.resize(place.total() as usize, 0xff);
    let slice = place.at(memory.as_ptr().addr()).slice(0);
    &mut memory[slice]
}

/// Runs one block in turn on this thread or on two threads, which no team can put on one.
fn run<M, V>(layout: &BlockLayout, mode: Mode, matrix: M, vector: V) -> Result<(), BlockError>
where
    M: AsyncFnOnce(Ends<'_>) -> Result<(), PipeError> + Send,
    V: AsyncFnOnce(Ends<'_>) -> Result<(), PipeError>,
{
    let mut memory = Vec::new();
    let Opened { matrix: first, vector: second, ledger, .. } =
        open(layout, slice(layout, &mut memory)).unwrap();
    let watch = &Watch::default();
    let outcomes = match mode {
        Mode::Together => in_turn(matrix(first), vector(second), &ledger),
        Mode::Apart => std::thread::scope(|scope| {
            let (peers, vector) = (ledger.clone(), vector(second));
            let matrix = scope.spawn(move || alone(Half::Matrix, matrix(first), &peers, watch));
            let vector = alone(Half::Vector, vector, &ledger, watch);
            [matrix.join().unwrap(), vector]
        }),
    };
    error::verdict(3, outcomes, &ledger)
}

const MODES: [Mode; 2] = [Mode::Apart, Mode::Together];

fn one(slot: &mut [f32]) -> Extent {
    slot[0] = 1.0;
    Extent::new(1, 1)
}

async fn push(ends: &mut Ends<'_>, pipe: u16, tiles: u64) -> Result<(), PipeError> {
    let mut pipe = ends.producer(pipe)?;
    for _ in 0..tiles {
        pipe.push(one).await?;
    }
    Ok(())
}

async fn pop(ends: &mut Ends<'_>, pipe: u16, tiles: u64) -> Result<(), PipeError> {
    let mut pipe = ends.consumer(pipe)?;
    for _ in 0..tiles {
        assert_eq!(pipe.pop().await?.as_deref(), Some(&[1.0][..]));
    }
    Ok(())
}

/// A ring of pipe 0 at the end of block 3.
fn imbalance(way: Way, pushed: u64, popped: u64, freed: u64) -> Result<(), BlockError> {
    Err(BlockError::PipeImbalance {
        block: 3,
        ring: RingState { pipe: 0, way, depth: 2, pushed, popped, freed },
    })
}

#[test]
fn a_tile_nobody_pops_is_an_imbalance() {
    for mode in MODES {
        let result = run(
            &pipes(Direction::Forward),
            mode,
            async |mut ends| push(&mut ends, 0, 10).await,
            async |mut ends| pop(&mut ends, 0, 9).await,
        );
        assert_eq!(result, imbalance(Way::Forward, 10, 9, 9), "{mode:?}");
    }
    assert_eq!(
        imbalance(Way::Forward, 10, 9, 9).unwrap_err().to_string(),
        "block 3: the halves do not push and pop as many tiles; \
         pipe 0 forward: 10 pushed, 9 popped, 9 freed of 2 slots at a time"
    );
}

#[test]
fn a_producer_whose_consumer_has_ended_fills_the_ring_and_stops() {
    for mode in MODES {
        let result = run(
            &pipes(Direction::Backward),
            mode,
            async |mut ends| pop(&mut ends, 0, 4).await,
            async |mut ends| push(&mut ends, 0, 1000).await,
        );
        assert_eq!(result, imbalance(Way::Backward, 6, 4, 4), "{mode:?}");
    }
}

#[test]
fn a_tile_never_freed_is_an_imbalance() {
    for mode in MODES {
        let forget = async |mut ends: Ends<'_>| {
            let mut pipe = ends.consumer(0)?;
            std::mem::forget(pipe.pop().await?);
            pop_rest(&mut pipe).await
        };
        let result =
            run(&pipes(Direction::Forward), mode, async |mut ends| push(&mut ends, 0, 2).await, forget);
        assert_eq!(result, imbalance(Way::Forward, 2, 2, 1), "{mode:?}");
    }
}

async fn pop_rest(pipe: &mut crate::spmd::pipe::Consumer<'_>) -> Result<(), PipeError> {
    while pipe.pop().await?.is_some() {}
    Ok(())
}

#[test]
fn the_stream_ends_after_the_last_tile_for_good() {
    for mode in MODES {
        let take = async |mut ends: Ends<'_>| {
            let mut pipe = ends.consumer(0)?;
            for _ in 0..10 {
                assert!(pipe.pop().await?.is_some());
            }
            assert!(pipe.pop().await?.is_none());
            assert!(pipe.pop().await?.is_none());
            Ok(())
        };
        let result =
            run(&pipes(Direction::Forward), mode, async |mut ends| push(&mut ends, 0, 10).await, take);
        assert_eq!(result, Ok(()), "{mode:?}");
    }
}

#[test]
fn halves_that_wait_for_each_other_are_told_at_once() {
    for mode in MODES {
        // Each half keeps its producer open, so neither sees the end of a stream.
        let vector = async |mut ends: Ends<'_>| {
            let (mut first, _second) = (ends.consumer(0)?, ends.producer(1)?);
            pop_rest(&mut first).await
        };
        let matrix = async |mut ends: Ends<'_>| {
            let mut pipe = ends.producer(0)?;
            pipe.push(one).await?;
            pop(&mut ends, 1, 1).await
        };
        let error = run(&pipes(Direction::Both), mode, matrix, vector).unwrap_err();
        let BlockError::Deadlock { block: 3, rings } = &error else { panic!("{mode:?}: {error}") };
        let counts: Vec<_> = rings.iter().map(|ring| (ring.pushed, ring.popped, ring.freed)).collect();
        assert_eq!(counts, [(1, 1, 1), (0, 0, 0), (0, 0, 0), (0, 0, 0)], "{mode:?}");
    }
}

#[test]
fn the_peer_of_a_half_that_panics_stops_waiting() {
    for mode in MODES {
        let fail = async |mut ends: Ends<'_>| {
            let mut pipe = ends.producer(0)?;
            pipe.push(one).await?;
            pipe.push(|_| panic!("planted")).await
        };
        let mut told = Ok(());
        let watch = async |mut ends: Ends<'_>| {
            told = pop_rest(&mut ends.consumer(0)?).await;
            told
        };
        let result = run(&pipes(Direction::Forward), mode, fail, watch);
        let planted = BlockError::Panicked { block: 3, half: Half::Matrix, message: "planted".into() };
        assert_eq!(result, Err(planted), "{mode:?}");
        assert_eq!(told, Err(PipeError::PeerFailed { pipe: 0, way: Way::Forward }), "{mode:?}");
    }
}

#[test]
fn an_error_of_one_half_is_the_error_of_the_block() {
    for mode in MODES {
        let large = async |mut ends: Ends<'_>| ends.producer(1)?.push(|_| Extent::new(3, 6)).await;
        let result =
            run(&pipes(Direction::Both), mode, large, async |mut ends| push(&mut ends, 0, 1000).await);
        let error = PipeError::TileTooLarge { pipe: 1, rows: 3, columns: 6, slot_bytes: 64 };
        assert_eq!(result, Err(BlockError::Half { block: 3, half: Half::Matrix, error }), "{mode:?}");
        let result = run(
            &pipes(Direction::Forward),
            mode,
            async |mut ends| push(&mut ends, 0, 1000).await,
            async |mut ends| push(&mut ends, 0, 1).await,
        );
        let error = PipeError::NoEnd { half: Half::Vector, pipe: 0, end: "producer" };
        assert_eq!(result, Err(BlockError::Half { block: 3, half: Half::Vector, error }), "{mode:?}");
    }
}

#[test]
fn an_end_can_be_taken_once() {
    let layout = pipes(Direction::Forward);
    let mut memory = Vec::new();
    let mut opened = open(&layout, slice(&layout, &mut memory)).unwrap();
    assert!(opened.matrix.producer(0).is_ok());
    let error = opened.matrix.producer(0).err();
    assert_eq!(error, Some(PipeError::NoEnd { half: Half::Matrix, pipe: 0, end: "producer" }));
    assert!(opened.matrix.producer(1).is_ok());
}
