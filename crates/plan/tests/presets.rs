//! Every preset on every model of the zoo gives a legal parallel graph, with the parallel operators that the method is
//! known for and no others.

use std::collections::BTreeMap;

use phalanx_ir::graph::{Graph, LayerId};
use phalanx_ir::parallel::{ParallelGraph, place};
use phalanx_ir::{Id, Op};
use phalanx_models::{LanguageModel, ModelConfig};
use phalanx_plan::{PRESETS, Plan, PlanError, left_whole, parallelize, preset};

const LAYERS: usize = 4;

/// The model of the acceptance runs: 4 layers, width 128, 8 heads, batch 16, context 64.
fn model(family: &str, tied: bool, dropout: f32) -> Graph {
    let mut config =
        ModelConfig::preset(family, "nano").expect("every family has a nano").with_dropout(dropout);
    match &mut config {
        ModelConfig::Gpt2(config) => {
            (config.layers, config.heads, config.width, config.tied) = (LAYERS, 8, 128, tied);
        }
        ModelConfig::Llama(config) => {
            (config.layers, config.heads, config.kv_heads, config.head_dim) = (LAYERS, 8, 8, 16);
            (config.width, config.hidden, config.tied, config.attention_bias) = (128, 256, tied, tied);
        }
        ModelConfig::Mlp(_) | ModelConfig::Zoo(_) => {}
    }
    config.training_graph(16, 64).expect("the sizes are legal")
}

fn models() -> Vec<Graph> {
    let zoo = ["gpt2", "llama"].map(|family| [model(family, true, 0.1), model(family, false, 0.0)]);
    zoo.into_iter().flatten().collect()
}

fn applied(model: &Graph, name: &str, devices: usize) -> (Plan, ParallelGraph) {
    let plan = preset(name, devices, model).unwrap_or_else(|error| panic!("{name}: {error}"));
    let parallel = parallelize(model, &plan).unwrap_or_else(|error| panic!("{name}: {error}"));
    parallel.verify().unwrap_or_else(|errors| panic!("{name}: {errors:#?}"));
    (plan, parallel)
}

/// How often each operator occurs.
fn counts(parallel: &ParallelGraph) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (_, layer) in parallel.layers().iter().filter(|(_, layer)| layer.op.is_parallel()) {
        *counts.entry(layer.op.to_text().0.to_string()).or_default() += 1;
    }
    counts
}

fn count(parallel: &ParallelGraph, wanted: impl Fn(&str, &Op) -> bool) -> usize {
    let layers = parallel.layers().iter();
    layers.filter(|(id, layer)| wanted(parallel.layer_name(*id), &layer.op)).count()
}

/// Every task has its operands on its own devices, unless they come from another stage.
fn assert_local(parallel: &ParallelGraph, stage_of: impl Fn(LayerId) -> usize) {
    for (id, layer) in
        parallel.layers().iter().filter(|(_, layer)| !layer.op.is_leaf() && !layer.op.is_parallel())
    {
        let rule = parallel.rule(id).expect("the graph is verified");
        for (&operand, map) in layer.operands.iter().zip(&rule.operands) {
            let groups = parallel.groups(operand).expect("the graph is verified");
            for (task, group) in layer.label.groups.iter().enumerate() {
                let tile = parallel.ty(operand).index(&map.coord(&rule.extents, &place(&rule.extents, task)));
                let same_stage = stage_of(id) == stage_of(parallel.values()[operand].layer);
                assert!(
                    groups[tile].covers(group) || !same_stage,
                    "{}: {group} wants {} of {}",
                    parallel.layer_name(id),
                    parallel.values()[operand].name,
                    groups[tile]
                );
            }
        }
    }
}

