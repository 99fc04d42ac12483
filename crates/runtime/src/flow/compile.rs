//! From a builder to a flow: check, order, drop what is implied, join chains, lay out.
//!
//! Every stage walks operations and edges a fixed number of times and none recurses, so the work is linear in their
//! number. Between the stages operations are bare numbers in the order of definition.

mod check;
mod fuse;
mod layout;
mod lines;
mod lists;
mod order;
mod reduce;

#[cfg(test)]
mod tests;

use super::builder::{Builder, Op};
use super::{Flow, FlowError, Lists, OpId, TaskKind};

/// No operation. A flow has fewer operations than this number.
const NONE: u32 = u32::MAX;

/// Checks and freezes a flow.
pub(super) fn compile(builder: Builder) -> Result<Flow, Vec<FlowError>> {
    check::sizes(&builder, u64::from(u32::MAX))?;
    let mut errors = check::contents(&builder);
    let successors = declared(&builder);
    let order = match order::topological(&successors) {
        Ok(order) => order,
        Err(circle) => {
            let ops = circle.iter().map(|&op| builder.describe(OpId(op))).collect();
            errors.push(FlowError::Cycle { ops });
            return Err(errors);
        }
    };
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut predecessors = successors.transposed(&order, builder.ops.len());
    if builder.reduce {
        let nearest = reduce::reduce(&builder.ops, &predecessors).predecessors;
        predecessors = lines::reduce(&builder.ops, &predecessors, nearest);
    }
    let chains = fuse::join(&builder, &order, &predecessors);
    Ok(layout::lay_out(builder, &predecessors, &chains))
}

/// By operation: its successors as declared, each once.
fn declared(builder: &Builder) -> Lists {
    let edges: Vec<_> = builder.edges.iter().map(|&(from, to)| (from.0, to.0)).collect();
    Lists::group(builder.ops.len(), &edges).without_repeats(builder.ops.len())
}

/// How an edge is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// When the body has returned, and then the effects are complete.
    Early,
    /// When the body has returned; the successor's device work waits for the token.
    Token,
    /// When the effects are complete.
    Late,
}

impl Class {
    fn of(from: &Op, to: &Op) -> Class {
        match from.kind {
            TaskKind::Blocking | TaskKind::NonBlocking => Class::Early,
            TaskKind::StreamOrdered
                if to.kind == TaskKind::StreamOrdered && from.processor == to.processor =>
            {
                Class::Token
            }
            TaskKind::Async | TaskKind::StreamOrdered | TaskKind::Remote => Class::Late,
        }
    }
}
