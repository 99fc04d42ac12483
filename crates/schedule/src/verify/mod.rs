//! What holds for every schedule of a task graph, checked from lanes, waits and places alone:
//!
//! 1. there is a lane for every device, ascending, and one for the transfers of every device that receives, or none of
//!    these; every task is once in the lane where it belongs;
//! 2. waits are for tasks of other lanes, and lane orders and waits together have no cycle;
//! 3. every dependency of the task graph follows from them;
//! 4. every touched buffer has a place of its size, aligned, inside its device's arena; workspaces are aligned inside it too;
//! 5. of two tasks that touch the same bytes of an arena, one of them writing, one comes before the other;
//! 6. what a task reads are bytes last written for the buffer it reads, and what the host keeps is there at the end.
//!
//! One walk over all tasks in an order found here keeps for every lane what it knows of the others, and for every byte
//! its last writer and the readers since, as race detectors do. Its time is nearly linear in tasks, waits and accesses.

mod bytes;
mod error;
mod places;
mod walk;

pub use error::ScheduleError;

use phalanx_ir::Id;
use phalanx_ir::tasks::TaskGraph;

use crate::Schedule;
use crate::clocks::Spot;
use crate::index::Index;

impl Schedule {
    /// Checks every invariant of this file's head; all broken ones are reported, unless one makes others meaningless.
    pub fn verify(&self, tasks: &TaskGraph) -> Result<(), Vec<ScheduleError>> {
        let index = Index::new(tasks, self.overlaps());
        let mut errors = self.check_lanes(tasks, &index);
        if errors.is_empty() {
            errors = self.check_waits(tasks, &index);
        }
        if errors.is_empty() {
            errors = self.check_places(tasks, &index);
            let sound = errors.is_empty();
            errors.extend(walk::walk(tasks, &index, self, sound));
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    fn check_lanes(&self, tasks: &TaskGraph, index: &Index) -> Vec<ScheduleError> {
        let lengths = [self.waits.len(), self.workspaces.len(), self.buffers.len()];
        let needed = [tasks.tasks.len(), tasks.tasks.len(), tasks.buffers.len()];
        if lengths != needed {
            return vec![ScheduleError::Tables { lengths, needed }];
        }
        let lanes = || self.lanes.iter().map(|lane| (lane.device, lane.kind));
        if !lanes().eq(index.lanes()) {
            let lanes = lanes().map(|(device, _)| device).collect();
            return vec![ScheduleError::Lanes {
                lanes,
                devices: index.lanes().map(|(device, _)| device).collect(),
            }];
        }
        let mut times = vec![0; tasks.tasks.len()];
        let mut errors = Vec::new();
        for (number, lane) in self.lanes.iter().enumerate() {
            for &task in &lane.order {
                let Some(count) = times.get_mut(task.index()) else {
                    return vec![ScheduleError::Count { task, times: 0 }];
                };
                *count += 1;
                let device = tasks.tasks[task].device;
                if index.lane(task) != number {
                    errors.push(ScheduleError::Lane { task, device, lane: lane.device });
                }
            }
        }
        let miscounted = tasks.tasks.ids().filter(|task| times[task.index()] != 1);
        errors.extend(miscounted.map(|task| ScheduleError::Count { task, times: times[task.index()] }));
        errors
    }

    fn check_waits(&self, tasks: &TaskGraph, index: &Index) -> Vec<ScheduleError> {
        let mut errors = Vec::new();
        for (task, waits) in self.waits.iter() {
            let is_elsewhere = |other| index.lane(other) != index.lane(task);
            let wrong =
                waits.iter().filter(|other| other.index() >= tasks.tasks.len() || !is_elsewhere(**other));
            errors.extend(wrong.map(|&on| ScheduleError::Wait { task, on }));
        }
        errors
    }

    /// Where every task is among the lanes.
    fn spots(&self) -> Vec<Spot> {
        let mut spots = vec![Spot { lane: 0, position: 0 }; self.waits.len()];
        for (lane, order) in self.lanes.iter().map(|lane| &lane.order).enumerate() {
            for (position, task) in order.iter().enumerate() {
                spots[task.index()] = Spot { lane: lane as u32, position: position as u32 };
            }
        }
        spots
    }
}
