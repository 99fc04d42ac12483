//! Movements as intersections of rectangles.
//!
//! A written tile is made of *pieces*: parts of its rectangle that one tile of every partial sum covers. Each piece is the
//! balanced tree, over the partial sums in ascending order, of those tiles.

use std::collections::HashMap;

use super::{Buffer, BufferId, TaskGraph};

/// A rectangle in global coordinates.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rect {
    /// Its first corner.
    pub origin: Vec<usize>,
    /// Its extents.
    pub extents: Vec<usize>,
}

impl Rect {
    /// What the two share, if anything; those of different ranks share nothing.
    pub fn intersect(&self, other: &Rect) -> Option<Rect> {
        if self.origin.len() != other.origin.len() {
            return None;
        }
        let mut shared = Rect { origin: Vec::new(), extents: Vec::new() };
        for dim in 0..self.origin.len() {
            let start = self.origin[dim].max(other.origin[dim]);
            let end = (self.origin[dim] + self.extents[dim]).min(other.origin[dim] + other.extents[dim]);
            shared.extents.push(end.checked_sub(start).filter(|&extent| extent > 0)?);
            shared.origin.push(start);
        }
        Some(shared)
    }

    /// Whether all of `other` lies inside.
    pub fn contains(&self, other: &Rect) -> bool {
        let inside = |dim: usize| {
            let end = |rect: &Rect| rect.origin[dim] + rect.extents[dim];
            self.origin[dim] <= other.origin[dim] && end(other) <= end(self)
        };
        self.origin.len() == other.origin.len() && (0..self.origin.len()).all(inside)
    }

    /// How many elements it has.
    pub fn volume(&self) -> usize {
        self.extents.iter().product()
    }
}

/// A part of a written tile and the tiles it is the sum of, one for every partial sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where.
    pub rect: Rect,
    /// From which buffers, partial sums ascending.
    pub sources: Vec<BufferId>,
}

impl Buffer {
    /// Whether its tile, if it is one, has a place for each dimension, and an end that is a number.
    pub(super) fn is_placed(&self) -> bool {
        let extents = self.ty.shape.dims();
        self.tile.as_ref().is_none_or(|tile| {
            let mut ends = tile.origin.iter().zip(extents).map(|(start, extent)| start.checked_add(*extent));
            tile.origin.len() == extents.len() && ends.all(|end| end.is_some())
        })
    }

    /// The tile's rectangle; a whole tensor starts at the origin.
    pub fn rect(&self) -> Rect {
        let extents = self.ty.shape.dims().to_vec();
        let origin = self.tile.as_ref().map_or_else(|| vec![0; extents.len()], |tile| tile.origin.clone());
        Rect { origin, extents }
    }
}

/// The tiles a movement reads, by tensor.
pub struct Sources<'a> {
    graph: &'a TaskGraph,
    /// Partial sum, rectangle and buffer of every tile, in this order.
    tensors: HashMap<u32, Vec<(u32, Rect, BufferId)>>,
}

impl TaskGraph {
    /// The tiles `reads` as sources of a movement.
    pub fn sources(&self, reads: &[BufferId]) -> Sources<'_> {
        let mut tensors: HashMap<u32, Vec<_>> = HashMap::new();
        for &read in reads {
            let buffer = &self.buffers[read];
            if let Some(tile) = &buffer.tile {
                tensors.entry(tile.tensor).or_default().push((tile.part, buffer.rect(), read));
            }
        }
        tensors.values_mut().for_each(|tiles| tiles.sort_unstable());
        Sources { graph: self, tensors }
    }
}

impl Sources<'_> {
    /// The pieces of `write`; `None` if a partial sum leaves some of it uncovered.
    ///
    /// Of several copies the nearest one is taken: that on the same device, if there is one.
    pub fn pieces(&self, write: BufferId) -> Option<Vec<Piece>> {
        let target = &self.graph.buffers[write];
        let sources = self.tensors.get(&target.tile.as_ref()?.tensor)?;
        let (first, rect) = (sources.first()?.0, target.rect());
        let mut shapes: Vec<&Rect> =
            sources.iter().take_while(|source| source.0 == first).map(|source| &source.1).collect();
        shapes.dedup();
        let shapes: Vec<Rect> = shapes.into_iter().filter_map(|shape| shape.intersect(&rect)).collect();
        if shapes.iter().map(Rect::volume).sum::<usize>() != rect.volume() {
            return None;
        }
        shapes.into_iter().map(|shape| self.piece(shape, sources, target)).collect()
    }

    fn piece(&self, rect: Rect, sources: &[(u32, Rect, BufferId)], target: &Buffer) -> Option<Piece> {
        let mut chosen = Vec::new();
        for copies in sources.chunk_by(|a, b| a.0 == b.0) {
            let fitting = copies.iter().filter(|(_, shape, _)| shape.contains(&rect)).map(|source| source.2);
            let distance = |&buffer: &BufferId| self.graph.buffers[buffer].device.distance(target.device);
            chosen.push(fitting.min_by_key(distance)?);
        }
        Some(Piece { rect, sources: chosen })
    }
}
