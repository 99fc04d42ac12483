//! Makes the last linear layer, its cross entropy and the gradient of that one task, so that no task writes the logits.
//!
//! Needs: a verified sharded graph with the gradient of its loss.
//! Gives: the same values, with one task for every cross entropy whose logits a linear layer computes for it and its
//! gradient alone, on the same grid, from few enough features, unless the gradient of its losses depends on the losses themselves. What that
//! gradient is computed from comes before the task. The bits stay: the task's kernel is made of the other three.

use phalanx_ir::Activation;
use phalanx_ir::parallel::place;
use phalanx_ir::sharded::{Operand, ShardedGraph, ShardedTask};
use phalanx_ir::tasks::{BufferId, Role, TaskId, TaskOp};

use crate::rewrite::{Touches, rebuild};
use crate::{LowerError, LowerOptions};

pub fn fuse_loss(mut sharded: ShardedGraph, options: &LowerOptions) -> Result<ShardedGraph, LowerError> {
    while let Some(head) = options.fuse.then(|| first_head(&sharded)).flatten() {
        sharded = rebuild(&sharded, head.fused(&sharded));
    }
    Ok(sharded)
}

/// The most features of the layer. Its weight is packed again for every tile of rows, which beyond these costs more than
/// writing and reading logits does.
const WIDEST: usize = 512;

/// The kernel that computes losses.
const LOSSES: &str = "cross_entropy";

/// Three tasks that can become one.
struct Head {
    product: TaskId,
    losses: TaskId,
    gradient: TaskId,
    /// What gives the gradient of the loss and stands behind the losses, in order.
    before: Vec<TaskId>,
}

fn first_head(sharded: &ShardedGraph) -> Option<Head> {
    let touches = Touches::of(sharded);
    let is_loss = |id: &TaskId| sharded.tasks[*id].op.attrs_of(LOSSES).is_some();
    sharded.tasks.ids().filter(is_loss).find_map(|losses| head_of(sharded, &touches, losses))
}

/// The head of which `losses` is the cross entropy.
fn head_of(sharded: &ShardedGraph, touches: &Touches, losses: TaskId) -> Option<Head> {
    let task = &sharded.tasks[losses];
    let [logits, lse] = [&task.reads[0], &task.writes[1]].map(|operand| sharded.root(operand.buffer));
    let [product] = touches.writers[logits][..] else { return None };
    let [first, gradient] = touches.readers[logits][..] else { return None };
    let hidden = [logits, lse].iter().all(|&buffer| is_hidden(sharded, buffer));
    if first != losses || touches.readers[lse] != [gradient] || !hidden {
        return None;
    }
    let steady = |operand: &Operand| {
        touches.writers[sharded.root(operand.buffer)].iter().all(|&writer| writer < product)
    };
    let x = &sharded.buffers[sharded.tasks[product].reads[0].buffer].ty;
    let is_worth_it = x.tile().shape.last() <= WIDEST;
    if !is_worth_it
        || !sharded.tasks[product].reads.iter().all(steady)
        || !fit(sharded, [product, losses, gradient])
    {
        return None;
    }
    let before = causes(sharded, touches, sharded.tasks[gradient].reads[3].buffer, losses)?;
    Some(Head { product, losses, gradient, before })
}

/// Whether only tasks see the bytes.
fn is_hidden(sharded: &ShardedGraph, root: BufferId) -> bool {
    let outputs = sharded.outputs.iter().map(|&(_, output)| sharded.root(output));
    sharded.buffers[root].role == Role::Temp && !outputs.into_iter().any(|output| output == root)
}

/// Whether the three tasks do what the one does, for the same tiles at the same places.
fn fit(sharded: &ShardedGraph, head: [TaskId; 3]) -> bool {
    let [product, losses, gradient] = head.map(|id| &sharded.tasks[id]);
    let logits = &losses.reads[0];
    let is_plain = matches!(
        product.op,
        TaskOp::Linear { activation: Activation::None, residual: false, save_pre: false, .. }
    );
    let same_rows = match (losses.op.attrs_of(LOSSES), gradient.op.attrs_of("cross_entropy_grad")) {
        (Some(losses), Some(gradient)) => {
            let [ignore, back] = [losses, gradient].map(|attrs| attrs.get::<i64>("ignore"));
            ignore == back && !gradient.is("accumulate")
        }
        _ => false,
    };
    let same_operands =
        same_rows && gradient.reads[..3] == [logits, &losses.reads[1], &losses.writes[1]].map(Operand::clone);
    is_plain
        && same_operands
        && same_grid(product, losses)
        && same_grid(gradient, losses)
        && same_tiles(sharded, losses, [&product.writes[0], logits])
}

