//! A compiled model in memory: feed it, run it, read it.
//!
//! In a job of several ranks every one has a session, with its own part of the program, and all make the same calls in the
//! same order: reading a tensor that not every rank has whole is an exchange between them (`session/exchange.rs`).

mod exchange;
mod hashes;
mod state;
mod weights;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use phalanx_ir::graph::Graph;
use phalanx_ir::parallel::ParallelGraph;
use phalanx_ir::{DType, Init, Op};
use phalanx_kernels::{Launch, Team, random};
use phalanx_net::Network;
use phalanx_program::{Lane, Placement, Port, PortKind, Program, RECEIVE, TRANSFERS};
use phalanx_runtime::{ExecutionMode, PortError, Replay, Watch};

use crate::bounds::Bound;
use crate::device::{CpuDevice, Flavor};
use crate::emit::EmitError;
use crate::job::FaultTrigger;
use crate::pipeline::{CompileError, Settings, compile, compile_parallel};
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
    /// Truth values.
    Bool(&'a [bool]),
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

/// The first stream of random numbers for states; those before are for parameters.
const STATE_STREAMS: u64 = 1 << 32;

/// What a parameter or state is before the first step.
pub(crate) struct Initial<'a> {
    pub name: &'a str,
    pub init: Init,
    /// The stream of random numbers: its place among those of its kind in the model.
    pub stream: u64,
}

/// What every parameter and state of a model is before the first step.
pub(crate) fn initial_values(model: &Graph) -> impl Iterator<Item = Initial<'_>> {
    let mut streams = [0, STATE_STREAMS];
    model.leaves(Op::is_weight).filter_map(move |param| {
        let (Op::Param(init) | Op::State(init)) = *model.op_of(param) else { return None };
        let next = &mut streams[usize::from(matches!(model.op_of(param), Op::State(_)))];
        let stream = *next;
        *next += 1;
        Some(Initial { name: &model.values()[param].name, init, stream })
    })
}

/// A program with its memory, kernels and the ranges its inputs must keep.
pub struct Session {
    replay: Replay<CpuDevice>,
    bounds: Vec<Bound>,
    /// Inputs that have no values yet; soon empty.
    unfed: Vec<String>,
    job: Option<Share>,
}

/// What a rank knows of a job.
struct Share {
    network: Arc<dyn Network>,
    /// The program of all ranks.
    whole: Program,
    placement: Placement,
}

impl Session {
    /// Compiles `model` and initialises its parameters from `settings.seed`.
    pub fn new(model: &Graph, settings: &Settings) -> Result<Self, Error> {
        Session::with_kernels(model, settings, Flavor::Fast)
    }

    /// The same with all parameters zero, to be fed.
    pub fn without_weights(model: &Graph, settings: &Settings) -> Result<Self, Error> {
        let program = compile(model, settings)?;
        let (devices, polls) = Session::devices(&program, settings, Flavor::Fast)?;
        Session::assemble(model, settings, Replay::new(program, devices, polls), None)
    }

    /// The same as [`Session::new`] with a chosen version of every kernel.
    pub fn with_kernels(model: &Graph, settings: &Settings, flavor: Flavor) -> Result<Self, Error> {
        Session::of_program(model, compile(model, settings)?, settings, flavor)
    }

    /// A model laid out by hand: `parallel` is `model` on devices, its inputs and parameters under the same names.
    pub fn on_devices(model: &Graph, parallel: &ParallelGraph, settings: &Settings) -> Result<Self, Error> {
        Session::of_program(model, compile_parallel(parallel, settings)?, settings, Flavor::Fast)
    }

    /// A program compiled from `model` by other means than [`Session::new`].
    pub fn of_program(
        model: &Graph,
        program: Program,
        settings: &Settings,
        flavor: Flavor,
    ) -> Result<Self, Error> {
        let (devices, polls) = Session::devices(&program, settings, flavor)?;
        let replay = Replay::new(program, devices, polls);
        Session::start(model, settings, replay, None)
    }

