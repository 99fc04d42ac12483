//! Times our matrix product, the `gemm` crate and OpenBLAS on the same data, interleaved in one process.
//!
//! `gemm-peers [--threads 1|2] [--rounds n] [--filter text] [--json] [--no-peers] [--avx2]`
//!
//! With one thread the clock is the thread's CPU time, which other load on the machine disturbs least; with more it
//! is wall time. Per shape: the best and the median rate of each peer, and the median over rounds of our rate
//! divided by the better peer's rate of the same round.

#[path = "../../../../crates/bench/src/peer.rs"]
mod peer;
mod shapes;

use std::time::{Duration, Instant};

use gemm::Parallelism;
use phalanx_kernels::isa::Isa;
use phalanx_kernels::matmul::{MatmulParams, Operands, Outputs, fma_burn, fma_burn_flops, matmul};
use phalanx_kernels::spmd::pin::allowed_cores;
use phalanx_kernels::{KernelEntry, Team, Words};

use peer::{OPEN_BLAS, OpenBlas};
use shapes::{Shape, shapes};

struct Args {
    threads: usize,
    rounds: usize,
    filter: String,
    json: bool,
    peers: bool,
}

fn args() -> Args {
    let mut args = Args { threads: 1, rounds: 15, filter: String::new(), json: false, peers: true };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().expect("the option takes a value");
        match word.as_str() {
            "--threads" => args.threads = value().parse().expect("--threads takes a number"),
            "--rounds" => args.rounds = value().parse().expect("--rounds takes a number"),
            "--filter" => args.filter = value(),
            "--json" => args.json = true,
            "--no-peers" => args.peers = false,
            "--avx2" => {
                Isa::select(Isa::Avx2);
            }
            other => panic!("unknown option {other}"),
        }
    }
    args
}