#[test]
fn every_preset_is_legal_and_local() {
    let all = [
        ("one", 1),
        ("dp", 2),
        ("dp4", 4),
        ("dp", 8),
        ("fsdp", 2),
        ("fsdp", 4),
        ("fsdp8", 8),
        ("zero1", 4),
        ("zero14", 4),
        ("tp", 2),
        ("tp", 4),
        ("tp", 8),
        ("sp", 4),
        ("pp", 2),
        ("pp4", 4),
        ("dp2-tp2", 4),
        ("fsdp2-tp2", 4),
        ("dp2-pp2", 4),
        ("tp2-pp2", 4),
        ("fsdp2-tp2-pp2", 8),
        ("pp2-sp2-zero12-dp2", 16),
        ("dp2-fsdp2", 4),
    ];
    for model in models() {
        for (name, devices) in all {
            let (plan, parallel) = applied(&model, name, devices);
            assert_eq!(plan.mesh.devices(), devices);
            let used = parallel
                .layers()
                .iter()
                .flat_map(|(_, layer)| layer.label.groups.iter())
                .flat_map(|group| group.devices());
            let last = used.map(|device| device.index()).max();
            assert_eq!(last, Some(devices - 1), "{name}");
            let stages = plan.pipeline.map_or(1, |pipeline| pipeline.stages.len());
            // The pipeline is the outermost axis: a stage is a run of devices.
            let stage_of =
                |layer: LayerId| parallel.layers()[layer].label.groups[0].first().index() * stages / devices;
            assert_local(&parallel, stage_of);
        }
    }
}

#[test]
fn one_device_is_the_model_itself() {
    for model in models() {
        let (plan, parallel) = applied(&model, "one", 1);
        assert_eq!(plan, Plan::default());
        let expected = ParallelGraph::on_one_device(&model, Id::from_index(0), |_| (0, None));
        assert_eq!(parallel, expected);
    }
}

/// Megatron: per block one sum after attention and one after the feed-forward part, one for the embedding; the loss on
/// cut logits needs none. Copies where the stream enters a block's linear layers and the head.
#[test]
fn tensor_parallel_sums_twice_a_block() {
    for (model, linears, bias) in [(model("gpt2", true, 0.1), 4, 2), (model("llama", false, 0.0), 5, 0)] {
        let (_, parallel) = applied(&model, "tp4", 4);
        let expected =
            [("reduction".to_string(), 2 * LAYERS + 1), ("replicate".into(), linears * LAYERS + 1)];
        assert_eq!(counts(&parallel), BTreeMap::from(expected));
        let biases = count(&parallel, |name, op| {
            name.ends_with("_proj") && op.get::<phalanx_ops::BinaryOp>().is_some()
        });
        assert_eq!(biases, bias * LAYERS, "row-parallel biases are added after the sum");
        let logits = parallel.find("logits").expect("the head exists");
        assert_eq!(parallel.ty(logits).to_string(), "f32[16, 64, 256/4]");
    }
}

/// One replication for each parameter use, one sum of the loss and one of the count of its labels.
#[test]
fn data_parallel_copies_parameters_and_sums_the_loss() {
    let model = model("gpt2", true, 0.1);
    let parameters = model.leaves(|op| matches!(op, Op::Param(_))).count();
    let (_, parallel) = applied(&model, "dp4", 4);
    // The tied table is used twice.
    let expected = [("reduction".to_string(), 2), ("replicate".into(), parameters + 1)];
    assert_eq!(counts(&parallel), BTreeMap::from(expected));
    for (_, layer) in parallel.layers().iter() {
        let whole = matches!(layer.op, Op::Param(_)) && layer.label.groups.len() == 1;
        assert!(!matches!(layer.op, Op::Param(_)) || whole);
    }
}

