use phalanx_ir::Activation;

use super::*;
use crate::binary::{BinaryGradParams, binary, binary_grad};
use crate::dropout::dropout;
use crate::samples::{Case, launched, values};
use crate::unary::{unary, unary_grad};
use crate::{KernelEntry, Team};

/// A step of the chains below: operands are numbered first.
fn step(function: Function, values: &[usize]) -> Step {
    let mut all = [0; 3];
    all[..values.len()].copy_from_slice(values);
    Step { function, values: all }
}

/// Every function once, the first operand read by most of them: (x, a, b, dy) -> nothing written yet.
fn every_function() -> Vec<Step> {
    let unary = Unary::all(1.5).into_iter().map(|kind| step(Function::Unary(kind), &[0]));
    let unary_grad = Unary::all(1.5).into_iter().map(|kind| step(Function::UnaryGrad(kind), &[0, 3]));
    let rounded_grad = Activation::ALL
        .iter()
        .filter(|&&activation| activation != Activation::None)
        .map(|&activation| step(Function::RoundedGrad(Unary::Act(activation)), &[0, 3]));
    let binary = Binary::ALL.iter().map(|&kind| step(Function::Binary(kind), &[1, 2]));
    let binary_grad = Binary::ALL
        .iter()
        .flat_map(|&kind| [0, 1].map(|side| step(Function::BinaryGrad(kind, side), &[1, 2, 3])));
    let dropouts = masks(3 * PIECE + 5).map(|mask| step(Function::Dropout(mask), &[0]));
    unary.chain(unary_grad).chain(rounded_grad).chain(binary).chain(binary_grad).chain(dropouts).collect()
}

/// The scalars of step 17.
const HYPER: [f32; 8] = [0.1, 0.2, 0.3, 17.0, 0.0, 0.0, 0.0, 0.0];

/// Tiles of `n` elements somewhere in a larger tensor: one row, 17 of the 40 columns if that comes out even, one column.
fn masks(n: usize) -> impl Iterator<Item = Mask> {
    let rows = if n.is_multiple_of(17) { [1, 1, n / 17, 17] } else { [1, 1, 1, n] };
    let tiles = [([1, 1, 1, n], [0, 0, 0, 1]), (rows, [0, 0, 40, 1]), ([1, n, 1, 1], [0, 23, 1, 1])];
    tiles.into_iter().map(|(extents, strides)| Mask {
        rate: 0.3,
        seed: 11,
        salt: 5,
        extents,
        strides,
        start: 77,
    })
}

/// Positive operands, so that roots and logarithms are numbers.
fn operand(n: usize, seed: u64) -> Vec<f32> {
    values(n, seed).iter().map(|x| x + 1.25).collect()
}

fn case(n: usize, reads: usize, steps: &[Step], results: &[usize]) -> Case {
    let steps = steps.iter().copied().collect();
    let params = ChainParams { n, reads, steps, results: results.iter().copied().collect() };
    assert_eq!(ChainParams::from_words(&params.to_words()), params);
    let case = Case::new("chain", params.to_words());
    let case = (0..reads).fold(case, |case, slot| case.read(operand(n, slot as u64 + 1)));
    let case = if params.is_random() { case.read(HYPER.to_vec()) } else { case };
    results.iter().fold(case, |case, _| case.write(vec![9.0; n]))
}

/// The gradient of silu(x)·u with what it needs: (x, u, dy) -> du, dx.
fn gated_grad() -> [Step; 4] {
    let silu = step(Function::Unary(Unary::Act(Activation::Silu)), &[0]);
    let gate = step(Function::BinaryGrad(Binary::Mul, 0), &[1, 1, 2]);
    let up = step(Function::BinaryGrad(Binary::Mul, 1), &[3, 3, 2]);
    [silu, gate, up, step(Function::UnaryGrad(Unary::Act(Activation::Silu)), &[0, 4])]
}

