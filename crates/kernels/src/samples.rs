//! Test support: sample data, and kernels run through their table row against their reference.

use std::sync::Mutex;

use arrayvec::ArrayVec;

use crate::check::{AccessError, Checker};
use crate::isa::Isa;
use crate::spmd::{Launch, Layout};
use crate::{Call, KernelEntry, Team, table};

/// `n` values spread evenly over -1..1 in a scrambled order that depends on `seed`.
pub(crate) fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// `n` numbers in `0..below`, scrambled.
pub(crate) fn indices(n: usize, below: usize, seed: u64) -> Vec<i64> {
    values(n, seed).iter().map(|x| ((x + 1.0) * 0.5 * below as f32) as i64 % below as i64).collect()
}

/// The tile of a tensor of three dimensions that starts at `corner`.
pub(crate) fn tile(x: &[f32], dims: [usize; 3], corner: [usize; 3], size: [usize; 3]) -> Vec<f32> {
    let mut tile = Vec::new();
    for i in corner[0]..corner[0] + size[0] {
        for j in corner[1]..corner[1] + size[1] {
            tile.extend(&x[(i * dims[1] + j) * dims[2] + corner[2]..][..size[2]]);
        }
    }
    tile
}

/// One slice a kernel reads.
#[derive(Clone)]
pub(crate) enum Input {
    F32(Vec<f32>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    Bool(Vec<u8>),
}

impl Input {
    /// Labels or ids in the width a kernel's parameters promise.
    pub(crate) fn ids(ids: &[i64], narrow: bool) -> Input {
        match narrow {
            true => Input::I32(ids.iter().map(|&id| id as i32).collect()),
            false => Input::I64(ids.to_vec()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Input::F32(x) => bytemuck::cast_slice(x),
            Input::I32(x) => bytemuck::cast_slice(x),
            Input::I64(x) => bytemuck::cast_slice(x),
            Input::Bool(x) => x,
        }
    }
}

impl From<Vec<f32>> for Input {
    fn from(x: Vec<f32>) -> Input {
        Input::F32(x)
    }
}

/// One kernel call: its parameters, what it reads, and what its outputs hold beforehand.
pub(crate) struct Case {
    pub kernel: KernelEntry,
    pub params: Vec<u64>,
    pub reads: Vec<Input>,
    pub writes: Vec<Vec<f32>>,
}

/// Calls `test` with a launch of `kernel` whose workspace is full of NaNs.
pub(crate) fn launched(
    kernel: &KernelEntry,
    params: &[u64],
    blocks: u32,
    team: &Team,
    test: impl FnOnce(Launch<'_>),
) {
    let workspace = (kernel.workspace)(params, blocks as usize);
    let layout = Layout::new(kernel.name, workspace, team.cores().min(blocks as usize)).expect("it fits");
    let mut memory = vec![u64::MAX; layout.total() as usize / 8];
    let memory = bytemuck::cast_slice_mut(&mut memory);
    test(kernel.launch(params, blocks, memory, team).expect("its size is that of the layout"));
}

/// Serializes the tests that change the process-wide instruction set.
static ISA: Mutex<()> = Mutex::new(());

/// The mismatches that `test` finds with each instruction set of this machine selected.
pub(crate) fn with_each_isa(mut test: impl FnMut(Isa) -> Vec<String>) -> Vec<String> {
    let _alone = ISA.lock().expect("no test panics while it holds the lock");
    let found = [Isa::Portable, Isa::Avx2, Isa::Avx512].map(|isa| test(Isa::select(isa)));
    Isa::select(Isa::best());
    found.concat()
}

impl Case {
    /// The kernel `name` on these arguments.
    pub(crate) fn new(name: &str, params: Vec<u64>) -> Case {
        let kernel = table::find(name).expect("there is such a kernel");
        Case { kernel, params, reads: Vec::new(), writes: Vec::new() }
    }

    /// Adds a slice to read.
    pub(crate) fn read(mut self, input: impl Into<Input>) -> Case {
        self.reads.push(input.into());
        self
    }

    /// Adds a slice to write, with what it holds before.
    pub(crate) fn write(mut self, before: Vec<f32>) -> Case {
        self.writes.push(before);
        self
    }

    /// What the reference writes.
    pub(crate) fn reference(&self) -> Vec<Vec<f32>> {
        self.run(self.kernel.reference, &Team::new(1))
    }

    /// What the fast version writes on `team`.
    pub(crate) fn fast(&self, team: &Team) -> Vec<Vec<f32>> {
        self.run(self.kernel.fast, team)
    }

    fn run(&self, function: fn(&mut Call<'_>), team: &Team) -> Vec<Vec<f32>> {
        let planned = self.kernel.plan(&self.params, team.cores()).expect("it can be launched");
        self.run_on(function, planned.blocks, team)
    }

    /// What the fast version writes on so many blocks, wanted or not.
    pub(crate) fn fast_on(&self, blocks: u32, team: &Team) -> Vec<Vec<f32>> {
        self.run_on(self.kernel.fast, blocks, team)
    }

    fn run_on(&self, function: impl FnOnce(&mut Call<'_>), blocks: u32, team: &Team) -> Vec<Vec<f32>> {
        let (mut writes, names) = (self.writes.clone(), (self.kernel.arguments)(&self.params));
        let (given, named) = ([self.reads.len(), writes.len()], [names.reads.len(), names.writes.len()]);
        assert_eq!(given, named, "the kernel has a name for every argument");
        launched(&self.kernel, &self.params, blocks, team, |launch| {
            function(&mut Call {
                params: &self.params,
                reads: self.reads.iter().map(Input::bytes).collect(),
                writes: writes
                    .iter_mut()
                    .map(|out| bytemuck::cast_slice_mut(out))
                    .collect::<ArrayVec<_, 16>>(),
                launch,
            });
        });
        writes
    }

    /// An access that the reference or the fast version makes on so many blocks and must not.
    fn misuse(&self, blocks: u32, team: &Team) -> Option<AccessError> {
        let misuse = |function| {
            let mut checked = Ok(());
            let check = |call: &mut Call<'_>| {
                checked = Checker::default().run(&self.kernel, function, call);
            };
            self.run_on(check, blocks, team);
            checked.err()
        };
        misuse(self.kernel.reference).or_else(|| misuse(self.kernel.fast))
    }

    /// Asserts that fast and reference agree within `tolerance` times (1 + magnitude), and access what they may.
    pub(crate) fn check(&self, tolerance: f32) {
        assert_eq!(self.misuse(3, &Team::new(2)), None);
        let (want, got) = (self.reference(), self.fast(&Team::new(2)));
        for (output, (want, got)) in want.iter().zip(&got).enumerate() {
            assert_close(got, want, tolerance, &format!("{} output {output}", self.kernel.name));
        }
    }

    /// Asserts that the fast version gives the bits of the reference on 1 to 4 cores.
    pub(crate) fn check_reference_bits(&self) {
        let want = self.reference();
        for cores in 1..=4 {
            for (output, (got, want)) in self.fast(&Team::new(cores)).iter().zip(&want).enumerate() {
                for (i, (got, want)) in got.iter().zip(want).enumerate() {
                    let name = self.kernel.name;
                    assert_eq!(
                        got.to_bits(),
                        want.to_bits(),
                        "{name} output {output}[{i}]: {got}, not {want}"
                    );
                }
            }
        }
    }

    /// Asserts that every number of blocks and instruction set gives the same bits and accesses only what it may.
    pub(crate) fn check_bits(&self) {
        let _alone = ISA.lock().expect("no test panics while it holds the lock");
        let bits = |outs: Vec<Vec<f32>>| outs.concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let want = bits(self.fast(&Team::new(1)));
        let (mut differing, mut misuse) = (Vec::new(), None);
        for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
            Isa::select(isa);
            for (blocks, team) in (1..=8).zip([1, 2, 3].iter().cycle()) {
                if bits(self.fast_on(blocks, &Team::new(*team))) != want {
                    differing.push((isa, blocks));
                }
            }
            misuse = misuse.or_else(|| self.misuse(3, &Team::new(2)));
        }
        Isa::select(Isa::best());
        drop(_alone);
        assert!(differing.is_empty(), "{} differs on {differing:?}", self.kernel.name);
        assert_eq!(misuse, None);
    }
}

/// Asserts that two slices agree within `tolerance` times (1 + magnitude), element by element.
pub(crate) fn assert_close(got: &[f32], want: &[f32], tolerance: f32, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let close = got == want || (got - want).abs() <= tolerance * (1.0 + want.abs());
        assert!(close || (got.is_nan() && want.is_nan()), "{what}[{i}]: got {got}, want {want}");
    }
}

/// Asserts that `gradient` of `loss` at `at` agrees with f64 central differences within `tolerance` times
/// (1 + magnitude).
pub(crate) fn assert_gradient(gradient: &[f32], at: &[f32], tolerance: f64, loss: impl Fn(&[f64]) -> f64) {
    /// Balances the truncation error of a central difference (its square) against cancellation.
    const STEP: f64 = 1e-5;
    let mut at: Vec<f64> = at.iter().map(|&x| f64::from(x)).collect();
    assert_eq!(gradient.len(), at.len());
    for i in 0..at.len() {
        let center = at[i];
        at[i] = center + STEP;
        let above = loss(&at);
        at[i] = center - STEP;
        let below = loss(&at);
        at[i] = center;
        let want = (above - below) / (2.0 * STEP);
        let got = f64::from(gradient[i]);
        assert!((got - want).abs() <= tolerance * (1.0 + want.abs()), "gradient {i}: got {got}, want {want}");
    }
}

/// The sum of `a[i] * b[i]`, as a loss whose gradient by `a` is `b`.
pub(crate) fn weighted(a: &[f64], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, &b)| a * f64::from(b)).sum()
}
