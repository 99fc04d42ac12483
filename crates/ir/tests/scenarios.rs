//! Worked examples of tilings, rules and parallel graphs, numbered as in the project's collection of scenarios.
//!
//! Where the rules here differ on purpose from those the scenarios come from, the test says so: partial sums are reduced
//! before an operator that is not linear in them, a bias is added after the reduction, copies pass through operators
//! that keep them, and a task has a group instead of a machine view.

use crate::rules::layer::{Legal, layer as rule_of, mended, repaired};
use phalanx_ir::graph::LayerId;
use phalanx_ir::parallel::{Coord, ParallelGraph, ParallelType, place};
use phalanx_ir::tasks::{BufferId, Rect, TaskGraph, TaskId};
use phalanx_ir::{Activation, Binary, DType, Id, Op, Shape, TensorType, Unary};
use phalanx_ops::{
    Attention, BinaryOp, Concat, Dropout, Embedding, LayerNorm, Linear, Reshape, Softmax, Transpose, UnaryOp,
};

fn ty(text: &str) -> ParallelType {
    let text = format!("parallel @t {{\n%x = input {text} on dev0\nreturn %x\n}}");
    let graph = ParallelGraph::parse(text, phalanx_ops::operators()).expect("the text is a type");
    graph.ty(graph.outputs()[0]).clone()
}

fn types(texts: &[&str]) -> Vec<ParallelType> {
    texts.iter().map(|text| ty(text)).collect()
}

/// The results of a legal layer, as text.
fn gives(op: &Op, operands: &[&str]) -> Vec<String> {
    let Legal { results, .. } =
        rule_of(op, &types(operands)).unwrap_or_else(|error| panic!("{op:?}: {error}"));
    results.iter().map(ParallelType::to_string).collect()
}

/// Slot and advice of an illegal layer's error.
fn refuses(op: &Op, operands: &[&str]) -> (String, String) {
    let error =
        rule_of(op, &types(operands)).err().unwrap_or_else(|| panic!("{op:?} of {operands:?} is legal"));
    (error.slot, error.fix)
}

fn pair(slot: &str, fix: &str) -> (String, String) {
    (slot.into(), fix.into())
}

fn linear(activation: Activation) -> Op {
    Op::from(Linear { transposed: false, activation })
}

const COMBINE_ONE: &str = "apply combine dim=1 degree=2";
const REDUCE_TWO: &str = "apply reduction degree=2";

#[test]
fn t01_degrees_of_linear_layers() {
    let plain = linear(Activation::None);
    let data = ["f32[12/4, 16/8, 8]", "f32[16, 8] copy 32", "f32[16] copy 32"];
    assert_eq!(gives(&plain, &data), ["f32[12/4, 16/8, 16]"]);
    assert_eq!(gives(&plain, &["f32[12, 16, 8/4]", "f32[16, 8/4]"]), ["f32[12, 16, 16] sum 4"]);
    let outputs = ["f32[12, 16, 8] copy 4", "f32[16/4, 8]", "f32[16/4]"];
    assert_eq!(gives(&plain, &outputs), ["f32[12, 16, 16/4]"]);
    let all = ["f32[12/2, 16, 8/4] copy 3", "f32[18/3, 8/4] copy 2"];
    assert_eq!(gives(&plain, &all), ["f32[12/2, 16, 18/3] sum 4"]);
    // Ours: a sum is neither passed through nor given a bias or an activation.
    let bias_later = "apply reduction first, then add the bias and activate";
    let summed = ["f32[12, 16, 8] sum 2", "f32[16, 8]"];
    assert_eq!(refuses(&plain, &summed), pair("input", REDUCE_TWO));
    let biased = ["f32[12, 16, 8/4]", "f32[16, 8/4]", "f32[16]"];
    assert_eq!(refuses(&plain, &biased), pair("input", bias_later));
    assert_eq!(refuses(&linear(Activation::Relu), &biased[..2]), pair("input", bias_later));
}

#[test]
fn t02_slots_of_linear_layers() {
    let plain = linear(Activation::None);
    assert_eq!([0, 1, 2].map(|slot| plain.slot(slot)), ["input", "weight", "bias"]);
    let two = plain.infer(&[TensorType::f32([2, 3]), TensorType::f32([4, 3])]);
    assert_eq!(two, Ok(vec![TensorType::f32([2, 4])]), "a bias is optional");
}

