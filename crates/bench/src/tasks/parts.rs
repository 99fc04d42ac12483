//! What the parts of our executor cost by themselves: a chain, a launch, a spawned task, an event.

use phalanx_runtime::flow::{Builder, Flow};
use phalanx_runtime::{Events, Launch, Options, Runtime};
use serde::Serialize;

use super::TasksBench;
use super::ours::{TasksError, nonblocking, replay, start, wait_for_all};
use super::timing::{Spread, timed};

/// Tasks in a chain.
const CHAIN: usize = 1024;
/// Runs of a chain launched in a row, so that waking a thread at the end of them does not count.
const ROW: usize = 64;
/// Tasks spawned in one run.
const SPAWNED: usize = 10_000;
/// Events made in one run.
const EVENTS: usize = 10_000;

/// What the parts cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TaskParts {
    /// Nanoseconds per empty task of a chain of 1024 on one processor, each behind a gate of its own, replayed 64 times
    /// in a row.
    pub chain_ns: Spread,
    /// The same with tasks of the chain joined behind common gates.
    pub fused_chain_ns: Spread,
    /// Microseconds from the launch of a graph without tasks until it is known to have ended.
    pub empty_graph_us: Spread,
    /// The same for a graph of one empty task, whose processor may have to be woken.
    pub one_task_graph_us: Spread,
    /// Nanoseconds per empty task, when one thread spawns many that wait for nothing, processor by processor in
    /// turns, and waits for all.
    pub spawn_ns: Spread,
    /// Nanoseconds to create an event, trigger it and see that it has triggered.
    pub event_ns: Spread,
}

impl TasksBench {
    /// What the parts cost.
    pub fn parts(&self) -> Result<TaskParts, TasksError> {
        let runtime = start(self.processors);
        // These runs are short: fewer of them could all fall into one moment of other load.
        let replays = |flow, per_second| time_replays(&runtime, flow, (20 * self.repeat, 1), per_second);
        let in_a_row = |flow| time_replays(&runtime, flow, (self.repeat, ROW), 1e9 / (ROW * CHAIN) as f64);
        Ok(TaskParts {
            chain_ns: in_a_row(chain(CHAIN, false)?)?,
            fused_chain_ns: in_a_row(chain(CHAIN, true)?)?,
            empty_graph_us: replays(chain(0, true)?, 1e6)?,
            one_task_graph_us: replays(chain(1, true)?, 1e6)?,
            spawn_ns: Spread::of(&timed(self.repeat, || spawn_many(&runtime))?, 1e9 / SPAWNED as f64),
            event_ns: Spread::of(&timed(self.repeat, || make_events(runtime.events()))?, 1e9 / EVENTS as f64),
        })
    }
}

/// A chain of `tasks` tasks on one processor.
fn chain(tasks: usize, fuse: bool) -> Result<Flow, TasksError> {
    let mut builder = Builder::new("chain", 1);
    builder.fuse(fuse);
    let ops: Vec<_> = (0..tasks).map(|_| builder.task(nonblocking(0))).collect();
    ops.windows(2).for_each(|pair| builder.edge(pair[0], pair[1]));
    Ok(builder.finish()?)
}

/// Times, so many times, so many runs of `flow` in a row, whose tasks do nothing.
fn time_replays(
    runtime: &Runtime,
    flow: Flow,
    (repeat, row): (usize, usize),
    per_second: f64,
) -> Result<Spread, TasksError> {
    let processors: Vec<_> = runtime.processors().collect();
    let graph = runtime.graph(flow, vec![Box::new(|_| {})], &processors)?;
    let replay = || {
        (1..row).try_for_each(|_| graph.launch(Launch::default()).map(|_| ()))?;
        replay(&graph)
    };
    Ok(Spread::of(&timed(repeat, replay)?, per_second))
}

fn spawn_many(runtime: &Runtime) -> Result<(), TasksError> {
    let processors: Vec<_> = runtime.processors().collect();
    let spawn = |&on| runtime.spawn(on, Options::default(), |_| {}).finish();
    let finishes: Vec<_> = processors.iter().cycle().take(SPAWNED).map(spawn).collect();
    wait_for_all(runtime, &finishes)
}

fn make_events(events: &Events) -> Result<(), TasksError> {
    for _ in 0..EVENTS {
        let user = events.user();
        events.trigger(user).expect("an event that was never shared triggers");
        events.outcome(user.event()).expect("an event that has triggered has an outcome")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fused_chain_has_few_gates() {
        let gates = |fuse| chain(CHAIN, fuse).unwrap().segments().len();
        assert_eq!(gates(false), CHAIN);
        assert!(gates(true) < CHAIN / 10, "{} gates", gates(true));
    }

    #[test]
    fn every_part_is_measured() {
        let TaskParts { chain_ns, fused_chain_ns, empty_graph_us, one_task_graph_us, spawn_ns, event_ns } =
            TasksBench { processors: 2, repeat: 1 }.parts().unwrap();
        for part in [chain_ns, fused_chain_ns, empty_graph_us, one_task_graph_us, spawn_ns, event_ns] {
            assert!(0.0 < part.best && part.best <= part.median && part.median.is_finite(), "{part:?}");
        }
    }
}
