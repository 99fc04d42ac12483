//! Where a rectangle lies in row-major tiles, and copying it from one tile to another. Allocates nothing.

use phalanx_strided::{Nest, Place};

/// A row-major tile, or a rectangle in one, in the coordinates of its tensor.
#[derive(Clone, Copy, Debug)]
pub struct Tile<'a> {
    /// The coordinates of its first element.
    pub origin: &'a [usize],
    /// Its extents.
    pub extents: &'a [usize],
}

/// The place of `rect`, of elements of `element` bytes, in `tile`, which covers it.
pub fn place(element: usize, rect: Tile<'_>, tile: Tile<'_>) -> Place {
    let mut place = Place { start: 0, strides: tile.extents.iter().map(|_| 0).collect() };
    let mut stride = element;
    for dim in (0..tile.extents.len()).rev() {
        let (first, origin) = (rect.origin[dim], tile.origin[dim]);
        let is_inside = first >= origin && first + rect.extents[dim] <= origin + tile.extents[dim];
        assert!(is_inside, "dimension {dim} of {rect:?} is outside {tile:?}");
        place.strides[dim] = stride;
        place.start += (first - origin) * stride;
        stride *= tile.extents[dim];
    }
    place
}

/// Copies `rect`, of elements of `element` bytes, from one tile to another.
pub fn copy_tile(
    element: usize,
    rect: Tile<'_>,
    (from, source): (Tile<'_>, &[u8]),
    (to, target): (Tile<'_>, &mut [u8]),
) {
    let places = [place(element, rect, to), place(element, rect, from)];
    phalanx_strided::copy_slices(&Nest::new(element, rect.extents, places), target, source);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a run, the extents around it, start and strides of each place.
    type Layout = (usize, Vec<usize>, Vec<(usize, Vec<usize>)>);

    fn layout(rect: [&[usize]; 2], tiles: &[[&[usize]; 2]]) -> Layout {
        let rect = Tile { origin: rect[0], extents: rect[1] };
        let places: Vec<_> =
            tiles.iter().map(|[origin, extents]| place(1, rect, Tile { origin, extents })).collect();
        let Nest { run, extents, places } = Nest::new(1, rect.extents, places);
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
    fn a_rectangle_is_copied_and_nothing_else() {
        let rect = Tile { origin: &[1, 2], extents: &[2, 2] };
        let (from, to) =
            (Tile { origin: &[0, 0], extents: &[3, 4] }, Tile { origin: &[1, 1], extents: &[2, 3] });
        let source: Vec<u8> = (0..24).collect();
        let mut target = [99; 12];
        copy_tile(2, rect, (from, &source), (to, &mut target));
        assert_eq!(target, [99, 99, 12, 13, 14, 15, 99, 99, 20, 21, 22, 23]);
        let empty = Tile { origin: &[1, 2], extents: &[0, 2] };
        copy_tile(2, empty, (from, &source), (to, &mut target[..0]));
    }
}
