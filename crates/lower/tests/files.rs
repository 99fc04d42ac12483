//! The file tests of every pass, and what makes lowering fail.
//!
//! A name after `@` chooses other options than the usual ones of a pass.

use std::path::Path;

use phalanx_ir::parallel::ParallelGraph;
use phalanx_ir::tasks::TaskGraph;
use phalanx_lower::{
    Decays, EXPAND_PASSES, Goal, Leaves, LowerError, Optimizer, Options, PASSES, Rule, lower,
};
use phalanx_testkit::filetest;

fn options(goal: Goal) -> Options {
    Options { goal, leaves: Leaves { batch: 4, feature: 2 }, seed: 9 }
}

fn adamw() -> Goal {
    Goal::Train(Optimizer { clip: Some(1.0), decays: Decays::Matrices, ..Optimizer::adamw(0.1) })
}

fn sgd() -> Goal {
    let rule = Rule::Sgd { momentum: 0.9, nesterov: true };
    Goal::Train(Optimizer { decay: 0.1, keep_gradients: true, ..Optimizer::new(rule) })
}

/// The text after `expand-passes`; the passes after it must succeed too.
fn expand(text: &str, goal: Goal) -> Result<String, String> {
    let graph: ParallelGraph = text.parse().map_err(|error| format!("{error}"))?;
    graph.verify().map_err(|errors| errors[0].to_string())?;
    let mut expanded = None;
    let outcome = lower(&graph, &options(goal), |pass, tasks| {
        if pass == EXPAND_PASSES {
            expanded = Some(tasks.to_string());
        }
    });
    outcome.map_err(|error| error.to_string())?;
    expanded.ok_or_else(|| "lowering shows its first pass".into())
}

/// The text after the task pass `name`, which gives a sound graph.
fn run(text: &str, name: &str, goal: Goal) -> Result<String, String> {
    let tasks: TaskGraph = text.parse().map_err(|error| format!("{error}"))?;
    let pass = PASSES.iter().find(|pass| pass.name == name).ok_or("there is no such pass")?;
    let after = (pass.run)(tasks, &options(goal)).map_err(|error| error.to_string())?;
    after.verify().map_err(|errors| errors[0].to_string())?;
    Ok(after.to_string())
}

const TABLE: &[(&str, filetest::Pass)] = &[
    ("expand-passes", |text| expand(text, Goal::Gradients)),
    ("expand-passes@infer", |text| expand(text, Goal::Infer)),
    ("insert-loss", |text| run(text, "insert-loss", Goal::Gradients)),
    ("fuse-epilogues", |text| run(text, "fuse-epilogues", Goal::Gradients)),
    ("fuse-sums", |text| run(text, "fuse-sums", Goal::Gradients)),
    ("insert-updates", |text| run(text, "insert-updates", adamw())),
    ("insert-updates@sgd", |text| run(text, "insert-updates", sgd())),
    ("insert-updates@gradients", |text| run(text, "insert-updates", Goal::Gradients)),
    ("insert-updates@infer", |text| run(text, "insert-updates", Goal::Infer)),
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
fn fuse_epilogues() {
    check("fuse-epilogues");
}

#[test]
fn fuse_sums() {
    check("fuse-sums");
}

#[test]
fn insert_updates() {
    check("insert-updates");
}

#[test]
fn every_pass_has_file_tests() {
    for name in PASSES.iter().map(|pass| pass.name).chain([EXPAND_PASSES]) {
        assert!(TABLE.iter().any(|(known, _)| *known == name), "{name} is in the table");
    }
}

fn error_of(text: &str, goal: Goal) -> LowerError {
    let graph: ParallelGraph = text.parse().expect("the text is a parallel graph");
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
    assert_eq!(error.to_string(), "loss `y` depends on no parameter; nothing can be trained");
}

#[test]
fn tiled_tensors_are_refused() {
    let text = "parallel @p {\n%x = input f32[4/2] on dev0, dev1\nreturn %x\n}";
    let error = error_of(text, Goal::Infer);
    assert_eq!(error, LowerError::Tiled { value: "x".into(), ty: "f32[4/2]".into() });
}
