//! Blocks of two halves on teams: every way to run them gives the bits of a plain sequential computation.
#![allow(clippy::unwrap_used)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use phalanx_kernels::spmd::extent::{Extent, window};
use phalanx_kernels::spmd::halves::{BlockError, Halves, Mode, Side};
use phalanx_kernels::spmd::layout::{Alignment, BlockLayout, Direction, PipeSpec, Scratch};
use phalanx_kernels::spmd::pipe::{self, OpenError, PipeError};
use phalanx_kernels::spmd::{Launch, Layout, Team, Workspace};

const MODES: [Mode; 2] = [Mode::Apart, Mode::Together];

/// `n` numbers in -1..1 that depend on `seed`.
fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// `out[m, n] = a[m, k] · b[k, n]`, summed in the order of `k`.
fn matmul(out: &mut [f32], a: &[f32], b: &[f32], n: usize) {
    let k = b.len() / n;
    for (out, a) in out.chunks_exact_mut(n).zip(a.chunks_exact(k)) {
        out.fill(0.0);
        for (a, b) in a.iter().zip(b.chunks_exact(n)) {
            out.iter_mut().zip(b).for_each(|(out, b)| *out += a * b);
        }
    }
}

/// A matmul half that pushes tiles of rows and a vector half that adds a bias and stores them.
struct Linear {
    rows: usize,
    width: usize,
    tile_rows: usize,
    a: Vec<f32>,
    b: Vec<f32>,
    bias: Vec<f32>,
}

impl Linear {
    fn new(rows: usize, width: usize, tile_rows: usize) -> Self {
        let (a, b, bias) = (values(rows * width, 1), values(width * width, 2), values(rows * width, 3));
        Linear { rows, width, tile_rows, a, b, bias }
    }

    fn reference(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows * self.width];
        matmul(&mut out, &self.a, &self.b, self.width);
        out.iter_mut().zip(&self.bias).for_each(|(out, bias)| *out += bias);
        out
    }

    fn layout(&self, guard: u64) -> BlockLayout {
        let pipe = PipeSpec::new(0, Direction::Forward, (self.tile_rows * self.width * 4) as u64);
        BlockLayout::plan(&[pipe], &[], Alignment::CPU, guard).unwrap()
    }

    /// The elements of the tiles of block `index` of `count`.
    fn tiles(&self, index: u64, count: u64) -> impl Iterator<Item = std::ops::Range<usize>> {
        let tile = self.tile_rows * self.width;
        (index as usize..self.rows / self.tile_rows)
            .step_by(count as usize)
            .map(move |i| i * tile..(i + 1) * tile)
    }

    /// Runs it on `blocks` blocks over `workspace`, both halves calling `disturb` before every tile.
    fn run(
        &self,
        (team, mode): (&Team, Mode),
        layout: &BlockLayout,
        (blocks, workspace): (usize, &mut [u8]),
        disturb: impl Fn() + Sync,
    ) -> Result<Vec<f32>, BlockError> {
        let out = Mutex::new(vec![f32::NAN; self.rows * self.width]);
        let matrix = async |mut side: Side<'_>| {
            let mut pipe = side.ends.producer(0)?;
            for tile in self.tiles(side.index, side.count) {
                disturb();
                let fill = |slot: &mut [f32]| {
                    matmul(slot, &self.a[tile.clone()], &self.b, self.width);
                    Extent::new(self.tile_rows, self.width)
                };
                pipe.push(fill).await?;
            }
            Ok(())
        };
        let vector = async |mut side: Side<'_>| {
            let mut pipe = side.ends.consumer(0)?;
            for place in self.tiles(side.index, side.count) {
                let tile = pipe.pop().await?.expect("a tile for every place");
                disturb();
                let mut out = out.lock().unwrap();
                let sums = tile.iter().zip(&self.bias[place.clone()]).map(|(x, bias)| x + bias);
                out[place].iter_mut().zip(sums).for_each(|(out, sum)| *out = sum);
            }
            Ok(())
        };
        let halves = Halves { layout, matrix_scratch: 0, mode };
        halves.run(&mut launch(layout, blocks, workspace, team), matrix, vector)?;
        Ok(out.into_inner().unwrap())
    }
}

fn place(layout: &BlockLayout, slices: usize) -> Layout {
    Layout::new("halves", layout.workspace(), slices).unwrap()
}

