//! Runs kernels by themselves and takes their times.
//!
//! A kernel runs on a team of cores as a device has them, in memory as an arena is, on plausible values: floats between a
//! quarter and one, ids spread over all rows that there are. The memory is used again for every kernel.

use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use phalanx_ir::DType;
use phalanx_ir::tasks::{BufferId, TaskGraph, TaskId};
use phalanx_kernels::matmul::fma_burn;
use phalanx_kernels::spmd::LaunchError;
use phalanx_kernels::{Call, KernelEntry, Team, random, table};
use phalanx_program::Slice;
use phalanx_runtime::Arena;

use super::{Signature, middle};
use crate::emit::{EmitError, select};
use crate::memory;

/// The most runs of one kernel that are timed.
const RUNS: usize = 9;
/// Runs of a kernel however long they take: one alone may meet something else on its core.
const LEAST: usize = 3;

/// The time after which no other run is started.
const BUDGET: Duration = Duration::from_millis(30);

/// What `run` gives, again and again, the first time left out; then every run has met the same caches.
pub(super) fn sample<T>(mut run: impl FnMut() -> Result<T, String>) -> Result<Vec<T>, String> {
    run()?;
    let (start, mut results) = (Instant::now(), Vec::with_capacity(RUNS));
    while results.len() < LEAST || results.len() < RUNS && start.elapsed() < BUDGET {
        results.push(run()?);
    }
    Ok(results)
}

/// Cores and memory to measure with.
pub(super) struct Bench {
    team: Team,
    arena: Arena,
    /// Floats that every slice is filled with.
    pattern: Vec<f32>,
}

impl Bench {
    /// Cores that are awake, and no memory yet.
    pub(super) fn new(cores: usize) -> Bench {
        let (team, mut pattern) = (Team::new(cores), vec![0.0; 4096]);
        random::fill_uniform(&mut pattern, 0, 0, 0, 0.25, 1.0);
        settle(&team);
        Bench { team, arena: Arena::new(0), pattern }
    }

    /// Nanoseconds of the kernel of `task`, whose signature is given; or why it does not run.
    pub(super) fn time(
        &mut self,
        tasks: &TaskGraph,
        task: TaskId,
        signature: &Signature,
    ) -> Result<u64, String> {
        let Signature { kernel, words, reads, writes, .. } = signature;
        let kernel = table::find(kernel).ok_or("there is no such kernel")?;
        let planned = kernel.plan(words, self.team.cores()).map_err(|error| error.to_string())?;
        let scratch = planned.bytes as usize;
        let sizes = reads.iter().chain(writes).map(|&bytes| bytes as usize);
        self.reserve(sizes.chain([scratch]).map(padded).sum())?;
        let memory = Slice { lane: 0, offset: 0, bytes: self.arena.bytes() as u64 };
        let memory = self.arena.get_mut(memory);
        let operands = Operands::new(memory, tasks, task, scratch, &self.pattern);
        let mut operands = operands.map_err(|error| error.to_string())?;
        let mut times = sample(|| {
            let call = operands.call(&kernel, words, planned.blocks, &self.team);
            execute(&kernel, call.map_err(|error| error.to_string())?)
        })?;
        Ok(middle(&mut times))
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), String> {
        if bytes > self.arena.bytes() {
            self.arena = Arena::new(0);
            memory::check(bytes as u64).map_err(|_| {
                format!("it needs {} of memory, more than is free", memory::size(bytes as u64))
            })?;
            self.arena = Arena::new(bytes as u64);
        }
        Ok(())
    }
}

/// What a kernel works on.
struct Operands<'a> {
    reads: Vec<&'a [u8]>,
    writes: Vec<&'a mut [u8]>,
    scratch: &'a mut [u8],
}

impl<'a> Operands<'a> {
    /// The operands of a task one after the other in `memory`, filled.
    fn new(
        mut memory: &'a mut [u8],
        tasks: &TaskGraph,
        task: TaskId,
        scratch: usize,
        pattern: &[f32],
    ) -> Result<Operands<'a>, EmitError> {
        let mut slice = |bytes: usize| -> &'a mut [u8] {
            let (slice, rest) = std::mem::take(&mut memory).split_at_mut(padded(bytes));
            memory = rest;
            &mut slice[..bytes]
        };
        let choice = select(tasks, task)?;
        let rows = table::find(choice.kernel).map_or(1, |kernel| (kernel.ids)(&choice.words));
        let mut filled = |buffer: &BufferId| {
            let ty = &tasks.buffers[*buffer].ty;
            let bytes = slice(ty.bytes());
            fill(bytes, ty.dtype, pattern, rows);
            bytes
        };
        let reads = choice.reads.iter().map(|read| &*filled(read)).collect();
        let writes = choice.writes.iter().map(filled).collect();
        Ok(Operands { reads, writes, scratch: slice(scratch) })
    }

    fn call<'b>(
        &'b mut self,
        kernel: &KernelEntry,
        params: &'b [u64],
        blocks: u32,
        team: &'b Team,
    ) -> Result<Call<'b>, LaunchError> {
        let reads = self.reads.iter().copied().collect();
        let writes = self.writes.iter_mut().map(|write| &mut **write).collect();
        Ok(Call { params, reads, writes, launch: kernel.launch(params, blocks, &mut *self.scratch, team)? })
    }
}