fn same_grid(a: &ShardedTask, b: &ShardedTask) -> bool {
    a.extents == b.extents && a.groups == b.groups && a.microbatch == b.microbatch
}

/// Whether at every place of the grid both operands, which may show the same bytes in two shapes, name the same rows.
fn same_tiles(sharded: &ShardedGraph, task: &ShardedTask, operands: [&Operand; 2]) -> bool {
    let types = operands.map(|operand| &sharded.buffers[operand.buffer].ty);
    let tile = |index: usize, side: usize| {
        types[side].index(&operands[side].map.coord(&task.extents, &place(&task.extents, index)))
    };
    types[0].tile().shape.last() == types[1].tile().shape.last()
        && (0..task.extents.iter().product()).all(|index| tile(index, 0) == tile(index, 1))
}

/// The tasks behind `losses` that `buffer` follows from, in order; `None` if it follows from losses, those of another
/// microbatch included.
fn causes(
    sharded: &ShardedGraph,
    touches: &Touches,
    buffer: BufferId,
    losses: TaskId,
) -> Option<Vec<TaskId>> {
    let (mut causes, mut open) = (Vec::new(), vec![buffer]);
    while let Some(buffer) = open.pop() {
        let root = sharded.root(buffer);
        let writer = match touches.writers[root][..] {
            // What nothing writes yet is fed by the host.
            [] => continue,
            [writer] => writer,
            // Which of several values is read depends on the order.
            _ => return None,
        };
        let task = &sharded.tasks[writer];
        if [LOSSES, "class_join", "smooth_cross_entropy", "smooth_join"].contains(&task.op.name()) {
            return None;
        }
        if writer > losses && !causes.contains(&writer) {
            causes.push(writer);
            open.extend(task.read_buffers());
        }
    }
    causes.sort_unstable();
    Some(causes)
}

impl Head {
    /// All tasks of `sharded`, with one instead of the three.
    fn fused(&self, sharded: &ShardedGraph) -> Vec<ShardedTask> {
        let gone = |id: &TaskId| [self.product, self.gradient].contains(id) || self.before.contains(id);
        let mut tasks = Vec::with_capacity(sharded.tasks.len());
        for id in sharded.tasks.ids().filter(|id| !gone(id)) {
            let task = sharded.tasks[id].clone();
            if id == self.losses {
                // Work shared by all microbatches is due as soon as the first one needs it.
                let due = |&id: &TaskId| sharded.tasks[id].microbatch.min(task.microbatch);
                let before = |id: &TaskId| ShardedTask { microbatch: due(id), ..sharded.tasks[*id].clone() };
                tasks.extend(self.before.iter().map(before));
                tasks.push(self.task(sharded));
            } else {
                tasks.push(task);
            }
        }
        tasks
    }

    fn task(&self, sharded: &ShardedGraph) -> ShardedTask {
        let [product, losses, gradient] =
            [self.product, self.losses, self.gradient].map(|id| &sharded.tasks[id]);
        let &TaskOp::Linear { transposed, bias, leaves, precision, .. } = &product.op else {
            unreachable!("a head begins with a linear layer")
        };
        let of_losses = losses.op.to_text().1;
        let known = "a head has the losses of a cross entropy";
        let (class_leaves, ignore) =
            (of_losses.get("leaves").expect(known), of_losses.get("ignore").expect(known));
        let op = TaskOp::LinearCrossEntropy { transposed, bias, leaves, class_leaves, ignore, precision };
        let reads = [&product.reads[..], &[losses.reads[1].clone(), gradient.reads[3].clone()]].concat();
        let writes = vec![gradient.writes[0].clone(), losses.writes[0].clone()];
        ShardedTask { op, reads, writes, ..losses.clone() }
    }
}
