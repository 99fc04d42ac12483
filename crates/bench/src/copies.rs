//! How fast planned copies are, next to what this machine does without a plan.
//!
//! Every copy is timed in turns with its reference on the same bytes of the same memory: `memcpy` of as many bytes, and
//! for the sum of two a plain loop over floats. One thread does both. What is compared are medians.

use std::hint::black_box;
use std::time::Instant;

use phalanx_immediate::{
    AccessError, CopyError, CopyKind, CopyPlan, Element, Initial, Instance, Layout, LayoutError, Memories,
    Memory, Rect, RectError, Reduction, SharedPlan,
};
use phalanx_runtime::flow::{Builder, Flow, FlowError, Task, TaskKind};
use phalanx_runtime::{Config, Event, Fault, Graph, GraphError, Launch, LaunchError, Runtime};
use serde::Serialize;

use super::median;

/// What is done with 32-bit floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyShape {
    /// All in one run.
    Contiguous,
    /// Runs of 256 bytes, 512 apart in the source and dense in the destination.
    Strided,
    /// A square matrix, by rows in the source and by columns in the destination.
    Transposed,
    /// The sum of two sources.
    Reduced,
}

impl CopyShape {
    /// All of them.
    pub const ALL: [CopyShape; 4] =
        [CopyShape::Contiguous, CopyShape::Strided, CopyShape::Transposed, CopyShape::Reduced];

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            CopyShape::Contiguous => "contiguous",
            CopyShape::Strided => "strided",
            CopyShape::Transposed => "transposed",
            CopyShape::Reduced => "reduced",
        }
    }
}

/// The sizes measured, up to `largest` bytes: powers of four, so that each is a square of floats.
pub fn copy_sizes(largest: usize) -> impl Iterator<Item = usize> {
    (0..).map(|power| 64 << (2 * power)).take_while(move |&bytes| bytes <= largest)
}

/// The sizes measured inside graphs.
pub const REPLAYED_SIZES: [usize; 3] = [256, 16 << 10, 1 << 20];

/// How a copy was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CopyResult {
    /// What was done.
    pub shape: CopyShape,
    /// Bytes written.
    pub bytes: usize,
    /// Our median time in nanoseconds.
    pub ns: f64,
    /// The reference's.
    pub reference_ns: f64,
    /// Bytes written in our median time, in GB/s.
    pub gb_per_s: f64,
    /// The same of the reference.
    pub reference_gb_per_s: f64,
    /// Our rate over the reference's.
    pub share: f64,
}

/// How copies inside a graph were measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReplayedCopies {
    /// Bytes of each.
    pub bytes: usize,
    /// How many, one after the other; the run's launch and end are shared among them.
    pub copies: usize,
    /// Our median time of one in microseconds.
    pub us: f64,
    /// The time of `memcpy`.
    pub reference_us: f64,
    /// The difference.
    pub over_us: f64,
}