#[test]
fn t04_degrees_of_embeddings() {
    let bag = Op::from(Embedding { bag: true, padding: None });
    assert_eq!(gives(&bag, &["i32[48/4, 56]", "f32[1024, 128] copy 4"]), ["f32[48/4, 128]"]);
    // Ours: the width is cut by cutting the table; ids carry no gradient and are shared, not copied.
    assert_eq!(gives(&bag, &["i32[48, 56]", "f32[1024, 128/4]"]), ["f32[48, 128/4]"]);
    assert_eq!(gives(&bag, &["i32[48, 56]", "f32[1024/4, 128]"]), ["f32[48, 128] sum 4"]);
    // Ours: a bag stays whole.
    assert_eq!(refuses(&bag, &["i32[48, 56/2]", "f32[1024, 128]"]), pair("input", COMBINE_ONE));
    let floats = bag.infer(&[TensorType::f32([48, 56]), TensorType::f32([1024, 128])]);
    assert_eq!(floats.map_err(|error| error.slot), Err("input".into()));
}

#[test]
fn t05_degrees_of_joins() {
    let concat = Op::from(Concat { axis: 1, blocks: 1 });
    let three = |degrees: [&str; 3]| {
        let sizes = ["14", "16", "18"].into_iter().zip(degrees);
        sizes.map(|(size, degree)| degree.replace('x', size)).collect::<Vec<_>>()
    };
    let all = |degree: &str| three([degree; 3]);
    let join = |operands: &[String]| gives(&concat, &operands.iter().map(String::as_str).collect::<Vec<_>>());
    let no = |operands: &[String]| refuses(&concat, &operands.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(join(&all("f32[12, x, 20] sum 2")), ["f32[12, 48, 20] sum 2"]);
    assert_eq!(join(&all("f32[12, x, 20] copy 2")), ["f32[12, 48, 20] copy 2"]);
    assert_eq!(join(&all("f32[12/2, x, 20/4] sum 3 copy 5")), ["f32[12/2, 48, 20/4] sum 3 copy 5"]);
    assert_eq!(no(&all("f32[12, x/2, 20]")), pair("input_0", COMBINE_ONE));
    let mixed = three(["f32[12, x, 20] sum 2", "f32[12, x, 20] sum 4", "f32[12, x, 20] sum 4"]);
    assert_eq!(no(&mixed), pair("input_1", REDUCE_TWO));
    let one = three(["f32[12, x, 20]", "f32[12, x/2, 20]", "f32[12, x, 20]"]);
    assert_eq!(no(&one), pair("input_1", COMBINE_ONE));
    let other = three(["f32[12/2, x, 20/4]", "f32[12/4, x, 20/2]", "f32[12/2, x, 20/4]"]);
    assert_eq!(no(&other), pair("input_1", "apply combine dim=0 degree=2"));
    // Ours: a join in blocks may be cut between them.
    let blocks = Op::from(Concat { axis: 1, blocks: 2 });
    assert_eq!(gives(&blocks, &["f32[12, 14/2, 20]", "f32[12, 16/2, 20]"]), ["f32[12, 30/2, 20]"]);
    let shapes = |dims: &[[usize; 3]]| dims.iter().map(|&dims| TensorType::f32(dims)).collect::<Vec<_>>();
    let error = concat.infer(&shapes(&[[12, 14, 20], [12, 16, 21]])).map_err(|error| error.slot);
    assert_eq!(error, Err("input_1".into()));
    assert!(Op::from(Concat { axis: 3, blocks: 1 }).infer(&shapes(&[[12, 14, 20]; 2])).is_err());
    assert!(concat.infer(&[]).is_err());
}

#[test]
fn t07_reshapes_keep_the_outermost_cut_of_merged_dims() {
    let flat = Op::from(Reshape { shape: Shape::from([2, 8, 3]) });
    assert_eq!(gives(&flat, &["f32[2/2, 4, 2, 3/3]"]), ["f32[2/2, 8, 3/3]"]);
    assert_eq!(gives(&flat, &["f32[2, 4, 2, 3] sum 7 copy 5"]), ["f32[2, 8, 3] sum 7 copy 5"]);
    assert_eq!(refuses(&flat, &["f32[2, 4, 2/2, 3]"]), pair("input", "apply combine dim=2 degree=2"));
    // Ours: the outermost of the merged dims may be cut.
    assert_eq!(gives(&flat, &["f32[2, 4/2, 2, 3]"]), ["f32[2, 8/2, 3]"]);
    let wide = Op::from(Reshape { shape: Shape::from([4, 48, 9]) });
    assert_eq!(gives(&wide, &["f32[4/2, 8, 6, 9/3] sum 7 copy 5"]), ["f32[4/2, 48, 9/3] sum 7 copy 5"]);
}

#[test]
fn t08_normalized_dims_stay_whole() {
    let norm = Op::from(LayerNorm { axes: 2, eps: 1e-5 });
    let affine = ["f32[12/2, 14/7, 16, 18]", "f32[16, 18] copy 14", "f32[16, 18] copy 14"];
    assert_eq!(gives(&norm, &affine), ["f32[12/2, 14/7, 16, 18]"]);
    assert_eq!(gives(&norm, &affine[..1]), ["f32[12/2, 14/7, 16, 18]"], "weights are optional");
    assert_eq!(refuses(&norm, &["f32[12, 14, 16/2, 18]"]), pair("input", "apply combine dim=2 degree=2"));
    assert_eq!(refuses(&norm, &["f32[12, 14, 16, 18] sum 2"]), pair("input", REDUCE_TWO));
    // Ours: copies pass.
    assert_eq!(gives(&norm, &["f32[12, 14, 16, 18] copy 2"]), ["f32[12, 14, 16, 18] copy 2"]);
    let weights =
        [[12, 14, 16, 18].into(), Shape::from([12, 14]), Shape::from([12, 14])].map(TensorType::f32);
    assert_eq!(norm.infer(&weights).map_err(|error| error.fix), Err("make it [16, 18]".into()));
}

#[test]
fn t09_softmax_and_dropout() {
    let softmax = Op::from(Softmax { axis: 1 });
    assert_eq!(gives(&softmax, &["f32[4/2, 6, 8/4]"]), ["f32[4/2, 6, 8/4]"]);
    assert_eq!(refuses(&softmax, &["f32[4, 6/2, 8]"]), pair("input", COMBINE_ONE));
    assert_eq!(refuses(&softmax, &["f32[4, 6, 8] sum 2"]), pair("input", REDUCE_TWO));
    let dropout = Op::from(Dropout { rate: 0.5 });
    assert_eq!(gives(&dropout, &["f32[4/2, 6/3]"]), ["f32[4/2, 6/3]"]);
    assert_eq!(refuses(&dropout, &["f32[4, 6] sum 2"]), pair("input", REDUCE_TWO));
    // Ours: masks count elements of the whole tensor, so all copies have the same one.
    assert_eq!(gives(&dropout, &["f32[4, 6] copy 2"]), ["f32[4, 6] copy 2"]);
}

/// What the verifier says about `op` from a value of type `from` to one of type `to`.
fn movement(op: &str, from: &str, to: &str) -> Result<(), String> {
    let on = |ty: &ParallelType| vec!["dev0"; ty.tiles()].join(", ");
    let (from, to) = (ty(from), ty(to));
    let text = format!(
        "parallel @t {{\n%x = input {from} on {}\n%y = {op} %x : {to} on {}\nreturn %y\n}}",
        on(&from),
        on(&to)
    );
    let graph = ParallelGraph::parse(text, phalanx_ops::operators()).expect("the text is a graph");
    graph.verify().map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

#[test]
fn t10_parallel_operators_change_degrees() {
    let x = "f32[12/2, 14, 24/3, 16/2] sum 3 copy 2";
    let ok = [
        ("combine dim=2 degree=3", "f32[12/2, 14, 24, 16/2] sum 3 copy 2"),
        ("repartition dim=2 degree=4", "f32[12/2, 14, 24/12, 16/2] sum 3 copy 2"),
        ("replicate degree=4", "f32[12/2, 14, 24/3, 16/2] sum 3 copy 8"),
        ("reduction degree=3", "f32[12/2, 14, 24/3, 16/2] copy 2"),
        ("replicate degree=1", x),
        ("combine dim=0 degree=1", x),
    ];
    for (op, to) in ok {
        assert_eq!(movement(op, x, to), Ok(()), "{op}");
    }
    let wrong = [
        ("combine dim=2 degree=4", "a degree of 3 is not divisible by 4; use a divisor of the degree"),
        ("combine dim=4 degree=1", "there is no dim 4; name one of its dims"),
        ("reduction degree=4", "a degree of 3 is not divisible by 4; use a divisor of the degree"),
        (
            "repartition dim=1 degree=4",
            "the new degree must divide the extent and make at most 1048576 tiles; use a divisor of the extent",
        ),
        ("combine dim=0 degree=0", "a degree of 2 is not divisible by 0; use a divisor of the degree"),
    ];
    for (op, error) in wrong {
        let name = op.split(' ').next().unwrap_or(op);
        let wanted = format!("layer `y`: slot `input` is {x} but {name}: {error}");
        assert_eq!(movement(op, x, x), Err(wanted), "{op}");
    }
}

#[test]
fn t11_elementwise_operators() {
    let [add, mul] = [Binary::Add, Binary::Mul].map(|binary| Op::from(BinaryOp(binary)));
    assert_eq!(gives(&add, &["f32[4/2, 6] sum 2", "f32[4/2, 6] sum 2"]), ["f32[4/2, 6] sum 2"]);
    assert_eq!(refuses(&add, &["f32[4/2, 6]", "f32[4, 6]"]), pair("rhs", "apply repartition dim=0 degree=2"));
    assert_eq!(refuses(&mul, &["f32[4, 6] sum 2", "f32[4, 6] sum 2"]), pair("lhs", REDUCE_TWO));
    // Ours: copies pass, if both have them.
    assert_eq!(gives(&add, &["f32[4, 6] copy 2", "f32[4, 6] copy 2"]), ["f32[4, 6] copy 2"]);
    assert_eq!(refuses(&add, &["f32[4] copy 2", "f32[4]"]), pair("rhs", "apply replicate degree=2"));
    let [relu, neg] = [Unary::Act(Activation::Relu), Unary::Neg].map(|unary| Op::from(UnaryOp(unary)));
    assert_eq!(refuses(&relu, &["f32[4] sum 2"]), pair("input", REDUCE_TWO));
    assert_eq!(gives(&relu, &["f32[4] copy 2"]), ["f32[4] copy 2"]);
    assert_eq!(gives(&neg, &["f32[4] sum 2"]), ["f32[4] sum 2"], "linear operators keep sums");
}

#[test]
fn t12_attention_is_cut_by_batch_and_heads() {
    // Ours: attention has no weights of its own.
    let attention = Op::from(Attention { causal: false, scale: 1.0 });
    let all = |ty| [ty, ty, ty];
    assert_eq!(gives(&attention, &all("f32[40/4, 48, 10/2, 36]")), ["f32[40/4, 48, 10/2, 36]"]);
    assert_eq!(refuses(&attention, &all("f32[40, 48/2, 10, 36]")), pair("query", COMBINE_ONE));
    let deep = pair("query", "apply combine dim=3 degree=2");
    assert_eq!(refuses(&attention, &all("f32[40, 48, 10, 36/2]")), deep);
    assert_eq!(refuses(&attention, &all("f32[40, 48, 10, 36] sum 2")), pair("query", REDUCE_TWO));
    let batch = ["f32[40/4, 48, 10, 36]", "f32[40/4, 48, 10, 36]", "f32[40/2, 48, 10, 36]"];
    assert_eq!(refuses(&attention, &batch), pair("value", "apply repartition dim=0 degree=2"));
    let copies = ["f32[40, 48, 10, 36] copy 2", "f32[40, 48, 10, 36]", "f32[40, 48, 10, 36] copy 2"];
    assert_eq!(refuses(&attention, &copies), pair("key", "apply replicate degree=2"));
    let few = ["f32[8, 4, 8/4, 2]", "f32[8, 4, 2, 2]", "f32[8, 4, 2, 2]"];
    assert_eq!(refuses(&attention, &few), pair("key", "choose degrees that divide every extent"));
}

#[test]
fn t13_coordinates_of_tiles() {
    let x = ty("f32[5, 8/2, 3] sum 3");
    let coords: Vec<_> = (0..x.tiles()).map(|tile| x.coord(tile)).collect();
    let wanted = (0..6).map(|tile| Coord { sum: tile / 2, copy: 0, dims: vec![0, tile % 2, 0] });
    assert!(coords.into_iter().eq(wanted));
    let neg = Op::from(UnaryOp(Unary::Neg));
    let grid = |text| rule_of(&neg, &types(&[text])).map(|legal| legal.rule.extents);
    assert_eq!(
        grid("f32[5, 8/4, 3] sum 3 copy 2"),
        Ok(vec![3, 2, 4]),
        "only what is cut, in the order of tiles"
    );
    assert_eq!(grid("f32[5, 8, 3]"), Ok(Vec::new()));
}

#[test]
fn t14_elementwise_tasks_are_numbered_like_tiles() {
    let x = ty("f32[12/12, 2/2] sum 5 copy 3");
    let legal =
        rule_of(&Op::from(UnaryOp(Unary::Neg)), std::slice::from_ref(&x)).expect("negation takes sums");
    assert_eq!(legal.rule.extents, [5, 3, 12, 2]);
    let coord = legal.rule.operands[0].coord(&legal.rule.extents, &[3, 2, 10, 1]);
    assert_eq!(coord, Coord { sum: 3, copy: 2, dims: vec![10, 1] });
    for task in 0..legal.rule.tasks() {
        let place = place(&legal.rule.extents, task);
        assert_eq!(x.index(&legal.rule.results[0].coord(&legal.rule.extents, &place)), task);
    }
}

#[test]
fn t15_tiles_of_linear_tasks() {
    // Ours: without incoming sums, so the first axis is the cut of the features alone.
    let operands = types(&["f32[4/2, 8/4] copy 3", "f32[6/3, 8/4] copy 2"]);
    let Legal { rule, .. } = rule_of(&linear(Activation::None), &operands).expect("the degrees fit");
    assert_eq!(rule.extents, [4, 2, 3]);
    let at = |map: &phalanx_ir::parallel::TileMap| map.coord(&rule.extents, &[1, 1, 2]);
    assert_eq!(at(&rule.operands[0]), Coord { sum: 0, copy: 2, dims: vec![1, 1] });
    assert_eq!(at(&rule.operands[1]), Coord { sum: 0, copy: 1, dims: vec![2, 1] });
    assert_eq!(at(&rule.results[0]), Coord { sum: 1, copy: 0, dims: vec![1, 2] });
    let biased = types(&["f32[4/2, 8] copy 3", "f32[6/3, 8] copy 2", "f32[6/3] copy 2"]);
    let Legal { rule, .. } = rule_of(&linear(Activation::None), &biased).expect("the degrees fit");
    assert_eq!(rule.operands[2].coord(&rule.extents, &[1, 2]), Coord { sum: 0, copy: 1, dims: vec![2] });
    let surplus = types(&["f32[4, 8] copy 6", "f32[6/3, 8] copy 2"]);
    let Legal { rule, .. } = rule_of(&linear(Activation::None), &surplus).expect("the degrees fit");
    assert_eq!(rule.operands[0].coord(&rule.extents, &[1, 2]).copy, 5, "surplus copies are outermost");
    assert_eq!(rule.operands[0].coord(&rule.extents, &[1, 0]).copy, 3);
}

#[test]
fn t16_a_cut_keeps_its_numbers_when_its_dim_moves() {
    let swap = rule_of(&Op::from(Transpose { perm: vec![1, 0] }), &types(&["f32[10/2, 12]"]))
        .expect("a transpose takes any cut");
    for task in 0..2 {
        let at = |map: &phalanx_ir::parallel::TileMap| map.coord(&swap.rule.extents, &[task]).dims;
        assert_eq!((at(&swap.rule.operands[0]), at(&swap.rule.results[0])), (vec![task, 0], vec![0, task]));
    }
}

#[test]
fn t17_places_in_a_grid() {
    let places = |extents: &[usize]| {
        (0..extents.iter().product()).map(|task| place(extents, task)).collect::<Vec<_>>()
    };
    assert_eq!(places(&[]), [Vec::<usize>::new()]);
    assert_eq!(places(&[2, 2]), [[0, 0], [0, 1], [1, 0], [1, 1]]);
    assert_eq!(places(&[3, 2, 2]).len(), 12);
    assert_eq!(places(&[3, 2]).iter().max(), Some(&vec![2, 1]));
}

#[test]
fn t22_a_layer_has_a_device_group_for_every_task() {
    // Ours: groups are listed in the order of the tasks, so no two tasks can claim one tile.
    let graph = |groups: &str| {
        let text = format!(
            "parallel @t {{\n%x = input f32[4/2] on dev0, dev1\n%y = exp %x : f32[4/2] on {groups}\nreturn %y\n}}"
        );
        ParallelGraph::parse(text, phalanx_ops::operators()).expect("the text is a graph")
    };
    assert_eq!(graph("dev3, dev[1-2]").verify(), Ok(()));
    let moved = graph("dev3, dev[1-2]");
    let groups = moved.groups(moved.outputs()[0]).expect("the rule holds");
    assert_eq!(groups.iter().map(ToString::to_string).collect::<Vec<_>>(), ["dev3", "dev[1-2]"]);
    let errors = graph("dev0").verify().expect_err("one group is missing");
    let wanted = "layer `y`: slot `placement` is 1 device groups but the layer has 2 tasks; name one device group a task";
    assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), [wanted]);
    assert_eq!(ParallelGraph::parse(moved.to_string(), phalanx_ops::operators()), Ok(moved));
}