    /// This rank's part of `program`, which is compiled from `model` and the same on all ranks; `settings` say which device
    /// is where.
    pub fn on_network(
        model: &Graph,
        program: Program,
        settings: &Settings,
        network: Arc<dyn Network>,
    ) -> Result<Self, Error> {
        if network.size() == 1 {
            return Session::of_program(model, program, settings, Flavor::Fast);
        }
        if settings.execution != ExecutionMode::Replay {
            return Err(Error::ExecutionMode { ranks: network.size() });
        }
        let placement = settings.placement.clone();
        let part = program.slice(&placement, network.rank()).map_err(EmitError::Unsound);
        let part = part.map_err(CompileError::from)?;
        let (devices, polls) = Session::devices(&part, settings, Flavor::Fast)?;
        let replay = Replay::on_network(part, devices, polls, &network)?;
        Session::start(model, settings, replay, Some(Share { network, whole: program, placement }))
    }

    /// The devices of a program, and how often its lanes may look again before they sleep.
    fn devices(
        program: &Program,
        settings: &Settings,
        flavor: Flavor,
    ) -> Result<(Vec<CpuDevice>, u32), Error> {
        memory::check(program.arena())?;
        let teams = settings.pin.teams(program.homes().count(), settings.cores);
        let device = |team| CpuDevice::new(program, team, flavor).checked(settings.check);
        let devices: Vec<_> = teams.into_iter().map(device).collect();
        // Lanes of messages have no thread.
        let receives =
            |lane: &&Lane| program.operations_of(lane).iter().any(|op| program.kernel(op) == RECEIVE);
        let beside =
            (0..).zip(program.lanes()).filter(|(number, lane)| lane.home != *number && receives(lane));
        let busy = devices.len() * settings.cores + beside.count();
        Ok((devices, polls(busy)))
    }

    fn start(
        model: &Graph,
        settings: &Settings,
        replay: Replay<CpuDevice>,
        job: Option<Share>,
    ) -> Result<Self, Error> {
        let mut session = Session::assemble(model, settings, replay, job)?;
        session.initialize(model, settings.seed, &mut Launch::plain(&Team::new(settings.cores)))?;
        Ok(session)
    }

    fn assemble(
        model: &Graph,
        settings: &Settings,
        mut replay: Replay<CpuDevice>,
        job: Option<Share>,
    ) -> Result<Session, Error> {
        settings.topology.iter().for_each(|topology| replay.throttle(topology.clone()));
        replay.set_execution(settings.execution);
        let mut session = Session { replay, bounds: Bound::of(model), unfed: Vec::new(), job };
        session.unfed = session.names(PortKind::Input).map(str::to_string).collect();
        session.set_tables(model)?;
        Ok(session)
    }

    /// Sets every table; its indices must be in range as those of inputs.
    fn set_tables(&mut self, model: &Graph) -> Result<(), Error> {
        for (value, table) in model.tables() {
            let name = &model.values()[value].name;
            let Some(bytes) = table.bytes() else {
                let (ty, hash) = (model.ty(value).to_string(), format!("{:032x}", table.hash()));
                return Err(Error::MissingTable { table: name.clone(), ty, hash });
            };
            Bound::check(&self.bounds, name, table.integers().unwrap_or_default().into_iter())?;
            if self.own_port(name)?.is_some() {
                self.replay.write(name, bytes)?;
            }
        }
        Ok(())
    }

    /// Sets every parameter and state: element i of tensor p depends on the seed, p's stream and i alone.
    fn initialize(&mut self, model: &Graph, seed: u64, launch: &mut Launch<'_>) -> Result<(), Error> {
        let mut whole: Vec<f32> = Vec::new();
        for Initial { name, init, stream } in initial_values(model) {
            let mut fill = |values: &mut [f32]| {
                launch.for_each_part(values, 1, |first, values| match init {
                    Init::Zeros => values.fill(0.0),
                    Init::Ones => values.fill(1.0),
                    Init::Constant(value) => values.fill(value),
                    Init::Normal(std) => random::fill_normal(values, seed, stream, first as u64, 0.0, std),
                    Init::Uniform(bound) => {
                        random::fill_uniform(values, seed, stream, first as u64, -bound, bound);
                    }
                });
            };
            // In place where every tile is the whole tensor, else one parameter at a time outside the arenas.
            let Some(port) = self.own_port(name)? else { continue };
            if port.tiles.iter().all(|tile| tile.ty == port.ty) {
                self.replay.fill_tiles(name, |_, bytes| fill(bytemuck::cast_slice_mut(bytes)))?;
            } else {
                whole.resize(port.ty.shape.elements(), 0.0);
                fill(&mut whole);
                self.replay.write(name, bytemuck::cast_slice(&whole))?;
            }
        }
        Ok(())
    }

