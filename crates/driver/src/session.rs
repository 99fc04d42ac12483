//! A compiled model in memory: feed it, run it, read it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use phalanx_ir::graph::Graph;
use phalanx_ir::{DType, Init, Op};
use phalanx_kernels::{Team, random};
use phalanx_program::{PortKind, Program};
use phalanx_runtime::{PortError, Replay};

use crate::bounds::Bound;
use crate::device::{CpuDevice, Flavor};
use crate::pipeline::{Settings, compile};
use crate::{Error, memory};

/// Values for one input.
#[derive(Clone, Copy, Debug)]
pub enum Feed<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// 64-bit integers.
    I64(&'a [i64]),
    /// 32-bit integers.
    I32(&'a [i32]),
}

impl<'a, const N: usize> From<&'a [f32; N]> for Feed<'a> {
    fn from(values: &'a [f32; N]) -> Self {
        Feed::F32(values)
    }
}

impl<'a> From<&'a Vec<f32>> for Feed<'a> {
    fn from(values: &'a Vec<f32>) -> Self {
        Feed::F32(values)
    }
}

impl<'a> From<&'a Vec<i64>> for Feed<'a> {
    fn from(values: &'a Vec<i64>) -> Self {
        Feed::I64(values)
    }
}

/// A program with its memory, kernels and the ranges its inputs must keep.
pub struct Session {
    replay: Replay<CpuDevice>,
    bounds: Vec<Bound>,
}

impl Session {
    /// Compiles `model` and initialises its parameters from `settings.seed`.
    pub fn new(model: &Graph, settings: &Settings) -> Result<Self, Error> {
        Session::with_kernels(model, settings, Flavor::Fast)
    }

    /// The same with a chosen version of every kernel.
    pub fn with_kernels(model: &Graph, settings: &Settings, flavor: Flavor) -> Result<Self, Error> {
        let program = compile(model, settings)?;
        memory::check(program.arena())?;
        let device = CpuDevice::new(&program, settings.cores, flavor);
        let mut session = Session { replay: Replay::new(program, device), bounds: Bound::of(model) };
        session.initialize(model, settings.seed, &Team::new(settings.cores))?;
        Ok(session)
    }

    /// Sets every parameter: element i of parameter p depends on the seed, p's place in the model and i alone.
    fn initialize(&mut self, model: &Graph, seed: u64, team: &Team) -> Result<(), Error> {
        let params = model.leaves(|op| matches!(op, Op::Param(_)));
        for (stream, param) in params.enumerate() {
            let Op::Param(init) = *model.op_of(param) else { continue };
            let bytes = self.replay.bytes_mut(&model.values()[param].name)?;
            let stream = stream as u64;
            team.for_each_part(bytemuck::cast_slice_mut(bytes), 1, |first, values| match init {
                Init::Zeros => values.fill(0.0),
                Init::Ones => values.fill(1.0),
                Init::Normal(std) => random::fill_normal(values, seed, stream, first as u64, 0.0, std),
                Init::Uniform(bound) => {
                    random::fill_uniform(values, seed, stream, first as u64, -bound, bound);
                }
            });
        }
        Ok(())
    }

    /// The program.
    pub fn program(&self) -> &Program {
        self.replay.program()
    }

    /// Bytes of the arena: what a run uses at its peak.
    pub fn arena_bytes(&self) -> usize {
        self.replay.arena_bytes()
    }