#[test]
fn t23_weights_of_a_batch_in_shards_are_copied() {
    let operands = types(&["f32[8/4, 6]", "f32[2, 6]", "f32[2]"]);
    let op = linear(Activation::None);
    let error = rule_of(&op, &operands).err().expect("the weight is whole");
    assert_eq!((error.slot.as_str(), error.fix.as_str()), ("weight", "apply replicate degree=4"));
    assert_eq!(mended(&error.fix, &operands[1]), Some(ty("f32[2, 6] copy 4")));
    let (after, outcome) = repaired(&op, &operands);
    assert_eq!(after, types(&["f32[8/4, 6]", "f32[2, 6] copy 4", "f32[2] copy 4"]));
    let Legal { graph, layer, .. } = outcome.expect("two chains of copies make it legal");
    assert_eq!((layer, graph.layers()[layer].label.groups.len()), (LayerId::from_index(3), 4));
}

#[test]
fn t35_hazards_of_one_buffer() {
    let text = "tasks @hazards {
        b0 : f32[4] on dev0 temp \"x\"
        b1 : f32[4] on dev0 output \"a\"
        b2 : f32[4] on dev0 output \"b\"
        b3 : f32[4] on dev0 output \"c\"
        t0 = fill value=1 -> b0 on dev0 of \"w1\"
        t1 = unary kind=exp b0 -> b1 on dev0 of \"r1\"
        t2 = unary kind=exp b0 -> b2 on dev0 of \"r2\"
        t3 = fill value=2 -> b0 on dev0 of \"w2\"
        t4 = unary kind=exp b0 -> b3 on dev0 of \"r3\"
    }";
    let tasks: TaskGraph = text.parse().expect("the text is a task graph");
    let waits: Vec<_> = tasks.predecessors().iter().map(|(_, waits)| waits.clone()).collect();
    let ids = |numbers: &[usize]| numbers.iter().map(|&n| TaskId::from_index(n)).collect::<Vec<_>>();
    assert_eq!(waits, [ids(&[]), ids(&[0]), ids(&[0]), ids(&[0, 1, 2]), ids(&[3])]);
}

