//! The parallel rules of all operators on random operands: what is legal is sound, what is not is explained, and the tasks
//! together compute what the whole operator computes.

mod cases;
pub mod layer;
mod meaning;

use std::collections::BTreeSet;

use layer::{Legal, repaired};
use phalanx_ir::parallel::{Axis, DeviceId, ParallelGraph, ParallelType, TileMap, place, tile_groups};
use phalanx_ir::{Activation, Binary, DType, Id, Op, Shape, TensorType};
use phalanx_ops::{BinaryOp, CountLabels, CrossEntropy, Embedding, Linear, Matmul, Reshape};
use phalanx_testkit::Rng;

/// Random cases of every kind of operator.
const CASES: usize = 400;

/// Cases of all kinds: operator, operands as drawn.
fn random_cases(seed: u64) -> impl Iterator<Item = (Op, Vec<ParallelType>, Rng)> {
    (0..cases::KINDS * CASES).map(move |case| {
        let mut rng = Rng::new(seed << 32 | case as u64);
        let (op, types) = cases::operator(case % cases::KINDS, &mut rng);
        let operands = types.iter().map(|ty| cases::tiling(ty, &mut rng)).collect();
        (op, operands, rng)
    })
}

/// How often each axis of the grid is named.
fn named(map: &TileMap, axes: usize) -> Vec<usize> {
    let all = map.sum.iter().chain(&map.copy).chain(map.dims.iter().flatten());
    let mut count = vec![0; axes];
    all.for_each(|&axis: &Axis| count[axis] += 1);
    count
}

/// The tile that each task uses; all in range.
fn tiles(legal: &Legal, ty: &ParallelType, map: &TileMap) -> Vec<usize> {
    let extents = &legal.rule.extents;
    let tile = |task: usize| {
        let coord = map.coord(extents, &place(extents, task));
        assert!(coord.sum < ty.sum_degree() && coord.copy < ty.copy_degree(), "{coord:?} in {ty}");
        assert_eq!(coord.dims.len(), ty.dims().len(), "{coord:?} in {ty}");
        assert!(coord.dims.iter().zip(ty.dims()).all(|(at, dim)| *at < dim.degree), "{coord:?} in {ty}");
        assert_eq!(ty.coord(ty.index(&coord)), coord);
        ty.index(&coord)
    };
    (0..legal.rule.tasks()).map(tile).collect()
}

fn check_slot(op: &Op, legal: &Legal, ty: &ParallelType, map: &TileMap, bijection: bool) {
    let (used, axes) = (tiles(legal, ty, map), legal.rule.extents.len());
    assert_eq!(used.iter().collect::<BTreeSet<_>>().len(), ty.tiles(), "{op:?}: every tile of {ty} is used");
    let count = named(map, axes);
    assert!(count.iter().all(|&n| n <= 1), "{op:?}: {map} names an axis once");
    if bijection {
        assert_eq!(used.len(), ty.tiles(), "{op:?}: each tile of {ty} has one task");
        assert!(count.iter().all(|&n| n == 1), "{op:?}: {map} names every axis");
    }
    let groups = &legal.graph.layers()[legal.layer].label.groups;
    let held = tile_groups(ty, map, &legal.rule.extents, groups);
    assert_eq!(held.len(), ty.tiles());
    for (tile, group) in held.iter().enumerate() {
        let tasks = used.iter().enumerate().filter(|(_, used)| **used == tile);
        let devices: Vec<_> = tasks.map(|(task, _)| DeviceId::from_index(task)).collect();
        assert_eq!(group.devices(), devices, "{op:?}: tile {tile} of {ty} is where its tasks are");
    }
}

#[test]
fn legal_layers_have_sound_maps_and_illegal_ones_good_advice() {
    let (mut legal_at_once, mut mended, mut refused) = (0, 0, 0);
    for (op, operands, _) in random_cases(1) {
        let (after, outcome) = repaired(&op, &operands);
        let Ok(legal) = outcome else {
            refused += 1;
            continue;
        };
        *(if after == operands { &mut legal_at_once } else { &mut mended }) += 1;
        assert_eq!(legal.rule.operands.len(), after.len());
        assert!(legal.rule.extents.iter().all(|&extent| extent > 1), "{op:?}: no axis of one task");
        for (ty, map) in after.iter().zip(&legal.rule.operands) {
            check_slot(&op, &legal, ty, map, ty.dtype() == DType::F32);
        }
        for (ty, map) in legal.results.iter().zip(&legal.rule.results) {
            // The classes of a row are shared by the tasks that hold its loss.
            let has_no_copies = op.get::<CrossEntropy>().is_some() || op.get::<CountLabels>().is_some();
            check_slot(&op, &legal, ty, map, !has_no_copies);
        }
        let text = legal.graph.to_string();
        assert_eq!(
            ParallelGraph::parse(&text, phalanx_ops::operators()).as_ref(),
            Ok(&legal.graph),
            "{text}"
        );
    }
    assert!(legal_at_once > 500 && mended > 2000 && refused > 200, "{legal_at_once} {mended} {refused}");
}

