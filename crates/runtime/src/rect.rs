//! Walking over the runs of rectangles and copying them. Allocates nothing.

pub use phalanx_program::rect::Tile;
use phalanx_program::rect::{PerDim, Place, collapse};

/// Calls `visit` with every index of a space with these extents, the last fastest.
pub(crate) fn walk(extents: &[usize], mut visit: impl FnMut(&[usize])) {
    let mut index: PerDim = extents.iter().map(|_| 0).collect();
    if extents.contains(&0) {
        return;
    }
    loop {
        visit(&index);
        let Some(dim) = (0..extents.len()).rev().find(|&dim| index[dim] + 1 < extents[dim]) else { return };
        index[dim] += 1;
        index[dim + 1..].fill(0);
    }
}

/// Copies `rect` from one tile to another.
pub fn copy(
    element: usize,
    rect: Tile<'_>,
    (from, source): (Tile<'_>, &[u8]),
    (to, target): (Tile<'_>, &mut [u8]),
) {
    let mut extents: PerDim = rect.extents.iter().copied().collect();
    let mut places = [Place::new(rect, from), Place::new(rect, to)];
    let run = collapse(&mut extents, &mut places) * element;
    let [from, to] = places;
    let offset = |place: &Place, index: &[usize]| {
        element * index.iter().zip(&place.strides).fold(place.start, |sum, (i, stride)| sum + i * stride)
    };
    walk(&extents, |index| {
        let (source_at, target_at) = (offset(&from, index), offset(&to, index));
        target[target_at..target_at + run].copy_from_slice(&source[source_at..source_at + run]);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_visits_every_index_in_order() {
        let visited = |extents: &[usize]| {
            let mut seen = Vec::new();
            walk(extents, |index| seen.push(index.to_vec()));
            seen
        };
        assert_eq!(visited(&[]), [Vec::<usize>::new()]);
        assert_eq!(visited(&[2, 3]), [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]);
        assert!(visited(&[2, 0]).is_empty());
    }
}
