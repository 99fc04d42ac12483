//! Rectangles of row-major tiles: the longest contiguous runs, and walking over them. Allocates nothing.

use arrayvec::ArrayVec;
use phalanx_program::MAX_RANK;

/// A row-major tile, or a rectangle in one, in the coordinates of its tensor.
#[derive(Clone, Copy, Debug)]
pub struct Tile<'a> {
    /// The coordinates of its first element.
    pub origin: &'a [usize],
    /// Its extents.
    pub extents: &'a [usize],
}

/// One number for each dimension.
pub(crate) type PerDim = ArrayVec<usize, MAX_RANK>;

/// Where a rectangle lies in a tile: its first element, and how far the next one along each dimension is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) start: usize,
    pub(crate) strides: PerDim,
}

impl Place {
    /// The place of `rect` in `tile`, which covers it.
    pub(crate) fn new(rect: Tile<'_>, tile: Tile<'_>) -> Place {
        let mut place = Place { start: 0, strides: tile.extents.iter().map(|_| 0).collect() };
        let mut stride = 1;
        for dim in (0..tile.extents.len()).rev() {
            let (first, origin) = (rect.origin[dim], tile.origin[dim]);
            let inside = first >= origin && first + rect.extents[dim] <= origin + tile.extents[dim];
            assert!(inside, "dimension {dim} of {rect:?} is outside {tile:?}");
            place.strides[dim] = stride;
            place.start += (first - origin) * stride;
            stride *= tile.extents[dim];
        }
        place
    }
}

/// Joins dimensions that lie densely in every place. Returns the elements of a contiguous run; `extents` and the strides
/// keep the dimensions outside it.
pub(crate) fn collapse(extents: &mut PerDim, places: &mut [Place]) -> usize {
    for dim in (0..extents.len()).rev() {
        if extents[dim] == 1 {
            extents.remove(dim);
            for place in places.iter_mut() {
                place.strides.remove(dim);
            }
        }
    }
    for dim in (1..extents.len()).rev() {
        let inner = extents[dim];
        if places.iter().all(|place| place.strides[dim - 1] == place.strides[dim] * inner) {
            extents.remove(dim);
            extents[dim - 1] *= inner;
            for place in places.iter_mut() {
                place.strides.remove(dim - 1);
            }
        }
    }
    match places.iter().all(|place| place.strides.last() == Some(&1)) {
        true => {
            for place in places.iter_mut() {
                place.strides.pop();
            }
            extents.pop().expect("a stride has an extent")
        }
        false => 1,
    }
}

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
pub(crate) fn copy(
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

    /// Elements of a run, the extents around it, start and strides of each place.
    type Layout = (usize, Vec<usize>, Vec<(usize, Vec<usize>)>);

    fn layout(rect: [&[usize]; 2], tiles: &[[&[usize]; 2]]) -> Layout {
        let rect = Tile { origin: rect[0], extents: rect[1] };
        let mut places: Vec<_> =
            tiles.iter().map(|[origin, extents]| Place::new(rect, Tile { origin, extents })).collect();
        let mut extents: PerDim = rect.extents.iter().copied().collect();
        let run = collapse(&mut extents, &mut places);
        let places = places.into_iter().map(|place| (place.start, place.strides.to_vec())).collect();
        (run, extents.to_vec(), places)
    }

    #[test]
    fn runs_are_as_long_as_all_tiles_allow() {
        let whole: [&[usize]; 2] = [&[0, 0, 0], &[4, 6, 8]];
        assert_eq!(layout(whole, &[whole, whole]), (192, vec![], vec![(0, vec![]), (0, vec![])]));
        let rows: [&[usize]; 2] = [&[1, 0, 0], &[2, 6, 8]];
        assert_eq!(layout(rows, &[whole, rows]), (96, vec![], vec![(48, vec![]), (0, vec![])]));
        let middle: [&[usize]; 2] = [&[0, 2, 0], &[4, 3, 8]];
        assert_eq!(layout(middle, &[whole, middle]), (24, vec![4], vec![(16, vec![48]), (0, vec![24])]));
        let columns: [&[usize]; 2] = [&[0, 0, 5], &[4, 6, 2]];
        assert_eq!(layout(columns, &[whole, columns]), (2, vec![24], vec![(5, vec![8]), (0, vec![2])]));
        let column: [&[usize]; 2] = [&[0, 0, 5], &[4, 6, 1]];
        assert_eq!(layout(column, &[whole, column]), (1, vec![24], vec![(5, vec![8]), (0, vec![1])]));
        assert_eq!(layout([&[], &[]], &[[&[], &[]]]), (1, vec![], vec![(0, vec![])]), "a scalar");
    }

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