#[test]
fn sharded_parameters_are_joined_for_each_use() {
    for (name, regather) in [("fsdp4", true), ("zero14", false)] {
        for model in models() {
            let (_, parallel) = applied(&model, name, 4);
            let parameters: Vec<_> = parallel.leaves(|op| matches!(op, Op::Param(_))).collect();
            assert!(parameters.iter().all(|&parameter| parallel.ty(parameter).tiles() == 4));
            let tied = usize::from(model.find("lm_head.weight").is_none());
            let joins = count(
                &parallel,
                |_, op| matches!(op, Op::Combine { regather: found, .. } if *found == regather),
            );
            // What is joined anew is joined for each use; what is kept is joined once.
            assert_eq!(joins, parameters.len() + if regather { tied } else { 0 });
            assert_eq!(counts(&parallel)["replicate"], parameters.len() + tied);
        }
    }
}

/// Norms and dropouts see a part of the sequence; sums are scattered, and joined before the next linear layers.
#[test]
fn sequence_parallel_cuts_the_stream() {
    let model = model("gpt2", true, 0.1);
    let (_, parallel) = applied(&model, "sp4", 4);
    let cut = |name: &str| parallel.ty(parallel.find(name).expect("the layer exists")).to_string();
    for name in [
        "transformer.wte",
        "transformer.embedding",
        "transformer.drop",
        "transformer.ln_f",
        "transformer.h.3",
    ] {
        assert_eq!(cut(name), "f32[16, 64/4, 128]", "{name}");
    }
    for part in
        ["ln_1", "attn.c_proj", "attn.resid_dropout", "attn.residual", "ln_2", "mlp.c_proj", "mlp.dropout"]
    {
        assert_eq!(cut(&format!("transformer.h.1.{part}")), "f32[16, 64/4, 128]", "{part}");
    }
    let counts = counts(&parallel);
    assert_eq!(counts["reduction"], 2 * LAYERS + 1);
    // One scatter for each sum, and one for the position table.
    assert_eq!(counts["repartition"], 2 * LAYERS + 2);
    assert_eq!(
        counts["combine"],
        2 * LAYERS + 1,
        "before the linear layers of each half block, and before the head"
    );
}

#[test]
fn pipelines_deal_blocks_evenly_and_cut_the_batch() {
    for (family, block) in [("gpt2", "transformer.h"), ("llama", "model.layers")] {
        let model = model(family, true, 0.1);
        let (plan, parallel) = applied(&model, "dp2-pp2", 4);
        assert_eq!(plan.microbatches, 4);
        let devices = |name: &str| {
            let layer = parallel.values()[parallel.find(name).unwrap_or_else(|| panic!("no {name}"))].layer;
            let groups: Vec<_> =
                parallel.layers()[layer].label.groups.iter().map(|group| group.to_string()).collect();
            groups.join(" ")
        };
        assert_eq!(devices(&format!("{block}.1.mb3")), "dev0 dev1");
        assert_eq!(devices(&format!("{block}.2.mb0")), "dev2 dev3");
        assert_eq!([devices("tokens"), devices("targets")], ["dev[0,2] dev[1,3]", "dev[0,2] dev[1,3]"]);
        assert_eq!(
            [devices("logits.mb1"), devices("loss.sum.mb1"), devices("loss")],
            ["dev2 dev3", "dev2 dev3", "dev[2-3]"]
        );
        let table = if family == "gpt2" { "transformer.wte.weight" } else { "model.embed_tokens.weight" };
        assert_eq!(devices(table), "dev[0-1]");
        // Partial losses of microbatches are added on each device before devices are: one sum for the loss.
        assert_eq!(
            count(&parallel, |name, op| name.starts_with("loss.sum") && matches!(op, Op::Reduction { .. })),
            1
        );
        // Parameters are copied once for all microbatches.
        let copies = count(&parallel, |name, op| {
            name.starts_with(&format!("{block}.0.")) && matches!(op, Op::Replicate { .. })
        });
        let used = parallel.layers().iter().filter(|(id, layer)| {
            matches!(layer.op, Op::Param(_)) && parallel.layer_name(*id).starts_with(&format!("{block}.0."))
        });
        assert_eq!(copies, used.count());
    }
}

