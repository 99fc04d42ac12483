use super::*;
use crate::rows::tree_rows;
use crate::samples::{Case, Input, assert_gradient, indices, tile, values};
use crate::{Team, Words};

/// Sums of up to a few thousand exponentials, each within two units in the last place.
const TOLERANCE: f32 = 1e-5;
pub(super) const IGNORED: i64 = -100;

pub(super) fn labels(rows: usize, classes: usize) -> Vec<i64> {
    let mut labels = indices(rows, classes, 2);
    labels.iter_mut().skip(1).step_by(3).for_each(|label| *label = IGNORED);
    labels
}

fn logits(rows: usize, classes: usize) -> Vec<f32> {
    values(rows * classes, 1).iter().map(|x| x * 20.0).collect()
}

fn forward(rows: usize, classes: usize, labels_i32: bool) -> Case {
    // As many leaves as a model would choose: the largest power of two up to eight.
    let leaves = 1 << classes.trailing_zeros().min(3);
    let params = CrossEntropy { rows, classes, ignore_index: IGNORED, labels_i32, leaves };
    Case::new("cross_entropy", params.to_words())
        .read(logits(rows, classes))
        .read(Input::ids(&labels(rows, classes), labels_i32))
        .write(vec![0.0; rows])
        .write(vec![0.0; rows])
}

fn backward(rows: usize, classes: usize, labels_i32: bool, accumulate: bool) -> Case {
    let forward = forward(rows, classes, labels_i32);
    let params = CrossEntropyGrad { rows, classes, ignore_index: IGNORED, labels_i32, accumulate, first: 0 };
    Case::new("cross_entropy_grad", params.to_words())
        .read(forward.reads[0].clone())
        .read(forward.reads[1].clone())
        .read(forward.reference()[1].clone())
        .read(vec![0.7])
        .write(values(rows * classes, 5))
}

#[test]
fn fast_equals_reference() {
    for classes in [1, 2, 3, 5, 7, 15, 16, 17, 24, 33, 100, 1000, 4099] {
        for rows in [1, 2, 7] {
            for flag in [false, true] {
                forward(rows, classes, flag).check(TOLERANCE);
                backward(rows, classes, flag, false).check(TOLERANCE);
                backward(rows, classes, flag, true).check(TOLERANCE);
            }
        }
    }
}

#[test]
fn bits_are_the_same_for_every_team_and_instruction_set() {
    forward(33, 1003, false).check_bits();
    forward(33, 1000, false).check_bits();
    backward(33, 1003, true, false).check_bits();
    backward(33, 1003, true, true).check_bits();
}

#[test]
fn gradient_equals_finite_differences() {
    let (rows, classes) = (3, 5);
    let case = backward(rows, classes, false, false);
    let Input::F32(logits) = &case.reads[0] else { panic!("logits are f32") };
    let labels = labels(rows, classes);
    let loss = |x: &[f64]| -> f64 {
        let row = |(x, &label): (&[f64], &i64)| match label {
            IGNORED => 0.0,
            label => x.iter().map(|x| x.exp()).sum::<f64>().ln() - x[label as usize],
        };
        0.7 * x.chunks(classes).zip(&labels).map(row).sum::<f64>()
    };
    assert_gradient(&case.fast(&Team::new(1))[0], logits, f64::from(TOLERANCE), loss);
}

#[test]
fn labels_are_counted_exactly() {
    for narrow in [false, true] {
        let params = CountLabels { n: 100, ignore_index: IGNORED, labels_i32: narrow };
        let case = Case::new("count_labels", params.to_words())
            .read(Input::ids(&labels(100, 10), narrow))
            .write(vec![0.0]);
        assert_eq!(case.fast(&Team::new(2)), [[67.0]]);
    }
}

/// A call of one of the kernels for tiles of classes, with one result per row.
fn part(name: &str, params: Vec<u64>, rows: usize, reads: &[Input]) -> Case {
    let case = Case::new(name, params).write(vec![0.0; rows]);
    reads.iter().cloned().fold(case, Case::read)
}

