use super::*;
use crate::cross_entropy::tests::{IGNORED, labels};
use crate::rows::tree_rows;
use crate::samples::{Case, Input, assert_gradient, tile, values};
use crate::{Team, Words};

/// Sums of up to a thousand terms of magnitude 20, each rounded to 2^-24.
const TOLERANCE: f32 = 4e-5;

fn settings(rows: usize, classes: usize, smoothing: f32, weighted: bool) -> Smooth {
    Smooth {
        rows,
        classes,
        ignore_index: IGNORED,
        labels_i32: weighted,
        weighted,
        leaves: 1 << classes.trailing_zeros().min(3),
        first: 0,
        sharp: 1.0 - smoothing,
        even: smoothing / classes as f32,
    }
}

fn logits(smooth: Smooth) -> Vec<f32> {
    values(smooth.rows * smooth.classes, 1).iter().map(|x| x * 10.0).collect()
}

fn weights(smooth: Smooth) -> Vec<f32> {
    values(smooth.classes, 7).iter().map(|x| 1.5 + x).collect()
}

fn forward(smooth: Smooth) -> Case {
    let labels = Input::ids(&labels(smooth.rows, smooth.classes), smooth.labels_i32);
    let params = SmoothCrossEntropy { smooth }.to_words();
    let case = Case::new("smooth_cross_entropy", params).read(logits(smooth)).read(labels);
    let case = if smooth.weighted { case.read(weights(smooth)) } else { case };
    (0..4).fold(case, |case, _| case.write(vec![f32::NAN; smooth.rows]))
}

fn backward(smooth: Smooth, accumulate: bool) -> Case {
    let (forward, params) = (forward(smooth), SmoothCrossEntropyGrad { smooth, accumulate });
    let [_, lse, scale, hot] = &forward.fast(&Team::new(1))[..] else { panic!("four results") };
    let case = Case::new("smooth_cross_entropy_grad", params.to_words());
    let case = case.read(forward.reads[0].clone()).read(forward.reads[1].clone());
    let case = [lse, scale, hot].into_iter().fold(case, |case, values| case.read(values.clone()));
    let case = case.read(vec![0.7]);
    let case = if smooth.weighted { case.read(weights(smooth)) } else { case };
    case.write(values(smooth.rows * smooth.classes, 5))
}

#[test]
fn fast_equals_reference() {
    for classes in [1, 2, 3, 7, 16, 17, 24, 33, 1000] {
        for (rows, smoothing, weighted) in [(1, 0.1, false), (7, 0.3, true), (5, 0.0, true), (3, 1.0, false)]
        {
            let smooth = settings(rows, classes, smoothing, weighted);
            forward(smooth).check(TOLERANCE);
            backward(smooth, false).check(TOLERANCE);
            backward(smooth, true).check(TOLERANCE);
        }
    }
}

#[test]
fn bits_are_the_same_for_every_team_and_instruction_set() {
    for weighted in [false, true] {
        forward(settings(33, 1000, 0.1, weighted)).check_bits();
        backward(settings(33, 1003, 0.1, weighted), true).check_bits();
    }
}

#[test]
fn gradient_equals_finite_differences() {
    for (smoothing, weighted) in [(0.2, false), (0.2, true), (0.0, true)] {
        let smooth = settings(3, 5, smoothing, weighted);
        let (labels, weights) = (labels(3, 5), weights(smooth));
        let weight = |class: usize| if weighted { f64::from(weights[class]) } else { 1.0 };
        let loss = |x: &[f64]| -> f64 {
            let row = |(x, &label): (&[f64], &i64)| {
                let lse = x.iter().map(|x| x.exp()).sum::<f64>().ln();
                let own = |label: usize| weight(label) * (lse - x[label]);
                let smooth: f64 = (0..5).map(own).sum::<f64>() / 5.0;
                match label {
                    IGNORED => 0.0,
                    _ => (1.0 - f64::from(smoothing)) * own(label as usize) + f64::from(smoothing) * smooth,
                }
            };
            0.7 * x.chunks(5).zip(&labels).map(row).sum::<f64>()
        };
        let found = backward(smooth, false).fast(&Team::new(1));
        assert_gradient(&found[0], &logits(smooth), f64::from(TOLERANCE), loss);
    }
}

/// Tiles of classes, joined as devices do, have the bits of whole rows; so has the gradient of each tile.
#[test]
fn tiles_of_classes_have_the_bits_of_whole_rows() {
    for (classes, weighted) in [(24, true), (40, false)] {
        let whole = Smooth { labels_i32: false, ..settings(6, classes, 0.1, weighted) };
        let (labels, x, w) = (labels(6, classes), logits(whole), weights(whole));
        let team = Team::new(1);
        let want = forward(whole).fast(&team);
        for shards in [2, 4] {
            let size = classes / shards;
            let largest: Vec<f32> = x.chunks(classes).map(largest).collect();
            let mut parts = vec![Vec::new(); 5];
            for shard in 0..shards {
                let own =
                    Smooth { classes: size, leaves: whole.leaves / shards, first: shard * size, ..whole };
                let x = tile(&x, [1, 6, classes], [0, 0, shard * size], [1, 6, size]);
                let mut outs = [(); 4].map(|()| vec![0.0; 6]);
                let w = &w[shard * size..][..size];
                let [a, b, c, d] = &mut outs;
                let ins = [&x[..], &largest, w];
                class_smooth([a, b, c, d], ins, Ids::I64(&labels), own, &mut Launch::plain(&team));
                let sums = x.chunks(size).zip(&largest).map(|(x, m)| exp_sum(x, *m, own.leaves));
                parts[0].extend(sums);
                outs.iter().zip(&mut parts[1..]).for_each(|(out, part)| part.extend(out));
            }
            parts.iter_mut().for_each(|part| tree_rows(part, shards, 6));
            let ins =
                [&largest, &parts[0], &parts[1], &parts[2], &parts[3], &parts[4]].map(|part| &part[..6]);
            let mut found = [(); 4].map(|()| vec![0.0; 6]);
            let [a, b, c, d] = &mut found;
            smooth_join([a, b, c, d], ins, Ids::I64(&labels), Smooth { classes, ..whole });
            let bits = |rows: &[Vec<f32>]| rows.concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found), bits(&want), "{classes} classes in {shards}");
        }
    }
}
