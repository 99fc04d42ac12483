//! The fast product against the plain one: same bits for all sizes, layouts, epilogues, teams, instruction sets.

use phalanx_ir::Unary;

use super::*;
use crate::bf16::{NumberClass, Samples, widen};
use crate::samples::launched;
use crate::unary::{UnaryGradParams, unary_grad};
use crate::{KernelEntry, Team, Words};

fn plain(m: usize, n: usize, k: usize) -> MatmulParams {
    MatmulParams { m, n, k, ..MatmulParams::PLAIN }
}

/// Values in -1..1 that depend on `salt` and the index only.
fn samples(n: usize, salt: u64) -> Vec<f32> {
    let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

struct Data {
    a: Vec<f32>,
    b: Vec<f32>,
    bias: Vec<f32>,
    residual: Vec<f32>,
    points: Vec<f32>,
    out: Vec<f32>,
}

fn data(params: &MatmulParams) -> Data {
    let &MatmulParams { batch, m, n, k, .. } = params;
    Data {
        a: samples(batch * m * k, 1),
        b: samples(batch * k * n, 2),
        bias: samples(n, 3),
        residual: samples(batch * m * n, 4),
        points: samples(batch * m * n, 6),
        out: samples(batch * m * n, 5),
    }
}

/// Output and saved value as bits, from `run`.
fn outcome(
    params: &MatmulParams,
    data: &Data,
    run: impl FnOnce(Outputs<'_>, Operands<'_>),
) -> (Vec<u32>, Vec<u32>) {
    let mut out = data.out.clone();
    let mut pre = vec![0.0; if params.save_pre { out.len() } else { 0 }];
    let operands = Operands {
        a: &data.a,
        b: &data.b,
        bias: params.bias.then_some(&data.bias[..]),
        residual: params.residual.then_some(&data.residual[..]),
        points: (params.slope != Activation::None).then_some(&data.points[..]),
    };
    run(Outputs { out: &mut out, pre: params.save_pre.then_some(&mut pre[..]) }, operands);
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
    (bits(out), bits(pre))
}

fn fast(params: &MatmulParams, data: &Data, team: &Team) -> (Vec<u32>, Vec<u32>) {
    let words = params.to_words();
    let planned = KernelEntry::of::<MatmulParams>().plan(&words, team.cores()).unwrap();
    outcome(params, data, |outputs, operands| {
        launched(&KernelEntry::of::<MatmulParams>(), &words, planned.blocks, team, |mut launch| {
            matmul(outputs, operands, params, &mut launch);
        });
    })
}

fn reference(params: &MatmulParams, data: &Data) -> (Vec<u32>, Vec<u32>) {
    outcome(params, data, |outputs, operands| matmul_reference(outputs, operands, params))
}

fn check(params: &MatmulParams, team: &Team) {
    let data = data(params);
    let (got, expected) = (fast(params, &data, team), reference(params, &data));
    assert!(got == expected, "{params:?} on {} cores", team.cores());
}

/// The precisions whose operands are rounded.
const ROUNDING: [Precision; 2] = [Precision::Bf16, Precision::Bf16Pair];

fn layouts() -> impl Iterator<Item = (bool, bool)> {
    [(false, false), (false, true), (true, false), (true, true)].into_iter()
}

#[test]
fn odd_sizes_in_all_layouts_equal_the_reference() {
    let team = Team::new(2);
    let sizes = [1, 2, 3, 5, 7, 13, 14, 15, 16, 17, 31, 32, 33, 100];
    for (index, &m) in sizes.iter().enumerate() {
        for &n in &sizes {
            let k = sizes[(index + n) % sizes.len()];
            for (trans_a, trans_b) in layouts() {
                check(&MatmulParams { trans_a, trans_b, ..plain(m, n, k) }, &team);
            }
        }
    }
}

#[test]
fn rounded_operands_equal_the_reference_for_odd_sizes_in_all_layouts() {
    let team = Team::new(2);
    let sizes = [1, 2, 3, 6, 7, 13, 15, 16, 17, 31, 33, 65, 100];
    for precision in ROUNDING {
        for (index, &m) in sizes.iter().enumerate() {
            for &n in &sizes {
                let k = sizes[(index + n) % sizes.len()];
                let leaves = 1 << k.trailing_zeros().min(3);
                for (trans_a, trans_b) in layouts() {
                    check(&MatmulParams { trans_a, trans_b, leaves, precision, ..plain(m, n, k) }, &team);
                }
            }
        }
    }
}

/// Leaves of odd lengths inside of a block and across blocks, and leaves longer than a block.
#[test]
fn rounded_operands_keep_chain_and_tree_over_blocks() {
    let team = Team::new(2);
    for precision in ROUNDING {
        for (m, n, k) in [(30, 40, 600), (20, 33, 2304), (9, 36, 5120), (3, 70, 4800)] {
            for leaves in [1, 2, 8, 32] {
                if k % leaves == 0 {
                    check(&MatmulParams { leaves, precision, ..plain(m, n, k) }, &team);
                    let transposed = MatmulParams { trans_a: true, trans_b: true, ..plain(m, n, k) };
                    check(&MatmulParams { leaves, precision, ..transposed }, &team);
                }
            }
        }
    }
}

/// Instruction sets agree where products underflow, cancel and overflow.
#[test]
fn numbers_of_every_class_give_the_defined_bits() {
    for precision in ROUNDING {
        for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
            Isa::select(isa);
            for class in NumberClass::ALL {
                let params = MatmulParams { leaves: 2, precision, ..plain(17, 50, 84) };
                let mut samples = Samples::new(class, 7);
                let mut numbers = |n: usize| (0..n).map(|_| widen(samples.factor())).collect::<Vec<_>>();
                let data = Data { a: numbers(17 * 84), b: numbers(84 * 50), ..data(&params) };
                let (found, expected) = (fast(&params, &data, &Team::new(1)).0, reference(&params, &data).0);
                let is_nan = |bits: u32| f32::from_bits(bits).is_nan();
                let same = |(&a, &b): (&u32, &u32)| a == b || is_nan(a) && is_nan(b);
                assert!(found.iter().zip(&expected).all(same), "{precision} {isa:?} {class:?}");
            }
        }
        Isa::select(Isa::best());
    }
}

