//! Running a program again and again, each device in its own arena.
//!
//! A program is a flow (`flow::of_program`): lanes are processors, operations are non-blocking tasks. Runs are
//! pipelined: an operation starts when its own predecessors are complete, those in the run before included. Each run
//! has an *I/O slot*: its arguments, which the host writes before the launch, and its results, which the host reads
//! after the end. There is one I/O slot more than runs that can be in flight, for the run whose results the host still
//! reads.
//!
//! One rank's part of a program also has messages, which go over a network and are complete when that says so.
//!
//! The host touches arenas only while no run is in flight, and an I/O slot only while its run is not. What operations
//! touch is described in `memory`.
//!
//! In a part on a network, the first fault is for good: what other ranks were to be sent is missing, so neither its run
//! nor a later one may ever end. A thread that waits for one gets the fault at once, and what is in flight keeps
//! its memory.

mod bind;
mod drive;
mod failure;
mod immediate;
mod memory;
mod messages;
mod stepped;
mod throttle;
mod watch;

use std::borrow::Cow;
use std::sync::Arc;

use phalanx_link::Topology;
use phalanx_net::{NetError, Network};
use phalanx_program::{Port, PortTile, Program};

use crate::event::Event;
use crate::fault::{Fault, Outcome};
use crate::graph::{Graph, Launch};
use crate::ports::{self, Names, PortBlock};
use crate::processor::{HelperThread, IdleMonitor};
use crate::sync::{Mutex, lock};
use crate::{PortError, Runtime};
use drive::ReplayWork;
pub use failure::Failure;
use memory::Memory;
pub use memory::{Args, Kernels, Observer};
pub use messages::MessageObserver;
use messages::is_message;
pub use watch::{LaneState, Watch};

/// Runs of a program that can be in flight.
const DEPTH: u32 = 2;

/// How many I/O slots there are.
const IO_SLOTS: usize = DEPTH as usize + 1;

/// A program with its memory and kernels, ready to run.
pub struct Replay<K: Kernels> {
    memory: Arc<Memory<K>>,
    names: Names,
    runtime: Runtime,
    graph: Graph,
    /// The arguments of the next run.
    arguments: PortBlock,
    /// Runs launched so far.
    launched: u64,
    /// By I/O slot: when the last run that had it was complete.
    finished: [Event; IO_SLOTS],
    /// The run whose results can be read.
    last: u64,
    execution: ExecutionMode,
    /// Runs that have not been stepped through yet, with their finish events.
    line: Mutex<Vec<(u64, Event)>>,
    /// The network that carries messages, and the monitor of the lanes that compute. The thread that waits for a run
    /// drives the network, as it has nothing else to do.
    network: Option<(Arc<dyn Network>, Arc<IdleMonitor>)>,
    /// It also executes the lanes that only move bytes, through these.
    helpers: Vec<HelperThread>,
}

/// How runs are executed. The bits are the same; the cost is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExecutionMode {
    /// Replayed as a graph.
    #[default]
    Replay,
    /// One task and one event for each operation.
    Immediate,
    /// On the caller's thread, one operation at a time, in an order that the seed and the run's number choose among all
    /// that the program allows.
    Stepped(u64),
}

