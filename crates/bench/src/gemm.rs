//! How fast our matrix product is, next to OpenBLAS where there is one.

use std::panic::resume_unwind;
use std::time::Instant;

use phalanx_ir::Precision;
use phalanx_kernels::matmul::{self, MatmulParams, Operands, Outputs};
use phalanx_kernels::random;
use phalanx_kernels::{KernelEntry, Team, Words};
use serde::{Serialize, Serializer};

use crate::peer::OpenBlas;

/// One product `a [m, k] b [k, n]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GemmShape {
    /// What it is in a step.
    pub role: &'static str,
    /// Rows of the output.
    pub m: usize,
    /// Columns of the output.
    pub n: usize,
    /// Length of the summed axis.
    pub k: usize,
    /// Whether `a` is stored transposed.
    pub trans_a: bool,
    /// Whether `b` is stored transposed.
    pub trans_b: bool,
    /// Leaves of the sum's tree.
    pub leaves: usize,
    /// How operands are read and sums added.
    #[serde(serialize_with = "as_text")]
    pub precision: Precision,
}

fn as_text<S: Serializer>(precision: &Precision, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(precision)
}

/// How a product was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GemmResult {
    /// The product.
    #[serde(flatten)]
    pub shape: GemmShape,
    /// Our rate at the best time, in GFLOP/s.
    pub gflops: f64,
    /// OpenBLAS's.
    pub blas_gflops: Option<f64>,
    /// OpenBLAS's best time over ours: above 1 we are faster.
    pub ratio: Option<f64>,
    /// Our share of the machine's peak.
    pub peak_share: f64,
}

/// What to measure with.
pub struct GemmBench<'a> {
    /// The cores.
    pub team: &'a Team,
    /// The peer.
    pub blas: Option<&'a OpenBlas>,
    /// How often each side is timed.
    pub rounds: usize,
    /// The machine's peak on these cores, in GFLOP/s.
    pub peak: f64,
}

/// Cubes, and the linear layers of the bench model: forward, gradient of the input, gradient of the weight. Sums over features
/// have so many leaves.
pub fn shapes(leaves: usize, precision: Precision) -> Vec<GemmShape> {
    let plain = |role, [m, n, k]: [usize; 3]| {
        let (trans_a, trans_b) = (false, false);
        GemmShape { role, m, n, k, trans_a, trans_b, leaves, precision }
    };
    let mut shapes: Vec<_> = [256, 512, 1024, 2048].map(|size| plain("cube", [size; 3])).into();
    let linears =
        [[2048, 1152, 384], [2048, 384, 384], [2048, 1536, 384], [2048, 384, 1536], [2048, 256, 384]];
    for [tokens, outputs, inputs] in linears.into_iter().chain([[1024, 3072, 768], [1024, 768, 3072]]) {
        shapes.push(plain("forward", [tokens, outputs, inputs]));
        shapes.push(GemmShape { trans_b: true, ..plain("input gradient", [tokens, inputs, outputs]) });
        shapes.push(GemmShape {
            trans_a: true,
            leaves: 8,
            ..plain("weight gradient", [inputs, outputs, tokens])
        });
    }
    shapes
}

/// Measures one product, ours and the peer's in turns.
pub fn gemm(bench: &GemmBench<'_>, shape: &GemmShape) -> GemmResult {
    let params = params(shape);
    let (kernel, words) = (KernelEntry::of::<MatmulParams>(), params.to_words());
    let planned = kernel.plan(&words, bench.team.cores()).expect("a product has blocks for every core");
    let workspace = planned.bytes as usize / size_of::<f32>();
    let mut buffers = [shape.m * shape.k, shape.k * shape.n, shape.m * shape.n, workspace].map(Buffer::new);
    let [a, b, c, workspace] = buffers.each_mut().map(Buffer::slice);
    random::fill_uniform(a, 0, 0, 0, -1.0, 1.0);
    random::fill_uniform(b, 0, 1, 0, -1.0, 1.0);
    let (a, b) = (&*a, &*b);
    let ours = |c: &mut [f32], workspace: &mut [f32]| {
        let operands = Operands { a, b, bias: None, residual: None, points: None };
        let memory = bytemuck::cast_slice_mut(workspace);
        let launch = kernel.launch(&words, planned.blocks, memory, bench.team);
        let mut launch = launch.expect("the workspace has the planned size");
        matmul::matmul(Outputs { out: c, pre: None }, operands, &params, &mut launch);
    };
    let flops = 2.0 * (shape.m * shape.n * shape.k) as f64;
    let repeats = (bench.peak * 1e9 * SAMPLE / flops).ceil() as usize;
    let (mut best, mut best_blas) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..bench.rounds.max(1) {
        best = best.min(apart(|| {
            warm_up(bench, || ours(c, workspace));
            seconds(repeats, || ours(c, workspace))
        }));
        if let Some(blas) = bench.blas {
            best_blas = best_blas.min(seconds(repeats, || blas.matmul(c, a, b, &params)));
        }
    }
    let gflops = flops / best / 1e9;
    GemmResult {
        shape: shape.clone(),
        gflops,
        blas_gflops: bench.blas.map(|_| flops / best_blas / 1e9),
        ratio: bench.blas.map(|_| best_blas / best),
        peak_share: gflops / bench.peak,
    }
}

/// About how long one timing takes, in seconds: the system's scheduler rarely interrupts so short a run.
const SAMPLE: f64 = 0.004;

/// How long the peer's workers look for more work before they sleep, in seconds, with a margin.
const SETTLE: f64 = 0.06;

/// Runs untimed until the workers of the peer have gone to sleep: they would take our core's time meanwhile.
fn warm_up(bench: &GemmBench<'_>, mut run: impl FnMut()) {
    let start = Instant::now();
    while bench.blas.is_some() && bench.team.cores() > 1 && start.elapsed().as_secs_f64() < SETTLE {
        run();
    }
}

/// Runs `timing` on a thread of its own: a pinned team keeps the launching thread on a core, and the peer is to run as
/// it would without us.
fn apart<T: Send>(timing: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(timing).join()).unwrap_or_else(|panic| resume_unwind(panic))
}

/// Seconds of one `run`, from `repeats` in a row.
fn seconds(repeats: usize, mut run: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..repeats).for_each(|_| run());
    start.elapsed().as_secs_f64() / repeats as f64
}

fn params(shape: &GemmShape) -> MatmulParams {
    let &GemmShape { m, n, k, trans_a, trans_b, leaves, precision, .. } = shape;
    MatmulParams { m, n, k, trans_a, trans_b, leaves, precision, ..MatmulParams::PLAIN }
}

/// Floats that start on a page, as in an arena.
struct Buffer {
    storage: Vec<f32>,
    skip: usize,
}

impl Buffer {
    fn new(len: usize) -> Buffer {
        const PAGE: usize = 4096;
        let storage = vec![0.0f32; len + PAGE / size_of::<f32>()];
        let skip = storage.as_ptr().align_offset(PAGE);
        let skip = skip.min(storage.len() - len);
        let mut buffer = Buffer { storage, skip };
        buffer.storage.truncate(skip + len);
        buffer
    }

    fn slice(&mut self) -> &mut [f32] {
        &mut self.storage[self.skip..]
    }
}
