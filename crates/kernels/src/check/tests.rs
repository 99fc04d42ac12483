//! Planted faults are named exactly, and the kernels that no other test checks have none.

use phalanx_ir::{Activation, DType, Precision, Unary};

use super::map::GUARD;
use super::*;
use crate::cast::CastParams;
use crate::concat::ConcatParams;
use crate::cross_entropy::CountLabels;
use crate::dropout::{DropoutParams, Mask};
use crate::fill::FillParams;
use crate::matmul::MatmulParams;
use crate::samples::{Case, Input, values};
use crate::spmd::{Launch, Layout, Workspace};
use crate::sum_squares::ClipScale;
use crate::unary::{UnaryGradParams, UnaryParams};
use crate::{Call, KernelEntry, Team, Words};

/// Floats that a block has for itself, and that all have in common.
const OWN: usize = 5;
const COMMON: usize = 7;

/// From one slice to the next: 20 bytes, rounded up to whole lines, and a guard.
const STRIDE: usize = 128 + GUARD;

/// A kernel of one function, which calls what it reads `x` and what it writes `y`.
fn planted(function: Function) -> KernelEntry {
    let unary = KernelEntry::of::<UnaryParams>();
    KernelEntry { name: "planted", fast: function, reference: function, ..unary }
}

/// Checks a call of `function` on 4 blocks and 2 slices that reads 10 floats (0, 1, ...) and writes 40 ones; gives these.
fn check(function: Function) -> Result<Vec<f32>, AccessError> {
    check_in(Workspace::of::<f32>(COMMON, OWN), function)
}

fn check_in(workspace: Workspace, function: Function) -> Result<Vec<f32>, AccessError> {
    let mut memory = vec![0u64; Layout::new("planted", workspace, 2).unwrap().total() as usize / 8];
    let (team, input) = (Team::new(2), (0..10).map(|i| i as f32).collect::<Vec<_>>());
    let mut output = vec![1.0; 40];
    let memory = bytemuck::cast_slice_mut(&mut memory);
    let result = {
        let mut call = Call {
            params: &[],
            reads: [bytemuck::cast_slice(&input)].into_iter().collect(),
            writes: [bytemuck::cast_slice_mut(&mut output)].into_iter().collect(),
            launch: Launch::new("planted", 4, workspace, memory, &team).unwrap(),
        };
        Checker::default().run(&planted(function), function, &mut call)
    };
    if result.is_err() {
        assert_eq!(output, vec![1.0; 40], "a call with a fault leaves its arguments as they are");
    }
    result.map(|()| output)
}

/// The float at an address that need not belong to what a kernel is given.
fn peek(address: usize) -> f32 {
    // SAFETY: the planted kernels stay inside the memory of the checker.
    unsafe { (address as *const f32).read_volatile() }
}

fn poke(address: usize, value: f32) {
    // SAFETY: the planted kernels stay inside the memory of the checker.
    unsafe { (address as *mut f32).write_volatile(value) };
}

fn address<T>(slice: &[T]) -> usize {
    slice.as_ptr() as usize
}

fn write(step: Step, part: Part, offset: usize, len: usize) -> Option<AccessError> {
    let spot = Spot { part, offset: offset as i64, len };
    Some(AccessError::Write { kernel: "planted", step, spot })
}

fn read(step: Step, part: Part, offset: usize, len: usize) -> Option<AccessError> {
    let spot = Spot { part, offset: offset as i64, len };
    Some(AccessError::Read { kernel: "planted", step, spot })
}

fn in_block(phase: usize, block: usize) -> Step {
    Step { phase, block: Some(block) }
}

/// Adds to every output the sum of the inputs from its block's own slice, and its block's share of the common part.
fn sound(call: &mut Call<'_>) {
    let (out, x) = (call.write::<f32>(0), call.read::<f32>(0));
    let common = call.launch.common::<f32>();
    common.fill(0.0);
    call.launch.for_each_part(&mut common[..4], 1, |first, part| part.fill(first as f32));
    let common = &common[..4];
    call.launch.split_rows(40, [(out, 1)], |rows, [out], own| {
        own.fill(x.iter().sum());
        out.iter_mut().for_each(|out| *out += own[OWN - 1] + common[rows.start / 10]);
    });
}

#[test]
fn a_sound_kernel_gives_the_results_of_an_unchecked_call() {
    let want: Vec<f32> = (0..40).map(|i| 1.0 + 45.0 + (i / 10) as f32).collect();
    assert_eq!(check(sound), Ok(want));
}