    /// The program of all devices.
    pub fn program(&self) -> &Program {
        self.job.as_ref().map_or_else(|| self.replay.program(), |job| &job.whole)
    }

    /// What this process runs of it: all, unless there are other ranks.
    pub fn part(&self) -> &Program {
        self.replay.program()
    }

    /// Which rank of its job this process is; 0 if it is alone.
    pub fn rank(&self) -> u32 {
        self.job.as_ref().map_or(0, |job| job.network.rank())
    }

    /// Bytes of all arenas of all processes: what a run uses at its peak.
    pub fn arena_bytes(&self) -> usize {
        self.program().arena() as usize
    }

    /// Bytes of each device's arena in this process, devices ascending.
    pub fn device_bytes(&self) -> Vec<usize> {
        self.replay.arena_bytes().collect()
    }

    /// A look at where runs stand, from any thread.
    pub fn watch(&self) -> Watch {
        self.replay.watch()
    }

    /// The tensor called `name`, wherever it lies.
    fn port(&self, name: &str) -> Result<&Port, PortError> {
        match &self.job {
            None => self.replay.port(name),
            Some(job) => job.port(name),
        }
    }

    /// The tensor called `name` as far as it lies in this process; nothing if it is only in others.
    fn own_port(&self, name: &str) -> Result<Option<&Port>, PortError> {
        self.port(name)?;
        Ok(self.replay.port(name).ok())
    }

    /// That the tensor called `name` has no elements of type `given`.
    fn other_type(&self, name: &str, given: DType) -> Result<PortError, PortError> {
        let (ty, given) = (self.port(name)?.ty.to_string(), given.to_string());
        Ok(PortError::ElementType { name: name.into(), ty, given })
    }