fn memory(layout: &BlockLayout, slices: usize) -> Vec<u8> {
    vec![0xff; place(layout, slices).total() as usize]
}

fn launch<'a>(layout: &BlockLayout, blocks: usize, memory: &'a mut [u8], team: &'a Team) -> Launch<'a> {
    Launch::new("halves", blocks, layout.workspace(), memory, team).unwrap()
}

#[test]
fn a_matmul_and_a_bias_give_the_same_bits_a_thousand_times() {
    let linear = Linear::new(128, 16, 64);
    let layout = linear.layout(0);
    assert_eq!(layout.bytes, 8192);
    let expected = linear.reference();
    for (workers, repetitions) in [(4, 1000), (1, 10)] {
        let (team, mut workspace) = (Team::new(workers), memory(&layout, workers.min(2)));
        for mode in MODES {
            for _ in 0..repetitions {
                let out = linear.run((&team, mode), &layout, (2, &mut workspace), || ()).unwrap();
                assert_eq!(out, expected, "{mode:?} on {workers}");
            }
        }
    }
}

#[test]
fn halves_out_of_step_write_nothing_but_their_slots() {
    let linear = Linear::new(256, 64, 8);
    let layout = linear.layout(256);
    let expected = linear.reference();
    let team = Team::new(4);
    let calls = AtomicU64::new(0);
    let disturb = || {
        let turns = calls.fetch_add(1, Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61;
        (0..turns).for_each(|_| std::thread::yield_now());
    };
    for mode in MODES {
        let mut workspace = memory(&layout, 4);
        let place = place(&layout, 4).at(workspace.as_ptr().addr());
        (0..4).for_each(|index| layout.mark_guards(&mut workspace[place.slice(index)]));
        let out = linear.run((&team, mode), &layout, (4, &mut workspace), disturb).unwrap();
        assert_eq!(out, expected, "{mode:?}");
        (0..4).for_each(|index| layout.check_guards(&workspace[place.slice(index)]).unwrap());
    }
}

#[test]
fn many_blocks_share_few_slices() {
    let linear = Linear::new(48, 16, 2);
    let layout = linear.layout(0);
    let expected = linear.reference();
    for mode in MODES {
        for slices in [1, 2, 4, 24] {
            let (team, mut workspace) = (Team::new(slices), memory(&layout, slices));
            let out = linear.run((&team, mode), &layout, (24, &mut workspace), || ()).unwrap();
            assert_eq!(out, expected, "{mode:?} in {slices} slices");
        }
    }
}

#[test]
fn a_launch_inside_a_launch_finishes_without_partners() {
    let linear = Linear::new(32, 16, 4);
    let layout = linear.layout(0);
    let team = Team::new(2);
    let expected = linear.reference();
    team.run(2, &|_, _| {
        let mut workspace = memory(&layout, 2);
        let out = linear.run((&team, Mode::Apart), &layout, (2, &mut workspace), || ()).unwrap();
        assert_eq!(out, expected);
    });
}

#[test]
fn blocks_that_never_ask_who_they_are_have_their_own_slots() {
    let layout =
        BlockLayout::plan(&[PipeSpec::new(0, Direction::Forward, 400)], &[], Alignment::CPU, 0).unwrap();
    let team = Team::new(4);
    for mode in MODES {
        let seeds = [AtomicU64::new(1), AtomicU64::new(1)];
        let wrong = AtomicU64::new(0);
        // The harness seeds each half of a block; the ring itself must match them up, so the seed is the first number.
        let matrix = async |mut side: Side<'_>| {
            let seed = seeds[0].fetch_add(1, Relaxed);
            let mut pipe = side.ends.producer(0)?;
            for tile in 0..50 {
                let data = values(99, seed * 1000 + tile);
                let fill = |slot: &mut [f32]| {
                    slot[0] = seed as f32;
                    slot[1..].copy_from_slice(&data);
                    Extent::new(1, 100)
                };
                pipe.push(fill).await?;
            }
            Ok(())
        };
        let vector = async |mut side: Side<'_>| {
            let mut pipe = side.ends.consumer(0)?;
            let (mut tiles, mut seed) = (0, None);
            while let Some(tile) = pipe.pop().await? {
                let seed = *seed.get_or_insert(tile[0]);
                let data = values(99, seed as u64 * 1000 + tiles);
                let same = tile[0] == seed && tile[1..] == data;
                wrong.fetch_add(u64::from(!same), Relaxed);
                tiles += 1;
            }
            wrong.fetch_add(50 - tiles, Relaxed);
            Ok(())
        };
        let mut workspace = memory(&layout, 4);
        let halves = Halves { layout: &layout, matrix_scratch: 0, mode };
        halves.run(&mut launch(&layout, 4, &mut workspace, &team), matrix, vector).unwrap();
        assert_eq!((wrong.into_inner(), seeds[0].load(Relaxed)), (0, 5), "{mode:?}");
    }
}