#[test]
fn tasks_together_compute_what_the_whole_operator_computes() {
    let mut checked = vec![0; cases::KINDS];
    for (case, (op, operands, mut rng)) in random_cases(2).enumerate() {
        let (operands, outcome) = repaired(&op, &operands);
        let Ok(legal) = outcome else { continue };
        if legal.rule.tasks() > 1 && meaning::is_local(&op, &operands) {
            meaning::check(&op, &operands, &legal, &mut rng);
            checked[case % cases::KINDS] += 1;
        }
    }
    assert!(checked.iter().all(|&count| count > 30), "{checked:?}");
}

fn ty(text: &str) -> ParallelType {
    let text = format!("parallel @t {{\n%x = input {text} on dev0\nreturn %x\n}}");
    let graph = ParallelGraph::parse(text, phalanx_ops::operators()).expect("the text is a type");
    graph.ty(graph.outputs()[0]).clone()
}

#[test]
fn advice_asks_for_no_more_copies_than_needed() {
    let linear = Op::from(Linear { transposed: false, activation: Activation::None });
    let cases = [
        (linear, ["f32[3, 2] copy 2", "f32[8/4, 2]"]),
        (Op::from(Matmul { transpose_a: false, transpose_b: false }), ["f32[3, 2] copy 2", "f32[2, 8/4]"]),
        (Op::from(Embedding { bag: false, padding: None }), ["i64[8/4]", "f32[5, 2] copy 2"]),
        (Op::from(BinaryOp(Binary::Mul)), ["f32[3] copy 2", "f32[8/4, 3]"]),
    ];
    for (op, operands) in cases {
        let (_, outcome) = repaired(&op, &operands.map(ty));
        let legal = outcome.unwrap_or_else(|error| panic!("{op:?}: {error}"));
        assert_eq!((legal.rule.tasks(), legal.results[0].copy_degree()), (4, 1), "{op:?}");
        assert!(legal.rule.exact, "{op:?}: surplus copies would change bits");
    }
}

#[test]
fn partial_sums_that_do_not_match_are_refused_in_words() {
    let operands = ["f32[4] sum 2", "f32[4] sum 3"].map(ty);
    let (after, outcome) = repaired(&Op::from(BinaryOp(Binary::Add)), &operands);
    let error = outcome.err().map(|error| error.to_string());
    assert_eq!(after, operands, "no parallel operator makes three sums of two");
    let wanted = "slot `rhs` is f32[4] sum 3 but add: its rule wants f32[4] sum 2; change the degrees of the other operands";
    assert_eq!(error.as_deref(), Some(wanted));
}

#[test]
fn both_operands_of_a_sum_may_be_stretched() {
    let operands = ["f32[1, 6/3]", "f32[4/2, 1]"].map(ty);
    let (after, outcome) = repaired(&Op::from(BinaryOp(Binary::Add)), &operands);
    assert_eq!(after, ["f32[1, 6/3] copy 2", "f32[4/2, 1] copy 3"].map(ty));
    assert_eq!(outcome.map(|legal| legal.results).ok(), Some(vec![ty("f32[4/2, 6/3]")]));
}

#[test]
fn scalars_have_one_tile_and_may_be_copied_and_summed() {
    let (_, outcome) = repaired(&Op::from(BinaryOp(Binary::Add)), &["f32[] sum 2 copy 3", "f32[]"].map(ty));
    let error = outcome.err().expect("a scalar cannot become two partial sums");
    assert_eq!((error.slot.as_str(), error.found.as_str()), ("rhs", "f32[] copy 3"));
    let (_, outcome) =
        repaired(&Op::from(Reshape { shape: Shape::from([1, 1]) }), &[ty("f32[] sum 2 copy 3")]);
    assert_eq!(outcome.map(|legal| legal.results).ok(), Some(vec![ty("f32[1, 1] sum 2 copy 3")]));
    assert_eq!(ParallelType::tiled(&TensorType::f32([1]), &[2], 1, 1), None, "an extent of one is not cut");
}

#[test]
fn shapes_without_elements_are_errors_and_no_panics() {
    for (from, to) in [("0, 2", "2, 0"), ("2, 0", "0, 2"), ("0", "3, 0"), ("0, 0", "0")] {
        let text = format!(
            "parallel @t {{\n%x = input f32[{from}] on dev0\n%y = reshape shape=[{to}] %x : f32[{to}] on dev0\nreturn %y\n}}"
        );
        let graph = ParallelGraph::parse(text, phalanx_ops::operators()).expect("the text is a graph");
        let errors = graph.verify().expect_err("a leaf has elements");
        assert!(errors[0].to_string().contains("has no elements"), "{errors:?}");
    }
}
