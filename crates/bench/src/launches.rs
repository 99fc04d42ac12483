//! What it costs to start the blocks of a kernel, and to hand a tile from one half of a block to the other.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use phalanx_kernels::{Launch, Team};
use serde::Serialize;

use super::median;
use crate::pipes::{hand_over, to_and_fro};

/// One cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaunchCost {
    /// Of what.
    pub what: String,
    /// Nanoseconds in the round in which no other process had the cores.
    pub best_ns: f64,
    /// Nanoseconds in the middle round.
    pub median_ns: f64,
}

/// Launches of a round: enough that the clock does not count.
const LAUNCHES: usize = 2000;
/// Tiles of a round.
const TILES: u64 = 20_000;
/// Slots of the rings that are measured.
const DEPTHS: [u32; 4] = [1, 2, 4, 8];

/// Launches on 1 to `cores` cores, one right after the other: empty ones, which wait for no core that has not come, and
/// ones that every core takes part in; then tiles of a cache line between two threads.
pub fn launches(cores: usize, rounds: usize) -> Vec<LaunchCost> {
    let mut costs = Vec::new();
    for cores in 1..=cores {
        let team = Team::new(cores);
        let mut launch = Launch::plain(&team);
        let what = format!("empty launch, {cores} blocks on {cores} cores");
        costs.push(cost(what, rounds, LAUNCHES, || (0..LAUNCHES).for_each(|_| launch.run(|_| ()))));
        let what = format!("launch that {cores} cores take part in");
        costs.push(cost(what, rounds, LAUNCHES, || (0..LAUNCHES).for_each(|_| meet(&mut launch))));
    }
    for depth in DEPTHS {
        let what = format!("tile through a ring of {depth}");
        costs.push(cost(what, rounds, TILES as usize, || _ = hand_over(TILES, depth)));
    }
    costs.push(cost("tile there and back".into(), rounds, TILES as usize, || _ = to_and_fro(TILES)));
    costs
}

/// A launch whose blocks wait until all of them have begun, so that every core must come.
fn meet(launch: &mut Launch<'_>) {
    let (arrived, all) = (AtomicUsize::new(0), launch.blocks());
    launch.run(|_| {
        // Relaxed: only the number counts.
        arrived.fetch_add(1, Relaxed);
        while arrived.load(Relaxed) < all {
            std::hint::spin_loop();
        }
    });
}

/// Nanoseconds of each of the `count` things that `run` does.
fn cost(what: String, rounds: usize, count: usize, mut run: impl FnMut()) -> LaunchCost {
    run();
    let mut round = || {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64() * 1e9 / count as f64
    };
    let times: Vec<f64> = (0..rounds.max(1)).map(|_| round()).collect();
    let best_ns = times.iter().copied().fold(f64::INFINITY, f64::min);
    LaunchCost { what, best_ns, median_ns: median(&times) }
}