/// An activation, dropout and a residual: (x, residual) -> nothing written yet.
fn residual(mask: Mask) -> [Step; 3] {
    let gelu = step(Function::Unary(Unary::Act(Activation::GeluTanh)), &[0]);
    let dropped = step(Function::Dropout(mask), &[2]);
    [gelu, dropped, step(Function::Binary(Binary::Add), &[1, 3])]
}

#[test]
fn every_function_has_the_bits_of_its_own_kernel() {
    let (n, team) = (3 * PIECE + 5, Team::new(1));
    let [x, a, b, dy] = [1, 2, 3, 4].map(|seed| operand(n, seed));
    let broadcast = Broadcast::new(&[n], &[n]);
    for own in every_function() {
        let mut want = vec![0.0; n];
        match own.function {
            Function::Unary(kind) => unary(&mut want, &x, UnaryParams { n, kind }, &mut Launch::plain(&team)),
            Function::UnaryGrad(kind) | Function::RoundedGrad(kind) => {
                let rounded = matches!(own.function, Function::RoundedGrad(_));
                let params = UnaryGradParams { n, kind, accumulate: false, rounded };
                unary_grad(&mut want, &x, &dy, params, &mut Launch::plain(&team));
            }
            Function::Binary(kind) => {
                binary(&mut want, &a, &b, BinaryParams { kind, broadcast }, &mut Launch::plain(&team))
            }
            Function::BinaryGrad(kind, side) => {
                binary_grad(
                    &mut want,
                    &a,
                    &b,
                    &dy,
                    BinaryGradParams { kind, side, broadcast },
                    &mut Launch::plain(&team),
                );
            }
            Function::Dropout(mask) => {
                let params = DropoutParams { n, accumulate: false, mask };
                dropout(&mut want, &x, &HYPER, params, &mut Launch::plain(&team));
            }
        }
        let got = case(n, 4, &[own], &[0]).fast(&team);
        assert!(got[0].iter().map(|x| x.to_bits()).eq(want.iter().map(|x| x.to_bits())), "{own:?}");
    }
}

#[test]
fn fast_is_close_to_reference_for_odd_sizes() {
    // Each of the four steps rounds once more than the reference, which computes functions in double precision.
    const TOLERANCE: f32 = 8.0 * f32::EPSILON;
    for n in [0, 1, 15, 16, 17, PIECE - 1, PIECE, PIECE + 1, 20_000] {
        case(n, 3, &gated_grad(), &[2, 3]).check(TOLERANCE);
        case(n, 3, &gated_grad(), &[3, 0]).check(TOLERANCE);
        masks(n).for_each(|mask| case(n, 2, &residual(mask), &[2, 0]).check(TOLERANCE));
    }
}

#[test]
fn bits_do_not_depend_on_cores_or_instruction_set() {
    case(40_007, 3, &gated_grad(), &[3, 2]).check_bits();
    masks(17 * 2357).for_each(|mask| case(17 * 2357, 2, &residual(mask), &[2]).check_bits());
}

#[test]
fn a_chain_means_its_steps_one_after_the_other() {
    let steps = [
        step(Function::Unary(Unary::MulScalar(2.0)), &[0]),
        step(Function::Binary(Binary::Sub), &[2, 1]),
        step(Function::UnaryGrad(Unary::Square), &[1, 3]),
    ];
    let steps: ArrayVec<Step, MAX_ARGS> = steps.into_iter().collect();
    let params = ChainParams { n: 2, reads: 2, steps, results: [2, 1].into_iter().collect() };
    let (x, y) = ([1.0, 2.0], [3.0, -1.0]);
    let (mut first, mut second) = ([0.0; 2], [0.0; 2]);
    let outs = [&mut first[..], &mut second[..]].into_iter().collect();
    launched(&KernelEntry::of::<ChainParams>(), &params.to_words(), 1, &Team::new(1), |mut launch| {
        chain(outs, &[&x, &y], &params, &mut launch);
    });
    // 2x - y, and that times the slope 2y of y².
    assert_eq!((second, first), ([-1.0, 5.0], [-6.0, -10.0]));
}
