//! How fast our convolutions are, next to our matrix products of the same size.

use std::time::Instant;

use phalanx_ir::Precision;
use phalanx_kernels::conv::{ConvGradWeight, ConvParams, ConvShape};
use phalanx_kernels::matmul::MatmulParams;
use phalanx_kernels::{Call, Kernel, KernelEntry, Team, random};
use serde::Serialize;

/// Leaves of every sum that can have so many.
const LEAVES: usize = 8;

/// About how long one timing takes, in seconds.
const SAMPLE: f64 = 0.01;

/// How a convolution was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConvResult {
    /// The layer.
    pub layer: String,
    /// `forward`, `input gradient` or `weight gradient`.
    pub role: &'static str,
    /// Our rate at the best time, in GFLOP/s.
    pub gflops: f64,
    /// That of the matrix product.
    pub matmul_gflops: f64,
    /// The matrix product's best time over the convolution's.
    pub share: f64,
}

/// What to measure.
pub struct ConvBench<'a> {
    /// The cores.
    pub team: &'a Team,
    /// How often each side is timed.
    pub rounds: usize,
}

/// A layer: extent, input and output channels, kernel, stride.
type Layer = [usize; 5];

/// Layers of ResNets on images of 64 by 64.
const LAYERS: [Layer; 8] = [
    [64, 3, 64, 7, 2],
    [16, 64, 64, 3, 1],
    [8, 128, 128, 3, 1],
    [4, 256, 256, 3, 1],
    [2, 512, 512, 3, 1],
    [16, 64, 128, 3, 2],
    [16, 64, 256, 1, 1],
    [16, 64, 128, 1, 2],
];

/// Images of each layer.
const BATCH: usize = 16;

/// Measures all layers, forward and backward.
pub fn convolutions(bench: &ConvBench<'_>, mut report: impl FnMut(ConvResult)) {
    for layer in LAYERS {
        let shape = shape(layer);
        let [extent, inner, outer, kernel, stride] = layer;
        let text = format!("{extent}x{extent}x{inner} to {outer}, {kernel}x{kernel}/{stride}");
        for (role, (conv, matmul)) in [
            ("forward", forward(shape)),
            ("input gradient", adjoint(shape)),
            ("weight gradient", weight(shape)),
        ] {
            let (conv, matmul) = (conv.rate(bench), matmul.rate(bench));
            let (gflops, matmul_gflops) = (conv, matmul);
            report(ConvResult { layer: text.clone(), role, gflops, matmul_gflops, share: conv / matmul });
        }
    }
}

fn shape([extent, wide, narrow, kernel, stride]: Layer) -> ConvShape {
    let square = |size: usize| [1, size, size];
    let before = kernel / 2;
    let to = (extent + 2 * before - kernel) / stride + 1;
    ConvShape {
        batch: BATCH,
        from: square(extent),
        to: square(to),
        kernel: square(kernel),
        stride: square(stride),
        dilation: [1; 3],
        before: [0, before, before],
        groups: 1,
        wide,
        narrow,
    }
}

/// One kernel with sizes of what it reads and writes.
struct Timed {
    kernel: KernelEntry,
    words: Vec<u64>,
    reads: [usize; 2],
    write: usize,
    flops: f64,
}

impl Timed {
    fn new<K: Kernel>(params: &K, reads: [usize; 2], write: usize, flops: f64) -> Timed {
        Timed { kernel: KernelEntry::of::<K>(), words: params.to_words(), reads, write, flops }
    }

    /// GFLOP/s at the best of the times.
    fn rate(&self, bench: &ConvBench<'_>) -> f64 {
        let planned = self.kernel.plan(&self.words, bench.team.cores()).expect("a product has blocks");
        let mut memory = vec![0u64; planned.bytes as usize / 8];
        let reads = self.reads.map(|len| {
            let mut values = vec![0.0; len];
            random::fill_uniform(&mut values, 0, len as u64, 0, -1.0, 1.0);
            values
        });
        let mut write = vec![0.0f32; self.write];
        let mut once = || {
            let memory = bytemuck::cast_slice_mut(&mut memory);
            let launch = self.kernel.launch(&self.words, planned.blocks, memory, bench.team);
            (self.kernel.fast)(&mut Call {
                params: &self.words,
                reads: reads.iter().map(|values| bytemuck::cast_slice(values)).collect(),
                writes: [&mut write].into_iter().map(|write| bytemuck::cast_slice_mut(write)).collect(),
                launch: launch.expect("the workspace has the planned size"),
            });
        };
        let start = Instant::now();
        once();
        let repeats = (SAMPLE / start.elapsed().as_secs_f64()).ceil().clamp(1.0, 1e4) as usize;
        let mut best = f64::INFINITY;
        for _ in 0..bench.rounds {
            let start = Instant::now();
            (0..repeats).for_each(|_| once());
            best = best.min(start.elapsed().as_secs_f64() / repeats as f64);
        }
        self.flops / best / 1e9
    }
}

/// Leaves of a sum over so many elements.
fn leaves(n: usize) -> usize {
    LEAVES.min(1 << n.trailing_zeros())
}

fn product(params: MatmulParams) -> Timed {
    let MatmulParams { m, n, k, .. } = params;
    Timed::new(&params, [m * k, k * n], m * n, 2.0 * (m * n * k) as f64)
}

/// Rows of both sides, positions of the kernel, elements of the weight, and operations.
fn counts(shape: &ConvShape) -> ([usize; 2], usize, usize, f64) {
    let rows = [shape.from, shape.to].map(|space| shape.batch * space.iter().product::<usize>());
    let positions: usize = shape.kernel.iter().product();
    let weight = shape.wide * shape.narrow * positions;
    (rows, positions, weight, 2.0 * (rows[1] * weight) as f64)
}

fn forward(shape: ConvShape) -> (Timed, Timed) {
    let ([from, to], positions, weight, flops) = counts(&shape);
    let params = ConvParams { leaves: leaves(shape.wide), ..ConvParams::plain(shape) };
    let conv = Timed::new(&params, [from * shape.wide, weight], to * shape.narrow, flops);
    let (m, n, k, leaves) = (to, shape.narrow, shape.wide * positions, params.leaves);
    (conv, product(MatmulParams { m, n, k, leaves, trans_b: true, ..MatmulParams::PLAIN }))
}

fn adjoint(shape: ConvShape) -> (Timed, Timed) {
    let ([from, to], positions, weight, flops) = counts(&shape);
    let params = ConvParams { adjoint: true, leaves: leaves(shape.narrow), ..ConvParams::plain(shape) };
    let conv = Timed::new(&params, [to * shape.narrow, weight], from * shape.wide, flops);
    // With strides an element meets fewer positions; a product of the same operations has a shorter sum.
    let (m, n, k) = (from, shape.wide, (to * positions).div_ceil(from) * shape.narrow);
    (conv, product(MatmulParams { m, n, k, leaves: params.leaves, ..MatmulParams::PLAIN }))
}

fn weight(shape: ConvShape) -> (Timed, Timed) {
    let ([from, to], positions, weight, flops) = counts(&shape);
    let (leaves, accumulate, precision) = (leaves(to), false, Precision::F32);
    let params = ConvGradWeight { shape, leaves, accumulate, precision };
    let conv = Timed::new(&params, [to * shape.narrow, from * shape.wide], weight, flops);
    let (m, n, k) = (shape.narrow, shape.wide * positions, to);
    (conv, product(MatmulParams { m, n, k, leaves, trans_a: true, ..MatmulParams::PLAIN }))
}
