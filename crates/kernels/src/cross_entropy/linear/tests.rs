use super::*;
use crate::cross_entropy::tests::{IGNORED, labels};
use crate::samples::{Case, Input, values};
use crate::{KernelEntry, Team, Words};

/// Sums of a few hundred products and exponentials.
const TOLERANCE: f32 = 1e-4;

/// The sizes of a head, with as many leaves as divide them evenly up to two and eight.
fn head(rows: usize, classes: usize, features: usize) -> LinearCrossEntropy {
    LinearCrossEntropy {
        rows,
        classes,
        features,
        transposed: false,
        bias: false,
        leaves: 1 << features.trailing_zeros().min(1),
        class_leaves: 1 << classes.trailing_zeros().min(3),
        ignore_index: IGNORED,
        labels_i32: false,
        precision: Precision::F32,
    }
}

/// The kernel on sample values; every third label is ignored.
fn case(params: LinearCrossEntropy) -> Case {
    let LinearCrossEntropy { rows, classes, features, .. } = params;
    let mut case = Case::new("linear_cross_entropy", params.to_words())
        .read(values(rows * features, 1))
        .read(values(classes * features, 2));
    if params.bias {
        case = case.read(values(classes, 3));
    }
    case.read(Input::ids(&labels(rows, classes), params.labels_i32))
        .read(vec![0.7])
        .write(vec![f32::NAN; rows * classes])
        .write(vec![f32::NAN; rows])
}

/// What the three kernels write one after the other: dlogits and losses.
fn one_after_the_other(case: &Case, params: LinearCrossEntropy) -> Vec<Vec<f32>> {
    let LinearCrossEntropy { rows, classes, bias, .. } = params;
    let team = Team::new(2);
    let mut product =
        Case::new("matmul", params.product(rows).to_words()).write(vec![f32::NAN; rows * classes]);
    product.reads = case.reads[..2 + usize::from(bias)].to_vec();
    let logits = product.fast(&team).remove(0);
    let [labels, dloss] = &case.reads[2 + usize::from(bias)..] else { panic!("labels and dloss come last") };
    let losses = Case::new("cross_entropy", params.losses().to_words())
        .read(logits.clone())
        .read(labels.clone())
        .write(vec![f32::NAN; rows])
        .write(vec![f32::NAN; rows])
        .fast(&team);
    let gradients = Case::new("cross_entropy_grad", params.gradients().to_words())
        .read(logits)
        .read(labels.clone())
        .read(losses[1].clone())
        .read(dloss.clone())
        .write(vec![f32::NAN; rows * classes])
        .fast(&team);
    vec![gradients.concat(), losses[0].clone()]
}

fn bits(outputs: &[Vec<f32>]) -> Vec<u32> {
    outputs.concat().iter().map(|x| x.to_bits()).collect()
}

#[test]
fn fast_equals_reference() {
    for (rows, classes, features) in [(1, 1, 1), (1, 17, 3), (7, 33, 16), (65, 40, 24), (130, 5, 7)] {
        for flags in 0..8 {
            let [transposed, bias, labels_i32] = [1, 2, 4].map(|flag| flags & flag != 0);
            case(LinearCrossEntropy { transposed, bias, labels_i32, ..head(rows, classes, features) })
                .check(TOLERANCE);
        }
    }
}

#[test]
fn bits_are_those_of_three_kernels_for_any_blocks_and_either_way_of_running() {
    let plain = [head(1, 17, 8), head(67, 1003, 24), head(300, 72, 40), head(9, 4099, 5)];
    let bias = LinearCrossEntropy { bias: true, transposed: true, labels_i32: true, ..head(150, 1000, 16) };
    for params in plain.into_iter().chain([bias]) {
        let case = case(params);
        let want = bits(&one_after_the_other(&case, params));
        for (cores, blocks) in
            [1, 2, 3, 8].iter().flat_map(|&cores| (1..=8).map(move |blocks| (cores, blocks)))
        {
            let got = bits(&case.fast_on(blocks, &Team::new(cores)));
            assert!(got == want, "{params:?} differs on {blocks} blocks and {cores} cores");
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_instruction_set() {
    case(head(70, 300, 24)).check_bits();
    case(LinearCrossEntropy { bias: true, ..head(33, 1003, 9) }).check_bits();
}

#[test]
fn rows_that_do_not_count_have_no_loss_and_no_gradient() {
    let params = LinearCrossEntropy { ignore_index: 4, ..head(3, 6, 2) };
    let mut case = case(params);
    case.reads[2] = Input::I64(vec![4, 1, 4]);
    let [dlogits, nll] = &case.fast(&Team::new(1))[..] else { panic!("two outputs") };
    assert_eq!([nll[0], nll[2]], [0.0; 2]);
    assert_eq!([&dlogits[..6], &dlogits[12..]], [[0.0; 6]; 2]);
    let total: f32 = dlogits[6..12].iter().sum();
    assert!(nll[1] > 0.0 && dlogits[7] < 0.0 && total.abs() < 1e-6, "{dlogits:?}");
}

#[test]
fn a_label_without_a_class_is_told() {
    let mut case = case(head(3, 6, 2));
    case.reads[2] = Input::I64(vec![1, 6, 2]);
    let told = std::panic::catch_unwind(|| case.fast(&Team::new(1))).expect_err("there are six classes");
    let told = told.downcast_ref::<String>().expect("it says why");
    assert!(told.contains("id 6 at position 1 is not in 0..6"), "{told}");
}

#[test]
fn the_workspace_does_not_grow_with_the_rows() {
    let bytes = |rows| {
        let words = head(rows, 50_257, 64).to_words();
        KernelEntry::of::<LinearCrossEntropy>().plan(&words, 2).expect("it can be launched").bytes
    };
    let (tile, logits) = (TILE_ROWS * 50_257 * 4, 8192 * 50_257 * 4);
    assert_eq!(bytes(8192), bytes(1024));
    assert!((2 * tile as u64..3 * tile as u64).contains(&bytes(8192)), "two blocks of one tile each");
    assert!(bytes(8192) * 10 < logits as u64);
}
