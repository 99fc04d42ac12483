//! The words of movements: which rectangles of which tiles make up the written ones.

use phalanx_ir::tasks::{Rect, Task, TaskGraph};
use phalanx_program::Piece;
use phalanx_program::rect::Tile;

use super::EmitError;

/// The words of a receiving task.
pub fn words(tasks: &TaskGraph, task: &Task) -> Result<Vec<u64>, EmitError> {
    let rects: Vec<Rect> = task.reads.iter().map(|&read| tasks.buffers[read].rect()).collect();
    let mut slots: Vec<_> = task.reads.iter().copied().zip(0..).collect();
    slots.sort_unstable();
    let (sources, mut words) = (tasks.sources(&task.reads), Vec::new());
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
            Piece { element, rect, target: (slot as u32, tile(&target)), parts: &parts }.encode(&mut words);
        }
    }
    Ok(words)
}

fn tile(rect: &Rect) -> Tile<'_> {
    Tile { origin: &rect.origin, extents: &rect.extents }
}