impl<K: Kernels + Send + Sync + 'static> Replay<K> {
    /// Allocates the arenas and starts the processors. `kernels` has a set for each lane with an arena, in order.
    ///
    /// A lane that waits for another looks `polls` times before it sleeps: worth it only if every lane has cores of its
    /// own. Any program may be run that has no messages: every one is verified to be free of races.
    pub fn new(program: Program, kernels: Vec<K>, polls: u32) -> Self {
        let messages =
            program.operations().iter().filter(|operation| is_message(&program, operation)).count();
        assert_eq!(messages, 0, "a part of a program needs a network for its messages");
        Replay::with(Memory::new(program, kernels, IO_SLOTS), polls)
    }

    /// The same for one rank's part of a program, whose messages go over `network`. All ranks call it together, each
    /// with its own part.
    ///
    /// A run is complete when this rank's part of it is. If something fails here, the runs that follow fail too: what
    /// other ranks were to be sent is missing for good. They wait for it; ending them is the caller's task. The memory
    /// of runs that can never end is leaked.
    pub fn on_network(
        program: Program,
        kernels: Vec<K>,
        polls: u32,
        network: &Arc<dyn Network>,
    ) -> Result<Self, NetError> {
        let mut memory = Memory::new(program, kernels, IO_SLOTS);
        memory.connect(network)?;
        let mut replay = Replay::with(memory, polls);
        let waker = Arc::clone(network);
        let idle_monitor =
            replay.runtime.idle_monitor(&bind::computers(replay.program()), move || waker.wake_driver());
        replay.network = Some((Arc::clone(network), idle_monitor));
        let (progress, wake) = (Arc::clone(&replay.memory.progress), Arc::clone(network));
        replay.graph.on_fault(Box::new(move |run, fault| {
            progress.failure.fail(run, fault);
            wake.wake_driver();
        }));
        let movers = bind::movers(replay.program());
        replay.helpers = movers.into_iter().map(|mover| replay.runtime.helper(mover)).collect();
        Ok(replay)
    }

    fn with(memory: Memory<K>, polls: u32) -> Self {
        let (names, arguments) = (Names::new(&memory.program), PortBlock::new(&memory.program.arguments()));
        let memory = Arc::new(memory);
        let (runtime, graph) = bind::bind(&memory, polls);
        let finished = [Event::NONE; IO_SLOTS];
        Replay {
            memory,
            names,
            runtime,
            graph,
            arguments,
            launched: 0,
            finished,
            last: 0,
            execution: ExecutionMode::Replay,
            line: Mutex::default(),
            network: None,
            helpers: Vec::new(),
        }
    }

    /// Throttles every movement of the runs that follow to a link of its device, as if devices shared no memory.
    pub fn throttle(&mut self, topology: Topology) {
        self.settle();
        // A throttled movement sleeps, and a thread that drives the network must not.
        self.helpers.clear();
        self.memory.throttle(topology);
    }

    /// Sets how the runs that follow are executed. A part on a network can only be replayed.
    pub fn set_execution(&mut self, execution: ExecutionMode) {
        assert!(
            execution == ExecutionMode::Replay || self.memory.messages().is_none(),
            "a part of a program is replayed"
        );
        self.settle();
        self.execution = execution;
    }

    /// Runs all operations once. If a kernel fails, the fault names its operation.
    pub fn run(&mut self) -> Outcome {
        // A thread that drives already wakes no other thread when it launches. With a run in flight a launch may wait
        // for what a helper thread would do.
        let mut run = if self.is_idle() { None } else { Some(self.launch()) };
        self.drive_until(|replay| {
            let run = *run.get_or_insert_with(|| replay.launch());
            replay.is_decided(run)
        });
        let run = run.unwrap_or_else(|| self.launch());
        self.wait(run)
    }

    /// Starts a run with the inputs as they are now; its number. Waits for an older run only if as many as can be are
    /// in flight. After a failure for good nothing is launched any more, and waiting for the run gives that fault.
    pub fn launch(&mut self) -> u64 {
        let run = self.launched;
        if self.failure_of(run).is_some() {
            self.launched += 1;
            return run;
        }
        let io_slot = run as usize % IO_SLOTS;
        if let Some(before) = run.checked_sub(IO_SLOTS as u64)
            && !self.is_decided(before)
        {
            self.step();
            self.drive_until(|replay| replay.is_decided(before));
            if self.failure_of(before).is_some() {
                self.launched += 1;
                return run;
            }
            // The outcome is returned to the caller that waits for that run.
            let _ = self.runtime.wait(self.finished[io_slot]);
        }
        // SAFETY: the last run with this I/O slot has ended, and the next one is launched below.
        unsafe { self.memory.set_arguments(run, &self.arguments) };
        self.finished[io_slot] = match self.execution {
            ExecutionMode::Replay => {
                self.graph.launch(Launch::default()).expect("a program's graph takes no arguments").finish
            }
            ExecutionMode::Immediate => {
                self.settle();
                self.memory.not_replayed();
                immediate::spawn(&self.runtime, &self.memory, run)
            }
            ExecutionMode::Stepped(_) => {
                self.memory.not_replayed();
                let finish = self.runtime.events().create();
                lock(&self.line).push((run, finish));
                finish
            }
        };
        self.launched += 1;
        self.memory.progress.launched(self.launched);
        run
    }

    /// Waits until `run` is complete; its results can be read then, until the third launch after its own.
    pub fn wait(&mut self, run: u64) -> Outcome {
        assert!(
            run < self.launched && run + IO_SLOTS as u64 >= self.launched,
            "run {run} has just been launched"
        );
        self.last = run;
        self.step();
        self.drive_until(|replay| replay.is_decided(run));
        if let Some(fault) = self.failure_of(run) {
            return Err(fault);
        }
        self.runtime.wait(self.finished[run as usize % IO_SLOTS])
    }

    /// Drives the network until `over`, and does what is ready in lanes that only move bytes.
    fn drive_until(&mut self, mut over: impl FnMut(&mut Self) -> bool) {
        let Some((network, idle_monitor)) = self.network.clone() else { return };
        let mut helpers = std::mem::take(&mut self.helpers);
        network.drive_with(&mut ReplayWork {
            helpers: &mut helpers,
            idle_monitor: &idle_monitor,
            over: || over(self),
        });
        self.helpers = helpers;
    }

    /// Whether it is known what becomes of `run`.
    fn is_decided(&self, run: u64) -> bool {
        let finished = self.finished[run as usize % IO_SLOTS];
        self.failure_of(run).is_some() || self.runtime.events().outcome(finished).is_some()
    }

    /// Runs all operations once on this thread, one at a time, in the order that `seed` chooses among all that the
    /// program allows, whatever the execution mode. After each, `see` is shown its position in the program and the
    /// slices it has written, in order. A part on a network cannot be stepped.
    pub fn run_seen(&mut self, seed: u64, see: &mut dyn FnMut(usize, &[&[u8]])) -> Outcome {
        assert!(self.memory.messages().is_none(), "a part of a program is replayed");
        self.settle();
        let run = self.launched;
        // SAFETY: no run is in flight.
        unsafe { self.memory.set_arguments(run, &self.arguments) };
        self.memory.not_replayed();
        self.finished[run as usize % IO_SLOTS] = Event::NONE;
        self.launched += 1;
        self.memory.progress.launched(self.launched);
        self.last = run;
        let outcomes = stepped::step(self.graph.flow(), &self.memory, &[run], seed, Some(see));
        outcomes.into_iter().collect()
    }

    /// Lets `observer`, if there is one, run around every operation from now on.
    pub fn observe(&mut self, observer: Option<Observer>) {
        self.settle();
        self.memory.observe(observer);
    }

    /// Lets `observer` be called from now on with every operation whose messages are complete, in place of an earlier one:
    /// the observer of [`Replay::observe`] sees only how they are started.
    pub fn observe_messages(&mut self, observer: MessageObserver) {
        self.settle();
        self.memory.observe_messages(observer);
    }
}