#[test]
fn tiles_go_to_and_fro_through_one_pipe() {
    // The vector half sends x + 1 [64, 64], all positive, and gets (x + 1) · b [64, 16] back, all negative.
    let b: Vec<f32> = values(64 * 16, 9).iter().map(|x| x - 2.0).collect();
    let inputs: Vec<Vec<f32>> = (0..200).map(|tile| values(64 * 64, tile)).collect();
    let layout =
        BlockLayout::plan(&[PipeSpec::new(0, Direction::Both, 16384)], &[], Alignment::CPU, 0).unwrap();
    for mode in MODES {
        let results = Mutex::new(Vec::new());
        let matrix = async |mut side: Side<'_>| {
            let (mut from, mut to) = (side.ends.consumer(0)?, side.ends.producer(0)?);
            while let Some(tile) = from.pop().await? {
                let multiply = |slot: &mut [f32]| {
                    matmul(&mut slot[..64 * 16], &tile, &b, 16);
                    Extent::new(tile.extent.rows, 16)
                };
                to.push(multiply).await?;
            }
            Ok(())
        };
        let vector = async |mut side: Side<'_>| {
            let (mut from, mut to) = (side.ends.consumer(0)?, side.ends.producer(0)?);
            for input in &inputs {
                let add = |slot: &mut [f32]| {
                    slot.iter_mut().zip(input).for_each(|(slot, x)| *slot = x + 1.0);
                    Extent::new(64, 64)
                };
                to.push(add).await?;
                let product = from.pop().await?.expect("an answer to every tile");
                results.lock().unwrap().push(product.iter().map(|x| x + 1.0).collect::<Vec<_>>());
            }
            Ok(())
        };
        let (team, mut workspace) = (Team::new(2), vec![0; memory(&layout, 1).len()]);
        let halves = Halves { layout: &layout, matrix_scratch: 0, mode };
        halves.run(&mut launch(&layout, 1, &mut workspace, &team), matrix, vector).unwrap();
        let results = results.into_inner().unwrap();
        let expected = |input: &Vec<f32>| {
            let mut product = vec![0.0; 64 * 16];
            matmul(&mut product, &input.iter().map(|x| x + 1.0).collect::<Vec<_>>(), &b, 16);
            product.iter().map(|x| x + 1.0).collect::<Vec<_>>()
        };
        assert_eq!(results, inputs.iter().map(expected).collect::<Vec<_>>(), "{mode:?}");
        let slice = &workspace[place(&layout, 1).at(workspace.as_ptr().addr()).slice(0)];
        let ring = |i: usize| {
            let range = layout.rings[i].range();
            slice[range.start as usize..range.end as usize].chunks_exact(4)
        };
        let number = |bytes: &[u8]| f32::from_ne_bytes(bytes.try_into().unwrap());
        assert!(ring(0).all(|bytes| number(bytes) <= 0.0), "the forward ring has only products");
        assert!(ring(1).all(|bytes| number(bytes) >= 0.0), "the backward ring has only inputs");
    }
}

