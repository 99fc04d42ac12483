//! The loops over layouts.

use super::*;

fn rect(lo: &[i64], hi: &[i64]) -> Rect {
    Rect::new(lo, hi).unwrap()
}

/// Bytes of a run, the loops, start and strides of each operand.
type Loops = (usize, Vec<usize>, Vec<(usize, Vec<usize>)>);

fn loops(domain: &Rect, layouts: &[&Layout]) -> Loops {
    let nest = nest(domain, layouts);
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