    /// Sets the tensor called `name`.
    pub fn feed<'a>(&mut self, name: &str, values: impl Into<Feed<'a>>) -> Result<(), Error> {
        let values = values.into();
        let dtype = self.replay.port(name)?.ty.dtype;
        let (given, bytes): (_, &[u8]) = match values {
            Feed::F32(values) => (DType::F32, bytemuck::cast_slice(values)),
            Feed::I64(values) => (DType::I64, bytemuck::cast_slice(values)),
            Feed::I32(values) => (DType::I32, bytemuck::cast_slice(values)),
        };
        if given != dtype {
            let ty = self.replay.port(name)?.ty.to_string();
            let need = self.replay.port(name)?.ty.bytes();
            return Err(
                PortError::Size { name: format!("{name} as {given}"), ty, need, found: bytes.len() }.into()
            );
        }
        match values {
            Feed::I64(values) => Bound::check(&self.bounds, name, values.iter().copied())?,
            Feed::I32(values) => {
                Bound::check(&self.bounds, name, values.iter().map(|&value| i64::from(value)))?
            }
            Feed::F32(_) => {}
        }
        Ok(self.replay.write(name, bytes)?)
    }

    /// The floats of the tensor called `name`; it must hold 32-bit floats.
    pub fn read(&self, name: &str) -> Result<&[f32], Error> {
        let ty = &self.replay.port(name)?.ty;
        if ty.dtype != DType::F32 {
            let (need, found) = (ty.bytes(), ty.shape.elements() * DType::F32.bytes());
            return Err(
                PortError::Size { name: format!("{name} as f32"), ty: ty.to_string(), need, found }.into()
            );
        }
        Ok(bytemuck::cast_slice(self.replay.read(name)?))
    }

    /// The tensor called `name` as raw bytes.
    pub fn read_bytes(&self, name: &str) -> Result<&[u8], Error> {
        Ok(self.replay.read(name)?)
    }

    /// Names of all tensors of a kind.
    pub fn names(&self, kind: PortKind) -> impl Iterator<Item = &str> {
        let ports = self.replay.program().ports().iter();
        ports.filter(move |port| port.kind == kind).map(|port| port.name.as_str())
    }

    /// All parameters by name.
    pub fn weights(&self) -> Result<BTreeMap<String, Vec<f32>>, Error> {
        let names: Vec<_> = self.names(PortKind::Param).map(str::to_string).collect();
        names.into_iter().map(|name| Ok((name.clone(), self.read(&name)?.to_vec()))).collect()
    }

    /// A fingerprint of all parameters, names and bytes, in name order.
    pub fn weights_hash(&self) -> Result<u128, Error> {
        let mut names: Vec<_> = self.names(PortKind::Param).collect();
        names.sort_unstable();
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        for name in names {
            hasher.update(name.as_bytes());
            hasher.update(self.read_bytes(name)?);
        }
        Ok(hasher.digest128())
    }

    /// Runs the program once.
    pub fn run(&mut self) {
        self.replay.run();
    }

    /// Runs the program once and adds the time of each operation to `profile`.
    pub fn run_profiled(&mut self, profile: &mut Profile) {
        profile.times.resize(self.replay.program().operations().len(), Duration::ZERO);
        self.replay.run_observed(|position, execute| {
            let start = Instant::now();
            execute();
            profile.times[position] += start.elapsed();
        });
        profile.runs += 1;
    }
}

/// Time spent in each operation of a program, summed over runs.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    times: Vec<Duration>,
    /// How many runs were added up.
    pub runs: u64,
}

impl Profile {
    /// Seconds of each operation, in program order, under its kernel and layer.
    pub fn by_operation(&self, program: &Program) -> Vec<(String, f64)> {
        let name = |operation| format!("{} {}", program.kernel(operation), program.label(operation));
        let operations = program.operations().iter().zip(&self.times);
        operations.map(|(operation, time)| (name(operation), time.as_secs_f64())).collect()
    }

    /// Seconds by kernel, longest first.
    pub fn by_kernel(&self, program: &Program) -> Vec<(String, f64)> {
        let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
        for (operation, time) in program.operations().iter().zip(&self.times) {
            *sums.entry(program.kernel(operation)).or_default() += time.as_secs_f64();
        }
        let mut sums: Vec<_> = sums.into_iter().map(|(name, seconds)| (name.to_string(), seconds)).collect();
        sums.sort_by(|a, b| b.1.total_cmp(&a.1));
        sums
    }
}