#[test]
fn aligned_slices_stay_so_between_guards() {
    for align in [128, 4096, 1 << 16] {
        let workspace = Workspace { align, ..Workspace::of::<f32>(COMMON, OWN) };
        assert!(check_in(workspace, sound).is_ok());
        let at_multiple: Function = |call| {
            let align = call.launch.layout().align();
            call.launch.run(|block| assert!(block.own.as_ptr().addr().is_multiple_of(align)));
        };
        assert!(check_in(workspace, at_multiple).is_ok());
        let past = check_in(workspace, |call| {
            call.launch.run(|mut block| poke(address(block.own::<f32>()) + 4 * OWN, 0.5));
        });
        assert_eq!(past.err(), write(in_block(0, 0), Part::Slice(0), 20, 20));
    }
}

#[test]
fn a_write_past_a_slice_is_named() {
    let past = check(|call| {
        call.launch.run(|mut block| {
            let own = block.own::<f32>();
            if block.index == 3 {
                poke(address(own) + 4 * OWN, 0.5);
            }
        });
    });
    assert_eq!(past.err(), write(in_block(0, 3), Part::Slice(1), 20, 20));
    let other = check(|call| {
        call.launch.run(|mut block| {
            let own = block.own::<f32>();
            if block.index == 1 {
                poke(address(own) - STRIDE + 8, 0.5);
            }
        });
    });
    assert_eq!(other.err(), write(in_block(0, 1), Part::Slice(0), 8, 20));
}

#[test]
fn a_write_past_or_before_an_argument_is_named() {
    let past = check(|call| {
        let out = address(call.write::<f32>(0));
        call.launch.run(|block| {
            if block.index == 2 {
                poke(out + 4 * 40 + 64, 0.5);
            }
        });
    });
    assert_eq!(past.err(), write(in_block(0, 2), Part::Write(0, "y"), 224, 160));
    let before = check(|call| poke(address(call.write::<f32>(0)) - 4, 0.5)).unwrap_err();
    assert_eq!(
        before.to_string(),
        "kernel `planted`: the code outside blocks after 0 phases writes byte -4 of written argument `y`, which has 160 bytes"
    );
}

#[test]
fn a_write_to_what_is_only_read_is_named() {
    let error = check(|call| {
        let x = address(call.read::<f32>(0));
        call.launch.run(|_| ());
        call.launch.run(|block| {
            if block.index == 1 {
                poke(x + 12, 0.5);
            }
        });
    });
    assert_eq!(error, Err(write(in_block(1, 1), Part::Read(0, "x"), 14, 40).unwrap()));
    assert_eq!(
        error.unwrap_err().to_string(),
        "kernel `planted`: block 1 in phase 1 writes byte 14 of read argument `x`, which has 40 bytes; it may only be read"
    );
}

#[test]
fn blocks_that_write_the_same_byte_are_named_even_if_they_agree() {
    let error = check(|call| {
        let out = address(call.write::<f32>(0));
        call.launch.run(|block| {
            poke(out + 40 * block.index, 2.0);
            if block.index == 3 {
                poke(out + 40, 2.0);
            }
        });
    });
    // Of 1.0 and 2.0 the third byte is the first that differs.
    let spot = Spot { part: Part::Write(0, "y"), offset: 42, len: 160 };
    let want = AccessError::Overlap { kernel: "planted", blocks: [1, 3], phase: 0, spot };
    assert_eq!(error, Err(want));
}

#[test]
fn blocks_do_not_see_what_others_write_in_the_same_phase() {
    let result = check(|call| {
        let out = address(call.write::<f32>(0));
        call.launch.run(|block| poke(out + 4 * block.index, peek(out + 4 * (block.index.max(1) - 1)) + 1.0));
    });
    assert_eq!(result.map(|out| out[..5].to_vec()), Ok(vec![2.0, 2.0, 2.0, 2.0, 1.0]));
}

#[test]
fn a_read_of_what_nobody_has_written_is_named() {
    let slice = check(|call| {
        let out = call.write::<f32>(0);
        call.launch.split_rows(40, [(out, 1)], |rows, [out], own| {
            own[..3].fill(1.0);
            out[0] = if rows.start == 20 { own[3] } else { own[2] };
        });
    });
    assert_eq!(slice.err(), read(in_block(0, 2), Part::Slice(0), 12, 20));
    let common = check(|call| {
        let (out, common) = (call.write::<f32>(0), call.launch.common::<f32>());
        common[..COMMON - 1].fill(1.0);
        call.launch.run(|_| ());
        let common = &*common;
        call.launch.split_rows(40, [(out, 1)], |rows, [out], _| {
            out[0] = if rows.start >= 10 { common[COMMON - 1] } else { common[0] };
        });
    });
    assert_eq!(common.err(), read(in_block(1, 1), Part::Common, 24, 28));
}

#[test]
fn a_slice_keeps_nothing_for_the_next_phase() {
    let error = check(|call| {
        let out = call.write::<f32>(0);
        call.launch.run(|mut block| block.own::<f32>().fill(1.0));
        call.launch.split_rows(40, [(out, 1)], |_, [out], own| out[0] = own[1]);
    });
    assert_eq!(error, Err(read(in_block(1, 0), Part::Slice(0), 4, 20).unwrap()));
    assert_eq!(
        error.unwrap_err().to_string(),
        "kernel `planted`: block 0 in phase 1 reads byte 4 of workspace slice 0, which has 20 bytes; it was never written"
    );
}