#[test]
fn only_the_valid_rows_of_the_last_tile_are_stored() {
    const ROWS: usize = 35;
    let layout =
        BlockLayout::plan(&[PipeSpec::new(0, Direction::Forward, 16 * 32 * 4)], &[], Alignment::CPU, 0)
            .unwrap();
    let input = values(ROWS * 32, 4);
    for mode in MODES {
        let out = Mutex::new(vec![-7.0; 48 * 32]);
        let matrix = async |mut side: Side<'_>| {
            let mut pipe = side.ends.producer(0)?;
            for first in (0..ROWS).step_by(16) {
                let rows = window(ROWS, first, 16);
                let fill = |slot: &mut [f32]| {
                    slot.fill(f32::NAN);
                    slot[..rows * 32].copy_from_slice(&input[first * 32..][..rows * 32]);
                    Extent::new(rows, 32)
                };
                pipe.push(fill).await?;
            }
            Ok(())
        };
        let vector = async |mut side: Side<'_>| {
            let mut pipe = side.ends.consumer(0)?;
            let mut first = 0;
            while let Some(tile) = pipe.pop().await? {
                out.lock().unwrap()[first * 32..][..tile.len()].copy_from_slice(&tile);
                first += tile.extent.rows;
            }
            assert_eq!(first, ROWS);
            Ok(())
        };
        let (team, mut workspace) = (Team::new(2), memory(&layout, 1));
        let halves = Halves { layout: &layout, matrix_scratch: 0, mode };
        halves.run(&mut launch(&layout, 1, &mut workspace, &team), matrix, vector).unwrap();
        let out = out.into_inner().unwrap();
        assert_eq!(out[..ROWS * 32], input);
        assert!(out[ROWS * 32..].iter().all(|&x| x == -7.0), "{mode:?}");
    }
}

#[test]
fn the_first_block_that_fails_is_named_and_the_next_launch_is_clean() {
    let linear = Linear::new(64, 16, 4);
    let layout = linear.layout(0);
    for (workers, mode) in [(1, Mode::Together), (4, Mode::Together), (4, Mode::Apart)] {
        let (team, mut workspace) = (Team::new(workers), memory(&layout, workers));
        let matrix = async |mut side: Side<'_>| {
            let mut pipe = side.ends.producer(0)?;
            pipe.push(|_| Extent::new(1, 1)).await?;
            assert_ne!(side.index, 2, "planted");
            Ok(())
        };
        let vector = async |mut side: Side<'_>| {
            let mut pipe = side.ends.consumer(0)?;
            while pipe.pop().await?.is_some() {}
            Ok::<(), PipeError>(())
        };
        let halves = Halves { layout: &layout, matrix_scratch: 0, mode };
        let mut launch = launch(&layout, 16, &mut workspace, &team);
        let error = halves.run(&mut launch, matrix, vector).unwrap_err();
        assert!(
            matches!(&error, BlockError::Panicked { block: 2, message, .. } if message.contains("planted"))
        );
        let out = linear.run((&team, mode), &layout, (16, &mut workspace), || ()).unwrap();
        assert_eq!(out, linear.reference());
    }
}

#[test]
fn each_half_has_its_scratch_and_a_slice_must_fit() {
    let scratch = [64, 128, 256].map(|bytes| Scratch { bytes, align: 64 });
    let layout = BlockLayout::plan(&[], &scratch, Alignment::CPU, 0).unwrap();
    let sizes = |side: &Side<'_>| side.scratch.iter().map(|area| area.len()).collect::<Vec<_>>();
    let halves = Halves { layout: &layout, matrix_scratch: 1, mode: Mode::Together };
    let matrix = async |side: Side<'_>| {
        assert_eq!(sizes(&side), [64]);
        Ok(())
    };
    let vector = async |side: Side<'_>| {
        assert_eq!(sizes(&side), [128, 256]);
        Ok(())
    };
    let team = Team::new(1);
    let mut workspace = memory(&layout, 1);
    halves.run(&mut launch(&layout, 3, &mut workspace, &team), matrix, vector).unwrap();
    let small = Workspace { block: 300, ..layout.workspace() };
    let mut workspace = vec![0; Layout::new("halves", small, 1).unwrap().total() as usize];
    let mut launch = Launch::new("halves", 3, small, &mut workspace, &team).unwrap();
    let error = halves.run(&mut launch, matrix, vector);
    assert_eq!(
        error,
        Err(BlockError::Open { block: 0, error: OpenError::TooShort { have: 300, need: 448 } })
    );
}

#[test]
fn slots_that_reach_into_the_next_one_are_refused() {
    let spec = PipeSpec::new(3, Direction::Forward, 64);
    let mut layout = BlockLayout::plan(&[spec], &[], Alignment::CPU, 0).unwrap();
    layout.rings[0].slot_bytes = layout.rings[0].slot_stride + 4;
    let mut memory = vec![0; (layout.size + layout.align) as usize];
    let start = memory.as_ptr().align_offset(layout.align as usize);
    let Err(error) = pipe::open(&layout, &mut memory[start..]) else { panic!("it was opened") };
    assert!(matches!(error, OpenError::SlotTooLong { .. }), "{error}");
}
