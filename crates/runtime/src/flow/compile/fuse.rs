//! Joins operations to chains that need one gate.
//!
//! An operation follows another in its chain if that is its only predecessor, a non-blocking one of the same processor,
//! and nothing from outside the run's edges holds it back. Then it is ready exactly when the other returns, and only
//! one can follow.

use super::NONE;
use crate::flow::builder::Builder;
use crate::flow::{Lists, TaskKind};

/// The most operations of a chain, so that a processor can look at other work now and then.
const LONGEST: u32 = 64;

/// Every operation on one chain.
pub(super) struct Chains {
    /// The first operation of each, in a topological order.
    pub heads: Vec<u32>,
    /// By operation: the next of its chain, or none.
    pub next: Vec<u32>,
}

/// Joins what can be joined.
pub(super) fn join(builder: &Builder, order: &[u32], predecessors: &Lists) -> Chains {
    let n = builder.ops.len();
    let held_back = held_back(builder);
    let mut chains = Chains { heads: Vec::new(), next: vec![NONE; n] };
    // By operation: how many of its chain come before it.
    let mut position = vec![0; n];
    for &op in order {
        let leader = match *predecessors.of(op) {
            [leader] if builder.fuse && !held_back[op as usize] => leader,
            _ => {
                chains.heads.push(op);
                continue;
            }
        };
        let free = chains.next[leader as usize] == NONE && position[leader as usize] + 1 < LONGEST;
        if free && may_follow(builder, leader, op) {
            chains.next[leader as usize] = op;
            position[op as usize] = position[leader as usize] + 1;
        } else {
            chains.heads.push(op);
        }
    }
    chains
}

/// By operation: whether it waits for an input or for the run before.
fn held_back(builder: &Builder) -> Vec<bool> {
    let gated = builder.gates.iter().map(|&(_, op)| op);
    let mut held_back = vec![false; builder.ops.len()];
    gated.chain(builder.carried.iter().map(|&(_, to)| to)).for_each(|op| held_back[op.0 as usize] = true);
    held_back
}

fn may_follow(builder: &Builder, leader: u32, op: u32) -> bool {
    let (leader, op) = (&builder.ops[leader as usize], &builder.ops[op as usize]);
    leader.kind == TaskKind::NonBlocking && leader.processor.is_some() && leader.processor == op.processor
}