#[test]
fn pipelines_cut_the_batch_into_a_power_of_two() {
    let config = ModelConfig::preset("gpt2", "nano").expect("every family has a nano");
    // Six would divide 12, but sums of six parts have other bits.
    for (batch, wanted) in [(12, 4), (16, 8), (6, 2), (3, 1)] {
        let model = config.training_graph(batch, 16).expect("the sizes are legal");
        let plan = preset("pp4", 4, &model).expect("there are four blocks");
        assert_eq!(plan.microbatches, wanted, "a batch of {batch}");
    }
}

#[test]
fn microbatches_keep_each_device_its_rows() {
    let model = model("gpt2", true, 0.0);
    let (_, parallel) = applied(&model, "dp2-pp2", 4);
    let split = parallel
        .layers()
        .iter()
        .find(|(_, layer)| matches!(layer.op.get(), Some(phalanx_ops::Split { axis: 0, blocks: 2, .. })));
    let (_, split) = split.expect("the input is cut in blocks");
    assert_eq!(parallel.ty(split.results[0]).to_string(), "i64[4/2, 64]");
    let block =
        parallel.values()[parallel.find("transformer.h.0.mb2").expect("a block of a microbatch")].layer;
    let part = parallel.layers()[block].label.microbatch.expect("it works on a part");
    assert_eq!((part.index, part.count, part.blocks), (2, 4, 2));
}

#[test]
fn heads_that_do_not_divide_are_joined() {
    let mut config = ModelConfig::preset("llama", "nano").expect("a llama");
    if let ModelConfig::Llama(config) = &mut config {
        (config.heads, config.kv_heads, config.head_dim) = (8, 2, 16);
    }
    let model = config.training_graph(16, 64).expect("the sizes are legal");
    for (name, devices, heads) in [("tp2", 2, "f32[16, 64, 8/2, 16]"), ("tp4", 4, "f32[16, 64, 8, 16]")] {
        let (_, parallel) = applied(&model, name, devices);
        let value = parallel.find("model.layers.0.self_attn.heads").expect("attention exists");
        assert_eq!(parallel.ty(value).to_string(), heads);
    }
}

#[test]
fn plans_of_presets_survive_as_text() {
    for model in models() {
        for (name, devices) in [("fsdp2-tp2-pp2", 8), ("sp2-dp2", 4), ("zero1", 4), ("one", 1)] {
            let (plan, parallel) = applied(&model, name, devices);
            let again = Plan::parse(&plan.to_text()).expect("what is written can be read");
            assert_eq!(again, plan);
            assert_eq!(parallelize(&model, &again).expect("the plan is legal"), parallel);
        }
    }
}

#[test]
fn any_model_has_data_parallel_presets() {
    let text = "graph @odd {\n%a = input f32[8, 3]\n%w = param init=ones f32[3, 7]\n%s = param init=ones f32[]\n\
        %y = linear transposed=true %a, %w : f32[8, 7]\n%z = mul %y, %s : f32[8, 7]\n%p = softmax axis=0 %z : f32[8, 7]\nreturn %p\n}";
    let model = Graph::parse(text, phalanx_ops::operators()).expect("a graph");
    for name in ["dp", "fsdp", "zero1"] {
        let (_, parallel) = applied(&model, name, 4);
        assert_local(&parallel, |_| 0);
        // A softmax over the batch needs all of it.
        assert_eq!(parallel.ty(parallel.outputs()[0]).tiles(), 1);
    }
    for name in ["tp", "sp"] {
        let error = preset(name, 2, &model).expect_err("no layer takes in what another makes");
        assert!(matches!(&error, PlanError::NoFeatures { .. }), "{error}");
        assert_eq!(
            error.to_string(),
            "preset `tp` cuts features that one layer makes from a parameter and another takes in, into 2; model `odd` has \
             none: of its kinds of features 1 are dimensions of inputs, 1 are only made or only taken in; write a plan \
             file for it"
        );
    }
    // One activation is alive after the linear layer, and after the product.
    assert_eq!(
        preset("pp", 3, &model).expect("there are two places").pipeline.map_or(0, |p| p.stages.len()),
        3
    );
    let error = preset("pp", 4, &model).expect_err("there are two places");
    assert!(
        error.to_string().contains("model `odd` has 2 such places, for at most 3 stages, not 4"),
        "{error}"
    );
}

