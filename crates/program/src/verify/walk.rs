//! Operations in an order in which they could run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::{Program, Wait};

/// Lets the lanes run as far as their waits allow and shows `visit` every operation that runs, after all it waits for;
/// how many of each lane did.
pub(crate) fn walk(program: &Program, mut visit: impl FnMut(Wait)) -> Vec<u32> {
    let mut done = vec![0; program.lanes.len()];
    // By lane: how many of its operations must be done, and the lane that waits for that, nearest first.
    let mut waiting: Vec<BinaryHeap<Reverse<(u32, usize)>>> = vec![BinaryHeap::new(); done.len()];
    let mut ready: Vec<usize> = (0..done.len()).collect();
    while let Some(lane) = ready.pop() {
        let operations = program.operations_of(&program.lanes[lane]);
        while let Some(operation) = operations.get(done[lane] as usize) {
            let open = |wait: &&Wait| done[wait.lane as usize] <= wait.position;
            if let Some(wait) = program.waits(operation).iter().find(open) {
                waiting[wait.lane as usize].push(Reverse((wait.position + 1, lane)));
                break;
            }
            visit(Wait { lane: lane as u32, position: done[lane] });
            done[lane] += 1;
        }
        while waiting[lane].peek().is_some_and(|Reverse((need, _))| *need <= done[lane]) {
            ready.extend(waiting[lane].pop().map(|Reverse((_, waiter))| waiter));
        }
    }
    done
}