/// Nanoseconds of one call, or what it says when it panics.
fn execute(kernel: &KernelEntry, mut call: Call<'_>) -> Result<u64, String> {
    let start = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| (kernel.fast)(&mut call)));
    let elapsed = start.elapsed().as_nanos() as u64;
    result.map(|()| elapsed).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        format!("it panics: {}", text.unwrap_or("no message"))
    })
}

/// Keeps all cores busy for a moment: the members of a new team may start on one core, and the system takes a while to
/// part them.
fn settle(team: &Team) {
    const MOMENT: Duration = Duration::from_millis(100);
    let start = Instant::now();
    while team.cores() > 1 && start.elapsed() < MOMENT {
        team.run(team.cores(), &|_, _| _ = black_box(fma_burn(black_box(10_000))));
    }
}

/// The place of so many bytes, so that the next ones start on a cache line too.
fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(phalanx_program::ALIGNMENT as usize)
}

/// Fills a slice with values that suit its type; integers are below `rows`.
fn fill(bytes: &mut [u8], dtype: DType, pattern: &[f32], rows: usize) {
    // As words of a text: neighbours far apart, all rows about as often.
    let id = |at: usize| at.wrapping_mul(2_654_435_761) % rows.max(1);
    match dtype {
        DType::F32 => {
            let pattern: &[u8] = bytemuck::cast_slice(pattern);
            bytes.chunks_mut(pattern.len()).for_each(|chunk| chunk.copy_from_slice(&pattern[..chunk.len()]));
        }
        DType::Bf16 => {
            let half = half::bf16::from_f32(0.5);
            bytemuck::cast_slice_mut(bytes).fill(half.to_bits());
        }
        DType::I32 => {
            bytemuck::cast_slice_mut(bytes).iter_mut().enumerate().for_each(|(at, to)| *to = id(at) as i32);
        }
        DType::I64 => {
            bytemuck::cast_slice_mut(bytes).iter_mut().enumerate().for_each(|(at, to)| *to = id(at) as i64);
        }
        DType::Bool => bytes.fill(1),
    }
}

#[cfg(test)]
mod tests {
    use phalanx_kernels::Launch;
    use phalanx_kernels::fill::FillParams;

    use super::*;

    #[test]
    fn a_kernel_that_panics_is_told_and_the_next_one_runs() {
        let team = Team::new(2);
        let call = || Call {
            params: &[],
            reads: [].into_iter().collect(),
            writes: [].into_iter().collect(),
            launch: Launch::plain(&team),
        };
        let kernel = |fast: fn(&mut Call<'_>)| KernelEntry { fast, ..KernelEntry::of::<FillParams>() };
        let alone = kernel(|_| panic!("planted {}", 7));
        assert_eq!(execute(&alone, call()), Err("it panics: planted 7".into()));
        let on_all = kernel(|call| call.launch.run(|block| assert_eq!(block.index, 0, "planted 8")));
        let why = execute(&on_all, call()).expect_err("block 1 panics");
        assert!(why.contains("member panicked") || why.contains("planted 8"), "{why}");
        assert!(execute(&kernel(|call| call.launch.run(|_| ())), call()).is_ok());
    }

    #[test]
    fn values_suit_their_types() {
        let (mut floats, mut ids) = ([0.0f32; 5], [9i64; 100]);
        fill(bytemuck::cast_slice_mut(&mut floats), DType::F32, &[0.5, 1.0], 3);
        assert_eq!(floats, [0.5, 1.0, 0.5, 1.0, 0.5]);
        fill(bytemuck::cast_slice_mut(&mut ids), DType::I64, &[], 3);
        assert!((0..3).all(|id| ids.contains(&id)) && ids.iter().all(|id| (0..3).contains(id)));
    }

    #[test]
    fn runs_end_with_their_number_or_their_time() {
        let mut count = 0;
        let results = sample(|| {
            count += 1;
            Ok(count)
        });
        let results = results.expect("no run fails");
        assert!(!results.is_empty() && results.len() <= RUNS);
        assert_eq!(results[0], 2, "the first run is left out");
        assert_eq!(sample(|| Err::<(), _>("broken".into())), Err("broken".into()));
    }
}
