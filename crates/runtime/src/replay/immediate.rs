//! A run of a program in the immediate mode: one task for each operation, one event for each task.
//!
//! It is the reference that a replay must equal, and a way to look at one operation at a time.

use std::sync::Arc;

use crate::event::Event;
use crate::processor::Options;
use crate::runtime::{ProcessorId, Runtime};

use super::memory::{Kernels, Memory};

/// Spawns all operations of `run`, each after its lane's one before and after what it waits for; the run's finish
/// event. Only one run may be in flight.
pub(super) fn spawn<K>(runtime: &Runtime, memory: &Arc<Memory<K>>, run: u64) -> Event
where
    K: Kernels + Send + Sync + 'static,
{
    let (program, events) = (&memory.program, runtime.events());
    let mut spawned: Vec<Vec<Event>> = program.lanes().iter().map(|_| Vec::new()).collect();
    let mut progress = true;
    while std::mem::take(&mut progress) {
        for (number, lane) in program.lanes().iter().enumerate() {
            let first = lane.operations.start as usize;
            while let Some(operation) = program.operations_of(lane).get(spawned[number].len()) {
                let waits = program.waits(operation).iter();
                let before: Option<Vec<Event>> = waits
                    .map(|wait| spawned[wait.lane as usize].get(wait.position as usize).copied())
                    .chain([Some(spawned[number].last().copied().unwrap_or(Event::NONE))])
                    .collect();
                // Another lane has to be spawned further first.
                let Some(before) = before else { break };
                let (name, index) = (program.describe(operation), first + spawned[number].len());
                let options = Options { name: &name, after: events.merge(&before), ..Options::default() };
                let memory = Arc::clone(memory);
                let task = runtime.spawn(ProcessorId(number as u32), options, move |_| {
                    // SAFETY: the task comes after its predecessors in the run, and no other run is in flight.
                    unsafe { memory.execute(index, run) };
                });
                spawned[number].push(task.finish());
                progress = true;
            }
        }
    }
    let last: Vec<Event> = spawned.iter().filter_map(|lane| lane.last().copied()).collect();
    // The first poison would end a plain merge, but a run ends when all of its lanes have.
    let (all, end) = (events.merge_ignoring_poison(&last), events.create());
    let shared = Arc::clone(events);
    events.subscribe(all, move |_| {
        let outcome = last.iter().try_for_each(|&event| shared.outcome(event).unwrap_or(Ok(())));
        shared.complete(end, outcome).expect("a run ends once");
    });
    end
}
