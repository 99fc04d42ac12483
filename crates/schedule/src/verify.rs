//! What holds for every schedule of a task graph:
//!
//! 1. the order names every task once and respects every dependency;
//! 2. every touched buffer has a place of its size, aligned, inside the arena; workspaces are aligned inside it too;
//! 3. nothing that is alive at the same time shares a byte.

use phalanx_ir::Id;
use phalanx_ir::tasks::{BufferId, TaskGraph, TaskId};

use crate::arena::{Owner, collisions};
use crate::{ALIGNMENT, Place, Schedule};

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// A task is missing or named twice.
    #[error("{task} runs {times} times; every task runs once")]
    Count {
        /// The task.
        task: TaskId,
        /// How often the order names it.
        times: usize,
    },
    /// A task runs before one it depends on.
    #[error("{task} runs before {needs}, which it depends on")]
    Order {
        /// The early task.
        task: TaskId,
        /// The late one.
        needs: TaskId,
    },
    /// A buffer has no place or a wrong one.
    #[error("{buffer} needs {need} aligned bytes inside the arena of {peak}; its place is {place}")]
    Place {
        /// The buffer.
        buffer: BufferId,
        /// Its size.
        need: usize,
        /// The arena.
        peak: u64,
        /// Where the schedule puts it.
        place: String,
    },
    /// A workspace is outside the arena or unaligned.
    #[error("the workspace of {task} is {bytes} bytes at {offset}: unaligned or outside the arena of {peak}")]
    Workspace {
        /// The task.
        task: TaskId,
        /// Where the workspace starts.
        offset: u64,
        /// Its size.
        bytes: u64,
        /// The arena.
        peak: u64,
    },
    /// Two live things share bytes.
    #[error("{a} and {b} are alive together and share bytes")]
    Overlap {
        /// One of them.
        a: String,
        /// The other.
        b: String,
    },
}

impl Schedule {
    /// Checks every invariant of this file's head; all broken ones are reported.
    pub fn verify(&self, tasks: &TaskGraph) -> Result<(), Vec<ScheduleError>> {
        let mut errors = self.check_order(tasks);
        if errors.is_empty() {
            errors = self.check_places(tasks);
            errors.extend(self.check_workspaces());
        }
        if errors.is_empty() {
            let named = |owner| match owner {
                Owner::Buffer(buffer) => buffer.to_string(),
                Owner::Workspace(task) => format!("the workspace of {task}"),
            };
            let pairs = collisions(tasks, self).into_iter();
            errors = pairs.map(|(a, b)| ScheduleError::Overlap { a: named(a), b: named(b) }).collect();
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    fn check_order(&self, tasks: &TaskGraph) -> Vec<ScheduleError> {
        let mut times = vec![0; tasks.tasks.len()];
        for task in &self.order {
            match times.get_mut(task.index()) {
                Some(count) => *count += 1,
                None => return vec![ScheduleError::Count { task: *task, times: 0 }],
            }
        }
        let miscounted = tasks.tasks.ids().filter(|task| times[task.index()] != 1);
        let errors: Vec<_> =
            miscounted.map(|task| ScheduleError::Count { task, times: times[task.index()] }).collect();
        if !errors.is_empty() {
            return errors;
        }
        let positions = Schedule::positions(&self.order, tasks.tasks.len());
        let mut errors = Vec::new();
        for (task, before) in tasks.predecessors().iter() {
            let late = before.iter().filter(|other| positions[other.index()] > positions[task.index()]);
            errors.extend(late.map(|&needs| ScheduleError::Order { task, needs }));
        }
        errors
    }

    fn check_workspaces(&self) -> impl Iterator<Item = ScheduleError> {
        let placed = self.workspaces.iter().filter_map(|(task, place)| Some((task, (*place)?)));
        let wrong =
            placed.filter(|(_, place)| !place.offset.is_multiple_of(ALIGNMENT) || place.end() > self.peak);
        wrong.map(|(task, Place { offset, bytes })| ScheduleError::Workspace {
            task,
            offset,
            bytes,
            peak: self.peak,
        })
    }

    fn check_places(&self, tasks: &TaskGraph) -> Vec<ScheduleError> {
        let touched = tasks.tasks.iter().flat_map(|(_, task)| task.reads.iter().chain(&task.writes));
        let mut roots: Vec<_> = touched.map(|&buffer| tasks.root(buffer)).collect();
        roots.sort_unstable();
        roots.dedup();
        let mut errors = Vec::new();
        for buffer in roots {
            let need = tasks.buffers[buffer].ty.bytes();
            let place = self.buffers.get(buffer).copied().flatten();
            let sound = place.is_some_and(|place| {
                place.bytes >= need as u64
                    && place.offset.is_multiple_of(ALIGNMENT)
                    && place.end() <= self.peak
            });
            if !sound {
                let place =
                    place.map_or("missing".to_string(), |p| format!("{} bytes at {}", p.bytes, p.offset));
                errors.push(ScheduleError::Place { buffer, need, peak: self.peak, place });
            }
        }
        errors
    }
}
