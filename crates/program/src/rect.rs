//! Where a rectangle lies in row-major tiles, and its longest contiguous runs. Allocates nothing.

use arrayvec::ArrayVec;

use crate::MAX_RANK;

/// A row-major tile, or a rectangle in one, in the coordinates of its tensor.
#[derive(Clone, Copy, Debug)]
pub struct Tile<'a> {
    /// The coordinates of its first element.
    pub origin: &'a [usize],
    /// Its extents.
    pub extents: &'a [usize],
}

/// One number for each dimension.
pub type PerDim = ArrayVec<usize, MAX_RANK>;

/// Where a rectangle lies in a tile: its first element, and how far the next one along each dimension is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Elements before its first one.
    pub start: usize,
    /// Elements from one to the next along each dimension.
    pub strides: PerDim,
}

impl Place {
    /// The place of `rect` in `tile`, which covers it.
    pub fn new(rect: Tile<'_>, tile: Tile<'_>) -> Place {
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
pub fn collapse(extents: &mut PerDim, places: &mut [Place]) -> usize {
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
}