#[test]
fn wrong_names_of_presets_are_explained() {
    let model = model("gpt2", true, 0.0);
    let error = |name: &str, devices: usize| preset(name, devices, &model).expect_err(name).to_string();
    assert_eq!(
        error("dp2-xp2", 4),
        "`xp2` of the plan `dp2-xp2` is neither a file nor a preset; presets are one, dp, fsdp, zero1, tp, sp, pp, with a \
         number of devices behind them from 1 on, as in dp2, joined by `-` as in dp2-tp2"
    );
    for name in ["", "dp0", "pd2"] {
        let start = format!("the plan `{name}` is neither a file nor a preset; presets are one, dp,");
        assert!(error(name, 1).starts_with(&start), "{}", error(name, 1));
    }
    assert_eq!(
        error("dp2-tp2", 8),
        "preset `dp2-tp2` is for 4 devices but there are 8; change the numbers or use --devices 4"
    );
    assert_eq!(
        error("one", 2),
        "preset `one` is for 1 devices but there are 2; change the numbers or use --devices 1"
    );
    assert_eq!(error("tp2-sp2", 4), "preset `tp2-sp2` has both tp and sp; use one of them");
    assert_eq!(error("dp2-dp2", 4), "preset `dp2-dp2` has both dp and dp; use one of them");
    assert_eq!(error("one-dp2", 2), "preset `one-dp2` has both one and dp; use one of them");
    assert_eq!(
        error("dp-tp", 4),
        "preset `dp-tp` does not divide 4 devices: say how many are for `dp`, such as dp2"
    );
    assert_eq!(
        error("dp-tp3", 4),
        "preset `dp-tp3` does not divide 4 devices: say how many are for `dp`, such as dp2"
    );
    assert_eq!(error("pp8", 8), "model `gpt2` has 4 blocks but the pipeline 8 stages; use at most 4 stages");
    assert_eq!(
        error("tp3", 3),
        "`transformer.h.0.attn.q.weight` is f32[128, 128]: its dim 1 of 128 cannot be cut into 3 (tp=3); use 2, 4, 8, 16, 32, 64 or 128"
    );
    assert_eq!(
        preset("dp-tp2", 8, &model).expect("what is left is for dp").mesh.axes,
        [("dp".into(), 4), ("tp".into(), 2)]
    );
    assert_eq!(PRESETS.len(), 7);
}

#[test]
fn large_models_are_laid_out_quickly_and_alike() {
    let config = ModelConfig::preset("gpt2", "nano").expect("a gpt2");
    let ModelConfig::Gpt2(mut config) = config else { panic!("a gpt2") };
    (config.layers, config.heads, config.width) = (96, 8, 128);
    let model = config.training_graph(128, 64).expect("the sizes are legal");
    let (plan, parallel) = applied(&model, "dp4-fsdp2-tp8-pp8", 512);
    assert_eq!(plan.microbatches, 8);
    // Lists of groups are shared: as many as there are layouts and stages, not as there are layers.
    let lists: std::collections::BTreeSet<_> = parallel
        .layers()
        .iter()
        .map(|(_, layer)| std::sync::Arc::as_ptr(&layer.label.groups).cast::<u8>() as usize)
        .collect();
    assert!(
        lists.len() < 100 && parallel.layers().len() > 20_000,
        "{} of {}",
        lists.len(),
        parallel.layers().len()
    );
    assert_eq!(parallelize(&model, &plan).expect("the plan is legal"), parallel);
}