    /// Sets the tensor called `name`.
    pub fn feed<'a>(&mut self, name: &str, values: impl Into<Feed<'a>>) -> Result<(), Error> {
        let values = values.into();
        let dtype = self.port(name)?.ty.dtype;
        let (given, bytes): (_, &[u8]) = match values {
            Feed::F32(values) => (DType::F32, bytemuck::cast_slice(values)),
            Feed::I64(values) => (DType::I64, bytemuck::cast_slice(values)),
            Feed::I32(values) => (DType::I32, bytemuck::cast_slice(values)),
            Feed::Bool(values) => (DType::Bool, bytemuck::cast_slice(values)),
        };
        if given != dtype {
            return Err(self.other_type(name, given)?.into());
        }
        match values {
            Feed::I64(values) => Bound::check(&self.bounds, name, values.iter().copied())?,
            Feed::I32(values) => {
                Bound::check(&self.bounds, name, values.iter().map(|&value| i64::from(value)))?
            }
            Feed::F32(_) | Feed::Bool(_) => {}
        }
        if self.own_port(name)?.is_some() {
            self.replay.write(name, bytes)?;
        }
        if !self.unfed.is_empty() {
            self.unfed.retain(|unfed| unfed != name);
        }
        Ok(())
    }

    /// Checks that every input has been fed once.
    pub(crate) fn check_fed(&self) -> Result<(), Error> {
        let Some(input) = self.unfed.first() else { return Ok(()) };
        Err(Error::NotFed { input: input.clone(), ty: self.port(input)?.ty.to_string() })
    }

    /// Sets part of the parameter called `name`: consecutive floats from element `first` on. One device must have all of
    /// it.
    pub fn feed_part(&mut self, name: &str, first: usize, values: &[f32]) -> Result<(), Error> {
        let Port { ty, tiles, .. } = self.port(name)?;
        let (bytes, start): (&[u8], _) = (bytemuck::cast_slice(values), first * DType::F32.bytes());
        let is_whole = tiles.iter().all(|tile| tile.ty == *ty);
        if ty.dtype != DType::F32 || !is_whole || ty.bytes() < start + bytes.len() {
            let (need, found) = (ty.bytes(), start + bytes.len());
            let name = format!("{name} as one piece of f32");
            return Err(PortError::Size { name, ty: ty.to_string(), need, found }.into());
        }
        Ok(self.replay.fill_tiles(name, |_, tile| tile[start..start + bytes.len()].copy_from_slice(bytes))?)
    }

    /// The floats of the tensor called `name`; it must hold 32-bit floats.
    ///
    /// They are borrowed where one device has all of them, else gathered.
    pub fn read(&self, name: &str) -> Result<Cow<'_, [f32]>, Error> {
        let ty = &self.port(name)?.ty;
        if ty.dtype != DType::F32 {
            return Err(self.other_type(name, DType::F32)?.into());
        }
        Ok(match self.read_bytes(name)? {
            Cow::Borrowed(bytes) => Cow::Borrowed(bytemuck::cast_slice(bytes)),
            Cow::Owned(bytes) => {
                Cow::Owned(bytes.as_chunks().0.iter().map(|&bytes| f32::from_ne_bytes(bytes)).collect())
            }
        })
    }

    /// The tensor called `name` as raw bytes. All ranks of a job call it together.
    pub fn read_bytes(&self, name: &str) -> Result<Cow<'_, [u8]>, Error> {
        match &self.job {
            None => Ok(self.replay.read(name)?),
            Some(job) => job.read(&self.replay, name),
        }
    }

    /// Names of all tensors of a kind.
    pub fn names(&self, kind: PortKind) -> impl Iterator<Item = &str> {
        let ports = self.program().ports().iter();
        ports.filter(move |port| port.kind == kind).map(|port| port.name.as_str())
    }

    /// All parameters and states by name.
    pub fn weights(&self) -> Result<BTreeMap<String, Vec<f32>>, Error> {
        let names: Vec<_> = self.names(PortKind::Param).map(str::to_string).collect();
        names.into_iter().map(|name| Ok((name.clone(), self.read(&name)?.into_owned()))).collect()
    }

    /// A fingerprint of all parameters and states, names and bytes, in name order; how they lie on devices does not matter.
    pub fn weights_hash(&self) -> Result<u128, Error> {
        let mut names: Vec<_> = self.names(PortKind::Param).collect();
        names.sort_unstable();
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        for name in names {
            hasher.update(name.as_bytes());
            hasher.update(&self.read_bytes(name)?);
        }
        Ok(hasher.digest128())
    }

    /// Runs the program once on what was fed last.
    pub fn run(&mut self) -> Result<(), Error> {
        Ok(self.replay.run()?)
    }

    /// The same on this thread, one operation at a time; after each, `see` is shown its position in the program and what
    /// it has written. All devices must be in this process.
    pub(crate) fn run_seen(&mut self, see: &mut dyn FnMut(usize, &[&[u8]])) -> Result<(), Error> {
        if let Some(job) = &self.job {
            return Err(Error::ExecutionMode { ranks: job.network.size() });
        }
        Ok(self.replay.run_seen(0, see)?)
    }

    /// Starts a run on what was fed last, and goes on; its number. Two runs can be in flight, the second where the first
    /// leaves it room; a third waits.
    pub fn launch(&mut self) -> u64 {
        self.replay.launch()
    }

    /// Waits for the run with this number, one of the last three; its outputs can be read then.
    pub fn wait(&mut self, run: u64) -> Result<(), Error> {
        Ok(self.replay.wait(run)?)
    }

    /// Measures every operation from now on.
    pub fn profile(&mut self) -> Profile {
        self.profile_through(None)
    }

    /// The same; operations that compute fail when the trigger fires.
    pub(crate) fn profile_through(&mut self, trigger: Option<FaultTrigger>) -> Profile {
        let profile = Profile::of(self.part());
        let Profile { operations, runs, begin } = profile.clone();
        let ended = Arc::clone(&operations);
        self.replay.observe_messages(Arc::new(move |position| {
            // Relaxed: as below.
            ended[position].end.store(begin.elapsed().as_nanos() as u64, Relaxed);
        }));
        let part = self.part();
        let computes = |operation| !TRANSFERS.contains(&part.kernel(operation));
        let computes: Vec<bool> = part.operations().iter().map(computes).collect();
        self.replay.observe(Some(Arc::new(move |position: usize, run: u64, execute: &mut dyn FnMut()| {
            let start = begin.elapsed().as_nanos() as u64;
            if computes[position] {
                trigger.iter().for_each(|trigger| trigger.check(run));
            }
            execute();
            let end = begin.elapsed().as_nanos() as u64;
            // Relaxed, here and below: the end of the run orders all of it before every reader.
            let times = &operations[position];
            times.sum.fetch_add(end - start, Relaxed);
            times.start.store(start, Relaxed);
            times.end.store(end, Relaxed);
            if position == 0 {
                runs.fetch_add(1, Relaxed);
            }
        })));
        profile
    }
}

