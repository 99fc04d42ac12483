//! Prints what a pipe between two threads costs.

use std::time::Instant;

use phalanx_kernels::spmd::pipe::bench::{hand_over, to_and_fro};

const TILES: u64 = 20_000;
const ROUNDS: usize = 41;

fn main() {
    for depth in [1, 2, 4, 8, 64] {
        print(&format!("one way, {depth} slots"), || hand_over(TILES, depth));
    }
    print("to and fro", || to_and_fro(TILES));
}

/// The best round is the one in which nobody else had the cores.
fn print(label: &str, run: impl Fn() -> f32) {
    let round = || {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64() * 1e9 / TILES as f64
    };
    let mut times: Vec<f64> = (0..ROUNDS).map(|_| round()).collect();
    times.sort_by(f64::total_cmp);
    println!("{label}: best {:.0} ns a tile, median {:.0}", times[0], times[ROUNDS / 2]);
}
