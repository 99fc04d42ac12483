//! The words of movements: which rectangles of which tiles make up the written ones.
//!
//! Where devices are in several processes, a sum whose parts come from another one is cut into pieces of at most
//! [`SEGMENT`] bytes, so that the first ones are summed while the others arrive; what arrives waits in the task's workspace.

use phalanx_ir::Id;
use phalanx_ir::tasks::{BufferId, Piece as Rectangle, Rect, Task, TaskGraph};
use phalanx_program::rect::Tile;
use phalanx_program::{ALIGNMENT, Piece, Placement, SEGMENT};

use super::EmitError;

/// The words of a receiving task.
pub fn words(tasks: &TaskGraph, task: &Task, placement: &Placement) -> Result<Vec<u64>, EmitError> {
    let rects: Vec<Rect> = task.reads.iter().map(|&read| tasks.buffers[read].rect()).collect();
    let mut slots: Vec<_> = task.reads.iter().copied().zip(0..).collect();
    slots.sort_unstable();
    let mut words = Vec::new();
    for (slot, &write) in task.writes.iter().enumerate() {
        let buffer = &tasks.buffers[write];
        let (target, element) = (buffer.rect(), buffer.ty.dtype.bytes());
        for piece in pieces(tasks, task, write, placement)? {
            let part = |source| {
                let at = slots.binary_search_by_key(source, |&(read, _)| read);
                let slot: u32 = slots[at.expect("a piece comes from the tiles read")].1;
                (slot, tile(&rects[slot as usize]))
            };
            let parts: Vec<(u32, Tile<'_>)> = piece.sources.iter().map(part).collect();
            let rect = tile(&piece.rect);
            Piece { element, rect, target: (slot as u32, tile(&target)), parts: &parts }.encode(&mut words);
        }
    }
    Ok(words)
}

/// Bytes in which parts of sums from other processes wait until they are summed.
pub fn landing(tasks: &TaskGraph, task: &Task, placement: &Placement) -> u64 {
    if !placement.is_split() {
        return 0;
    }
    let own = rank(tasks, placement, task.writes[0]);
    let of_piece = |piece: &Rectangle, element: usize| {
        let remote = piece.sources.iter().filter(|&&source| rank(tasks, placement, source) != own).count();
        let bytes = (piece.rect.volume() * element) as u64;
        if piece.sources.len() > 1 { remote as u64 * bytes.next_multiple_of(ALIGNMENT) } else { 0 }
    };
    let of_write = |&write: &BufferId| {
        let element = tasks.buffers[write].ty.dtype.bytes();
        let pieces = pieces(tasks, task, write, placement).unwrap_or_default();
        pieces.iter().map(|piece| of_piece(piece, element)).sum::<u64>()
    };
    task.writes.iter().map(of_write).sum()
}

/// The pieces of one written tile.
fn pieces(
    tasks: &TaskGraph,
    task: &Task,
    write: BufferId,
    placement: &Placement,
) -> Result<Vec<Rectangle>, EmitError> {
    let uncovered = || EmitError::Uncovered { layer: task.layer.to_string(), buffer: write.to_string() };
    let pieces = tasks.sources(&task.reads).pieces(write).ok_or_else(uncovered)?;
    let own = rank(tasks, placement, write);
    let element = tasks.buffers[write].ty.dtype.bytes();
    let remote = |piece: &Rectangle| {
        piece.sources.len() > 1 && piece.sources.iter().any(|&source| rank(tasks, placement, source) != own)
    };
    let cut = |piece: Rectangle| if remote(&piece) { segments(piece, element) } else { vec![piece] };
    Ok(pieces.into_iter().flat_map(cut).collect())
}

/// A piece, cut along its first dimension that can be cut.
fn segments(piece: Rectangle, element: usize) -> Vec<Rectangle> {
    let Some(dim) = piece.rect.extents.iter().position(|&extent| extent > 1) else { return vec![piece] };
    let extent = piece.rect.extents[dim];
    let slab = piece.rect.volume() / extent * element;
    let step = (SEGMENT as usize / slab.max(1)).clamp(1, extent);
    let segment = |first: usize| {
        let mut segment = piece.clone();
        segment.rect.origin[dim] += first;
        segment.rect.extents[dim] = step.min(extent - first);
        segment
    };
    (0..extent).step_by(step).map(segment).collect()
}

fn rank(tasks: &TaskGraph, placement: &Placement, buffer: BufferId) -> Option<u32> {
    placement.rank_of(tasks.buffers[buffer].device.index() as u32)
}

fn tile(rect: &Rect) -> Tile<'_> {
    Tile { origin: &rect.origin, extents: &rect.extents }
}