/// How often a waiting lane looks again before it sleeps: a few microseconds if this machine has all `cores`, else it
/// would take them from those it waits for.
pub fn polls(cores: usize) -> u32 {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    if cores <= available { 300 } else { 0 }
}

/// Time spent in each operation of a program, summed over runs, and when the last run did it.
#[derive(Clone, Debug)]
pub struct Profile {
    /// By position in the program; lanes write theirs at the same time.
    operations: Arc<[Times]>,
    runs: Arc<AtomicU64>,
    begin: Instant,
}

/// Nanoseconds of one operation.
#[derive(Debug, Default)]
struct Times {
    sum: AtomicU64,
    /// In the last run, since the profile began.
    start: AtomicU64,
    end: AtomicU64,
}

impl Profile {
    fn of(program: &Program) -> Profile {
        let operations = program.operations().iter().map(|_| Times::default()).collect();
        Profile { operations, runs: Arc::default(), begin: Instant::now() }
    }

    /// How many runs were added up.
    pub fn runs(&self) -> u64 {
        // Relaxed: no run is going on.
        self.runs.load(Relaxed)
    }

    /// Seconds of each operation, in program order, under its kernel and layer.
    pub fn by_operation(&self, program: &Program) -> Vec<(String, f64)> {
        let name = |operation| format!("{} {}", program.kernel(operation), program.label(operation));
        program.operations().iter().map(name).zip(self.seconds()).collect()
    }

    /// Seconds by kernel, of all devices together, longest first.
    pub fn by_kernel(&self, program: &Program) -> Vec<(String, f64)> {
        let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
        for (operation, seconds) in program.operations().iter().zip(self.seconds()) {
            *sums.entry(program.kernel(operation)).or_default() += seconds;
        }
        let mut sums: Vec<_> = sums.into_iter().map(|(name, seconds)| (name.to_string(), seconds)).collect();
        sums.sort_by(|a, b| b.1.total_cmp(&a.1));
        sums
    }

    /// Seconds that each lane has been busy so far; also while a run goes on.
    pub fn lane_seconds(&self, program: &Program) -> Vec<f64> {
        let busy = |lane: &Lane| {
            let operations = &self.operations[lane.operations.start as usize..lane.operations.end as usize];
            // Relaxed: a reader during a run takes the sums as they come.
            operations.iter().map(|times| times.sum.load(Relaxed)).sum::<u64>() as f64 / 1e9
        };
        program.lanes().iter().map(busy).collect()
    }

    /// Seconds of each operation, in program order.
    pub(crate) fn seconds(&self) -> impl Iterator<Item = f64> {
        // Relaxed: no run is going on.
        self.operations.iter().map(|times| times.sum.load(Relaxed) as f64 / 1e9)
    }

    /// Start and end of the operation at `position` of the program, when it last ran, in nanoseconds since the profile
    /// began; also while a run goes on.
    pub fn span(&self, position: usize) -> (u64, u64) {
        let times = &self.operations[position];
        // Relaxed: a reader during a run takes old and new times as they come.
        (times.start.load(Relaxed), times.end.load(Relaxed))
    }

    /// Nanoseconds since the profile began.
    pub fn now(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    /// Start and end of every operation in the last run, in nanoseconds since the profile began.
    pub fn spans(&self) -> Vec<(u64, u64)> {
        (0..self.operations.len()).map(|position| self.span(position)).collect()
    }

    /// The same, since the first one of them.
    pub fn last_run(&self) -> Vec<(u64, u64)> {
        let mut spans = self.spans();
        let begin = spans.iter().map(|(start, _)| *start).min().unwrap_or(0);
        spans.iter_mut().for_each(|(start, end)| (*start, *end) = (*start - begin, *end - begin));
        spans
    }
}
