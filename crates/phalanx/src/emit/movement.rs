//! The pieces of movements: which rectangles of which tiles make up the written ones.

use phalanx_ir::Id;
use phalanx_ir::tasks::{BufferId, Rect, Task, TaskGraph};
use phalanx_program::rect::Tile;
use phalanx_program::{Piece, Placement, landing_bytes};

use super::EmitError;

/// The pieces of a receiving task.
pub fn pieces(tasks: &TaskGraph, task: &Task) -> Result<Vec<Piece>, EmitError> {
    let rects: Vec<Rect> = task.reads.iter().map(|&read| tasks.buffers[read].rect()).collect();
    let mut slots: Vec<_> = task.reads.iter().copied().zip(0..).collect();
    slots.sort_unstable();
    let (sources, mut moved) = (tasks.sources(&task.reads), Vec::new());
    for (slot, &write) in task.writes.iter().enumerate() {
        let buffer = &tasks.buffers[write];
        let target = buffer.rect();
        let Some(pieces) = sources.pieces(write) else {
            return Err(EmitError::Uncovered { layer: task.layer.to_string(), buffer: write.to_string() });
        };
        for piece in pieces {
            let part = |source| {
                let at = slots.binary_search_by_key(source, |&(read, _)| read);
                let slot: u32 = slots[at.expect("a piece comes from the tiles read")].1;
                (slot, tile(&rects[slot as usize]))
            };
            let parts: Vec<(u32, Tile<'_>)> = piece.sources.iter().map(part).collect();
            let (element, rect) = (buffer.ty.dtype.bytes(), tile(&piece.rect));
            moved.push(Piece::new(element, rect, (slot as u32, tile(&target)), &parts));
        }
    }
    Ok(moved)
}

/// Bytes in which parts of sums from other processes wait until they are summed.
pub fn landing(tasks: &TaskGraph, task: &Task, placement: &Placement) -> u64 {
    if !placement.is_split() {
        return 0;
    }
    let rank = |buffer: BufferId| placement.rank_of(tasks.buffers[buffer].device.index() as u32);
    let own = placement.rank_of(task.device.index() as u32);
    // What cannot be moved is told when the program is emitted.
    let pieces = pieces(tasks, task).unwrap_or_default();
    landing_bytes(&pieces, |read| rank(task.reads[read as usize]) != own)
}

fn tile(rect: &Rect) -> Tile<'_> {
    Tile { origin: &rect.origin, extents: &rect.extents }
}
