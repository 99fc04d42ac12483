//! Places are of the right size, aligned and inside their arena.

use phalanx_ir::IdVec;
use phalanx_ir::tasks::{BufferId, TaskGraph};

use crate::index::Index;
use crate::{ALIGNMENT, ArenaRange, Schedule, ScheduleError};

impl Schedule {
    pub(super) fn check_places(&self, tasks: &TaskGraph, index: &Index) -> Vec<ScheduleError> {
        let mut touched: IdVec<BufferId, bool> = tasks.buffers.ids().map(|_| false).collect();
        for (_, task) in tasks.tasks.iter() {
            let operands = task.reads.iter().chain(&task.writes);
            operands.for_each(|&buffer| touched[index.root(buffer)] = true);
        }
        let mut errors = Vec::new();
        for (buffer, place) in self.buffers.iter() {
            // What nothing touches may be nowhere, but not at a wrong place.
            if !touched[buffer] && place.is_none() {
                continue;
            }
            let need = tasks.buffers[buffer].ty.bytes();
            let peak = self.lanes[index.home(buffer)].peak;
            if !place.is_some_and(|place| place.bytes >= need as u64 && is_inside(place, peak)) {
                let place =
                    place.map_or("missing".to_string(), |p| format!("{} bytes at {}", p.bytes, p.offset));
                errors.push(ScheduleError::Place { buffer, need, peak, place });
            }
        }
        errors.extend(self.check_workspaces(index));
        errors
    }

    fn check_workspaces(&self, index: &Index) -> impl Iterator<Item = ScheduleError> {
        let placed = self.workspaces.iter().filter_map(|(task, place)| Some((task, (*place)?)));
        let placed =
            placed.map(|(task, place)| (task, place, self.lanes[index.arena(index.lane(task))].peak));
        let wrong = placed.filter(|&(_, place, peak)| !is_inside(place, peak));
        wrong.map(|(task, ArenaRange { offset, bytes }, peak)| ScheduleError::Workspace {
            task,
            offset,
            bytes,
            peak,
        })
    }
}

fn is_inside(place: ArenaRange, peak: u64) -> bool {
    place.offset.is_multiple_of(ALIGNMENT) && place.end() <= peak
}