#[test]
fn t36_tiles_are_rectangles_of_the_whole() {
    let corners = |text| {
        let ty = ty(text);
        (0..ty.tiles()).map(|tile| ty.origin(&ty.coord(tile))).collect::<Vec<_>>()
    };
    assert_eq!(corners("f32[10/2, 16]"), [[0, 0], [5, 0]]);
    assert_eq!(corners("f32[10, 16/4]")[3], [0, 12]);
    assert_eq!(ty("f32[10, 16/4]").tile(), TensorType::new(DType::F32, [10, 4]));
    let text = "tasks @gather {
        b0 : f32[5, 16] at [0, 0] in [10, 16] part 0 of x0 on dev0 input \"x\"
        b1 : f32[5, 16] at [5, 0] in [10, 16] part 0 of x0 on dev1 input \"x\"
        b2 : f32[10, 16] at [0, 0] in [10, 16] part 0 of x0 on dev0 output \"y\"
    }";
    let tasks: TaskGraph = text.parse().expect("the text is a task graph");
    let [b0, b1, b2] = [0, 1, 2].map(BufferId::from_index);
    let pieces = tasks.sources(&[b0, b1]).pieces(b2).expect("both tiles cover the whole");
    let rows = |origin: [usize; 2]| Rect { origin: origin.to_vec(), extents: vec![5, 16] };
    assert_eq!(
        pieces.iter().map(|piece| piece.rect.clone()).collect::<Vec<_>>(),
        [rows([0, 0]), rows([5, 0])]
    );
    assert_eq!(pieces[1].sources, [b1]);
    assert_eq!(tasks.sources(&[b1]).pieces(b2), None, "half of it has no source");
}
