//! Whether rectangles cover a tensor, and whether they overlap.

use std::collections::BTreeSet;

use crate::{Port, PortTile};

/// A rectangle: for each dimension its first coordinate and the one after its last.
pub(crate) type Span = Vec<[usize; 2]>;

/// The different rectangles of a port's tiles, ascending; `None` if one is not inside the tensor.
pub(crate) fn spans(port: &Port) -> Option<Vec<Span>> {
    let dims = port.ty.shape.dims();
    let spans: Option<BTreeSet<Span>> = port.tiles.iter().map(|tile| span(tile, dims)).collect();
    Some(spans?.into_iter().collect())
}

/// Whether every element of the port's tensor is in one of its `spans`.
pub(crate) fn covers(port: &Port, spans: &[Span]) -> bool {
    let whole: Span = port.ty.shape.dims().iter().map(|&extent| [0, extent]).collect();
    covered(&whole, &spans.iter().collect::<Vec<_>>())
}

/// Whether no two of different spans, ascending, share an element.
pub(crate) fn are_apart(spans: &[Span]) -> bool {
    spans.iter().enumerate().all(|(at, one)| {
        let first_end = one.first().map_or(1, |range| range[1]);
        let near = |other: &&Span| other.first().map_or(0, |range| range[0]) < first_end;
        !spans[at + 1..].iter().take_while(near).any(|other| meet(one, other))
    })
}

fn meet(one: &Span, other: &Span) -> bool {
    one.iter().zip(other).all(|(a, b)| a[0].max(b[0]) < a[1].min(b[1]))
}

/// The tile's rectangle; `None` if it is not inside the tensor.
fn span(tile: &PortTile, dims: &[usize]) -> Option<Span> {
    let extents = tile.ty.shape.dims();
    if tile.origin.len() != dims.len() || extents.len() != dims.len() {
        return None;
    }
    let ends =
        tile.origin.iter().zip(extents).map(|(&start, &extent)| Some([start, start.checked_add(extent)?]));
    let span = ends.collect::<Option<Span>>()?;
    span.iter().zip(dims).all(|([_, end], extent)| end <= extent).then_some(span)
}

/// Whether `spans` cover `region`: cuts it along an edge of the middle one until single ones cover the parts. Cutting in
/// the middle keeps this near n log n steps where the spans form a grid.
fn covered(region: &Span, spans: &[&Span]) -> bool {
    if region.iter().any(|[start, end]| start >= end) {
        return true;
    }
    let near: Vec<&Span> = spans.iter().copied().filter(|span| meet(span, region)).collect();
    let Some(middle) = near.get(near.len() / 2) else { return false };
    let edges = middle.iter().zip(region).enumerate();
    let cut = edges.flat_map(|(dim, (span, range))| {
        let inside = move |edge: &usize| range[0] < *edge && *edge < range[1];
        span.iter().copied().filter(inside).map(move |edge| (dim, edge))
    });
    let Some((dim, edge)) =
        cut.min_by_key(|&(dim, edge)| (region[dim][0] + region[dim][1]).abs_diff(2 * edge))
    else {
        return true;
    };
    let (mut low, mut high) = (region.clone(), region.clone());
    (low[dim][1], high[dim][0]) = (edge, edge);
    covered(&low, &near) && covered(&high, &near)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(rectangles: &[[[usize; 2]; 2]]) -> bool {
        let spans: Vec<Span> = rectangles.iter().map(|rectangle| rectangle.to_vec()).collect();
        covered(&vec![[0, 6], [0, 4]], &spans.iter().collect::<Vec<_>>())
    }

    #[test]
    fn grids_pinwheels_and_overlaps_cover_and_holes_are_found() {
        assert!(spans(&[[[0, 6], [0, 4]]]));
        assert!(spans(&[[[0, 3], [0, 4]], [[2, 6], [0, 4]]]), "overlapping halves");
        let pinwheel =
            [[[0, 4], [0, 1]], [[4, 6], [0, 3]], [[2, 6], [3, 4]], [[0, 2], [1, 4]], [[2, 4], [1, 3]]];
        assert!(spans(&pinwheel));
        for missing in 0..pinwheel.len() {
            let mut holed = pinwheel.to_vec();
            holed.remove(missing);
            assert!(!spans(&holed), "without {missing}");
        }
        assert!(!spans(&[]));
        assert!(!spans(&[[[0, 6], [0, 3]], [[0, 5], [3, 4]]]), "one corner is missing");
    }

    #[test]
    fn a_large_grid_is_checked_quickly() {
        let mut grid: Vec<Span> = Vec::new();
        (0..64)
            .for_each(|row| (0..64).for_each(|col| grid.push(vec![[row, row + 1], [2 * col, 2 * col + 2]])));
        let region = vec![[0, 64], [0, 128]];
        assert!(covered(&region, &grid.iter().collect::<Vec<_>>()));
        grid.remove(1234);
        assert!(!covered(&region, &grid.iter().collect::<Vec<_>>()));
    }
}