#[test]
fn a_read_beyond_an_argument_is_named() {
    let error = check(|call| {
        let (out, x) = (call.write::<f32>(0), address(call.read::<f32>(0)));
        call.launch.split_rows(40, [(out, 1)], |rows, [out], _| {
            let index = if rows.start == 30 { 10 } else { 0 };
            out[0] = peek(x + 4 * index);
        });
    });
    assert_eq!(error.err(), read(in_block(0, 3), Part::Read(0, "x"), 40, 40));
}

#[test]
fn a_fault_does_not_spoil_the_next_call_of_the_same_checker() {
    let (mut checker, team) = (Checker::default(), Team::new(1));
    let function: Function = |call| call.write::<f32>(0).fill(2.0);
    for len in [3, 5000, 1] {
        let mut output = vec![1.0f32; len];
        let mut call = Call {
            params: &[],
            reads: Default::default(),
            writes: [bytemuck::cast_slice_mut(&mut output)].into_iter().collect(),
            launch: Launch::plain(&team),
        };
        let past: Function = |call| poke(address(call.writes[0]) + call.writes[0].len(), 2.0);
        assert!(checker.run(&planted(past), past, &mut call).is_err());
        assert_eq!(checker.run(&planted(function), function, &mut call), Ok(()));
        drop(call);
        assert_eq!(output, vec![2.0; len]);
    }
}

fn case(name: &str, params: Vec<u64>) -> Case {
    Case::new(name, params)
}

#[test]
fn kernels_without_other_cases_access_only_what_they_may() {
    let n = 1003;
    let kind = Unary::Act(Activation::Relu);
    let mask = Mask { rate: 0.3, seed: 11, salt: 5, extents: [1, 1, 1, n], strides: [0, 0, 0, 1], start: 3 };
    let dropout = DropoutParams { n, accumulate: true, mask };
    let pieces = ConcatParams { elem_bytes: 4, outer: 59, inner: [5, 12].into_iter().collect() };
    let cast = CastParams { n: 2 * n, from: DType::F32, to: DType::Bf16 };
    let count = CountLabels { n: 33, ignore_index: -1, labels_i32: true };
    let gradient = UnaryGradParams { n, kind, accumulate: true, rounded: false };
    let cases = [
        case("unary", UnaryParams { n, kind }.to_words()).read(values(n, 1)).write(vec![1.0; n]),
        case("unary_grad", gradient.to_words()).read(values(n, 1)).read(values(n, 2)).write(vec![1.0; n]),
        case("fill", FillParams { n, value: 3.0 }.to_words()).write(vec![1.0; n]),
        case("dropout", dropout.to_words()).read(values(n, 1)).read(vec![0.1; 8]).write(vec![1.0; n]),
        case("concat", pieces.to_words())
            .read(values(59 * 5, 1))
            .read(values(59 * 12, 2))
            .write(vec![1.0; 59 * 17]),
        case("split", pieces.to_words())
            .read(values(59 * 17, 1))
            .write(vec![1.0; 59 * 5])
            .write(vec![1.0; 59 * 12]),
        case("cast", cast.to_words()).read(values(2 * n, 1)).write(vec![1.0; n]),
        case("count_labels", count.to_words()).read(Input::ids(&[3; 33], true)).write(vec![1.0]),
        case("clip_scale", ClipScale { max_norm: 0.5 }.to_words()).read(vec![9.0]).write(vec![1.0; 2]),
    ];
    cases.iter().for_each(Case::check_bits);
}

#[test]
fn matrix_products_access_only_what_they_may() {
    for (batch, m, n, k, leaves) in [(1, 1, 1, 1, 1), (2, 33, 70, 24, 8), (1, 130, 67, 300, 2)] {
        for flag in [false, true] {
            let params = MatmulParams {
                batch,
                m,
                n,
                k,
                trans_a: flag,
                trans_b: !flag,
                leaves,
                bias: flag,
                residual: flag,
                activation: Activation::GeluTanh,
                save_pre: flag,
                accumulate: !flag,
                slope: if flag { Activation::Silu } else { Activation::None },
                precision: Precision::F32,
            };
            let mut case = case("matmul", params.to_words())
                .read(values(batch * m * k, 1))
                .read(values(batch * k * n, 2))
                .write(values(batch * m * n, 3));
            if flag {
                case = case.read(values(n, 4)).read(values(batch * m * n, 5));
                case = case.read(values(batch * m * n, 6)).write(vec![0.0; batch * m * n]);
            }
            case.check_bits();
        }
    }
}
