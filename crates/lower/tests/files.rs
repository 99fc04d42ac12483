//! The file tests of every pass, and what makes lowering fail.
//!
//! A name after `@` chooses other options than the usual ones of a pass.

use std::path::Path;

use phalanx_ir::Precision;
use phalanx_ir::parallel::ParallelGraph;
use phalanx_lower::{
    BucketSizes, Decays, EXPAND_PASSES, Goal, Leaves, LowerError, LowerOptions, Optimizer, PASSES, Stage,
    UpdateRule, lower,
};
use phalanx_testkit::filetest;

fn options(goal: Goal) -> LowerOptions {
    LowerOptions {
        goal,
        leaves: Leaves { batch: 4, feature: 2, sequence: 2 },
        precision: Precision::F32,
        seed: 9,
        free_bits: false,
        fuse: true,
        buckets: BucketSizes::default(),
        node: Some(2),
    }
}

fn adamw() -> Goal {
    Goal::Train(Optimizer::adamw(0.1).clip(Some(1.0)).decays(Decays::Matrices))
}

fn sgd() -> Goal {
    let rule = UpdateRule::Sgd { momentum: 0.9, nesterov: true };
    Goal::Train(Optimizer::new(rule).decay(0.1).keep_gradients(true))
}

/// The text after `expand-passes`; the passes after it must succeed too.
fn expand(text: &str, options: &LowerOptions) -> Result<String, String> {
    let graph = ParallelGraph::parse(text, phalanx_ops::operators()).map_err(|error| format!("{error}"))?;
    graph.verify().map_err(|errors| errors[0].to_string())?;
    let mut expanded = None;
    let outcome = lower(&graph, options, |pass, tasks| {
        if pass == EXPAND_PASSES {
            expanded = Some(tasks.to_string());
        }
    });
    outcome.map_err(|error| error.to_string())?;
    expanded.ok_or_else(|| "lowering shows its first pass".into())
}

/// The text after the pass `name`, which gives a sound graph.
fn run(text: &str, name: &str, goal: Goal) -> Result<String, String> {
    let stage = match text.trim_start().starts_with("sharded") {
        true => Stage::Sharded(text.parse().map_err(|error| format!("{error}"))?),
        false => Stage::Tasks(text.parse().map_err(|error| format!("{error}"))?),
    };
    let pass = PASSES.iter().find(|pass| pass.name == name).ok_or("there is no such pass")?;
    let after = stage.run(pass, &options(goal)).ok_or("the pass works on another level")?;
    let after = after.map_err(|error| error.to_string())?;
    after.verify(pass.name).map_err(|error| error.to_string())?;
    Ok(after.text().to_string())
}

const TABLE: &[(&str, filetest::PassFn)] = &[
    ("expand-passes", |text| expand(text, &options(Goal::Gradients))),
    ("expand-passes@bf16", |text| {
        expand(text, &LowerOptions { precision: Precision::Bf16, ..options(Goal::Gradients) })
    }),
    ("expand-passes@train", |text| expand(text, &options(sgd()))),
    ("expand-passes@infer", |text| expand(text, &options(Goal::Infer))),
    ("insert-loss", |text| run(text, "insert-loss", Goal::Gradients)),
    ("fuse-loss", |text| run(text, "fuse-loss", Goal::Gradients)),
    ("fuse-epilogues", |text| run(text, "fuse-epilogues", Goal::Gradients)),
    ("fuse-sums", |text| run(text, "fuse-sums", Goal::Gradients)),
    ("fuse-elementwise", |text| run(text, "fuse-elementwise", Goal::Gradients)),
    ("insert-updates", |text| run(text, "insert-updates", adamw())),
    ("insert-updates@sgd", |text| run(text, "insert-updates", sgd())),
    ("insert-updates@gradients", |text| run(text, "insert-updates", Goal::Gradients)),
    ("insert-updates@infer", |text| run(text, "insert-updates", Goal::Infer)),
    ("insert-copies", |text| run(text, "insert-copies", Goal::Gradients)),
    ("spread-sums", |text| run(text, "spread-sums", Goal::Gradients)),
    ("two-levels", |text| run(text, "two-levels", Goal::Gradients)),
    ("expand-shards", |text| run(text, "expand-shards", Goal::Gradients)),
    ("fuse-movements", |text| run(text, "fuse-movements", Goal::Gradients)),
    ("split-movements", |text| run(text, "split-movements", Goal::Gradients)),
];

fn check(pass: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../filetests/lower").join(pass);
    filetest::check(&folder, TABLE);
}

#[test]
fn expand_passes() {
    check("expand-passes");
}

#[test]
fn insert_loss() {
    check("insert-loss");
}

#[test]
fn fuse_loss() {
    check("fuse-loss");
}

#[test]
fn fuse_epilogues() {
    check("fuse-epilogues");
}

#[test]
fn fuse_sums() {
    check("fuse-sums");
}

#[test]
fn fuse_elementwise() {
    check("fuse-elementwise");
}

#[test]
fn insert_updates() {
    check("insert-updates");
}

#[test]
fn insert_copies() {
    check("insert-copies");
}

#[test]
fn spread_sums() {
    check("spread-sums");
}

