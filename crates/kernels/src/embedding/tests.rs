use super::*;
use crate::samples::{Case, Input, indices, values};
use crate::{Team, Words};

fn forward(params: Embedding) -> Case {
    let Embedding { n, cols, vocab, bag, ids_i32, .. } = params;
    Case::new("embedding", params.to_words())
        .read(Input::ids(&indices(n * bag, vocab, 1), ids_i32))
        .read(values(vocab * cols, 2))
        .write(values(n * cols, 3))
}

fn backward(params: EmbeddingGrad) -> Case {
    let EmbeddingGrad { n, cols, vocab, bag, ids_i32, .. } = params;
    Case::new("embedding_grad", params.to_words())
        .read(Input::ids(&indices(n * bag, vocab, 1), ids_i32))
        .read(values(n * cols, 2))
        .write(values(vocab * cols, 3))
}

#[test]
fn fast_equals_reference_in_every_bit() {
    for cols in [1, 2, 3, 7, 16, 17, 33] {
        for (n, vocab, bag, leaves) in [(1, 1, 1, 1), (7, 5, 3, 1), (64, 100, 1, 8), (100, 3, 2, 4)] {
            for ids_i32 in [false, true] {
                forward(Embedding { n, cols, vocab, bag, ids_i32, first: 0, padding: None }).check(0.0);
                forward(Embedding { n, cols, vocab, bag, ids_i32, first: 2, padding: None }).check(0.0);
                for accumulate in [false, true] {
                    for first in [0, 2] {
                        let params = EmbeddingGrad {
                            n,
                            cols,
                            vocab,
                            bag,
                            ids_i32,
                            leaves,
                            accumulate,
                            first,
                            padding: None,
                        };
                        backward(params).check(0.0);
                    }
                }
            }
        }
    }
}

#[test]
fn bits_are_the_same_for_every_team_and_instruction_set() {
    forward(Embedding { n: 600, cols: 33, vocab: 50, bag: 2, ids_i32: true, first: 0, padding: None })
        .check_bits();
    for accumulate in [false, true] {
        let (n, cols, vocab, bag, leaves) = (640, 33, 600, 2, 8);
        let sizes = EmbeddingGrad {
            n,
            cols,
            vocab,
            bag,
            ids_i32: false,
            leaves,
            accumulate,
            first: 20,
            padding: None,
        };
        backward(sizes).check_bits();
    }
}