#[test]
fn pipelines_of_any_length_choose_microbatches_that_sums_over_the_batch_allow() {
    let config = ModelConfig::preset("gpt2", "nano").expect("every family has a nano");
    let ModelConfig::Gpt2(config) = config else { panic!("it is a GPT-2") };
    let deep = ModelConfig::Gpt2(phalanx_models::Gpt2Config { layers: 12, ..config });
    for batch in [12, 16, 24, 48, 7] {
        let model = deep.training_graph(batch, 8).expect("the sizes are legal");
        for stages in [2, 3, 4, 6, 12] {
            let plan = applied(&model, "pp", stages).0;
            let found = plan.microbatches;
            assert!(found.is_power_of_two() && found <= 8, "{stages} stages, batch {batch}: {found}");
            let more = 2 * found;
            let is_most = more > 8 || more > 2 * stages || !batch.is_multiple_of(more);
            assert!(is_most, "{stages} stages, batch {batch}: {more} would do");
        }
    }
}

/// What a preset says it leaves whole is what has one tile in the parallel graph, and has no dimension that divides.
#[test]
fn parameters_that_do_not_divide_are_named() {
    let parameters = |model: &Graph| -> Vec<_> { model.leaves(|op| matches!(op, Op::Param(_))).collect() };
    for family in ["gpt2", "llama"] {
        let config = ModelConfig::preset(family, "nano").expect("every family has a nano");
        // A batch that all of these numbers divide.
        let model = config.training_graph(30, 8).expect("the sizes are legal");
        for (name, devices, size) in [("fsdp", 2, 2), ("fsdp", 3, 3), ("zero1", 5, 5), ("fsdp3-dp2", 6, 3)] {
            let plan = preset(name, devices, &model).unwrap_or_else(|error| panic!("{name}: {error}"));
            let is_whole = |value: &phalanx_ir::graph::ValueId| {
                model.ty(*value).shape.dims().iter().all(|extent| extent % size != 0)
            };
            let whole: Vec<_> = parameters(&model)
                .into_iter()
                .filter(is_whole)
                .map(|id| model.values()[id].name.clone())
                .collect();
            let said = left_whole(&model, &plan).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(
                said.iter().flat_map(|said| said.parameters.clone()).collect::<Vec<_>>(),
                whole,
                "{name}"
            );
            assert!(said.iter().all(|said| said.axis == "fsdp" && said.size == size));
            let parallel = parallelize(&model, &plan).unwrap_or_else(|error| panic!("{name}: {error}"));
            let one_tile = parallel.leaves(|op| matches!(op, Op::Param(_)));
            let one_tile = one_tile.filter(|&value| parallel.ty(value).tiles() == 1);
            let one_tile: Vec<_> = one_tile.map(|value| parallel.values()[value].name.clone()).collect();
            assert_eq!(one_tile, whole, "{name}");
        }
    }
}

#[test]
fn a_vocabulary_that_does_not_divide_is_named() {
    let mut config = ModelConfig::preset("gpt2", "nano").expect("a preset").with_vocab(51);
    if let ModelConfig::Gpt2(config) = &mut config {
        config.heads = 4;
    }
    let model = config.training_graph(4, 8).expect("the sizes are legal");
    let said = |name: &str, devices| {
        let plan = preset(name, devices, &model).expect("a preset");
        let said = left_whole(&model, &plan).expect("the plan suits the model");
        said.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let parameters = model.leaves(|op| matches!(op, Op::Param(_))).count();
    let text = format!(
        "1 of {parameters} parameters are whole on every device along tp=2, because what could be cut of them is not \
         divisible by 2: `transformer.wte.weight`"
    );
    assert_eq!(said("tp", 2), [text]);
    assert_eq!(said("dp", 2), [""; 0]);
    assert_eq!(said("one", 1), [""; 0]);
}
