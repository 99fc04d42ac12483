//! What a training step leaves in the states of the model.

use std::sync::Arc;

use phalanx_ir::graph::Update;
use phalanx_ir::sharded::{Operand, ShardedBuffer, ShardedTask};
use phalanx_ir::tasks::{Role, SET_STATE, TaskOp};
use phalanx_ir::text::Attrs;

use super::Expander;

impl Expander<'_> {
    /// Sets every state that has an update, on its own tiles. All other tasks of the list come before.
    pub(super) fn set_states(&mut self) {
        let microbatch = self.sharded.tasks.iter().map(|(_, task)| task.microbatch).max().unwrap_or(0);
        for &Update { state, new } in self.graph.updates() {
            let [target, mut source] = [state, new].map(|value| self.buf(value));
            let ShardedBuffer { name, ty, groups, .. } = self.sharded.buffers[target].clone();
            let found = &self.sharded.buffers[source];
            if found.ty != ty || found.groups != groups {
                let laid_out = format!("{name}.new");
                let to = self.push_buffer(&laid_out, ty.clone(), Arc::clone(&groups), Role::Temp, None);
                self.sharded.push_move(source, to, &name, microbatch);
                source = to;
            }
            let (extents, map) = ty.grid();
            let own = |buffer| vec![Operand { buffer, map: map.clone() }];
            let (op, reads, writes) = (TaskOp::call(SET_STATE, Attrs::new()), own(source), own(target));
            let layer = name;
            self.sharded.tasks.push(ShardedTask { op, reads, writes, extents, groups, layer, microbatch });
        }
    }
}