#[test]
fn gradient_is_the_transpose_of_the_lookup() {
    // <dtable, table> = <dy, y> for every table: exact in integers, so all values here are small integers.
    let (n, cols, vocab, bag) = (12, 3, 5, 2);
    let whole =
        |count: usize, seed| -> Vec<f32> { values(count, seed).iter().map(|x| (x * 8.0).round()).collect() };
    let mut lookup = forward(Embedding { n, cols, vocab, bag, ids_i32: false, first: 0, padding: None });
    lookup.reads[1] = whole(vocab * cols, 2).into();
    let (ids_i32, leaves, accumulate) = (false, 4, false);
    let mut gradient =
        backward(EmbeddingGrad { n, cols, vocab, bag, ids_i32, leaves, accumulate, first: 0, padding: None });
    gradient.reads[1] = whole(n * cols, 3).into();
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let team = Team::new(1);
    let left = dot(&gradient.fast(&team)[0], &whole(vocab * cols, 2));
    assert_eq!(left, dot(&lookup.fast(&team)[0], &whole(n * cols, 3)));
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// A table with both zeros in it.
fn table(vocab: usize, cols: usize) -> Vec<f32> {
    let mut table = values(vocab * cols, 2);
    table.iter_mut().step_by(5).for_each(|x| *x = 0.0);
    table.iter_mut().skip(1).step_by(7).for_each(|x| *x = -0.0);
    table
}

#[test]
fn lookups_in_tiles_add_up_to_the_bits_of_the_whole() {
    let (n, cols, vocab) = (40, 6, 24);
    for bag in [1, 2] {
        let whole = Embedding { n, cols, vocab, bag, ids_i32: true, first: 0, padding: None };
        let ids = Input::ids(&indices(n * bag, vocab, 1), true);
        let lookup = |params: Embedding| {
            let mut case = forward(params);
            case.reads[0] = ids.clone();
            case.reads[1] = table(vocab, cols)[params.first * cols..][..params.vocab * cols].to_vec().into();
            case.fast(&Team::new(1)).remove(0)
        };
        let want = lookup(whole);
        for cut in [2, 4, 8] {
            let tile = |i: usize| lookup(Embedding { vocab: vocab / cut, first: i * vocab / cut, ..whole });
            let mut sums: Vec<f32> = (0..cut).flat_map(tile).collect();
            tree_rows(&mut sums, cut, n * cols);
            assert_eq!(bits(&sums[..n * cols]), bits(&want), "{cut} tiles, bags of {bag}");
        }
    }
}

#[test]
fn ids_of_no_tile_give_negative_zero_and_no_gradient() {
    let (n, cols, vocab, bag, ids_i32, first) = (3, 2, 4, 1, false, 2);
    let ids = Input::ids(&[i64::MIN, 3, i64::MAX], false);
    let mut lookup = forward(Embedding { n, cols, vocab, bag, ids_i32, first, padding: None });
    lookup.reads[0] = ids.clone();
    let row = &values(vocab * cols, 2)[2..4];
    assert_eq!(bits(&lookup.fast(&Team::new(1))[0]), bits(&[-0.0, -0.0, row[0], row[1], -0.0, -0.0]));
    let (leaves, accumulate) = (1, false);
    let mut gradient =
        backward(EmbeddingGrad { n, cols, vocab, bag, ids_i32, leaves, accumulate, first, padding: None });
    gradient.reads[0] = ids;
    let dy = values(n * cols, 2);
    assert_eq!(gradient.fast(&Team::new(1))[0], [0.0, 0.0, dy[2], dy[3], 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn the_gradient_of_a_tile_is_the_tile_of_the_gradient() {
    let (n, cols, vocab, bag, ids_i32, leaves) = (64, 3, 24, 2, false, 4);
    let whole =
        EmbeddingGrad { n, cols, vocab, bag, ids_i32, leaves, accumulate: true, first: 0, padding: None };
    let case = backward(whole);
    let want = case.fast(&Team::new(1)).remove(0);
    for cut in [2, 4, 8] {
        for i in 0..cut {
            let part = EmbeddingGrad { vocab: vocab / cut, first: i * vocab / cut, ..whole };
            let mut tile = backward(part);
            let rows = part.first * cols..(part.first + part.vocab) * cols;
            tile.reads[0] = case.reads[0].clone();
            tile.writes[0] = case.writes[0][rows.clone()].to_vec();
            assert_eq!(tile.fast(&Team::new(2))[0], want[rows], "tile {i} of {cut}");
        }
    }
}

/// Accumulating zero for rows that no id names is an addition like any other.
#[test]
fn rows_without_uses_are_added_to_as_well() {
    let params = EmbeddingGrad {
        n: 1,
        cols: 2,
        vocab: 3,
        bag: 1,
        ids_i32: false,
        leaves: 1,
        accumulate: true,
        first: 0,
        padding: None,
    };
    let case = Case::new("embedding_grad", params.to_words())
        .read(Input::ids(&[1], false))
        .read(vec![1.0, 2.0])
        .write(vec![-0.0; 6]);
    let want = bits(&[0.0, 0.0, 1.0, 2.0, 0.0, 0.0]);
    assert_eq!(bits(&case.fast(&crate::Team::new(1))[0]), want);
    assert_eq!(bits(&case.reference()[0]), want);
}

#[test]
fn the_padding_id_is_left_out() {
    let (ids, table) = ([2, 1, 1, 1, 0, 2], [1.0, 2.0, 4.0]);
    let params = Embedding { n: 3, cols: 1, vocab: 3, bag: 2, ids_i32: false, first: 0, padding: Some(1) };
    let mut y = [f32::NAN; 3];
    embedding_reference(&mut y, Ids::I64(&ids), &table, params);
    assert_eq!(y, [4.0, 0.0, 5.0]);
    forward(Embedding { n: 40, cols: 5, ..params }).check(0.0);
    let params = EmbeddingGrad {
        n: 3,
        cols: 1,
        vocab: 3,
        bag: 2,
        ids_i32: false,
        leaves: 1,
        accumulate: false,
        first: 0,
        padding: Some(1),
    };
    let mut dtable = [f32::NAN; 3];
    embedding_grad_reference(&mut dtable, Ids::I64(&ids), &[1.0, 2.0, 4.0], params);
    assert_eq!(dtable, [4.0, 0.0, 5.0]);
    backward(EmbeddingGrad { n: 40, cols: 5, leaves: 4, ..params }).check(0.0);
}
