//! Training in f32 and in bf16 beside the losses that PyTorch had.

use phalanx::ir::Precision;
use phalanx_bench::{PrecisionBench, PrecisionResult, precision};

/// Losses in f32 differ by the order of additions only.
const SINGLE: f64 = 1e-4;

fn train(precision_of: Precision, steps: usize) -> PrecisionResult {
    precision(&PrecisionBench { precision: precision_of, steps, cores: 1 }).expect("the model trains")
}

#[test]
fn losses_in_f32_are_those_of_pytorch() {
    let found = train(Precision::F32, 40);
    assert!(found.distance.largest < SINGLE, "{:?}", found.distance);
    assert_eq!(found.missed, [""; 0]);
    assert!(found.losses[39] < 3.5 && found.losses[0] > 5.4, "it learns: {:?}", found.losses);
    let equal: Vec<_> = found.equal_weights.iter().map(|found| (found.step, found.loss)).collect();
    assert_eq!(equal, [(0, 0.0), (20, 0.0)], "two sessions in f32 have the same bits");
}

/// The bars of the bench, over the first steps.
#[test]
fn losses_in_bf16_are_as_near_as_those_under_autocast() {
    for precision in [Precision::Bf16, Precision::Bf16Pair] {
        let found = train(precision, 24);
        assert!(found.distance.largest > 0.0, "{precision} rounds");
        assert_eq!(found.missed, [""; 0], "{precision}");
    }
}
