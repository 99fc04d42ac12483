//! A task runtime with two execution modes, and the replay of programs on it.
//!
//! The immediate mode ([`Runtime::spawn`]) does one thing after an event and gives an event for it; the crate
//! `phalanx-immediate` has more such things. The replay mode ([`Runtime::graph`]) binds a whole graph once and launches
//! it often, at tens of nanoseconds an operation. [`Replay`] runs a program through either.
//!
//! The runtime knows bytes and the order of operations, nothing of operators: kernels arrive as a [`Kernels`] table, so
//! it is tested with kernels that only count.
//!
//! ```
//! use phalanx_runtime::{Config, Options, Runtime};
//!
//! let runtime = Runtime::new(Config::new(2, 2));
//! let [first, second] = [0, 1].map(|processor| runtime.processors().nth(processor).unwrap());
//! let hello = runtime.spawn(first, Options { name: "hello", ..Options::default() }, |_| print!("hello "));
//! let after = Options { name: "world", after: hello.finish(), ..Options::default() };
//! let world = runtime.spawn(second, after, |_| println!("world"));
//! runtime.wait(world.finish())?;
//! # Ok::<(), phalanx_runtime::Fault>(())
//! ```
//!
//! Unsafe code lives where memory is: `arena` (slices of owned memory), `replay` and `transfer` (arenas during a run),
//! `graph/block` (a run's arguments), and `sync/spin` (locks for a sanitizer).

mod arena;
mod background;
mod device;
mod event;
mod fault;
pub mod flow;
mod graph;
mod ports;
mod processor;
mod profile;
mod replay;
mod runtime;
pub mod sync;
mod table;
mod transfer;

pub use arena::Arena;
pub use device::{Device, Lane, Token};
pub use event::{AlreadyTriggered, Completed, CompletionQueue, Event, Events, Full, Subscription, UserEvent};
pub use fault::{Cause, Fault, Outcome};
pub use graph::{Completion, Effect, Function, Graph, GraphError, Launch, LaunchError, Run, Stepper, Visit};
pub use ports::PortError;
pub use processor::{Context, Group, GroupError, Options, Status, Task};
pub use profile::{Clock, Profile, Report, Span};
pub use replay::{
    Args, ExecutionMode, Failure, Kernels, LaneState, MessageObserver, Observer, Replay, Watch,
};
pub use runtime::{Config, ProcessorId, Runtime};

/// What a crate that adds operations to this runtime is made of, besides [`sync`]. Users of the runtime need none of
/// it.
pub mod parts {
    pub use crate::processor::{panic_message, without_promise};
    pub use crate::profile::Measured;
    pub use crate::table::Table;
}