impl<K: Kernels> Replay<K> {
    /// The program.
    pub fn program(&self) -> &Program {
        &self.memory.program
    }

    /// A handle to see how far the lanes are, from any thread, while runs go on.
    pub fn watch(&self) -> Watch {
        Watch::new(&self.memory.program, &self.memory.progress)
    }

    /// The kernels of each device.
    pub fn kernels(&self) -> &[K] {
        &self.memory.kernels
    }

    /// Bytes of each device's arena.
    pub fn arena_bytes(&self) -> impl Iterator<Item = usize> {
        self.memory.program.homes().map(|lane| self.memory.arenas[lane.home as usize].bytes())
    }

    /// The port called `name`.
    pub fn port(&self, name: &str) -> Result<&Port, PortError> {
        Ok(self.names.find(&self.memory.program, name)?.1)
    }

    /// The bytes of the tensor called `name`: of an input as they were written last, of a small output as the run
    /// waited for last left them; of any other one after all runs, borrowed if one lane has all of it, else gathered.
    pub fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, PortError> {
        let (index, port) = self.names.find(&self.memory.program, name)?;
        if let Some(argument) = self.arguments.get(index) {
            return Ok(Cow::Borrowed(argument));
        }
        // SAFETY: the run has been waited for, and no later one with its I/O slot has been launched.
        if let Some(result) = unsafe { self.memory.result(self.last, index) } {
            return Ok(Cow::Borrowed(result));
        }
        self.drain()?;
        Ok(ports::read(port, &self.memory.arenas))
    }

