//! Drops edges that a path of two others implies.
//!
//! The edge `u -> v` goes if there are `u -> w` and `w -> v`. Each of the two may go in turn, implied by steps nearer
//! together in the order; so what is left reaches what all edges reach. An edge that waits for the effects of `u` goes
//! only if `u -> w` does so too: a token holds back the device work of `w`, not `w`, and does not even that if `w` is
//! skipped.

use super::{Class, NONE};
use crate::flow::Lists;
use crate::flow::builder::Op;

/// The most predecessors of predecessors that are looked at for one operation. This keeps the pass linear; a flow that
/// declares every pair of a long chain keeps some edges too many.
const LOOKED_AT: usize = 64;

/// What is left.
pub(super) struct Reduced {
    /// By operation: its predecessors.
    pub predecessors: Lists,
    /// How many predecessors of predecessors were looked at.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests count the work"))]
    pub looked_at: usize,
}

/// Drops what is implied from lists of predecessors, each in a topological order.
pub(super) fn reduce(ops: &[Op], predecessors: &Lists) -> Reduced {
    let mut starts = Vec::with_capacity(ops.len() + 1);
    let mut items = Vec::with_capacity(predecessors.items().len());
    starts.push(0);
    // By operation: the one whose predecessor it is, unless that edge is dropped.
    let mut kept_for = vec![NONE; ops.len()];
    let mut looked_at = 0;
    for op in 0..ops.len() as u32 {
        let before = predecessors.of(op);
        if before.len() > 1 {
            before.iter().for_each(|&from| kept_for[from as usize] = op);
            looked_at += drop_implied(ops, predecessors, op, &mut kept_for);
            items.extend(before.iter().filter(|&&from| kept_for[from as usize] == op));
        } else {
            items.extend_from_slice(before);
        }
        starts.push(items.len() as u32);
    }
    Reduced { predecessors: Lists { starts, items }, looked_at }
}

/// Strikes predecessors of `op` out of `kept_for`; how many places were looked at. The latest predecessors come first,
/// since they know most of the others.
fn drop_implied(ops: &[Op], predecessors: &Lists, op: u32, kept_for: &mut [u32]) -> usize {
    let mut left = LOOKED_AT;
    for &middle in predecessors.of(op).iter().rev() {
        let earlier = predecessors.of(middle);
        for &from in earlier.iter().rev().take(left) {
            if kept_for[from as usize] == op && implied(ops, [from, middle, op]) {
                kept_for[from as usize] = NONE;
            }
        }
        left = left.saturating_sub(earlier.len());
        if left == 0 {
            break;
        }
    }
    LOOKED_AT - left
}

/// Whether the edge between the outer two is implied by the edges to and from the middle one.
fn implied(ops: &[Op], path: [u32; 3]) -> bool {
    let [from, middle, to] = path.map(|op| &ops[op as usize]);
    Class::of(from, to) != Class::Late || Class::of(from, middle) == Class::Late
}