#[test]
fn two_levels() {
    check("two-levels");
}

#[test]
fn expand_shards() {
    check("expand-shards");
}

#[test]
fn fuse_movements() {
    check("fuse-movements");
}

#[test]
fn split_movements() {
    check("split-movements");
}

#[test]
fn every_pass_has_file_tests() {
    for name in PASSES.iter().map(|pass| pass.name).chain([EXPAND_PASSES]) {
        assert!(TABLE.iter().any(|(known, _)| *known == name), "{name} is in the table");
    }
}

fn error_of(text: &str, goal: Goal) -> LowerError {
    let graph = ParallelGraph::parse(text, phalanx_ops::operators()).expect("the text is a parallel graph");
    lower(&graph, &options(goal), |_, _| ()).expect_err("the graph cannot be lowered")
}

#[test]
fn a_trained_graph_returns_a_scalar_first() {
    let text =
        "parallel @p {\n%w = param init=ones f32[3] on dev0\n%y = exp %w : f32[3] on dev0\nreturn %y\n}";
    let error = error_of(text, Goal::Gradients);
    assert_eq!(error, LowerError::NoLoss { output: "y".into(), ty: "f32[3]".into() });
    assert_eq!(error.to_string(), "`y` is f32[3]; a trained graph returns a scalar f32[] loss first");
}

#[test]
fn a_loss_depends_on_a_parameter() {
    let text = "parallel @p {\n%x = input f32[] on dev0\n%y = exp %x : f32[] on dev0\nreturn %y\n}";
    let error = error_of(text, adamw());
    assert_eq!(error, LowerError::NothingToTrain { output: "y".into() });
    assert_eq!(
        error.to_string(),
        "loss `y` depends on no parameter that is trained; add one, or freeze fewer"
    );
}

#[test]
fn a_cut_off_the_leaves_is_refused_unless_other_bits_are_allowed() {
    let text = "parallel @p {
        %x = input f32[6/3, 4] on dev0, dev1, dev2
        %w = param init=ones f32[2, 4] copy 3 on dev0, dev1, dev2
        %y = linear %x, %w : f32[6/3, 2] on dev0, dev1, dev2
        %s = reduce kind=sum axes=[0,1] %y : f32[] sum 3 on dev0, dev1, dev2
        %l = reduction degree=3 %s : f32[] on dev0
        return %l
    }";
    let error = error_of(text, Goal::Gradients);
    let LowerError::Unaligned { what, extent, leaves, degree, .. } = &error else { panic!("{error}") };
    assert_eq!((what.as_str(), *extent, *leaves, *degree), ("the batch", 6, 2, 3));
    let graph = ParallelGraph::parse(text, phalanx_ops::operators()).expect("the text is a parallel graph");
    let free = LowerOptions { free_bits: true, ..options(Goal::Gradients) };
    assert!(lower(&graph, &free, |_, _| ()).is_ok());
}

/// Sums that are kept apart for each block of the batch are cut with it, too.
#[test]
fn a_cut_off_the_leaves_of_sums_that_are_kept_is_refused() {
    let text = "parallel @p {
        %x = input f32[6/3, 1, 3, 2] on dev0, dev1, dev2
        %b = param init=ones f32[2] copy 3 on dev0, dev1, dev2
        %y = add %x, %b : f32[6/3, 1, 3, 2] on dev0, dev1, dev2
        %s = reduce kind=sum axes=[0,1,2,3] %y : f32[] sum 3 on dev0, dev1, dev2
        %l = reduction degree=3 %s : f32[] on dev0
        return %l
    }";
    let error = error_of(text, Goal::Gradients);
    assert!(matches!(error, LowerError::Unaligned { .. }), "{error}");
    let graph = ParallelGraph::parse(text, phalanx_ops::operators()).expect("the text is a parallel graph");
    let free = LowerOptions { free_bits: true, ..options(Goal::Gradients) };
    assert!(lower(&graph, &free, |_, _| ()).is_ok());
}

#[test]
fn advice_about_a_cut_off_the_leaves_leads_to_a_cut_that_works() {
    let advice = |what: &str, extent, leaves, degree| {
        let (layer, what) = ("y".to_string(), what.to_string());
        let text = LowerError::Unaligned { layer, what, extent, leaves, degree }.to_string();
        text.split_once(". ").map(|(_, advice)| advice.to_string()).unwrap()
    };
    // Three ways have no binary tree, however many blocks there are; of a batch of 12 neither have eight.
    assert_eq!(
        advice("the batch", 12, 4, 3),
        "Sums are binary trees, so the batch of 12 can be cut a power of two ways: use 2 or 4 (devices along it times \
         --accumulate), cut another dimension, or allow other bits with --bits free"
    );
    assert!(advice("the batch", 12, 4, 8).contains("use 2 or 4 (devices"));
    assert!(
        advice("features", 96, 2, 3)
            .contains("features of 96 can be cut a power of two ways: use 2 (devices")
    );
    // Four ways need four blocks, which 96 features can have.
    assert!(advice("features", 96, 2, 4).starts_with("Try --blocks-feature 4, cut another dimension"));
    assert!(advice("microbatches of others", 0, 1, 2).starts_with("Cut another dimension, or"));
}