/// Why copies were not measured.
#[derive(Debug, thiserror::Error)]
pub enum CopiesError {
    /// There is no such rectangle.
    #[error(transparent)]
    Rect(#[from] RectError),
    /// There is no such layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// There is no such plan.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// Bytes could not be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The copies make no flow.
    #[error("{}", .0.iter().map(FlowError::to_string).collect::<Vec<_>>().join("; "))]
    Flow(Vec<FlowError>),
    /// The flow was not bound.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A run was not started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A copy failed.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// How copies are measured.
#[derive(Clone, Copy, Debug)]
pub struct CopiesBench {
    /// How often each is timed.
    pub rounds: usize,
}

impl CopiesBench {
    /// Measures the copy of `bytes` bytes, one of [`copy_sizes`].
    pub fn copy(&self, shape: CopyShape, bytes: usize) -> Result<CopyResult, CopiesError> {
        let case = Case::new(shape, bytes)?;
        let [ours, reference] = self.in_turns(bytes, |repeats| {
            Ok([seconds(repeats, || Ok(case.plan.execute()?))?, case.reference(repeats)?])
        })?;
        let rate = |seconds| bytes as f64 / seconds / 1e9;
        Ok(CopyResult {
            shape,
            bytes,
            ns: ours * 1e9,
            reference_ns: reference * 1e9,
            gb_per_s: rate(ours),
            reference_gb_per_s: rate(reference),
            share: reference / ours,
        })
    }

    /// Measures copies of `bytes` bytes in a chain, there and back, on one processor.
    pub fn replayed(&self, bytes: usize) -> Result<ReplayedCopies, CopiesError> {
        const COPIES: usize = 64;
        let runtime = Runtime::new(Config::new(1, available_cores()));
        let memories = Memories::of(&runtime);
        let memory = memories.memory("bench", 2 * bytes as u64 + ROOM);
        let floats = Layout::row_major(Element::F32, Rect::sized(&[0], &[bytes as u64 / 4])?)?;
        let [there, back] = [instance(&memory, &floats)?, instance(&memory, &floats)?];
        let plan = |from: &Instance, to: &Instance| {
            let plan = memories.plan(CopyKind::Copy(from.clone()), *from.rect(), to)?;
            Ok::<_, CopyError>(SharedPlan::new(plan).function())
        };
        let functions = vec![plan(&there, &back)?, plan(&back, &there)?];
        let processors: Vec<_> = runtime.processors().collect();
        let graph = runtime.graph(chain(COPIES).map_err(CopiesError::Flow)?, functions, &processors)?;
        let [ours, reference] = self.in_turns(bytes * COPIES, |repeats| {
            Ok([
                seconds(repeats, || replay(&graph))?,
                memcpy(&there, &back, bytes, repeats * COPIES)? * COPIES as f64,
            ])
        })?;
        let [us, reference_us] = [ours, reference].map(|seconds| seconds * 1e6 / COPIES as f64);
        Ok(ReplayedCopies { bytes, copies: COPIES, us, reference_us, over_us: us - reference_us })
    }

    /// The medians of two times, each taken once a round; how often each side should repeat what it times depends on
    /// the bytes.
    fn in_turns(
        &self,
        bytes: usize,
        mut round: impl FnMut(usize) -> Result<[f64; 2], CopiesError>,
    ) -> Result<[f64; 2], CopiesError> {
        // About a millisecond, which the system's scheduler rarely interrupts.
        const SAMPLE: usize = 8 << 20;
        let repeats = (SAMPLE / bytes).clamp(1, 20_000);
        round(repeats)?;
        let times = (0..self.rounds.max(1)).map(|_| round(repeats)).collect::<Result<Vec<_>, _>>()?;
        Ok([0, 1].map(|side| median(&times.iter().map(|times| times[side]).collect::<Vec<_>>())))
    }
}

/// Bytes of a memory beyond what instances need, so that each can start where it wants.
const ROOM: u64 = 4096;

/// A copy and what it is between.
struct Case {
    plan: CopyPlan,
    sources: Vec<Instance>,
    destination: Instance,
    bytes: usize,
}

impl Case {
    fn new(shape: CopyShape, bytes: usize) -> Result<Case, CopiesError> {
        let elements = bytes / 4;
        let square = elements.isqrt();
        let [rows, columns] = match shape {
            CopyShape::Contiguous | CopyShape::Reduced => [1, elements],
            CopyShape::Strided => [elements.div_ceil(64), elements.min(64)],
            CopyShape::Transposed => [square, square],
        };
        let rect = Rect::sized(&[0, 0], &[rows as u64, columns as u64])?;
        let dense = Layout::row_major(Element::F32, rect)?;
        let (from, to) = match shape {
            CopyShape::Contiguous | CopyShape::Reduced => (dense.clone(), dense),
            CopyShape::Strided => (Layout::strided(Element::F32, rect, 0, &[512, 4])?, dense),
            CopyShape::Transposed => (dense, Layout::ordered(Element::F32, rect, &[1, 0])?),
        };
        let memories = Memories::new();
        let memory = memories.memory("bench", (2 * from.end() + to.end()) as u64 + ROOM);
        let n_sources = if shape == CopyShape::Reduced { 2 } else { 1 };
        let sources = (0..n_sources).map(|_| instance(&memory, &from)).collect::<Result<Vec<_>, _>>()?;
        let destination = instance(&memory, &to)?;
        let kind = match shape {
            CopyShape::Reduced => {
                CopyKind::Reduce { op: Reduction::Sum, start: Initial::FirstSource, sources: sources.clone() }
            }
            _ => CopyKind::Copy(sources[0].clone()),
        };
        let plan = memories.plan(kind, rect, &destination)?;
        Ok(Case { plan, sources, destination, bytes })
    }

    /// Seconds of what the machine does without a plan.
    fn reference(&self, repeats: usize) -> Result<f64, CopiesError> {
        match &self.sources[..] {
            [a, b] => sum(a, b, &self.destination, repeats),
            sources => memcpy(&sources[0], &self.destination, self.bytes, repeats),
        }
    }
}

/// An instance whose bytes have been written, so that the system has given it all of its pages.
fn instance(memory: &Memory, layout: &Layout) -> Result<Instance, CopiesError> {
    let (instance, _) = memory.create(layout.clone(), Event::NONE);
    instance.write(|bytes| bytes.fill(1))?;
    Ok(instance)
}

/// Seconds of one `run`, from `repeats` in a row, after one that is not timed: the caches hold what it leaves there
/// itself, not what the other side of the comparison does.
fn seconds(repeats: usize, mut run: impl FnMut() -> Result<(), CopiesError>) -> Result<f64, CopiesError> {
    run()?;
    let start = Instant::now();
    (0..repeats).try_for_each(|_| run())?;
    Ok(start.elapsed().as_secs_f64() / repeats as f64)
}

fn memcpy(from: &Instance, to: &Instance, bytes: usize, repeats: usize) -> Result<f64, CopiesError> {
    let copy = |from: &[u8], to: &mut [u8]| {
        seconds(repeats, || {
            black_box(&mut to[..bytes]).copy_from_slice(black_box(&from[..bytes]));
            Ok(())
        })
    };
    from.read(|from| to.write(|to| copy(from, to)))??
}

fn sum(a: &Instance, b: &Instance, to: &Instance, repeats: usize) -> Result<f64, CopiesError> {
    let sum = |a: &[f32], b: &[f32], to: &mut [f32]| {
        seconds(repeats, || {
            let pairs = black_box(a).iter().zip(black_box(b));
            black_box(&mut *to).iter_mut().zip(pairs).for_each(|(to, (a, b))| *to = a + b);
            Ok(())
        })
    };
    let floats = bytemuck::cast_slice::<u8, f32>;
    a.read(|a| b.read(|b| to.write(|to| sum(floats(a), floats(b), bytemuck::cast_slice_mut(to)))))???
}

/// One copy after the other, by two functions in turns.
fn chain(copies: usize) -> Result<Flow, Vec<FlowError>> {
    let mut builder = Builder::new("copies", 1);
    let task = |copy| Task {
        function: copy as u32 % 2,
        kind: TaskKind::NonBlocking,
        name: "copy",
        ..Task::default()
    };
    let ops: Vec<_> = (0..copies).map(|copy| builder.task(task(copy))).collect();
    ops.windows(2).for_each(|pair| builder.edge(pair[0], pair[1]));
    builder.finish()
}

fn replay(graph: &Graph) -> Result<(), CopiesError> {
    Ok(graph.run(Launch::default())??)
}

fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