/// On a machine that has the instruction: a million results of every class.
#[test]
fn the_instruction_for_pairs_does_what_is_defined() {
    for class in NumberClass::ALL {
        if let Some(found) = compare_dot(class, 1 << 16) {
            assert_eq!((found.results, found.differences), (1 << 20, 0), "{class:?}");
        }
    }
}

#[test]
fn long_sums_keep_their_chain_and_tree_over_blocks() {
    let team = Team::new(2);
    for (m, n, k) in [(30, 40, 300), (20, 33, 600), (15, 70, 2304), (29, 36, 5120), (3, 300, 4800)] {
        for leaves in [1, 2, 4, 8, 16] {
            if k % leaves == 0 {
                check(&MatmulParams { leaves, ..plain(m, n, k) }, &team);
                check(&MatmulParams { leaves, trans_a: true, trans_b: true, ..plain(m, n, k) }, &team);
            }
        }
    }
}

#[test]
fn more_rows_and_columns_than_scratch_holds_at_once() {
    let team = Team::new(2);
    check(&plain(1100, 290, 700), &team);
    check(&plain(3, 5600, 384), &Team::new(1));
    check(&MatmulParams { trans_b: true, ..plain(20, 5600, 384) }, &Team::new(1));
    check(&MatmulParams { leaves: 16, trans_a: true, ..plain(820, 2112, 32) }, &Team::new(1));
}

