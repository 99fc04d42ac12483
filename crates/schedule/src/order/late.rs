//! Holds back tasks that could run long before they are needed.
//!
//! A task that is listed in the backward pass though nothing of that pass goes into it stands there to save memory: it
//! computes an activation again. It may start only when the task it is for lacks nothing else; otherwise an idle device
//! would run it at once, and its result would lie in memory as long as the activation would have. Movements are not held
//! back, so that they go on beside computations.

use phalanx_ir::tasks::{TaskGraph, TaskId, TaskOp};
use phalanx_ir::{Id, IdVec};

use super::first_backward;

/// What tasks wait for if some are held back, too; none if none are.
pub(super) fn hold_back(
    tasks: &TaskGraph,
    predecessors: &IdVec<TaskId, Vec<TaskId>>,
) -> Option<IdVec<TaskId, Vec<TaskId>>> {
    let late = late(tasks, predecessors)?;
    let mut wanted_by: IdVec<TaskId, Option<TaskId>> = tasks.tasks.ids().map(|_| None).collect();
    for (id, before) in predecessors.iter().rev() {
        before.iter().for_each(|&other| wanted_by[other] = Some(id));
    }
    let mut held = predecessors.clone();
    // A chain of late tasks waits for what the last of them waits for, which is known when its turn comes.
    let mut waits: IdVec<TaskId, Vec<TaskId>> = tasks.tasks.ids().map(|_| Vec::new()).collect();
    for id in tasks.tasks.ids().rev().filter(|&id| late[id]) {
        let Some(wanted_by) = wanted_by[id] else { continue };
        waits[id] = match late[wanted_by] {
            true => waits[wanted_by].clone(),
            false => predecessors[wanted_by].iter().copied().filter(|&other| !late[other]).collect(),
        };
        waits[id].retain(|&other| other < id);
        held[id].extend(&waits[id]);
        held[id].sort_unstable();
        held[id].dedup();
    }
    Some(held)
}

/// Which tasks of the backward pass compute something that depends on no gradient; none if none do.
fn late(tasks: &TaskGraph, predecessors: &IdVec<TaskId, Vec<TaskId>>) -> Option<IdVec<TaskId, bool>> {
    let backward = first_backward(tasks)?;
    let mut of_gradients: IdVec<TaskId, bool> = tasks.tasks.ids().map(|_| false).collect();
    let mut late = of_gradients.clone();
    let mut any = false;
    for (id, task) in tasks.tasks.iter().skip(backward.index()) {
        of_gradients[id] = task.op.is_gradient() || predecessors[id].iter().any(|&other| of_gradients[other]);
        let moves = matches!(task.op, TaskOp::Send { .. } | TaskOp::Receive { .. } | TaskOp::Move { .. });
        late[id] = !(of_gradients[id] || moves || task.reads.is_empty());
        any |= late[id];
    }
    any.then_some(late)
}