/// Seconds on the clock that suits `threads`.
fn now(threads: usize, start: Instant) -> f64 {
    if threads > 1 {
        return start.elapsed().as_secs_f64();
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn fill(n: usize, mut state: u64) -> Vec<f32> {
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// A buffer in large pages where the system gives them on request, as arena slices are.
fn aligned(storage: &mut Vec<f32>, n: usize) -> &mut [f32] {
    const LARGE: usize = 2 << 20;
    storage.reserve(n + LARGE / 4);
    let skip = storage.as_ptr().align_offset(LARGE);
    // SAFETY: the range lies inside the reserved memory; the advice changes no contents.
    unsafe { libc::madvise(storage.as_mut_ptr().add(skip).cast(), 4 * n, libc::MADV_HUGEPAGE) };
    storage.resize(n + skip, 0.0);
    &mut storage[skip..]
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Gigaflops per round of (ours, gemm, OpenBLAS).
fn measure(shape: &Shape, args: &Args, team: &Team, blas: Option<&OpenBlas>) -> Vec<[f64; 3]> {
    let params = shape.params();
    let (mut a, mut b, mut c, mut s) = (vec![], vec![], vec![], vec![]);
    let a = aligned(&mut a, params.batch * params.m * params.k);
    a.copy_from_slice(&fill(a.len(), 1));
    let b = aligned(&mut b, params.batch * params.k * params.n);
    b.copy_from_slice(&fill(b.len(), 2));
    let c = aligned(&mut c, params.batch * params.m * params.n);
    let (kernel, words) = (KernelEntry::of::<MatmulParams>(), params.to_words());
    let planned = kernel.plan(&words, args.threads).expect("a product has blocks for every core");
    let workspace = aligned(&mut s, planned.bytes as usize / size_of::<f32>());
    let bias = fill(params.n, 3);
    let flops = 2.0 * (params.batch * params.m * params.n * params.k) as f64;
    let repeats = (2e8 / flops).ceil() as usize;
    let start = Instant::now();
    let mut rounds = vec![];
    for round in 0..args.rounds + 1 {
        let mut rates = [0.0f64; 3];
        for turn in 0..3 {
            let peer = (turn + round) % 3;
            if peer > 0 && !args.peers {
                continue;
            }
            let mut run = || match peer {
                0 => {
                    let bias = params.bias.then_some(&bias[..]);
                    let operands = Operands { a, b, bias, residual: None, points: None };
                    let memory = bytemuck::cast_slice_mut(workspace);
                    let launch = kernel.launch(&words, planned.blocks, memory, team);
                    let mut launch = launch.expect("the workspace has the planned size");
                    matmul(Outputs { out: c, pre: None }, operands, &params, &mut launch)
                }
                1 => shape.each(a, b, c, |a, b, c| with_gemm(shape, args.threads, a, b, c)),
                _ => {
                    if let Some(blas) = blas {
                        blas.matmul(c, a, b, &params);
                    }
                }
            };
            // On a thread of its own: our team keeps whoever launches on a core, the peers' choose for themselves.
            let timing = || {
                if args.threads > 1 {
                    settle(&mut run);
                }
                let before = now(args.threads, start);
                (0..repeats).for_each(|_| run());
                now(args.threads, start) - before
            };
            let seconds = std::thread::scope(|scope| scope.spawn(timing).join().expect("no peer panics"));
            rates[peer] = repeats as f64 * flops / seconds * 1e-9;
        }
        if blas.is_none() || !args.peers {
            rates[2] = 0.0;
        }
        // The first round warms caches and page tables.
        if round > 0 {
            rounds.push(rates);
        }
    }
    rounds
}

/// Lets the previous peer's threads stop spinning and the scheduler spread this peer's over the cores.
fn settle(run: &mut dyn FnMut()) {
    std::thread::sleep(Duration::from_millis(40));
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(30) {
        run();
    }
}

fn with_gemm(shape: &Shape, threads: usize, a: &[f32], b: &[f32], c: &mut [f32]) {
    let &Shape { m, n, k, .. } = shape;
    let steps = |transposed, rows: usize, columns: usize| match transposed {
        false => (1, columns as isize),
        true => (rows as isize, 1),
    };
    let (a_column, a_row) = steps(shape.trans_a, m, k);
    let (b_column, b_row) = steps(shape.trans_b, k, n);
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    // SAFETY: the slices have the sizes that the steps describe, and `c` overlaps neither operand.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            n as isize,
            false,
            a.as_ptr(),
            a_column,
            a_row,
            b.as_ptr(),
            b_column,
            b_row,
            0.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        )
    }
}

/// The best rate of a loop that does nothing but fused multiply-adds on registers.
fn peak(threads: usize) -> f64 {
    let team = Team::new(threads);
    let start = Instant::now();
    let mut best = 0.0f64;
    for _ in 0..20 {
        const ITERATIONS: u64 = 2_000_000;
        let before = now(threads, start);
        team.run(threads, &|_, _| {
            std::hint::black_box(fma_burn(std::hint::black_box(ITERATIONS)));
        });
        let seconds = now(threads, start) - before;
        best = best.max((threads as u64 * fma_burn_flops(ITERATIONS)) as f64 / seconds * 1e-9);
    }
    best
}

fn main() {
    let args = args();
    let blas = OpenBlas::open(OPEN_BLAS, args.threads).ok();
    let peak_before = peak(args.threads);
    let cores = allowed_cores();
    let team = if cores.len() == args.threads { Team::pinned(&cores) } else { Team::new(args.threads) };
    if !args.json {
        println!("threads {}, register-only FMA peak {peak_before:.0} GF/s", args.threads);
        println!("{:<28} {:>15} {:>15} {:>15} {:>13} {:>6}", "", "ours", "gemm", "openblas", "ratio", "of");
        println!(
            "{:<28} {:>15} {:>15} {:>15} {:>13} {:>6}",
            "shape", "best/median", "best/median", "best/median", "best/median", "peak"
        );
    }
    let mut geo = vec![];
    for shape in shapes().iter().filter(|shape| shape.to_string().contains(&args.filter)) {
        let rounds = measure(shape, &args, &team, blas.as_ref());
        let best = |peer: usize| rounds.iter().map(|rates| rates[peer]).fold(0.0, f64::max);
        let middle = |peer: usize| median(&mut rounds.iter().map(|rates| rates[peer]).collect::<Vec<_>>());
        let ratio_best = best(0) / best(1).max(best(2));
        let ratio =
            median(&mut rounds.iter().map(|rates| rates[0] / rates[1].max(rates[2])).collect::<Vec<_>>());
        geo.push(ratio_best);
        if args.json {
            println!(
                "{{\"shape\":\"{shape}\",\"threads\":{},\"peak\":{peak_before:.1},\"ours\":{:.1},\"ours_median\":{:.1},\
                 \"gemm\":{:.1},\"gemm_median\":{:.1},\"openblas\":{:.1},\"openblas_median\":{:.1},\
                 \"ratio_best\":{ratio_best:.3},\"ratio_median\":{ratio:.3}}}",
                args.threads,
                best(0),
                middle(0),
                best(1),
                middle(1),
                best(2),
                middle(2)
            );
        } else {
            let pair = |peer| format!("{:.0}/{:.0}", best(peer), middle(peer));
            let ratios = format!("{ratio_best:.2}/{ratio:.2}");
            let (name, of_peak) = (shape.to_string(), best(0) / peak_before);
            println!(
                "{name:<28} {:>15} {:>15} {:>15} {ratios:>13} {of_peak:>6.2}",
                pair(0),
                pair(1),
                pair(2)
            );
        }
    }
    if !args.json {
        let worst = geo.iter().copied().fold(f64::INFINITY, f64::min);
        let mean = (geo.iter().map(|ratio| ratio.ln()).sum::<f64>() / geo.len() as f64).exp();
        println!(
            "ratio of bests: worst {worst:.3}, geometric mean {mean:.3}; peak after {:.0}",
            peak(args.threads)
        );
    }
}