    /// Replaces the bytes of the tensor called `name`: those of an input for the runs that follow, others on every lane
    /// that has some of them, after all runs. Allocates nothing.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), PortError> {
        let (index, port) = self.names.find(&self.memory.program, name)?;
        ports::check(port, bytes)?;
        match self.arguments.get_mut(index) {
            Some(argument) => argument.copy_from_slice(bytes),
            None => {
                self.drain()?;
                // SAFETY: no run is in flight.
                unsafe { self.memory.set_result(self.last, index, bytes) };
                // SAFETY: no run is in flight, and `&mut self` keeps others from being launched.
                ports::write(port, bytes, |slice| unsafe { self.memory.part(slice) });
            }
        }
        Ok(())
    }

    /// Lets `fill` write every tile of the tensor called `name` in place, mirrored ones each, after all runs. Inputs
    /// are refused: every run overwrites their tiles.
    pub fn fill_tiles(
        &mut self,
        name: &str,
        mut fill: impl FnMut(&PortTile, &mut [u8]),
    ) -> Result<(), PortError> {
        let (_, port) = self.names.find(&self.memory.program, name)?;
        if port.is_argument() {
            return Err(PortError::Fed { name: name.to_string() });
        }
        self.drain()?;
        for tile in &port.tiles {
            // SAFETY: no run is in flight, and `&mut self` keeps others from being launched.
            fill(tile, unsafe { self.memory.part(tile.slice) });
        }
        Ok(())
    }

    /// Lets go of the program without waiting for runs in flight, whose messages may never come: their memory stays
    /// with them, forever. For a job that is about to be ended.
    pub fn abandon(self) {
        if !self.is_idle() {
            std::mem::forget(self);
        }
    }

    /// Why `run` cannot succeed, if that is known.
    fn failure_of(&self, run: u64) -> Option<Fault> {
        self.memory.progress.failure.of(run)
    }

    /// Whether no run is in flight.
    fn is_idle(&self) -> bool {
        let ended = |&event: &Event| self.runtime.events().outcome(event).is_some();
        self.finished.iter().all(ended)
    }

    /// Waits until no run is in flight, or none can end any more. The outcome of each is returned to the caller that
    /// waits for it.
    fn settle(&self) {
        self.step();
        if let Some((network, _)) = &self.network {
            network.drive(&|| self.is_idle() || self.failure_of(u64::MAX).is_some());
        }
        if self.failure_of(u64::MAX).is_none() {
            self.finished.iter().for_each(|&finished| _ = self.runtime.wait(finished));
        }
    }

    /// Waits until no run is in flight, so that the host may touch the arenas.
    fn drain(&self) -> Result<(), PortError> {
        self.settle();
        match self.failure_of(u64::MAX).filter(|_| !self.is_idle()) {
            Some(fault) => Err(PortError::Failed { fault: fault.to_string() }),
            None => Ok(()),
        }
    }
}

impl<K: Kernels> Replay<K> {
    /// Steps through the runs in line.
    fn step(&self) {
        let ExecutionMode::Stepped(seed) = self.execution else { return };
        let line = std::mem::take(&mut *lock(&self.line));
        let runs: Vec<u64> = line.iter().map(|&(run, _)| run).collect();
        let Some(&first) = runs.first() else { return };
        let outcomes = stepped::step(self.graph.flow(), &self.memory, &runs, seed.wrapping_add(first), None);
        for ((_, finish), outcome) in line.into_iter().zip(outcomes) {
            self.runtime.events().complete(finish, outcome).expect("a run ends once");
        }
    }
}

impl<K: Kernels> Drop for Replay<K> {
    fn drop(&mut self) {
        let Some(messages) = self.memory.messages() else { return self.settle() };
        // Peers of a thread that panics may never answer.
        if !std::thread::panicking() {
            self.settle();
        }
        if !self.is_idle() {
            return std::mem::forget((Arc::clone(&self.memory), self.runtime.clone()));
        }
        match messages.is_torn() {
            true => std::mem::forget(Arc::clone(&self.memory)),
            false => messages.disconnect(),
        }
    }
}