/// The calls of all shards: largest, sums, picks. `largest` is that of whole rows.
fn shards(rows: usize, classes: usize, leaves: usize, cut: usize, largest: Vec<f32>) -> [Vec<Case>; 3] {
    let labels = Input::ids(&labels(rows, classes), true);
    let width = classes / cut;
    let x = |shard: usize| -> Input {
        tile(&logits(rows, classes), [1, rows, classes], [0, 0, shard * width], [1, rows, width]).into()
    };
    let max = ClassMax { rows, classes: width }.to_words();
    let sum = ClassSum { rows, classes: width, leaves: leaves / cut }.to_words();
    let pick = |first| ClassPick { rows, classes: width, first, labels_i32: true }.to_words();
    let all = 0..cut;
    [
        all.clone().map(|i| part("class_max", max.clone(), rows, &[x(i)])).collect(),
        all.clone().map(|i| part("class_sum", sum.clone(), rows, &[x(i), largest.clone().into()])).collect(),
        all.map(|i| part("class_pick", pick(i * width), rows, &[x(i), labels.clone()])).collect(),
    ]
}

fn run(cases: &[Case]) -> Vec<f32> {
    cases.iter().flat_map(|case| case.fast(&Team::new(2)).remove(0)).collect()
}

#[test]
fn shards_of_the_classes_join_to_the_bits_of_the_whole() {
    for (rows, classes, leaves) in [(7, 8, 8), (13, 200, 8), (5, 1000, 8), (30, 4112, 16)] {
        let params = CrossEntropy { rows, classes, ignore_index: IGNORED, labels_i32: true, leaves };
        let mut whole = forward(rows, classes, true);
        whole.params = params.to_words();
        let want = whole.fast(&Team::new(1));
        for cut in [1, 2, 4, 8] {
            let largest = run(&shards(rows, classes, leaves, cut, vec![0.0; rows])[0]);
            let largest: Vec<f32> = (0..rows)
                .map(|row| largest[row..].iter().step_by(rows).copied().fold(f32::NEG_INFINITY, f32::max))
                .collect();
            let [_, sums, picks] = shards(rows, classes, leaves, cut, largest.clone());
            let [sums, picks] = [sums, picks].map(|cases| {
                let mut parts = run(&cases);
                tree_rows(&mut parts, cut, rows);
                parts[..rows].to_vec()
            });
            let params = ClassJoin { rows, ignore_index: IGNORED, labels_i32: true };
            let ins = [largest.into(), sums.into(), picks.into(), whole.reads[1].clone()];
            let join = part("class_join", params.to_words(), rows, &ins).write(vec![0.0; rows]);
            assert_eq!(join.fast(&Team::new(1)), want, "{classes} classes in {cut} shards");
        }
    }
}

#[test]
fn parts_equal_their_references_and_have_one_answer() {
    for (rows, classes, leaves) in [(1, 1, 1), (3, 17, 1), (7, 24, 8), (33, 1000, 4)] {
        let [max, sum, pick] = shards(rows, classes, leaves, 1, vec![20.0; rows]);
        [max, sum, pick].iter().flatten().for_each(|case| case.check(TOLERANCE));
    }
    let [max, sum, _] = shards(33, 1000, 4, 1, vec![20.0; 33]);
    [max, sum].iter().flatten().for_each(Case::check_bits);
}

#[test]
fn a_missing_label_picks_negative_zero() {
    let params = ClassPick { rows: 3, classes: 4, first: 8, labels_i32: false };
    let labels = Input::ids(&[7, 9, IGNORED], false);
    let picks = part("class_pick", params.to_words(), 3, &[logits(3, 4).into(), labels]).reference();
    let bits: Vec<u32> = picks[0].iter().map(|x| x.to_bits()).collect();
    assert_eq!(bits, [-0.0, logits(3, 4)[5], -0.0f32].map(f32::to_bits));
}

#[test]
fn the_gradient_of_a_tile_is_the_tile_of_the_gradient() {
    let (rows, classes) = (6, 40);
    let dims = [1, rows, classes];
    for accumulate in [false, true] {
        let whole = backward(rows, classes, true, accumulate);
        let want = whole.fast(&Team::new(1)).remove(0);
        for (first, width) in [(0, 20), (20, 20), (10, 10), (35, 5), (39, 1)] {
            let (corner, size) = ([0, 0, first], [1, rows, width]);
            let mut part = backward(rows, width, true, accumulate);
            let (ignore_index, classes, labels_i32) = (IGNORED, width, true);
            part.params =
                CrossEntropyGrad { rows, classes, ignore_index, labels_i32, accumulate, first }.to_words();
            part.reads[0] = tile(&logits(rows, 40), dims, corner, size).into();
            (1..3).for_each(|slot| part.reads[slot] = whole.reads[slot].clone());
            part.writes[0] = tile(&whole.writes[0], dims, corner, size);
            assert_eq!(part.fast(&Team::new(2))[0], tile(&want, dims, corner, size), "{width} from {first}");
            part.check(TOLERANCE);
        }
    }
}