#[test]
fn every_epilogue_equals_the_reference() {
    let team = Team::new(2);
    for flags in 0..16 {
        let flag = |bit: usize| flags >> bit & 1 == 1;
        for &activation in Activation::ALL {
            for (m, n, k) in [(29, 64, 9), (17, 45, 20)] {
                let epilogue = MatmulParams {
                    bias: flag(0),
                    residual: flag(1),
                    save_pre: flag(2),
                    accumulate: flag(3),
                    activation,
                    batch: 2,
                    leaves: if k % 4 == 0 { 4 } else { 1 },
                    ..plain(m, n, k)
                };
                check(&epilogue, &team);
                check(&MatmulParams { activation: Activation::None, slope: activation, ..epilogue }, &team);
            }
        }
    }
}

/// What `unary_grad` makes of a product is what the product with a slope gives, bit by bit.
#[test]
fn a_slope_is_the_gradient_of_the_activation() {
    let team = Team::new(2);
    for &slope in &Activation::ALL[1..] {
        for accumulate in [false, true] {
            let params = MatmulParams { slope, accumulate, leaves: 2, ..plain(33, 50, 24) };
            let data = data(&params);
            let (fused, _) = fast(&params, &data, &team);
            let (product, _) =
                fast(&MatmulParams { slope: Activation::None, accumulate: false, ..params }, &data, &team);
            let product: Vec<f32> = product.into_iter().map(f32::from_bits).collect();
            let mut apart = data.out.clone();
            let grad =
                UnaryGradParams { n: apart.len(), kind: Unary::Act(slope), accumulate, rounded: false };
            unary_grad(&mut apart, &data.points, &product, grad, &mut Launch::plain(&team));
            assert!(apart.iter().map(|x| x.to_bits()).eq(fused), "{slope:?}, accumulate {accumulate}");
        }
    }
}

#[test]
fn batches_equal_the_reference() {
    for cores in [1, 2, 3] {
        let team = Team::new(cores);
        for batch in [0, 1, 2, 3, 5, 13] {
            for (trans_a, trans_b) in layouts() {
                check(&MatmulParams { batch, trans_a, trans_b, ..plain(40, 37, 50) }, &team);
            }
        }
    }
}

#[test]
fn an_empty_sum_is_zero() {
    check(&plain(5, 7, 0), &Team::new(1));
}

#[test]
fn teams_and_instruction_sets_give_the_same_bits() {
    let cases = [plain(150, 130, 70), MatmulParams { leaves: 8, trans_a: true, ..plain(64, 300, 512) }];
    for (case, &precision) in cases.iter().flat_map(|case| Precision::ALL.iter().map(move |p| (*case, p))) {
        for (bias, activation) in [(false, Activation::None), (true, Activation::GeluTanh)] {
            let epilogue = MatmulParams { bias, activation, slope: activation, save_pre: bias, ..case };
            let params = MatmulParams { precision, ..epilogue };
            let data = data(&params);
            let expected = reference(&params, &data);
            for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
                Isa::select(isa);
                for cores in 1..5 {
                    assert!(
                        fast(&params, &data, &Team::new(cores)) == expected,
                        "{params:?} {isa:?} {cores}"
                    );
                }
            }
            Isa::select(Isa::best());
        }
    }
}

#[test]
fn the_kernel_reads_its_arguments_in_the_documented_order() {
    let params = MatmulParams {
        bias: true,
        residual: true,
        save_pre: true,
        slope: Activation::Silu,
        ..plain(9, 11, 4)
    };
    let data = data(&params);
    let expected = reference(&params, &data);
    let words = params.to_words();
    let team = Team::new(2);
    for run in [KernelEntry::of::<MatmulParams>().fast, KernelEntry::of::<MatmulParams>().reference] {
        let (mut out, mut pre) = (data.out.clone(), vec![0.0f32; 99]);
        launched(&KernelEntry::of::<MatmulParams>(), &words, 2, &team, |launch| {
            let reads = [&data.a, &data.b, &data.bias, &data.residual, &data.points];
            run(&mut Call {
                params: &words,
                reads: reads.into_iter().map(|values| bytemuck::cast_slice(values)).collect(),
                writes: [&mut out, &mut pre].into_iter().map(|out| bytemuck::cast_slice_mut(out)).collect(),
                launch,
            });
        });
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert!((bits(&out), bits(&pre)) == expected);
    }
}
