//! Makes one task of element-wise tasks that hand tensors to each other, and of gradients of activations and the products
//! before them.
//!
//! Needs: a verified sharded graph.
//! Gives: the same values in the same bits, with fewer bytes written and read:
//! * `dx · act'(x)` is computed by the linear task that computes dx, if no other task reads dx;
//! * an activation of a linear task that only element-wise tasks read is computed by those, from the value before it;
//! * element-wise tasks over tensors cut alike, dropout among them, become a chain, if that spares bytes: tensors that only
//!   the chain reads are never written, and operands of several of its steps are read once.
//!
//! Nothing is computed across a movement, nor by a task of another pass, microbatch or cut. No tensor lives longer unless another
//! one is spared for it.

mod activations;
mod chains;
mod groups;
mod links;
mod slopes;

use phalanx_ir::Binary;
use phalanx_ir::sharded::ShardedGraph;
use phalanx_ir::tasks::TaskOp;

use crate::{LowerError, LowerOptions};

pub fn fuse_elementwise(sharded: ShardedGraph, options: &LowerOptions) -> Result<ShardedGraph, LowerError> {
    if !options.fuse {
        return Ok(sharded);
    }
    let mut sharded = slopes::fuse(&sharded);
    name_what_is_read(&mut sharded);
    Ok(chains::fuse(&activations::release(&sharded)))
}

/// Lets the gradients of products and quotients that do not look at one of their operands name the other one twice.
fn name_what_is_read(sharded: &mut ShardedGraph) {
    for (_, task) in sharded.tasks.iter_mut() {
        let side = match task.op {
            TaskOp::BinaryGrad { kind: Binary::Mul, side } => side,
            TaskOp::BinaryGrad { kind: Binary::Div, side: 0 } => 0,
            _ => continue,
        };
        let [unread, read] = [side, 1 - side].map(|slot| &task.reads[slot]);
        if sharded.buffers[unread.buffer].ty == sharded.buffers[read.buffer].ty {
            task.reads[side] = read.clone();
        }
    }
}
