//! Presets for models built by hand: what they cut, in patterns that people can read.

use phalanx_ir::graph::Graph;
use phalanx_plan::{Plan, parallelize, preset};
use phalanx_testkit::structures;

fn model(name: &str) -> Graph {
    let found = structures::all().into_iter().find(|(own, _)| *own == name);
    found.expect("the model is listed").1
}

fn plan(model: &Graph, name: &str, devices: usize) -> Plan {
    preset(name, devices, model).unwrap_or_else(|error| panic!("{} under {name}: {error}", model.name()))
}

/// The rules of a plan as `pattern dim`.
fn rules(plan: &Plan) -> Vec<String> {
    let dims =
        |rule: &phalanx_plan::PlanRule| rule.shard.keys().map(usize::to_string).collect::<Vec<_>>().join(",");
    plan.rules.iter().map(|rule| format!("{} {}", rule.pattern, dims(rule))).collect()
}

#[test]
fn every_preset_suits_every_model() {
    for (name, model) in structures::all() {
        for (preset, devices) in
            [("dp", 2), ("fsdp", 2), ("tp", 2), ("pp", 2), ("dp2-tp2", 4), ("fsdp2-tp2-pp2", 8)]
        {
            let plan = plan(&model, preset, devices);
            let parallel =
                parallelize(&model, &plan).unwrap_or_else(|error| panic!("{name} {preset}: {error}"));
            parallel.verify().unwrap_or_else(|errors| panic!("{name} {preset}: {errors:#?}"));
        }
    }
}

#[test]
fn blocks_share_patterns() {
    let plan = plan(&model("vision"), "tp", 2);
    let wanted = [
        "blocks.*.attention.query.weight 0",
        "blocks.*.attention.query.bias 0",
        "blocks.*.attention.key.weight 0",
        "blocks.*.attention.key.bias 0",
        "blocks.*.attention.value.weight 0",
        "blocks.*.attention.value.bias 0",
        "blocks.*.attention.output.weight 1",
        "blocks.*.mlp.up.weight 0",
        "blocks.*.mlp.up.bias 0",
        "blocks.*.mlp.down.weight 1",
        "head.weight 0",
        "head.bias 0",
    ];
    assert_eq!(rules(&plan), wanted);
}

/// Both kinds of mixing have hidden features, the tokens' behind a transposition.
#[test]
fn a_mixer_is_cut_along_both_kinds_of_hidden_features() {
    let plan = plan(&model("mixer"), "tp", 2);
    let wanted = [
        "blocks.*.tokens.up.weight 0",
        "blocks.*.tokens.up.bias 0",
        "blocks.*.tokens.down.weight 1",
        "blocks.*.channels.up.weight 0",
        "blocks.*.channels.up.bias 0",
        "blocks.*.channels.down.weight 1",
        "head.weight 0",
        "head.bias 0",
    ];
    assert_eq!(rules(&plan), wanted);
}

#[test]
fn the_batch_is_cut_where_it_is() {
    let plan = plan(&model("turned"), "dp", 2);
    assert_eq!(rules(&plan), ["tokens 1", "labels 1"]);
    let text = parallelize(&model("turned"), &plan).expect("the plan is legal").to_string();
    assert!(text.contains("%tokens = input i64[8, 8/2] on dev0, dev1 batch 1\n"), "{text}");
}

#[test]
fn stages_are_named_by_modules() {
    let stages = |name: &str, stages: usize| {
        plan(&model(name), "pp", stages).pipeline.expect("there are stages").stages
    };
    let wanted = [
        vec!["patches*", "token*", "tokens*", "joined*", "places*", "embedded*", "blocks.0.*"],
        vec!["blocks.1.*", "norm*", "taken*", "class*", "head*", "loss*"],
    ];
    assert_eq!(stages("vision", 2), wanted);
    // Without numbers the work decides; every module is in one stage.
    let wanted = [vec!["into*", "first*"], vec!["second*"], vec!["third*", "head*", "loss*"]];
    assert_eq!(stages("residual", 3), wanted);
}
