//! Cuts every movement into what its devices do.
//!
//! Needs: a task graph with movements.
//! Gives: for each movement a `send` on every device that holds a tile which another device needs, then a `receive` on
//! every device that gets one; the number in both shows that they belong together.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_ir::parallel::DeviceId;
use phalanx_ir::tasks::{BufferId, Task, TaskGraph, TaskOp};

use crate::LowerOptions;

pub fn split_movements(mut tasks: TaskGraph, _: &LowerOptions) -> TaskGraph {
    let list = std::mem::take(&mut tasks.tasks);
    let mut movements = 0;
    for task in list {
        if let TaskOp::Move { .. } = task.op {
            split(&mut tasks, task, movements);
            movements += 1;
        } else {
            tasks.tasks.push(task);
        }
    }
    tasks
}

fn split(graph: &mut TaskGraph, task: Task, movement: usize) {
    let mut received: BTreeMap<DeviceId, (BTreeSet<BufferId>, Vec<BufferId>)> = BTreeMap::new();
    let tiles = graph.sources(&task.reads);
    for &write in &task.writes {
        let pieces = tiles.pieces(write).expect("a verified movement covers what it writes");
        let (reads, writes) = received.entry(graph.buffers[write].device).or_default();
        reads.extend(pieces.into_iter().flat_map(|piece| piece.sources));
        writes.push(write);
    }
    let mut sent: BTreeMap<DeviceId, BTreeSet<BufferId>> = BTreeMap::new();
    for (&device, (reads, _)) in &received {
        for &read in reads.iter().filter(|&&read| graph.buffers[read].device != device) {
            let image = graph.image(read);
            sent.entry(graph.buffers[image].device).or_default().insert(image);
        }
    }
    let mut push = |op, reads: BTreeSet<BufferId>, writes, device| {
        let (layer, microbatch) = (task.layer.clone(), task.microbatch);
        let reads = reads.into_iter().collect();
        graph.tasks.push(Task { op, reads, writes, device, layer, microbatch });
    };
    for (device, reads) in sent {
        push(TaskOp::Send { movement }, reads, Vec::new(), device);
    }
    for (device, (reads, writes)) in received {
        push(TaskOp::Receive { movement }, reads, writes, device);
    }
}
