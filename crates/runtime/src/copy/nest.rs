//! The loops of a copy: the longest runs of bytes that are contiguous in every operand, and how to step over them.
//!
//! Dimensions are visited with the destination's largest stride outermost, whatever order they are declared in; layouts
//! have no overlapping elements, so order does not matter to the result. Nothing here is an address: places are
//! relative to the first byte of each instance.

use arrayvec::ArrayVec;
use phalanx_program::MAX_RANK;

use crate::layout::{Layout, Strides};
use crate::space::Rect;

/// Loops over runs, outermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Nest {
    /// Bytes of a run, a multiple of the element's.
    pub(super) run: usize,
    /// Runs along each loop.
    pub(super) extents: Strides,
    /// The operands, the destination first.
    pub(super) places: Vec<Place>,
}

/// Where an operand's runs lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The first one.
    pub(super) start: usize,
    /// From one to the next along each loop, in bytes.
    pub(super) strides: Strides,
}

impl Nest {
    /// The loops over `domain`, which is not empty and lies in all `layouts`; the destination's is the first. Elements
    /// are of the same size.
    pub(super) fn new(domain: &Rect, layouts: &[&Layout]) -> Nest {
        let mut dims: ArrayVec<usize, MAX_RANK> =
            (0..domain.rank()).filter(|&dim| domain.extent(dim) > 1).collect();
        dims.sort_unstable_by_key(|&dim| std::cmp::Reverse(layouts[0].strides()[dim]));
        let place = |layout: &&Layout| Place {
            start: layout.offset_inside(domain.lo()),
            strides: dims.iter().map(|&dim| layout.strides()[dim]).collect(),
        };
        let mut nest = Nest {
            run: layouts[0].element().bytes(),
            extents: dims.iter().map(|&dim| domain.extent(dim) as usize).collect(),
            places: layouts.iter().map(place).collect(),
        };
        nest.join_loops();
        nest.lengthen_run();
        nest
    }

    /// Makes one loop of two where the outer one goes on where the inner one ends, in every operand.
    fn join_loops(&mut self) {
        for inner in (1..self.extents.len()).rev() {
            let outer = inner - 1;
            let extent = self.extents[inner];
            if self.places.iter().all(|place| place.strides[outer] == place.strides[inner] * extent) {
                self.extents[outer] *= extent;
                self.extents.remove(inner);
                for place in &mut self.places {
                    place.strides.remove(outer);
                }
            }
        }
    }

    /// Makes the innermost loop part of the run if its steps are the run, in every operand.
    fn lengthen_run(&mut self) {
        let dense = |place: &Place| place.strides.last() == Some(&self.run);
        if self.places.iter().all(dense)
            && let Some(extent) = self.extents.pop()
        {
            self.run *= extent;
            for place in &mut self.places {
                place.strides.pop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Element;

    fn rect(lo: &[i64], hi: &[i64]) -> Rect {
        Rect::new(lo, hi).unwrap()
    }

    /// Bytes of a run, the loops, start and strides of each operand.
    type Loops = (usize, Vec<usize>, Vec<(usize, Vec<usize>)>);

    fn loops(domain: &Rect, layouts: &[&Layout]) -> Loops {
        let nest = Nest::new(domain, layouts);
        let places = nest.places.iter().map(|place| (place.start, place.strides.to_vec())).collect();
        (nest.run, nest.extents.to_vec(), places)
    }

    #[test]
    fn runs_are_as_long_as_all_operands_allow() {
        let whole = rect(&[-1, 0, 0], &[2, 5, 7]);
        let rows = Layout::row_major(Element::F32, whole).unwrap();
        assert_eq!(loops(&whole, &[&rows, &rows]), (768, vec![], vec![(0, vec![]), (0, vec![])]));
        let middle = rect(&[-1, 2, 0], &[2, 4, 7]);
        let part = Layout::row_major(Element::F32, middle).unwrap();
        let expected = (96, vec![4], vec![(0, vec![96]), (64, vec![192])]);
        assert_eq!(loops(&middle, &[&part, &rows]), expected);
        let column = rect(&[-1, 0, 5], &[2, 5, 5]);
        assert_eq!(loops(&column, &[&rows, &rows]), (4, vec![24], vec![(20, vec![32]), (20, vec![32])]));
    }

    #[test]
    fn two_orders_share_the_dimensions_that_both_have_inside() {
        let whole = rect(&[0, 0, 0], &[1, 2, 7]);
        let rows = Layout::row_major(Element::Bytes(2), whole).unwrap();
        let swapped = Layout::ordered(Element::Bytes(2), whole, &[1, 0, 2]).unwrap();
        let expected = (16, vec![3, 2], vec![(0, vec![32, 16]), (0, vec![16, 48])]);
        assert_eq!(loops(&whole, &[&swapped, &rows]), expected);
    }

    #[test]
    fn equal_orders_are_one_run_in_any_order() {
        let whole = rect(&[0, 0, 0], &[1, 2, 7]);
        let order = Layout::ordered(Element::F64, whole, &[2, 0, 1]).unwrap();
        assert_eq!(loops(&whole, &[&order, &order]).0, 48 * 8);
    }
}
