//! Attention whose products round their operands.

use super::*;

const ROUNDING: &[Precision] = &[Precision::Bf16, Precision::Bf16Pair];

/// Half a unit in the last place of a `bf16`, relative to it.
const ROUNDOFF: f64 = 1.0 / 512.0;

#[test]
fn fast_equals_reference_to_the_bit() {
    let sizes: [Sizes; 11] = [
        [1, 1, 1, 1, 1, 1],
        [1, 1, 1, 2, 2, 3],
        [2, 3, 1, 5, 5, 7],
        [1, 2, 2, 17, 17, 16],
        [1, 4, 2, 33, 33, 5],
        [1, 2, 1, 65, 65, 34],
        [1, 1, 1, 20, 36, 130],
        [1, 2, 1, 7, 150, 24],
        [1, 1, 1, 75, 140, 9],
        [1, 2, 1, 130, 71, 8],
        [1, 1, 1, 135, 135, 16],
    ];
    for (sizes, &precision) in sizes.into_iter().flat_map(|sizes| ROUNDING.iter().map(move |p| (sizes, p))) {
        for causal in [false, true] {
            let params = Attention { precision, ..params(sizes, causal) };
            forward(params).check_reference_bits();
            backward(params).check_reference_bits();
        }
    }
}

#[test]
fn bits_are_the_same_for_every_team_and_instruction_set() {
    for &precision in ROUNDING {
        for (sizes, causal) in
            [([1, 4, 2, 50, 50, 6], true), ([1, 1, 1, 70, 101, 18], true), ([1, 2, 1, 67, 45, 9], false)]
        {
            let params = Attention { precision, ..params(sizes, causal) };
            forward(params).check_bits();
            backward(params).check_bits();
        }
    }
}

/// Scores that differ by hundreds make weights and running results underflow, in either order of the keys.
#[test]
fn weights_that_underflow_have_the_bits_of_the_reference() {
    for (&precision, scale) in ROUNDING.iter().flat_map(|p| [300.0, -300.0].map(|scale| (p, scale))) {
        let params = Attention { precision, scale, ..params([1, 1, 1, 70, 140, 20], true) };
        let mut case = forward(params);
        let Input::F32(keys) = &mut case.reads[1] else { panic!("k is f32") };
        keys.iter_mut().enumerate().for_each(|(i, key)| *key = (*key + (i / 20) as f32 / 70.0) * 0.1);
        case.check_reference_bits();
        case.check_bits();
    }
}

/// A score is off by at most two roundings of each product. That changes a weight, and the sum of all, by a factor; weight and
/// value are rounded once more each.
#[test]
fn results_are_near_those_in_single_precision() {
    for &precision in ROUNDING {
        let single = params([1, 2, 1, 100, 100, 64], true);
        let case = forward(single);
        let rounded = forward(Attention { precision, ..single });
        let [Input::F32(q), Input::F32(k), _] = &case.reads[..] else { panic!("q, k, v are f32") };
        let magnitude =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from((a * b).abs())).sum::<f64>();
        let largest =
            q.chunks(64).flat_map(|q| k.chunks(64).map(move |k| magnitude(q, k))).fold(0.0, f64::max);
        let score_error = f64::from(single.scale) * largest * 2.01 * ROUNDOFF;
        let bound = (2.0 * score_error).exp() * (1.0 + 2.01 * ROUNDOFF) - 1.0;
        let (single, rounded) = (case.fast(&Team::new(1)), rounded.fast(&Team::new(1)));
        let worst = |output: usize| {
            let pairs = single[output].iter().zip(&rounded[output]);
            pairs.map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max)
        };
        assert!(worst(0) > 0.0 && worst(0) <= bound, "{precision}: y is off by {}, bound {bound}", worst(0));
        assert!(
            worst(1) <= score_error + 1e-5,
            "{precision}: lse is off by {}, bound {score_error}",
            worst(1)
        );
    }
}

#[test]
fn gradients_point_where_those_in_single_precision_do() {
    for (&precision, causal) in ROUNDING.iter().flat_map(|p| [false, true].map(|causal| (p, causal))) {
        let single = Attention { scale: 0.125, ..params([2, 4, 2, 128, 128, 64], causal) };
        let [single, rounded] = [single, Attention { precision, ..single }].map(|params| {
            let mut forward = forward(params);
            forward.reads.iter_mut().zip(1..).for_each(|(read, seed)| *read = normal(read, seed));
            let [out, lse] = forward.fast(&Team::new(2)).try_into().expect("two results");
            let grad = AttentionGrad { forward: params, accumulate: false };
            let mut case = Case::new("attention_grad", grad.to_words());
            case.writes = lengths(params).into_iter().map(|n| vec![f32::NAN; n]).collect();
            let dout = normal(&forward.reads[0], 9);
            case.reads = forward.reads;
            case.read(out).read(lse).read(dout).fast(&Team::new(2))
        });
        for (name, (single, rounded)) in ["dq", "dk", "dv"].iter().zip(single.iter().zip(&rounded)) {
            let dot = |a: &[f32], b: &[f32]| {
                a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
            };
            let cosine = dot(single, rounded) / (dot(single, single) * dot(rounded, rounded)).sqrt();
            assert!(cosine >= 0.9999, "{precision}: {name} has cosine {cosine}");
        }
    }
}

/// As many numbers, normally distributed: by the central limit, of twelve uniform ones.
fn normal(like: &Input, seed: u64) -> Input {
    let Input::F32(like) = like else { panic!("operands are f32") };
    let uniform = values(12 * like.len(), seed);
    uniform.chunks_exact(12).map(|chunk| chunk.iter().sum::<f32>() * 0.5).collect::<Vec<f32>>().into()
}
