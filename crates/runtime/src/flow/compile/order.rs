//! An order in which every operation comes after its predecessors, or a circle that rules it out.

use std::collections::VecDeque;

use super::NONE;
use crate::flow::Lists;

/// All operations, predecessors first. Fails with the operations of a circle, the first one again at the end.
pub(super) fn topological(successors: &Lists) -> Result<Vec<u32>, Vec<u32>> {
    let n = successors.starts.len() - 1;
    let mut owed = vec![0_u32; n];
    successors.items().iter().for_each(|&to| owed[to as usize] += 1);
    let mut order: Vec<u32> = (0..n as u32).filter(|&op| owed[op as usize] == 0).collect();
    order.reserve_exact(n - order.len());
    let mut done = 0;
    while let Some(&op) = order.get(done) {
        done += 1;
        for &to in successors.of(op) {
            owed[to as usize] -= 1;
            if owed[to as usize] == 0 {
                order.push(to);
            }
        }
    }
    if done == n { Ok(order) } else { Err(circle(successors, &owed)) }
}

/// A shortest circle through one operation that is on a circle. Operations that are owed something are stuck.
fn circle(successors: &Lists, owed: &[u32]) -> Vec<u32> {
    let start = on_a_circle(successors, owed);
    let mut came_from = vec![NONE; owed.len()];
    let mut queue = VecDeque::from([start]);
    while came_from[start as usize] == NONE {
        let op = queue.pop_front().expect("an operation on a circle is reached from itself");
        for &to in successors.of(op) {
            if came_from[to as usize] == NONE {
                came_from[to as usize] = op;
                queue.push_back(to);
            }
        }
    }
    let mut circle = vec![start];
    let mut op = came_from[start as usize];
    while op != start {
        circle.push(op);
        op = came_from[op as usize];
    }
    circle.push(start);
    circle.reverse();
    circle
}

/// Walks from stuck operation to stuck predecessor, of which there always is one, until an operation comes twice.
fn on_a_circle(successors: &Lists, owed: &[u32]) -> u32 {
    let stuck = |op: &u32| owed[*op as usize] > 0;
    let mut stuck_before = vec![NONE; owed.len()];
    for from in (0..owed.len() as u32).filter(stuck) {
        successors.of(from).iter().for_each(|&to| stuck_before[to as usize] = from);
    }
    let mut seen = vec![false; owed.len()];
    let mut op =
        (0..owed.len() as u32).find(stuck).expect("an order that is not complete leaves an operation stuck");
    while !seen[op as usize] {
        seen[op as usize] = true;
        op = stuck_before[op as usize];
    }
    op
}
