use super::*;
use crate::rows::add_to;
use crate::samples::{Case, tile, values};
use crate::{Team, Words};

fn case(params: ColumnSum) -> Case {
    let rows = if params.keep { params.leaves } else { 1 };
    Case::new("column_sum", params.to_words())
        .read(values(params.outer * params.time * params.cols, 1))
        .write(values(rows * params.cols, 2))
}

fn sizes([outer, time, cols]: [usize; 3], leaves: usize, inner: usize) -> ColumnSum {
    ColumnSum { outer, time, cols, leaves, inner, keep: false, accumulate: false, rounded: false }
}

#[test]
fn fast_equals_reference_in_every_bit() {
    let orders =
        [(1, 1, 1, 1), (1, 2, 1, 1), (7, 1, 1, 1), (2, 4, 8, 1), (25, 4, 4, 1), (8, 12, 4, 2), (2, 20, 2, 4)];
    for (outer, time, leaves, inner) in orders {
        for cols in [1, 2, 3, 5, 7, 15, 16, 17, 33, 100, 1025, 2049] {
            for (keep, accumulate) in [(false, false), (false, true), (true, false), (true, true)] {
                let params = sizes([outer, time, cols], leaves, inner);
                case(ColumnSum { keep, accumulate, ..params }).check(0.0);
                case(ColumnSum { keep, accumulate, rounded: true, ..params }).check(0.0);
            }
        }
    }
}

#[test]
fn bits_are_the_same_for_every_team_and_instruction_set() {
    for (leaves, inner) in [(1, 1), (8, 1), (1, 4), (8, 4)] {
        for keep in [false, true] {
            let params = ColumnSum { keep, accumulate: true, ..sizes([8, 20, 133], leaves, inner) };
            case(params).check_bits();
            case(ColumnSum { rounded: true, ..params }).check_bits();
        }
    }
}

#[test]
fn tiles_along_batch_and_time_add_up_to_the_bits_of_the_whole() {
    let [outer, time, cols] = [8, 16, 21];
    let (leaves, inner) = (4, 4);
    let x = values(outer * time * cols, 1);
    let want = case(sizes([outer, time, cols], leaves, inner)).fast(&Team::new(1)).remove(0);
    for (batch_cut, time_cut) in [(1, 2), (1, 4), (2, 1), (4, 1), (2, 2), (4, 2), (2, 4), (4, 4)] {
        let part = sizes([outer / batch_cut, time / time_cut, cols], leaves / batch_cut, inner / time_cut);
        let mut whole = Vec::new();
        for i in 0..batch_cut {
            let mut shards: Vec<f32> = Vec::new();
            for j in 0..time_cut {
                let mut case = case(ColumnSum { keep: true, ..part });
                let corner = [i * part.outer, j * part.time, 0];
                case.reads[0] = tile(&x, [outer, time, cols], corner, [part.outer, part.time, cols]).into();
                shards.extend(&case.fast(&Team::new(2))[0]);
            }
            tree_rows(&mut shards, time_cut, part.leaves * cols);
            whole.extend(&shards[..part.leaves * cols]);
        }
        tree_rows(&mut whole, leaves, cols);
        assert_eq!(whole[..cols], want, "batch in {batch_cut}, time in {time_cut}");
    }
}

#[test]
fn a_batch_with_fewer_places_than_leaves_is_cut_inside_them() {
    let want = case(sizes([2, 12, 5], 8, 1)).fast(&Team::new(1)).remove(0);
    let mut sums: Vec<Vec<f32>> = values(2 * 12 * 5, 1)
        .chunks(12 * 5)
        .map(|x| {
            let mut half = case(sizes([1, 12, 5], 4, 1));
            half.reads[0] = x.to_vec().into();
            half.fast(&Team::new(1)).remove(0)
        })
        .collect();
    let upper = sums.pop().expect("two halves");
    add_to(&mut sums[0], &upper);
    assert_eq!(sums[0], want);
}

#[test]
fn rounded_sums_are_those_of_rounded_elements() {
    let params = sizes([4, 6, 37], 2, 1);
    let mut before = case(params);
    let x: Vec<f32> = values(4 * 6 * 37, 1).into_iter().map(rounded).collect();
    before.reads[0] = x.into();
    let want = before.fast(&Team::new(1));
    assert_eq!(case(ColumnSum { rounded: true, ..params }).fast(&Team::new(1)), want);
    assert_ne!(case(params).fast(&Team::new(1)), want, "the elements are not all numbers of bf16");
}
