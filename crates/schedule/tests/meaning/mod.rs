//! What a list of tasks computes, symbolically: a buffer's content is a hash of how it came about.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use phalanx_ir::tasks::{BufferId, Task, TaskGraph, TaskOp};

/// Everything that was ever written to each of the first `count` buffers, in the order of the list.
pub fn meaning(graph: &TaskGraph, count: usize) -> BTreeMap<BufferId, Vec<u64>> {
    let mut contents: BTreeMap<BufferId, u64> =
        graph.buffers.ids().map(|buffer| (buffer, hash(&format!("fed {buffer}")))).collect();
    let mut written: BTreeMap<BufferId, Vec<u64>> = BTreeMap::new();
    let first: Vec<BufferId> = graph.buffers.ids().take(count).collect();
    for (_, task) in graph.tasks.iter() {
        let results: Vec<u64> =
            (0..task.writes.len()).map(|slot| result(graph, task, slot, &contents)).collect();
        for (&write, result) in task.writes.iter().zip(results) {
            let root = graph.root(write);
            contents.insert(root, result);
            if first.contains(&root) {
                written.entry(root).or_default().push(result);
            }
        }
    }
    written
}

fn result(graph: &TaskGraph, task: &Task, slot: usize, contents: &BTreeMap<BufferId, u64>) -> u64 {
    let content = |&buffer: &BufferId| contents[&graph.root(buffer)];
    if let TaskOp::Receive { .. } = task.op {
        return moved(graph, task, task.writes[slot], content);
    }
    let before = task.op.reads_write(slot).then(|| content(&task.writes[slot]));
    let reads: Vec<u64> = task.reads.iter().map(content).collect();
    let (name, attrs) = task.op.to_text();
    hash(&(name, attrs.to_string(), slot, reads, before))
}

/// A copy has the content of what it copies, whichever movement makes it.
fn moved(graph: &TaskGraph, task: &Task, write: BufferId, content: impl Fn(&BufferId) -> u64) -> u64 {
    let pieces = graph.sources(&task.reads).pieces(write).expect("a verified movement has all its sides");
    match &pieces[..] {
        [piece] if piece.sources.len() == 1 && graph.buffers[piece.sources[0]].rect() == piece.rect => {
            content(&piece.sources[0])
        }
        pieces => {
            let parts: Vec<_> = pieces
                .iter()
                .map(|piece| {
                    let (origin, extents) = (&piece.rect.origin, &piece.rect.extents);
                    (origin, extents, piece.sources.iter().map(&content).collect::<Vec<u64>>())
                })
                .collect();
            hash(&parts)
        }
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
